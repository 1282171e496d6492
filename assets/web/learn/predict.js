// predict.js: a game over recorded verdicts: both models' probabilities are shown, the person says accepted or rejected, then the random draw
// falls and the inspector explains. What is to be guessed is in no node before the guess; numbers arrive computed.
import { element, isStill, VERBATIM, verbatim, worded } from '../core/element.js';
import { unpack } from '../core/files.js';
import { html } from '../core/html.js';
import { recall } from '../core/memory.js';
import { drawn } from '../reports/blocks.js';
import { Inspector } from '../stage/inspector.js';
import { stageMarkup } from '../stage/stage.js';
import { render } from '../vendor/preact_htm.js';
/** @import { PlaceToGuess, PredictBlock, PredictGame, TokenLook, TokenPlace } from '../messages.d.ts' */
/** @import { Kinds } from '../reports/blocks.js' */
/** @import { Looks } from '../stage/inspector.js' */

/** @typedef {Pick<PredictBlock, 'look_numbers' | 'log_ticks'>} Head */

const FALL = 700;                                   // milliseconds that the random draw falls
/** @typedef {'accepted' | 'rejected'} Said */
/** @type {Record<string, Said>} */
const KEYS = { a: 'accepted', r: 'rejected' };
const LEAD = /^(\s*)([\s\S]*)$/;

// The stage's own inspector inside `root`, which shows whatever look it is given for a step.
/** @param {HTMLElement} root @param {Head} head @returns {(look: TokenLook, at: TokenPlace) => void} */
function inspector(root, head) {
  const host = stageMarkup().querySelector('.sv-inspector');
  for (const name of ['before', 'after', 'close']) host.querySelector(`[data-part=${name}]`).hidden = true;
  host.setAttribute('aria-label', 'What both models thought');
  root.append(host, element('div', 'sv-shade'));
  /** @type {TokenPlace | null} */
  let place = null;
  /** @type {TokenLook | null} */
  let look = null;
  let tell = null;
  /** @type {Looks} */
  const hub = {
    head, run: '', steps: [], selected: () => place, look: () => look, pin() {}, moveToken() {},
    on(name, listener) { if (name === 'select') tell = listener; },
  };
  new Inspector(root, hub);
  return (shown, at) => {
    place = at;
    look = shown;
    hub.steps[at.step] = {};
    tell();
  };
}

/** @param {PlaceToGuess['before'][0]} piece */
function piece([text, status]) {
  const made = element(status === 'rejected' ? 'del' : 'span', `sv-piece sv-is-${status}`);
  const [, lead, rest] = LEAD.exec(text);
  if (lead && rest) made.append(lead);
  made.append(element('span', 'sv-body', rest || '␣'.repeat(lead.length)));
  return made;
}

const place = (className, ...inner) => {
  const made = element('div', className);
  made.append(...inner);
  return made;
};

/** @typedef {{ state: 'asked' | 'falling' | 'told' | 'over', at: number, right: number, streak: number, isRight?: boolean }} Now */

// What is asked, or came of it, and what can be pressed.
/**
 * @param {Now & Pick<PredictGame, 'places' | 'learned'> & { guess: (said: Said) => void, go: (at: number) => void, restart: () => void }} props
 */
export function Ask({ state, at, places, right, streak, isRight, learned, guess, go, restart }) {
  const wasAccepted = places[at].accepted, done = state === 'told' ? at + 1 : at, last = places[done - 1], isAsked = state === 'asked' || state === 'falling';
  const words = {
    told: [`${isRight ? '✓ Right' : '× Wrong'}: it was ${wasAccepted ? 'accepted' : 'rejected'}.`],
    over: ['You were right ', `${right} of ${places.length}`, ` times. ${learned[0]}`, ...learned.slice(1)],
  };
  const score = `token ${at + 1} of ${places.length} · you were right ${right} of ${done}${last ? ` · in a row ${streak} · always betting on the likelier side: ${last.bet}` : ''}`;
  const button = (name, text, press, isShown) => html`<button type="button" class="sv-button ${name}" hidden=${!isShown} disabled=${state === 'falling'} onClick=${press}>${text}</button>`;
  return html`<p class="sv-predict-outcome" role="status" data-right=${state === 'told' ? (isRight ? 'yes' : 'no') : undefined}>${worded(words[state] || '')}</p>
    <div class="sv-predict-buttons">${button('sv-predict-accepted', 'Accepted', () => guess('accepted'), isAsked)}${button('sv-predict-rejected', 'Rejected', () => guess('rejected'), isAsked)}
      ${button('sv-primary', at + 1 < places.length ? 'Next token' : 'See how you did', () => go(at + 1), state === 'told')}${button('sv-primary', 'Play again', restart, state === 'over')}</div>
    <p class="sv-predict-score">${state === 'over' ? '' : score}</p>`;
}

