// words_of.js: what a person is told of an error.

/** @param {unknown} error */
export const wordsOf = (error) => (error instanceof Error ? error.message : String(error));
