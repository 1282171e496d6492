// frame.js: the frame around the page's parts: theme, drawers, the folded setup of a phone, large type for a room. Its
// sheet stands before those of the panels, which change what it says of all drawers.
import { recall, remember, store, stored } from './memory.js';

const LEADING = 4;                                   // words of the prompt on the folded line
const THEME = 'specviz-theme', root = document.documentElement;
export const CHANGED = 'sv-changed';                  // the event of a field that has got another value
export const FIELDS = 'specviz-fields';              // they are kept under this name, and are other ones after this event

export function theme() {
  store(THEME, document.body.classList.toggle('dark') ? 'dark' : 'light');
}

// what was chosen here outlasts a change of the system's theme, which Gradio follows first
export function keepTheme() {
  const chosen = stored(THEME, false);
  if (chosen) document.body.classList.toggle('dark', chosen === 'dark');
}

// name -> the panel that opens, if it is one, and the button that opens it
const OPENS = {
  drawer: ['#drawer', '#more'], setup: [null, '#fold button'], library: ['#library', '#library-open'], share: ['#share', '#share-open'], guide: ['#guide', '#guide-open'],
};
export const DRAWERS = ['drawer', 'library', 'share', 'guide'];          // of these one is open at a time

export function setOpen(name, isOpen) {
  if (isOpen && DRAWERS.includes(name)) for (const other of DRAWERS) if (other !== name) setOpen(other, false);
  root.toggleAttribute(`data-sv-${name}`, isOpen);
  tellParts();
}
export const isOpen = (name) => root.hasAttribute(`data-sv-${name}`);
export const toggle = (name) => setOpen(name, !isOpen(name));
export const close = () => DRAWERS.forEach((name) => setOpen(name, false));

// ---- the simple view: what a first run needs; "All controls" shows the rest, and what a person chose is remembered ----
const CONTROLS = ['simple', 'all'];
export const isSimple = () => root.hasAttribute('data-sv-simple');

// what is closed takes no focus, and each button says whether what it opens is open
function tellParts() {
  const expands = (button, isExpanded) => document.querySelector(button)?.setAttribute('aria-expanded', String(isExpanded));
  for (const [name, [panel, button]] of Object.entries(OPENS)) {
    expands(button, isOpen(name));
    const hidden = panel && document.querySelector(panel);
    if (hidden) hidden.inert = !isOpen(name);
  }
  expands('#all-controls', !isSimple());
}

export function allControls(isAll, isChosen) {
  if (isChosen) remember('controls', CONTROLS[Number(isAll)]);
  if (!isAll) close();
  root.toggleAttribute('data-sv-simple', !isAll);
  tellParts();
  document.dispatchEvent(new Event('sv-controls'));
  window.dispatchEvent(new Event('resize'));
}

export const keepControls = () => allControls(recall('controls', CONTROLS) === 'all');
keepControls();                                       // before anything is drawn

// what Gradio's own fields hold beside their labels where it is names and tokens; a list is made when it opens
const NAMED = ':is(#prompt, #method, #rule, #draft, #target, #rendered, .sv-own .block:has([role=combobox])) :is(.wrap, textarea, ul)';
function keepNames() {
  for (const names of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(NAMED))) names.translate = false;
}

// on a phone: the one line that stands for the folded setup, and opens it
export function fold(element) {
  const line = element.querySelector('button');
  line.addEventListener('click', () => setOpen('setup', !isOpen('setup')));
  // a field that does nothing under the method is not in the document
  const prompt = () => {
    const words = (/** @type {HTMLTextAreaElement} */ (document.querySelector('#prompt textarea'))?.value || '').split(/\s+/).filter(Boolean);
    return words.length > 0 && `“${words.slice(0, LEADING).join(' ')}${words.length > LEADING ? '…' : ''}”`;
  };
  const fields = () => ['#method input', '#draft input', '#k input', '#temperature input', '#pace input:checked']
    .map((selector) => /** @type {HTMLInputElement} */ (document.querySelector(selector))?.value);
  const summarise = () => {
    const [method, draft, k, temperature, pace] = fields();
    const mark = document.querySelector('#help .sv-help-lossy') && 'lossy';
    line.firstElementChild.textContent = [
      prompt(), method, mark, draft, k && `K ${k}`, temperature && `temperature ${temperature}`, pace,
    ].filter(Boolean).join(' · ') || 'Setup';
  };
  const later = () => requestAnimationFrame(summarise);
  const changes = new MutationObserver(() => { keepNames(); later(); });
  const isThere = () => {
    const [bar, ...parts] = ['#all-controls', '#setup', '#drawer'].map((selector) => document.querySelector(selector));
    if (!bar || !parts.every(Boolean) || !fields().at(-1)) return false;
    for (const part of parts) changes.observe(part, { childList: true, subtree: true });
    keepNames();
    tellParts();                                     // they may have been mounted last
    return true;
  };
  document.addEventListener('input', later);
  document.addEventListener('change', later);
  document.addEventListener(FIELDS, later);
  document.addEventListener(CHANGED, later);
  const waiting = setInterval(() => { summarise(); if (isThere()) clearInterval(waiting); }, 150);
}

// larger type and no setup, for a room; the stage and the style sheets do the rest
export function present() {
  close();
  setOpen('setup', false);
  const isOn = root.toggleAttribute('data-sv-present');
  document.querySelector('#present')?.setAttribute('aria-pressed', String(isOn));
  window.dispatchEvent(new Event('resize'));
}
