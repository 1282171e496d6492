// draws.js: the only randomness of a run. Each draw has an address (role, position, node), so a seed gives the same text as
// in Python, whatever is asked for in between.
import { keyed } from './blake2b.js';

export const DRAFT = 0;                             // roles: a drafted token, its judgement, the step's own last token
export const ACCEPT = 1;
export const FINAL = 2;
export const ROOT = -1;                             // the node of the last token of the text

/**
 * @typedef {object} Draws
 * @property {(threshold: number, role: number, position: number, node: number) => { u: number, passed: boolean }} below whether u < threshold
 * @property {(row: Float32Array, role: number, position: number, node: number) => number} sample a token drawn from a row,
 *   which need not add up to 1, only to more than 0
 */

/** @param {number} seed from 0 to 2^53 @returns {Draws} */
export function seeded(seed) {
  const key = new Uint8Array(8), address = new Uint8Array(17), view = new DataView(address.buffer);
  new DataView(key.buffer).setBigUint64(0, BigInt(seed), true);
  const hash = keyed(key);
  const uniform = (role, position, node) => {
    view.setUint8(0, role);
    view.setBigInt64(1, BigInt(position), true);
    view.setBigInt64(9, BigInt(node), true);
    return Number(hash(address) >> 11n) / 2 ** 53;
  };
  return {
    below(threshold, ...place) {
      const u = uniform(...place);
      return { u, passed: u < threshold };
    },
    sample: (row, ...place) => invert(row, uniform(...place)),
  };
}

// The first token at which the sum of the row passes u times its whole.
/** @param {Float32Array} row @param {number} u */
function invert(row, u) {
  let whole = 0, sum = 0;
  for (let token = 0; token < row.length; token += 1) whole += row[token];
  for (let token = 0; token < row.length; token += 1) {
    sum += row[token];
    if (sum > u * whole || sum === whole) return token;
  }
  return row.length - 1;                            // not-a-number
}
