// picture_file.js: the run on the stage as a picture of its own: its text with the marks of the stage, two numbers, the
// models and the page's address. It is drawn in the browser and in light colours, whatever the page has.
import { saveBlob } from '../core/files.js';
import { labelOf, palette } from '../core/palette.js';
/** @import { Hub } from '../core/hub.js' */
/** @import { PictureWords, ShownStep } from '../messages.d.ts' */

export const SIZE = { width: 1200, height: 630 };
const EDGE = 56, RIGHT = SIZE.width - EDGE, FOOT = 476;             // pixels: the border, where the text ends, where it has to end
const SANS = '"Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", system-ui, sans-serif';
const MONO = 'ui-monospace, Consolas, "Liberation Mono", monospace';
const TYPE = 28, LINE = 46, QUESTION = 34, SMALL = 20, NUMBER = 250, NAMES = 660;
const LEAD = /^(\s*)([\s\S]*)$/, FENCE = '```';
const MARKED = ['accepted', 'rejected', 'resampled', 'bonus'];
const BEFORE = { resampled: '↪', bonus: '+' };
const TINT = 0.14, PAD = 4, BOX = 7;                                // of a mark's ground; pixels beside a word
const OWN = ['localhost', '127.0.0.1', '[::1]'];                    // addresses that lead nobody else here

/** @typedef {{ lead: string, text: string, status: string, size: number, font: string, width: number, at: number }} Word a token, or a part of one */
/** @typedef {CanvasRenderingContext2D} Canvas */

// the colours of statuses; the greys are those of what was not judged and of a scratch
const colour = (status) => palette().statuses[status].light;
const face = (size, family = SANS, weight = 400) => `${weight} ${size}px ${family}`;

/** @param {Canvas} on @param {string} font @param {string} text */
function widthOf(on, font, text) {
  on.font = font;
  return on.measureText(text).width;
}

// ---- the text: tokens with their marks, broken into lines between words ----------------------------------------------

// The text as it stands on the stage, up to the end of its answer; a line break is a word of its own.
/** @param {Hub} hub @param {PictureWords} words @returns {[string, string, boolean][]} a text, its status, whether it is code */
function pieces({ steps, end: { answer }, head: { is_code } }, { start }) {
  /** @type {[string, string, boolean][]} */
  const made = start ? [[start, 'prompt', is_code]] : [];
  let written = '';
  const isFenced = () => written.split(FENCE).length % 2 === 0;
  for (const [at, step] of steps.entries()) {
    for (const [place, [text, status]] of step.pieces.entries()) {
      const isEnd = answer && at === answer.step && place === answer.place;
      const wasFenced = isFenced();
      if (status !== 'rejected') written += text;
      made.push([isEnd ? answer.text : text, status, is_code || wasFenced || isFenced()]);
      if (isEnd) return made;
    }
  }
  return made;
}

const padding = (status) => (status === 'resampled' ? BOX : MARKED.includes(status) ? PAD : 0);

/** @param {Canvas} on @param {[string, string, boolean]} piece @returns {Word[]} */
function wordsOf(on, [text, status, isCode], type = TYPE) {
  const size = status === 'rejected' ? Math.floor(type * 0.8) : type, font = face(size, isCode ? MONO : SANS, status === 'resampled' || status === 'bonus' ? 600 : 400);
  const parts = text.replaceAll('⏎\n', '\n').split(/(\n)/).flatMap((part) => (status === 'prompt' ? part.split(/(?= )/) : [part]));
  return parts.filter(Boolean).map((part) => {
    if (part === '\n') return { lead: '\n', text: '', status, size, font, width: 0, at: 0 };
    const [, lead, rest] = LEAD.exec(part);
    const own = widthOf(on, font, rest) + widthOf(on, face(size - 6), BEFORE[status] || '');
    return { lead, text: rest, status, size, font, width: own + 2 * padding(status), at: 0 };
  });
}

// lines of words, each word with its place from the left; words without a space between them stay together
/** @param {Canvas} on @param {Word[]} words @param {number} most @returns {{ lines: Word[][], isWhole: boolean }} */
function lay(on, words, most) {
  /** @type {Word[][]} */
  const lines = [[]];
  let x = EDGE;
  const isFull = () => lines.length > most;
  for (let from = 0; from < words.length && !isFull();) {
    const { lead, font } = words[from];
    let until = from + 1;
    if (lead === '\n') {
      if (lines.at(-1).length) lines.push([]);
      x = EDGE;
      from = until;
      continue;
    }
    while (until < words.length && !words[until].lead) until += 1;
    const group = words.slice(from, until);
    from = until;
    const width = group.reduce((sum, word) => sum + word.width, 0), gap = widthOf(on, font, lead);
    if (x + gap + width > RIGHT && lines.at(-1).length) {
      lines.push([]);
      x = EDGE;
    } else if (lines.at(-1).length || lead.length > 1) x += gap;        // what is indented stays so
    for (const word of group) {
      word.at = x;
      x += word.width;
      lines.at(-1).push(word);
    }
  }
  return { lines: lines.slice(0, most), isWhole: !isFull() };
}

