// timing.js: how long the target takes to check several tokens, next to a pass over one.
/** @import { Model } from './speculate.js' */

const TOKENS = 5, BEFORE = 32;                      // of a pass that is timed, and in front of it
const PASSES = 16, BLOCKS = 8;                      // that are timed together, and how often
const LEAST = 5, AGREE = 1.1;                       // milliseconds of a block; how far the two fastest blocks may lie apart

// How many passes over one token take as long as one over TOKENS: by the fastest of blocks that take turns, since whatever
// else is at work only adds time. null where the clock is too coarse for a block, where the two fastest do not agree, or where
// more tokens seem to take less time. goOn: asked between two blocks; null as well where it says no.
/** @param {Pick<Model, 'forward'>} model @param {() => Promise<boolean>} goOn @returns {Promise<number | null>} */
export async function timePasses(model, goOn) {
  const text = Array.from({ length: BEFORE }, (_, at) => at + 1), sizes = [1, TOKENS], blocks = sizes.map(() => []);
  for (let block = 0; block < BLOCKS; block += 1) {
    for (const [place, size] of sizes.entries()) {
      const started = performance.now();
      for (let pass = 0; pass < PASSES; pass += 1) model.forward([...text, ...text.slice(0, size)], size);
      blocks[place].push(performance.now() - started);
      if (!await goOn()) return null;
    }
  }
  const [one, several] = blocks.map((times) => times.sort((first, second) => first - second));
  const isSure = [one, several].every(([fastest, next]) => next < AGREE * fastest);
  return isSure && one[0] >= LEAST && several[0] >= one[0] ? several[0] / one[0] : null;
}
