// places.js: things to open, each behind a link to a place of this page.
import { html } from '../core/html.js';
/** @import { PlacesBlock } from '../messages.d.ts' */

/** @param {{ block: PlacesBlock }} props */
export const Places = ({ block: { entries } }) => html`<ul class="sv-block sv-plan sv-places">${entries.map(({ href, title, words, facts }) => html`
  <li class="sv-plan-entry"><h3 class="sv-plan-title">${title}</h3><p class="sv-plan-question">${words}</p><p class="sv-plan-wrong">${facts}</p>
    <a class="sv-button" href=${href} aria-label="Open: ${title}">Open</a></li>`)}</ul>`;
