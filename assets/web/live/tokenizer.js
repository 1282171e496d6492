// tokenizer.js: byte-level BPE (Sennrich et al. 2016, arXiv:1508.07909) as tokenizer.json describes it: text to ids, ids to
// bytes, and the text of ids that come one by one.
import { literal } from '../core/literal.js';

const UTF8 = new TextEncoder();

// Bytes as the letters of GPT-2's alphabet: printable ones stand for themselves, the others follow from 256 on.
function alphabet() {
  const isPrintable = (byte) => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
  let next = 256;
  return Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(isPrintable(byte) ? byte : next++));
}
const LETTERS = alphabet(), BYTES = new Map(LETTERS.map((letter, byte) => [letter, byte]));

/** @typedef {{ id: number, content: string, special: boolean }} AddedToken */
/** @typedef {{ normalizer: object | null, pre_tokenizer: object, model: { type: string, vocab: Record<string, number>, merges: string[][] }, added_tokens: AddedToken[] }} TokenizerFile */
/** @typedef {{ id: number, text: string, bytes?: string }} TokenRecord bytes: in hexadecimal, where they are not whole characters */

// The expression that splits a text before BPE. JavaScript's \s is not Unicode's white space.
/** @param {TokenizerFile} file */
function splitter({ normalizer, pre_tokenizer: whole, model }) {
  const { type, pretokenizers: [split, bytes] = [] } = /** @type {any} */ (whole ?? {});
  const isSplit = type === 'Sequence' && split?.type === 'Split' && split.behavior === 'Isolated' && split.pattern.Regex;
  if (!isSplit || bytes?.type !== 'ByteLevel' || bytes.use_regex || bytes.add_prefix_space || normalizer || model.type !== 'BPE') {
    throw new Error('a tokenizer must split a text by an expression, take it as bytes, and join them by BPE (this one does something else)');
  }
  const pattern = split.pattern.Regex.replaceAll('\\s', '\\p{White_Space}').replaceAll('\\S', '\\P{White_Space}');
  return new RegExp(pattern, 'gu');
}

export class Tokenizer {
  /** @type {Map<string, number[]>} */
  #known = new Map();

  /** @param {TokenizerFile} file */
  constructor(file) {
    const { model: { vocab, merges }, added_tokens: added } = file;
    this.split = splitter(file);
    this.vocab = new Map(Object.entries(vocab));
    this.pieces = [];                               // by id
    for (const [piece, id] of this.vocab) this.pieces[id] = piece;
    this.ranks = new Map(merges.map((pair, rank) => [pair.join(' '), rank]));
    this.added = added;
    for (const { id, content } of added) this.pieces[id] = content;
    this.special = new Set(added.map(({ id }) => id));
    this.marks = new RegExp(`(${added.map(({ content }) => literal(content)).join('|')})`, 'u');
  }

  // The ids of a text; an added token such as <|endoftext|> is one id.
  /** @param {string} text @returns {number[]} */
  encode(text) {
    const ids = [];
    text.split(this.marks).forEach((part, place) => {
      if (place % 2) ids.push(this.added.find(({ content }) => content === part).id);
      else for (const [word] of part.matchAll(this.split)) ids.push(...this.#wordIds(word));
    });
    return ids;
  }

  /** @param {string} word @returns {number[]} */
  #wordIds(word) {
    if (!this.#known.has(word)) this.#known.set(word, this.#merge(Array.from(UTF8.encode(word), (byte) => LETTERS[byte])).map((piece) => this.vocab.get(piece)));
    return this.#known.get(word);
  }

  // Joins the neighbours whose merge was learned first, again and again.
  /** @param {string[]} pieces */
  #merge(pieces) {
    for (;;) {
      let best = Infinity, pair = '';
      for (let at = 1; at < pieces.length; at += 1) {
        const both = `${pieces[at - 1]} ${pieces[at]}`, rank = this.ranks.get(both) ?? Infinity;
        if (rank < best) [best, pair] = [rank, both];
      }
      if (best === Infinity) return pieces;
      const merged = [];
      for (let at = 0; at < pieces.length; at += 1) {
        const isPair = at + 1 < pieces.length && `${pieces[at]} ${pieces[at + 1]}` === pair;
        merged.push(isPair ? pieces[at] + pieces[at += 1] : pieces[at]);
      }
      pieces = merged;
    }
  }

  /** @param {number} id */
  bytesOf(id) {
    const piece = this.pieces[id] ?? '';
    return this.special.has(id) ? UTF8.encode(piece) : Uint8Array.from(piece, (letter) => BYTES.get(letter));
  }

  // An id alone: half a character is U+FFFD.
  /** @param {number} id @returns {TokenRecord} */
  token(id) { return this.incremental(false)(id); }

  // The text of an id in a table: bytes that are no character as <F0 9F>, an id without a token as <id 7>.
  /** @param {number} id */
  label(id) { return spell(this.bytesOf(id)) || `<id ${id}>`; }

  // A function from ids that come one by one to their records; a text is empty while its character is not whole.
  incremental(stream = true) {
    const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
    /** @param {number} id @returns {TokenRecord} */
    return (id) => {
      const bytes = this.bytesOf(id), token = { id, text: decoder.decode(bytes, { stream }) };
      return isText(bytes) ? token : { ...token, bytes: hex(bytes).join('') };
    };
  }
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0'));

/** @param {Uint8Array} bytes @returns {string | null} */
function whole(bytes) {
  try { return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes); } catch (error) { return null; }
}
const isText = (bytes) => whole(bytes) !== null;

// The bytes as text; those that belong to no whole character in hexadecimal.
/** @param {Uint8Array} bytes @returns {string} */
function spell(bytes) {
  if (isText(bytes)) return whole(bytes);
  const parts = [];
  for (let at = 0; at < bytes.length;) {
    const size = [1, 2, 3, 4].find((length) => isText(bytes.subarray(at, at + length))), before = parts.at(-1);
    if (size) parts.push(whole(bytes.subarray(at, at + size)));
    else if (Array.isArray(before)) before.push(bytes[at]);
    else parts.push([bytes[at]]);
    at += size || 1;
  }
  return parts.map((part) => (Array.isArray(part) ? `<${hex(part).join(' ').toUpperCase()}>` : part)).join('');
}
