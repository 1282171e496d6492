// get_card.js: the card under the stage that fetches a real model. Its words and its progress come from Python.
import { store, stored } from './core/memory.js';
import { html } from './core/html.js';
import { render } from './vendor/preact_htm.js';
/** @import { Host } from './core/hub.js' */
/** @import { GetCard as Told } from './messages.d.ts' */

const CLOSED = 'specviz-get-closed';

/** @param {Told & { trigger: Host['trigger'], close: () => void }} props */
export const GetCard = ({ words, about, progress, is_here: isHere, trigger, close }) => html`
  <p class="sv-get-words" title=${about} role="status">${words}</p>
  ${progress && html`<span class="sv-progress" role="progressbar" aria-label=${words} aria-valuemin="0" aria-valuemax="100" aria-valuenow=${progress.width}>
    <span class="sv-progress-bar" style=${{ width: `${progress.width}%` }} /></span><span class="sv-progress-words">${progress.words}</span>`}
  ${progress ? html`<button type="button" class="sv-button" onClick=${() => trigger('stop', {})}>Stop</button>`
    : html`<button type="button" class="sv-button sv-get-main" onClick=${() => { if (isHere) close(); trigger(isHere ? 'run' : 'get', {}); }}>${isHere ? 'Run it' : 'Get it'}</button>
      <button type="button" class="sv-button sv-icon" aria-label="close" onClick=${close}>×</button>`}`;

/** @param {HTMLElement} holder @param {Host} host */
export function mountGetCard(holder, { props, watch, trigger }) {
  const box = holder.querySelector('.sv-get-card');
  const close = () => {
    store(CLOSED, 'yes', false);
    box.remove();
  };
  const show = () => render(html`<${GetCard} ...${JSON.parse(props.value)} trigger=${trigger} close=${close} />`, box);
  if (stored(CLOSED, false)) return box.remove();
  watch('value', show);
  return show();
}
