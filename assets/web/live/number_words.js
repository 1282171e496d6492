// number_words.js: numbers and token texts as the page writes them; the same words as views/words.py gives.

const NO_BREAK = '\u00a0', PERCENT = `${NO_BREAK}%`, SPACE = '␣', LINE_BREAK = '\n';
const GLYPHS = { [LINE_BREAK]: '⏎', '\r': '␍', '\t': '⇥' };
const STEERING = /(?![\u200c\u200d])[\p{Cc}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}\p{Cf}]/gu;
const MOST_LABEL = 48;                              // characters of a token
const ROUGH = .05, NEAR_TIE = 1e-6, HALF_UP = 1e-9, ROUND_UP = .5 + HALF_UP;
export const TINY = 1e-5;                           // a smaller share is called less than 0.001 %

// An exact half goes to the even digit, as in Python.
/** @param {number} value @param {number} digits */
export function fixed(value, digits) {
  const scaled = value * 10 ** digits, isHalf = Number.isInteger(value * 2 ** 20) && scaled % 1 === .5;
  return (isHalf && Math.floor(scaled) % 2 === 0 ? Math.floor(scaled) / 10 ** digits : value).toFixed(digits);
}

// A share in percent: 0.634 -> "63 %", 0.0634 -> "6.3 %"; 0 % and 100 % only if it is exactly that.
/** @param {number} share */
export function percent(share) {
  if ((share >= .0005 && share < .0995) || (share >= .995 && share < .9995)) return `${(Math.floor(1000 * share + ROUND_UP) / 10).toFixed(1)}${PERCENT}`;
  if (share > 0 && share < .0005) return `<0.1${PERCENT}`;
  if (share >= .9995 && share < 1 - 1e-9) return `>99.9${PERCENT}`;
  return `${Math.floor(100 * share + ROUND_UP)}${PERCENT}`;
}

function hundredths(share, moreDigits) {
  const isFine = (share > 0 && share < .0995) || (share >= .995 && share < 1 - 1e-9);
  return (100 * share + HALF_UP).toFixed(Number(isFine) + moreDigits);
}

function roundShare(share, moreDigits) {
  let word = '';
  for (let digits = moreDigits; digits < 7; digits += 1) {
    word = hundredths(share, digits);
    if (share < TINY || Math.abs(Number(word) - 100 * share) <= ROUGH * 100 * share) break;
  }
  return word;
}

// Two shares as percent numbers without the sign, with few digits, but enough to tell different shares apart.
/** @param {number} first @param {number} second */
export function percents(first, second) {
  let words = ['', ''];
  for (let digits = 0; digits < 7; digits += 1) {
    words = [roundShare(first, digits), roundShare(second, digits)];
    if (words[0] !== words[1] || first === second) break;
  }
  return words;
}

// Whether the two printed numbers, divided, give the percentage that is printed in `words`.
/** @param {string} part @param {string} whole @param {string} words */
export function divides(part, whole, words) {
  const number = words.replace(PERCENT, ''), [, decimals = ''] = number.split('.');
  return (100 * Number(part) / Number(whole) + HALF_UP).toFixed(decimals.length) === number;
}

// The chance and the random draw u, with enough digits to see which is larger.
/** @param {number} chance @param {number} u */
export function randomDraw(chance, u) {
  let words = [percent(chance), fixed(u, 2)];
  for (let digits = 1; digits < 7; digits += 1) {
    const bound = Number(words[0].replace(/[<>]|\s%/g, '')), fell = 100 * Number(words[1]);
    if (bound !== fell && (fell < bound) === (u < chance)) break;
    words = [`${fixed(100 * chance, digits)}${PERCENT}`, fixed(u, digits + 2)];
  }
  return words;
}

/** @param {number} value */
export function shorten(value, digits = 2) {
  const scale = 10 ** digits, scaled = value * scale + .5, whole = Math.floor(scaled);
  return scaled - whole > NEAR_TIE && scaled - whole < 1 - NEAR_TIE ? whole / scale : Number(fixed(value, digits));
}

// Control and direction characters are written out; ordinary spaces stay.
/** @param {string} text */
const reveal = (text) => text.replace(STEERING, (char) => GLYPHS[char] ?? `⟨${char.codePointAt(0).toString(16).toUpperCase().padStart(4, '0')}⟩`);

// A token as one short visible word: spaces at its ends as ␣, half characters as <F0 9F>.
/** @param {string} text @param {string} [half] */
export function label(text, half) {
  if (half && (!text || text.includes('\ufffd'))) return `<${half.slice(0, 24).toUpperCase().match(/../g).join(' ')}>`;
  const shown = [...reveal(text).replace(/^ +| +$/g, (spaces) => SPACE.repeat(spaces.length))];
  return shown.length <= MOST_LABEL ? shown.join('') : `${shown.slice(0, MOST_LABEL - 1).join('')}…`;
}

/** @param {{ text: string, bytes?: string }} token */
export const tokenLabel = ({ text, bytes }) => label(text, bytes);

// A token inside a sentence: without its leading space, and in quotation marks if it is no word.
/** @param {{ text: string, bytes?: string }} token */
export function quote(token) {
  const shown = tokenLabel(token), word = /[^␣]/.test(shown) ? shown.replace(/^␣/, '') : shown;
  return /[\p{L}\p{N}]/u.test(word) ? word : `“${word}”`;
}

// Text for reading: line breaks shown and kept.
/** @param {string} text */
export const prose = (text) => text.split(LINE_BREAK).map(reveal).join(`${GLYPHS[LINE_BREAK]}${LINE_BREAK}`);

// One short word that breaks no line, its leading spaces left plain.
/** @param {{ text: string, bytes?: string }} token */
export function shortText(token) {
  const shown = tokenLabel(token), word = shown.replace(/^␣+/, '');
  return word ? word.padStart(shown.length) : shown;
}

// The sentence of a template: "{name}" stands for a number, "[name]" for a token to set off, which every second part is.
/** @param {string} template @param {Record<string, string>} values @returns {string[]} */
export const say = (template, values) => template.split(/\[(\w+)\]/).map((part, place) => (
  place % 2 ? values[part] : part.replace(/\{(\w+)\}/g, (_, name) => values[name])));
