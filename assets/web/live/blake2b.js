// blake2b.js: the hash BLAKE2b (RFC 7693) with a key, eight bytes long, for messages of one block. Draws are made of it, as in Python.

const INITIAL = [
  0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
  0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
];
const ORDER = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4], [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13], [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11], [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5], [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
];
const MIXED = [[0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15], [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14]];
const ROUNDS = 12, BLOCK = 128, SIZE = 8;           // bytes of a block and of the hash

/** @param {bigint} number */
const wrap = (number) => BigInt.asUintN(64, number);
/** @param {bigint} number @param {bigint} by */
const turn = (number, by) => wrap((number >> by) | (number << (64n - by)));

// One block into the state. end: how many bytes there were up to its end; isLast: whether none follow.
/** @param {bigint[]} state @param {Uint8Array} block @param {number} end @param {boolean} isLast @returns {bigint[]} */
function compress(state, block, end, isLast) {
  const view = new DataView(block.buffer), words = Array.from({ length: 16 }, (_, at) => view.getBigUint64(8 * at, true));
  const v = [...state, ...INITIAL];
  v[12] ^= BigInt(end);
  if (isLast) v[14] = wrap(~v[14]);
  for (let round = 0; round < ROUNDS; round += 1) {
    const order = ORDER[round % 10];
    MIXED.forEach(([a, b, c, d], at) => {
      v[a] = wrap(v[a] + v[b] + words[order[2 * at]]);
      v[d] = turn(v[d] ^ v[a], 32n);
      v[c] = wrap(v[c] + v[d]);
      v[b] = turn(v[b] ^ v[c], 24n);
      v[a] = wrap(v[a] + v[b] + words[order[2 * at + 1]]);
      v[d] = turn(v[d] ^ v[a], 16n);
      v[c] = wrap(v[c] + v[d]);
      v[b] = turn(v[b] ^ v[c], 63n);
    });
  }
  return state.map((word, at) => word ^ v[at] ^ v[at + 8]);
}

function padded(bytes) {
  const block = new Uint8Array(BLOCK);
  block.set(bytes);
  return block;
}

// A function that hashes messages of at most 128 bytes under this key, which is at least one byte long.
/** @param {Uint8Array} key */
export function keyed(key) {
  const [first, ...others] = INITIAL, start = [first ^ BigInt(0x01010000 + (key.length << 8) + SIZE), ...others];
  const state = compress(start, padded(key), BLOCK, false);
  /** @param {Uint8Array} message */
  return (message) => compress(state, padded(message), BLOCK + message.length, true)[0];
}
