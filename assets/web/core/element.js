// element.js: small makers of elements: text only, never markup.
import { html } from './html.js';

export function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

// What no translator may change: tokens, probabilities, code, names of models and methods. For an element, or in html.
export const VERBATIM = { translate: false };
export const verbatim = (tag, className, text) => Object.assign(element(tag, className, text), VERBATIM);

export function button(className, words, press) {
  const made = Object.assign(element('button', className, words), { type: 'button' });
  if (press) made.addEventListener('click', press);
  return made;
}

// A sentence is a list of texts; every second one is set off: a token, a number or a name.
/** @param {Element} host @param {string[]} parts */
export function sentence(host, parts) {
  host.replaceChildren(...parts.map((part, place) => (place % 2 ? verbatim('b', 'sv-word', part) : document.createTextNode(part))));
}

// the same among what preact draws; words: a text, or such a list
/** @param {string | string[]} words */
export const worded = (words) => [words].flat().map((part, place) => (place % 2 ? html`<b class="sv-word" ...${VERBATIM}>${part}</b>` : part));

// 1234 -> "1,234"
/** @param {number} number */
export const spelled = (number) => number.toLocaleString('en-US');

// whether the person wants nothing to move
export const isStill = () => window.matchMedia('(prefers-reduced-motion: reduce)').matches;

// However often it is asked for, once per painted frame: layout is read and written only there.
export function framed(work) {
  let isDue = false;
  return () => {
    if (isDue) return;
    isDue = true;
    requestAnimationFrame(() => { isDue = false; work(); });
  };
}
