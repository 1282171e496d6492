// weights.js: the tensors of a model, from the bytes of its safetensors files: a header in JSON, then the numbers.

const FLOAT16 = float16Values();
const READERS = {
  F16: (raw, room) => new Uint16Array(raw).forEach((bits, place) => { room[place] = FLOAT16[bits]; }),
  F32: (raw, room) => room.set(new Float32Array(raw)),
};
const BYTES = { F16: 2, F32: 4 };                   // of a number

// All 65,536 numbers of float16: a sign, 5 bits of exponent, 10 of the fraction.
function float16Values() {
  return Float32Array.from({ length: 1 << 16 }, (_, bits) => {
    const sign = bits >> 15 ? -1 : 1, exponent = (bits >> 10) & 31, fraction = bits & 1023;
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return exponent ? sign * (1 + fraction / 1024) * 2 ** (exponent - 15) : sign * fraction * 2 ** -24;
  });
}

function parsed(bytes) {
  try { return JSON.parse(new TextDecoder().decode(bytes)); } catch (error) { throw new Error('the weights are damaged: their header is no JSON'); }
}

/** @typedef {{ name: string, dtype: string, length: number, raw: ArrayBuffer }} StoredTensor length: how many numbers */

// What a file holds, its numbers not yet read. Throws an Error for bytes that are no safetensors file.
/** @param {Uint8Array} bytes @returns {StoredTensor[]} */
export function storedTensors(bytes) {
  const size = bytes.length < 8 ? NaN : Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  if (!(size <= bytes.length - 8)) throw new Error(`the weights are no whole safetensors file (got ${bytes.length} bytes)`);
  const numbers = bytes.subarray(8 + size);
  const { __metadata__, ...header } = parsed(bytes.subarray(8, 8 + size));
  return Object.entries(header).map(([name, { dtype, shape, data_offsets: [start, end] }]) => {
    if (!Object.hasOwn(READERS, dtype)) throw new Error(`weights must be float16 or float32 (got ${dtype} for ${name})`);
    const length = shape.reduce((product, side) => product * side, 1), raw = numbers.slice(start, end).buffer;
    if (raw.byteLength !== BYTES[dtype] * length) throw new Error(`the weights are damaged or not whole: ${name} has ${raw.byteLength} bytes for ${length} numbers`);
    return { name, dtype, length, raw };
  });
}

// Reads a tensor's numbers as float32 into `room`, which is as long as the tensor.
/** @param {StoredTensor} tensor @param {Float32Array} room */
export function readNumbers({ dtype, raw }, room) {
  READERS[dtype](raw, room);
  return room;
}