// A word with the mark of its status: underline, strike, box with an arrow, plus. Never colour alone.
/** @param {Canvas} on @param {Word} word @param {number} y its base line */
function drawWord(on, { text, status, size, font, width, at }, y) {
  let x = at + padding(status);
  if (text && MARKED.includes(status)) {
    on.beginPath();
    on.roundRect(at + 1, y - size, width - 2, size + 9, 6);
    on.fillStyle = on.strokeStyle = colour(status);
    on.globalAlpha = TINT;
    on.fill();
    on.globalAlpha = 1;
    on.lineWidth = 2;
    if (status === 'resampled') on.stroke();
  }
  on.fillStyle = status === 'accepted' ? colour('plain') : status === 'prompt' ? colour('ignored') : colour(status);
  if (BEFORE[status]) {
    const small = face(size - 6);
    on.font = small;
    on.fillText(BEFORE[status], x, status === 'bonus' ? y - 7 : y);
    x += widthOf(on, small, BEFORE[status]);
  }
  on.font = font;
  on.fillText(text, x, y);
  const wide = on.measureText(text).width;
  if (status === 'rejected') {
    on.fillRect(x, y - Math.floor(size / 3), wide, 2.5);
  }
  if (status === 'accepted') {
    on.fillStyle = colour('accepted');
    on.fillRect(x, y + 6, wide, 2.5);
  }
}

/** @param {Canvas} on @param {Hub} hub @param {PictureWords} shows @param {number} top */
function drawText(on, hub, shows, top) {
  const words = pieces(hub, shows).flatMap((piece) => wordsOf(on, piece)), most = Math.floor((FOOT - top) / LINE);
  const { lines, isWhole } = lay(on, words, most);
  for (const [row, line] of lines.entries()) {
    const y = top + LINE * row, isCut = !isWhole && row === most - 1;
    const shown = isCut ? line.filter((word) => word.at + word.width < RIGHT - TYPE) : line;
    for (const word of shown) drawWord(on, word, y);
    const last = shown.at(-1);
    if (isCut) drawWord(on, { lead: '', text: ' …', status: 'prompt', size: TYPE, font: face(TYPE), width: 0, at: last ? last.at + last.width : EDGE }, y);
  }
}

// ---- what stands around it --------------------------------------------------------------------------------------------

// the text, or its beginning and an ellipsis, no wider than this
/** @param {Canvas} on @param {string} text @param {number} most */
function fitted(on, text, most) {
  if (on.measureText(text).width <= most) return text;
  const letters = [...text];
  while (letters.length && on.measureText(`${letters.join('')}…`).width > most) letters.pop();
  return `${letters.join('').trimEnd()}…`;
}

/** @param {Canvas} on @param {string} text @param {number} x @param {number} y @param {{ font: string, ink?: string, most?: number }} how */
function write(on, text, x, y, { font, ink = colour('plain'), most = RIGHT - x }) {
  on.font = font;
  on.fillStyle = ink;
  on.fillText(fitted(on, text, most), x, y);
}

/** @param {Canvas} on @param {ShownStep} last */
function drawFoot(on, { totals, context }) {
  const small = { font: face(SMALL), ink: colour('ignored') };
  on.fillStyle = 'gainsboro';
  on.fillRect(EDGE, FOOT + 18, RIGHT - EDGE, 1.5);
  const numbers = [[totals.tokens_per_call, 'tokens per pass'], [totals.accepted, totals.accepted_words]].filter(([value]) => value);
  for (const [place, [value, words]] of numbers.entries()) {
    write(on, value, EDGE + NUMBER * place, FOOT + 82, { font: face(56, SANS, 650) });
    write(on, words, EDGE + NUMBER * place, FOOT + 112, { ...small, most: NAMES - EDGE - NUMBER * place });
  }
  const names = context.filter(([role]) => ['target', 'draft', 'method'].includes(role))
    .map(([role, words]) => (role === 'method' ? words : `${role} ${words.split(',')[0]}`));    // how it is stored is left out
  names.forEach((words, place) => write(on, words, NAMES, FOOT + 56 + 28 * place, small));
  const { protocol, hostname, host, pathname } = location;
  const address = protocol.startsWith('http') && !OWN.includes(hostname) ? `${host}${pathname}` : '';
  write(on, ['specviz', address].filter(Boolean).join(' · '), NAMES, FOOT + 56 + 28 * names.length, { font: face(SMALL, SANS, 650) });
}

// the marks explain themselves
/** @param {Canvas} on */
function drawKey(on) {
  let x = RIGHT;
  for (const status of MARKED.toReversed()) {
    const [word] = wordsOf(on, [labelOf(status), status, false], SMALL);
    x -= word.width;
    drawWord(on, { ...word, at: x }, EDGE + 12);
    x -= 22;
  }
}

/** @param {Canvas} on @param {Hub} hub @param {PictureWords} shows */
export function drawPicture(on, hub, shows) {
  on.fillStyle = 'white';
  on.fillRect(0, 0, SIZE.width, SIZE.height);
  write(on, 'Speculative decoding', EDGE, EDGE + 12, { font: face(22, SANS, 650), ink: colour('ignored') });
  drawKey(on);
  if (shows.question) write(on, shows.question.replaceAll('⏎\n', ' '), EDGE, EDGE + 70, { font: face(QUESTION, SANS, 700) });
  drawText(on, hub, shows, EDGE + (shows.question ? 128 : 78));
  drawFoot(on, hub.steps[hub.steps.length - 1]);
}

/** @param {Hub} hub @param {PictureWords} shows */
export function savePicture(hub, shows) {
  const canvas = Object.assign(document.createElement('canvas'), SIZE);
  drawPicture(canvas.getContext('2d'), hub, shows);
  canvas.toBlob((blob) => saveBlob('specviz.png', blob), 'image/png');
}