// One run as a game; `root` is left as soon as another one begins.
class Game {
  text = Object.assign(place('sv-card sv-predict-text'), VERBATIM);
  ask = place('sv-card sv-predict-ask');
  root = place('sv-stage sv-predict-board', this.text, this.ask);
  /** @type {Now} */
  now;

  /** @param {PredictGame} props @param {Head} head */
  constructor(props, head) {
    this.props = props;
    this.show = inspector(this.root, head);
    this.text.tabIndex = 0;
    this.text.setAttribute('role', 'region');
    this.text.setAttribute('aria-label', 'the text before the token');
    this.root.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey || !recall('keys', [true, false])) return;
      const said = KEYS[event.key.toLowerCase()];
      if (!said) return;
      event.preventDefault();
      this.guess(said);
    });
    this.restart();
  }

  // hadFocus: the first button that can be pressed takes it
  /** @param {Partial<Now>} changes @param {boolean} [hadFocus] */
  set(changes, hadFocus) {
    this.now = { ...this.now, ...changes };
    this.root.dataset.state = this.now.state;
    const does = { guess: (said) => this.guess(said), go: (at) => this.go(at), restart: () => this.restart() };
    render(html`<${Ask} ...${this.props} ...${this.now} ...${does} />`, this.ask);
    if (hadFocus) this.ask.querySelector('button:not([hidden])').focus({ preventScroll: true });
  }

  hasFocus() { return this.root.contains(document.activeElement); }

  /** @param {PlaceToGuess['before']} pieces */
  write(pieces) {
    this.text.append(...pieces.map(piece));
    this.text.scrollTop = this.text.scrollHeight;
  }

  /** @param {number} at */
  go(at) {
    const hadFocus = this.hasFocus();
    if (at >= this.props.places.length) return this.set({ state: 'over' }, hadFocus);
    const { step, before, ask } = this.props.places[at];
    this.write(before);
    this.show(ask, { step, ref: 'ask' });
    this.set({ state: 'asked', at }, hadFocus);
  }

  /** @param {Said} said */
  guess(said) {
    if (this.now.state !== 'asked') return;
    const { at, right, streak } = this.now, { step, ref, ask, look, accepted: wasAccepted } = this.props.places[at], isRight = wasAccepted === (said === 'accepted');
    const result = { isRight, right: isRight ? right + 1 : right, streak: isRight ? streak + 1 : 0 };
    document.dispatchEvent(new CustomEvent('sv-predicted', { detail: { right: isRight, accepted: wasAccepted } }));
    const reveal = () => {
      const hadFocus = this.hasFocus() || document.activeElement === document.body;
      this.show(look, { step, ref });
      this.write(this.props.places[at].after);
      this.set({ ...result, state: 'told' }, hadFocus);
    };
    if (isStill()) return reveal();
    this.set({ state: 'falling' });
    this.show({ ...ask, draw: look.draw, zoom: look.zoom }, { step, ref });
    this.timer = setTimeout(reveal, FALL);
  }

  restart() {
    this.stop();
    this.now = { state: 'asked', at: 0, right: 0, streak: 0 };
    this.text.replaceChildren(element('span', 'sv-prompt', this.props.prompt));
    this.go(0);
  }

  stop() { clearTimeout(this.timer); }
}

/** @type {Kinds['predict']} */
export const predict = drawn('sv-predict', (node, { runs, look_numbers: numbers, log_ticks: ticks }) => {
  const holder = element('div'), select = verbatim('select'), field = element('label', 'sv-control');
  const head = { look_numbers: numbers, log_ticks: ticks };
  /** @type {Game | null} */
  let game = null;
  select.append(...runs.map(([title], place) => Object.assign(element('option', '', title), { value: place })));
  field.append(element('span', '', 'Run'), select);
  const open = async () => {
    const [, packed] = runs[select.selectedIndex], chosen = select.selectedIndex;
    /** @type {PredictGame} */
    const props = JSON.parse(await unpack(packed));
    if (chosen !== select.selectedIndex) return;
    game?.stop();
    game = new Game(props, head);
    holder.replaceChildren(game.root);
  };
  select.addEventListener('change', open);
  if (runs.length > 1) node.append(field);
  node.append(holder, element('p', 'sv-small', 'Keys in the game: A accepted, R rejected, Enter for the next token.'));
  open();
  return () => game?.stop();
});
