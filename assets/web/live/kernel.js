// kernel.js: room for a model's numbers, and the product of a matrix with several tokens' states: by the WebAssembly of
// kernel.wat where a browser may run it (SIMD; a page's policy may forbid it), else in plain JavaScript.
import { bytesOf } from '../core/base64.js';

const PLACES = [0, 1, 2, 3, 4];                     // of the tokens that are computed together
const PAGE = 65536;                                 // bytes: WebAssembly's unit of memory
const BINARY = 'AGFzbQEAAAABIANgBn9/f39/fwBgDn9/f39/f39/f39/f39/AGABewF9AhIBBmtlcm5lbAZtZW1vcnkCAAEDBAMAAQIHDgIDb25lAAAEZml2ZQABCuUDA3YCAn8BeyACQQJ0IQYDQP0MAAAAAAAAAAAAAAAAAAAAACEIQQAhBwNAIAggACAHav0ABAAgBCAHav0ABAD95gH95AEhCCAHQRBqIgcgBkkNAAsgBSAIEAI4AgAgBUEEaiEFIAAgAUECdGohACADQQFrIgMNAAsL0QICA38GeyACQQJ0IQ4DQP0MAAAAAAAAAAAAAAAAAAAAACES/QwAAAAAAAAAAAAAAAAAAAAAIRP9DAAAAAAAAAAAAAAAAAAAAAAhFP0MAAAAAAAAAAAAAAAAAAAAACEV/QwAAAAAAAAAAAAAAAAAAAAAIRZBACEPA0AgACAPav0ABAAhESASIBEgBCAPav0ABAD95gH95AEhEiATIBEgBSAPav0ABAD95gH95AEhEyAUIBEgBiAPav0ABAD95gH95AEhFCAVIBEgByAPav0ABAD95gH95AEhFSAWIBEgCCAPav0ABAD95gH95AEhFiAPQRBqIg8gDkkNAAsgCSAQaiASEAI4AgAgCiAQaiATEAI4AgAgCyAQaiAUEAI4AgAgDCAQaiAVEAI4AgAgDSAQaiAWEAI4AgAgEEEEaiEQIAAgAUECdGohACADQQFrIgMNAAsLGQAgAP0fACAA/R8BkiAA/R8CIAD9HwOSkgs=';

/**
 * @typedef {object} Kernel
 * @property {boolean} isFast whether WebAssembly computes
 * @property {(length: number) => Float32Array} room numbers that stay, all 0 at first; matrices lie in such rooms
 * @property {(weights: Float32Array, states: Float32Array, tokens: number, shape: { out: number, stride?: number }) => Float32Array} multiply
 *   The products [tokens, out] of a matrix [out, in] with the states [tokens, in]. The matrix is the beginning of `weights`,
 *   `stride` numbers lie between the beginnings of its rows (without it: in). The result lasts until the next product.
 *   in is a multiple of 4.
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
  const { one, five } = /** @type {Record<string, (...places: number[]) => void>} */ (exports);
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
      const width = states.length / tokens, matrix = [weights.byteOffset, stride || width, width, out];
      const from = (token) => given.byteOffset + 4 * token * width, to = (token) => results.byteOffset + 4 * token * out;
      given.set(states);
      for (let first = 0; first < tokens; first += PLACES.length) {
        if (first === tokens - 1) one(...matrix, from(first), to(first));
        else {
          const group = PLACES.map((place) => Math.min(first + place, tokens - 1));    // the last one stands in for those that lack
          five(...matrix, ...group.map(from), ...group.map(to));
        }
      }
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
