// predict.js: a game over recorded verdicts: both models' odds are shown, the person says kept or cut, then the dart
// falls and the inspector explains. What is to be guessed is in no node before the guess; numbers arrive computed.
import { element, button as makeButton, sentence, isStill } from '../core/element.js';
import { unpack } from '../core/files.js';
import { recall } from '../core/memory.js';
import { inspectorView } from '../stage/inspector.js';
import { stageMarkup } from '../stage/stage.js';

const FALL = 700;                                   // milliseconds that the dart falls
const KEYS = { k: 'kept', c: 'cut' };
const LEAD = /^(\s*)([\s\S]*)$/;


// The stage's own inspector inside `root`, which shows whatever look it is given for a step.
function inspector(root, head) {
  const host = stageMarkup().querySelector('.sv-inspector');
  for (const name of ['before', 'after', 'close']) host.querySelector(`[data-part=${name}]`).hidden = true;
  host.setAttribute('aria-label', 'What both models thought');
  root.append(host, element('div', 'sv-shade'));
  let place = null, look = null, tell = null;
  const hub = {
    head, steps: [], selected: () => place, look: () => look, pin() {}, moveToken() {},
    on(name, listener) { if (name === 'select') tell = listener; },
  };
  inspectorView(root, hub);
  return (shown, at) => {
    place = at;
    look = shown;
    hub.steps[at.step] = {};
    host.querySelector('[data-part=enlarged]').replaceChildren();     // of the place before
    tell();
  };
}

function piece([text, status]) {
  const made = element(status === 'rejected' ? 'del' : 'span', `sv-piece sv-is-${status}`);
  const [, lead, rest] = LEAD.exec(text);
  if (lead && rest) made.append(lead);
  made.append(element('span', 'sv-body', rest || '␣'.repeat(lead.length)));
  return made;
}

const button = (className, words, press) => makeButton(`sv-button ${className}`, words, press);

function board() {
  const root = element('div', 'sv-stage sv-predict-board'), text = element('div', 'sv-card sv-predict-text');
  const ask = element('div', 'sv-card sv-predict-ask'), outcome = element('p', 'sv-predict-outcome');
  const score = element('p', 'sv-predict-score'), buttons = element('div', 'sv-predict-buttons');
  text.tabIndex = 0;
  text.setAttribute('role', 'region');
  text.setAttribute('aria-label', 'the text before the token');
  outcome.setAttribute('role', 'status');
  ask.append(outcome, buttons, score);
  root.append(text, ask);
  return { root, text, outcome, score, buttons };
}

// One run as a game; `root` is left as soon as another one begins.
function game({ prompt, places, learned }, head) {
  const { root, text, outcome, score, buttons } = board(), show = inspector(root, head);
  let at = 0, right = 0, streak = 0, timer = 0, isOpen = false;
  const kept = button('sv-predict-kept', 'Kept', () => guess('kept'));
  const cut = button('sv-predict-cut', 'Cut', () => guess('cut'));
  const next = button('sv-primary', 'Next token', () => go(at + 1)), again = button('sv-primary', 'Play again', restart);
  buttons.append(kept, cut, next, again);

  function offer(...shown) {
    for (const each of buttons.children) each.hidden = !shown.includes(each);
  }

  function write(pieces) {
    text.append(...pieces.map(piece));
    text.scrollTop = text.scrollHeight;
  }

  function counted() {
    const done = isOpen ? at : at + 1;
    const rest = done ? ` · in a row ${streak} · always betting on the likelier side: ${places[done - 1].bet}` : '';
    score.textContent = `token ${at + 1} of ${places.length} · you were right ${right} of ${done}${rest}`;
  }

  function go(place) {
    const hadFocus = root.contains(document.activeElement);
    if (place >= places.length) return finish(hadFocus);
    at = place;
    isOpen = true;
    const { step, before, ask } = places[at];
    write(before);
    show(ask, { step, ref: 'ask' });
    sentence(outcome, ['']);
    root.dataset.state = 'asked';
    offer(kept, cut);
    counted();
    if (hadFocus) kept.focus({ preventScroll: true });
  }

  function guess(said) {
    if (!isOpen) return;
    isOpen = false;
    const { step, ref, ask, look, kept: wasKept } = places[at], isRight = wasKept === (said === 'kept');
    right += isRight;
    streak = isRight ? streak + 1 : 0;
    document.dispatchEvent(new CustomEvent('sv-predicted', { detail: { right: isRight, kept: wasKept } }));
    for (const each of [kept, cut]) each.disabled = true;
    const reveal = () => {
      show(look, { step, ref });
      told(isRight, wasKept);
    };
    if (isStill()) return reveal();
    root.dataset.state = 'falling';
    show({ ...ask, dart: look.dart, zoom: look.zoom }, { step, ref });
    timer = setTimeout(reveal, FALL);
  }

  function told(isRight, wasKept) {
    const hadFocus = root.contains(document.activeElement) || document.activeElement === document.body;
    root.dataset.state = 'told';
    sentence(outcome, ['', isRight ? '✓ Right' : '× Wrong', `: it was ${wasKept ? 'kept' : 'cut'}.`]);
    outcome.dataset.right = isRight ? 'yes' : 'no';
    write(places[at].after);
    for (const each of [kept, cut]) each.disabled = false;
    next.textContent = at + 1 < places.length ? 'Next token' : 'See how you did';
    offer(next);
    counted();
    if (hadFocus) next.focus({ preventScroll: true });
  }

  function finish(hadFocus) {
    root.dataset.state = 'over';
    sentence(outcome, ['You were right ', `${right} of ${places.length}`, ' times. ', '', learned[0], ...learned.slice(1)]);
    delete outcome.dataset.right;
    score.textContent = '';
    offer(again);
    if (hadFocus) again.focus({ preventScroll: true });
  }

  function restart() {
    clearTimeout(timer);
    right = streak = 0;
    text.replaceChildren(element('span', 'sv-prompt', prompt));
    go(0);
  }

  root.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !recall('keys', [true, false])) return;
    const said = KEYS[event.key.toLowerCase()];
    if (!said) return;
    event.preventDefault();
    guess(said);
  });
  restart();
  root.release = () => clearTimeout(timer);
  return root;
}

export const predict = ({ runs, look_numbers: numbers, log_ticks: ticks }) => {
  const made = element('div', 'sv-block sv-predict'), holder = element('div'), select = element('select');
  const field = element('label', 'sv-control'), head = { look_numbers: numbers, log_ticks: ticks };
  select.append(...runs.map(([title], place) => Object.assign(element('option', '', title), { value: place })));
  field.append(element('span', '', 'Run'), select);
  const open = async () => {
    const [, packed] = runs[select.selectedIndex], chosen = select.selectedIndex;
    const props = JSON.parse(await unpack(packed));
    if (chosen !== select.selectedIndex) return;
    holder.firstElementChild?.release();
    holder.replaceChildren(game(props, head));
  };
  select.addEventListener('change', open);
  if (runs.length > 1) made.append(field);
  made.append(holder, element('p', 'sv-small', 'Keys in the game: K kept, C cut, Enter for the next token.'));
  made.release = () => holder.firstElementChild?.release();
  open();
  return made;
};
