// kernel.js: room for a model's numbers, and the product of a matrix with several tokens' states: by the WebAssembly of
// kernel.wat where a browser may run it (SIMD; a page's policy may forbid it), else in plain JavaScript.
import { bytesOf } from '../core/base64.js';

const PAGE = 65536;                                 // bytes: WebAssembly's unit of memory
const BINARY = 'AGFzbQEAAAABCwFgB39/f39/f38AAhIBBmtlcm5lbAZtZW1vcnkCAAEDAgEABwwBCG11bHRpcGx5AAAKyQMBxgMCCX8FeyABQQJ0IQEgBUECdCEJIAAhCgNAIAogAWohCyALIAFqIQwgDCABaiENQQAhCCACIQ4DQP0MAAAAAAAAAAAAAAAAAAAAACER/QwAAAAAAAAAAAAAAAAAAAAAIRL9DAAAAAAAAAAAAAAAAAAAAAAhE/0MAAAAAAAAAAAAAAAAAAAAACEUQQAhDwNAIA4gD2r9AAQAIRAgESAQIAogD2r9AAQA/eYB/eQBIREgEiAQIAsgD2r9AAQA/eYB/eQBIRIgEyAQIAwgD2r9AAQA/eYB/eQBIRMgFCAQIA0gD2r9AAQA/eYB/eQBIRQgD0EQaiIPIAlJDQALIBEgEv0NAAECAxAREhMICQoLGBkaGyARIBL9DQQFBgcUFRYXDA0ODxwdHh/95AEhECATIBT9DQABAgMQERITCAkKCxgZGhsgEyAU/Q0EBQYHFBUWFwwNDg8cHR4f/eQBIRMgAyAIIAZsIAdqQQJ0aiAQIBP9DQABAgMEBQYHEBESExQVFhcgECAT/Q0ICQoLDA0ODxgZGhscHR4f/eQB/QsEACAOIAlqIQ4gCEEBaiIIIARJDQALIA0gAWohCiAHQQRqIgcgBkkNAAsL';

/**
 * @typedef {object} Kernel
 * @property {boolean} isFast whether WebAssembly computes
 * @property {(length: number) => Float32Array} room numbers that stay, all 0 at first; matrices lie in such rooms
 * @property {(weights: Float32Array, states: Float32Array, tokens: number, shape: { out: number, stride?: number }) => Float32Array} multiply
 *   The products [tokens, out] of a matrix [out, in] with the states [tokens, in]. The matrix is the beginning of `weights`,
 *   `stride` numbers lie between the beginnings of its rows (without it: in). The result lasts until the next product.
 *   in and out are multiples of 4.
 */

// Room for so many numbers, and for products with at most `most` states and results, counted over all tokens.
/** @param {number} numbers @param {number} most @returns {Kernel} */
export function makeKernel(numbers, most) {
  try {
    return fastKernel(numbers + 2 * most, most);
  } catch (error) {                                 // no WebAssembly, none with SIMD, or none allowed here
    return plainKernel(most);
  }
}

/** @param {number} numbers @param {number} most @returns {Kernel} */
function fastKernel(numbers, most) {
  const memory = new WebAssembly.Memory({ initial: Math.ceil(4 * numbers / PAGE) });
  const { exports } = new WebAssembly.Instance(new WebAssembly.Module(bytesOf(BINARY)), { kernel: { memory } });
  const compute = /** @type {(weights: number, stride: number, states: number, results: number, tokens: number, in_: number, out: number) => void} */ (exports.multiply);
  let end = 0;
  const room = (length) => {
    const made = new Float32Array(memory.buffer, 4 * end, length);
    end += 4 * Math.ceil(length / 4);
    return made;
  };
  const given = room(most), results = room(most);
  return {
    isFast: true,
    room,
    multiply(weights, states, tokens, { out, stride }) {
      const width = states.length / tokens;
      given.set(states);
      compute(weights.byteOffset, stride || width, given.byteOffset, results.byteOffset, tokens, width, out);
      return results.subarray(0, tokens * out);
    },
  };
}

/** @param {number} most @returns {Kernel} */
export function plainKernel(most) {
  const results = new Float32Array(most);
  return {
    isFast: false,
    room: (length) => new Float32Array(length),
    multiply(weights, states, tokens, { out, stride }) {
      const width = states.length / tokens;
      for (let row = 0; row < out; row += 1) {
        const start = row * (stride || width);
        for (let token = 0; token < tokens; token += 1) {
          const from = token * width;
          let a = 0, b = 0, c = 0, d = 0;           // four sums: a processor adds to one while it waits for another
          for (let i = 0; i < width; i += 4) {
            a += weights[start + i] * states[from + i];
            b += weights[start + i + 1] * states[from + i + 1];
            c += weights[start + i + 2] * states[from + i + 2];
            d += weights[start + i + 3] * states[from + i + 3];
          }
          results[token * out + row] = a + b + c + d;
        }
      }
      return results.subarray(0, tokens * out);
    },
  };
}
