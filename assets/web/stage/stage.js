// stage.js: mounts the Explore stage: one hub, its views, the keyboard, and one spoken message per step.
import { Hub, streamSource } from '../core/hub.js';
import { recall, remember } from '../core/memory.js';
import { labelOf } from '../core/palette.js';
import { Charts } from './charts.js';
import { EveryK } from './every_k.js';
import { Inspector } from './inspector.js';
import { Lanes } from './lanes.js';
import { Legend } from './legend.js';
import { Next } from './next.js';
import { Numbers } from './numbers.js';
import { Opening } from './opening.js';
import { Player } from './player.js';
import { TextView } from './text.js';
/** @import { Host, Source, StageServer } from '../core/hub.js' */
/** @import { TokenPlace } from '../messages.d.ts' */

const SPOKEN = 2000;                                // milliseconds between two messages of the live region
export const SETTLED = 120;                         // milliseconds until a text that has just arrived rests at its end
/** @type {(new (root: HTMLElement, hub: Hub, host: Pick<Host, 'trigger'>) => unknown)[]} */
const VIEWS = [Numbers, Legend, TextView, Lanes, Inspector, Player, Charts, Next];
const FIELDS = 'input, select, textarea, [contenteditable]';

/** @param {HTMLElement} root @param {Hub} hub */
function speak(root, hub) {
  const region = root.querySelector('.sv-live');
  let waiting = '', timer = 0, told = '';
  const say = () => {
    timer = 0;
    if (!waiting) return;
    region.textContent = waiting;
    waiting = '';
    timer = setTimeout(say, SPOKEN);
  };
  const tell = (words) => {
    waiting = words;
    if (!timer) say();
  };
  hub.on('cursor', ({ to }) => { if (to) tell(hub.steps[to - 1].say); });
  hub.on('info', () => {                            // the end, a pause
    const words = hub.head?.recorded ? '' : hub.end?.words ?? (['paused', 'finished'].includes(hub.state?.name) ? hub.state.words : '');
    if (words && words !== told) tell(`${waiting} ${words}`.trim());
    told = words;
  });
}

// The opening: at a first visit by itself, later for the step that is selected. Only a server can tell it.
/** @param {HTMLElement} root @param {Hub} hub @param {StageServer} [server] */
function openings(root, hub, server) {
  const asks = root.querySelectorAll('[data-do="opening"]');
  for (const each of [...asks, root.querySelector('.sv-keys-opening')]) each.hidden = !server;
  if (!server) return () => {};
  const opening = new Opening(root, {
    ask: (wanted) => server.opening(wanted),
    leave: (where) => document.dispatchEvent(new CustomEvent('sv-opened', { detail: where })),
  });
  const again = () => hub.selected() && opening.open({ run: hub.run, step: hub.selected().step });
  for (const each of asks) each.addEventListener('click', again);
  hub.on('opening', async () => {                            // the step that was explained is the one that is shown then
    const told = await opening.open({ run: hub.run }), step = told && hub.steps[told.step - 1];
    if (step) hub.pin(told.step - 1, step.focus, 'found');
  });
  hub.on('reset', () => opening.show(false));                // another run takes the stage
  return again;
}

/** @param {HTMLElement} root @param {Hub} hub @param {() => void} again */
function keys(root, hub, again) {
  const actions = {
    ArrowLeft: () => hub.moveToken(-1),
    ArrowRight: () => hub.moveToken(1),
    ArrowUp: () => hub.moveStep(-1),
    ArrowDown: () => hub.moveStep(1),
    Home: () => hub.pinStep(0),
    End: () => hub.pinStep(hub.cursor - 1),
    Escape: () => hub.release(),
    ' ': () => hub.toggle(),
    p: () => document.dispatchEvent(new Event('sv-present')),
    '?': again,
  };
  const single = /** @type {HTMLInputElement} */ (root.querySelector('.sv-keys-on'));
  single.checked = recall('keys', [true, false]);
  single.addEventListener('change', () => remember('keys', single.checked));
  root.addEventListener('keydown', (event) => {
    const action = actions[event.key], target = /** @type {Element} */ (event.target);
    if (!action || event.ctrlKey || event.metaKey || event.altKey || target.closest(FIELDS)) return;
    if (event.key === ' ' && target.closest('button, summary, a') && !target.closest('.sv-cell')) return;
    if (!single.checked && event.key !== 'Escape') return;
    if (event.key === 'Escape' && !hub.pinned && !hub.hovered) return;    // the page's own Escape
    event.preventDefault();
    event.stopPropagation();
    action();
  });
}

function names(root) {
  for (const node of root.querySelectorAll('[data-name-of]')) node.textContent = labelOf(node.dataset.nameOf);
}

// A fresh stage, for one more of them: as the page's first one came, or from the template of a page that is one file.
let pristine = null;
export const stageMarkup = () => (pristine || /** @type {HTMLTemplateElement} */ (document.getElementById('sv-stage-html')).content.firstElementChild).cloneNode(true);

// Pins a place once the whole run is there and its text rests; without `ref` the step's own. The chosen token is shown in
// the text and in the lanes; no sheet opens before anybody has touched the page.
/** @param {Hub} hub @param {Pick<TokenPlace, 'step'> & Partial<TokenPlace>} place @param {HTMLElement} [stage] */
export function pinPlace(hub, { step, ref }, stage = document.querySelector('#stage .sv-stage')) {
  let isDone = false;
  const pin = () => {
    if (!hub.steps[step]) return;                      // another run took the stage
    const { looks, focus } = hub.steps[step];
    hub.pin(step, looks[ref] ? ref : focus, 'key');
    stage.removeAttribute('data-sheet');
    if (!stage.querySelector('.sv-text .sv-on')) stage.querySelector('.sv-text .sv-now')?.scrollIntoView({ block: 'nearest' });
  };
  const look = () => {
    if (isDone || hub.steps.length <= step || hub.steps.length < hub.total) return;
    isDone = true;
    setTimeout(pin, SETTLED);
  };
  hub.on('info', look);
  look();
}

// holder: holds stage.html. props.value, watch, trigger and server are Gradio's, or `source` any other supplier.
// quiet: another stage speaks.
/** @param {HTMLElement} holder @param {Partial<Host> & { server?: StageServer, source?: Source, quiet?: boolean }} host */
export const mountStage = (holder, { props, watch, trigger, server, source, quiet }) => {
  const root = holder.querySelector('.sv-stage');
  pristine = pristine || root.cloneNode(true);
  const hub = new Hub(source || streamSource({ props, watch, server }));
  names(root);
  hub.on('reset', () => root.setAttribute('data-empty', ''));
  hub.on('grow', () => root.removeAttribute('data-empty'));
  window.addEventListener('resize', () => hub.present(document.documentElement.hasAttribute('data-sv-present')));
  for (const View of VIEWS) new View(root, hub, { trigger });
  const everyK = server ? server.every_k : source && source.everyK;
  if (everyK) new EveryK(root, hub, { ask: everyK, trigger });
  if (!quiet) speak(root, hub);
  keys(root, hub, openings(root, hub, server));
  hub.start();
  if (trigger) trigger('ready', {});
  return hub;
};
