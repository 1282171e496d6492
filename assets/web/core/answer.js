// answer.js: an answer of the server, which may be away.

// the answer; null where none comes
/** @template T @param {Promise<T>} question @returns {Promise<T | null>} */
export const answerOf = async (question) => { try { return await question; } catch (error) { return null; } };
