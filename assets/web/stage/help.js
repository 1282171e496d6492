// help.js: the panel that says what the chosen method does and what the rule in force means. Text only; a link leads to
// arXiv or nowhere.
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { render } from '../vendor/preact_htm.js';
/** @import { Host } from '../core/hub.js' */
/** @import { MethodHelp, RuleHelp } from '../messages.d.ts' */

const PAPERS = 'https://arxiv.org/abs/';

/** @param {MethodHelp['sources'][0]} source @param {number} place */
const paper = ([words, address], place) => [place ? ' · ' : '', address && address.startsWith(PAPERS)
  ? html`<a href=${address} target="_blank" rel="noopener noreferrer">${words}</a>` : html`<span>${words}</span>`];

/** @param {RuleHelp} rule */
const Rule = ({ title, badge, meaning, summary }) => html`<p class="sv-help-rule"><span
  class="sv-help-badge sv-help-${badge === 'exact' ? 'exact' : 'lossy'}">${badge}</span> <b ...${VERBATIM}>${`${title}.`}</b>${` ${summary} ${meaning}`}</p>`;

/** @param {MethodHelp} help */
export const Help = ({ summary, caution, sources, lacks, rule, notes }) => html`
  ${lacks && html`<p class="sv-help-lacks">${lacks}</p>`}${[summary, caution].filter(Boolean).map((words) => html`<p>${words}</p>`)}
  ${sources.length > 0 && html`<p class="sv-help-from" ...${VERBATIM}>${sources.map(paper)}</p>`}${rule && html`<${Rule} ...${rule} />`}
  ${notes.map((words) => html`<p class="sv-help-note">${words}</p>`)}`;

// holder: holds .sv-help; props.value changes with the method and the rule.
/** @param {HTMLElement} holder @param {Pick<Host, 'props' | 'watch'>} host */
export function mountHelp(holder, { props, watch }) {
  const box = holder.querySelector('.sv-help');
  const show = () => {
    /** @type {MethodHelp | null} */
    const help = props.value ? JSON.parse(props.value) : null;
    box.hidden = !help;
    if (!help) return;
    box.setAttribute('aria-label', `About the method: ${help.title}`);
    render(html`<${Help} ...${help} />`, box);
  };
  watch('value', show);
  show();
}
