// guide.js: the help beside the page: the marks, a row of the lanes, the bars of one token, the keys, and the documents.
// Its pictures are the stage's own parts, made of the same classes; its words on marks, bars and keys are the stage's.
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { chooseLanguage, chosenLanguage, LANGUAGES } from '../core/language.js';
import { render, useLayoutEffect, useRef } from '../vendor/preact_htm.js';
import { drawCell } from './lanes.js';

/** @type {[Parameters<typeof drawCell>[0], string][]} */
const CELLS = [
  [{ status: 'accepted', text: '␣little', fill: 90, tick: 40, label: '90 %' }, 'The draft wrote this token. The bar is its chance to be accepted, the tick is the random draw. The tick lies inside the bar: accepted.'],
  [{ status: 'rejected', text: '␣dog', fill: 25, tick: 71, label: '25 %' }, 'The tick lies outside the bar: rejected.'],
  [{ status: 'ignored', text: '␣ran' }, 'It stands behind a rejected token, so nobody judged it.'],
  [{ status: 'resampled', text: '␣fox' }, 'The last cell of a row is the target\'s own token. Here it takes the place of the rejected one.'],
];
const CHOICES = { '': 'as in the browser', en: 'English', ...LANGUAGES };
const DOCUMENTS = { 'pages.md': 'The pages and their controls', 'methods.md': 'Methods and rules', 'teaching.md': 'Teach a class', 'README.md': 'All documents, and a list of words' };

// What the stage has already: it is drawn once more, as it is.
function Again({ of }) {
  const box = useRef();
  useLayoutEffect(() => box.current.replaceChildren(...[...document.querySelectorAll(`#stage ${of}`)].map((each) => each.cloneNode(true))), []);
  return html`<div ref=${box} />`;
}

/** @param {{ cell: Parameters<typeof drawCell>[0] }} props */
function Cell({ cell }) {
  const box = useRef();
  useLayoutEffect(() => box.current.replaceChildren(drawCell(cell)), []);
  return html`<div class="sv-guide-cell" inert aria-hidden="true" ref=${box} />`;
}

const Guide = () => html`<h2>Help</h2>
  <p>A small model, the draft, guesses the next tokens. A large one, the target, checks all of them in one pass.</p>
  <h3>Marks in the text</h3><${Again} of=".sv-welcome .sv-marks" />
  <h3>A row of the lanes is one step</h3><ul class="sv-guide-cells">${CELLS.map(([cell, words]) => html`<li><${Cell} cell=${cell} /><p>${words}</p></li>`)}</ul>
  <h3>How one token is judged</h3><${Again} of=".sv-welcome-probabilities > :not(h2)" />
  <h3>Keys on the stage</h3><${Again} of=".sv-keys > p" />
  <h3>Language</h3><p><select aria-label="Language" onChange=${({ target }) => chooseLanguage(target.value)}>${Object.entries(CHOICES).map(([name, words]) => html`
    <option value=${name} selected=${name === chosenLanguage()} ...${name ? VERBATIM : {}}>${words}</option>`)}</select></p>
  <h3>The live page</h3><p>There this browser computes, not the server: <a href="live/" target="_blank" rel="noopener">open the live page</a>.</p>
  <h3>Documents</h3><ul class="sv-guide-documents">${Object.entries(DOCUMENTS).map(([file, words]) => html`<li><a href="specviz/docs/${file}" target="_blank" rel="noopener">${words}</a></li>`)}</ul>`;

// It is drawn when it is first opened: by then the stage has its words.
/** @param {HTMLElement} element */
export function guide(element) {
  const opened = new MutationObserver(() => {
    opened.disconnect();
    render(html`<section class="sv-stage sv-guide" aria-label="Help"><${Guide} /></section>`, element.querySelector('.sv-panel'));
  });
  opened.observe(document.documentElement, { attributeFilter: ['data-sv-guide'] });
}
