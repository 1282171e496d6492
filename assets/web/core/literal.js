// literal.js: a text as an expression that finds exactly it.

/** @param {string} text */
export const literal = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, '\\$&');
