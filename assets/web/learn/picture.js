// picture.js: what a lesson is about, drawn from its own recorded runs: lanes of tokens, or bars. Nothing is reckoned here.
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
/** @import { BarRow, LessonPicture } from '../messages.d.ts' */

/** @typedef {LessonPicture['lanes'][0]} Lane */
/** @param {Lane[1][0]} cell */
const cell = ([text, status]) => html`<span class="sv-picture-cell sv-is-${status}" ...${VERBATIM}><span>${text}</span></span>`;

/** @param {Lane} lane */
const lane = ([words, cells]) => html`<div class="sv-picture-lane"><span class="sv-picture-words">${words}</span>
  <span class="sv-picture-cells">${cells.map(cell)}</span></div>`;

/** @param {BarRow} row */
const bar = ({ label, parts, tick }) => html`<div class="sv-picture-lane"><span class="sv-picture-words" ...${VERBATIM}>${label}</span>
  <span class="sv-picture-bar">${parts.map(([tone, width]) => html`<span class="sv-part sv-fill-${tone}" style=${{ width: `${width}%` }} />`)}
    ${tick !== null && html`<span class="sv-track-tick" style=${{ left: `${tick}%` }} />`}</span></div>`;

/** @param {{ picture: LessonPicture }} props */
export const Picture = ({ picture: { words, lanes = [], bars = [] } }) => (words ? html`
  <div class="sv-picture" role="img" aria-label="Picture: ${words}">${lanes.map(lane)}${bars.map(bar)}</div>` : null);
