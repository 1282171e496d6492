// opening.js: one step of a run, beat by beat, over the stage. It waits for a person; every number and sentence is
// Python's. A screen reader hears each beat's sentence; nothing moves for whoever wants no motion.
import { answerOf } from '../core/answer.js';
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { labelOf } from '../core/palette.js';
import { render } from '../vendor/preact_htm.js';
import { parts } from './token.js';
/** @import { StageServer } from '../core/hub.js' */
/** @import { Beat, GuessedToken, Opening as Told } from '../messages.d.ts' */

const SWIPE = 40;                                          // pixels
/** @type {[string, boolean][]} */
const GUESSES = [['accepted', true], ['rejected', false]];

const button = (words, press, className = '', more = {}) => html`
  <button type="button" class="sv-button ${className}" onClick=${press} ...${more}>${words}</button>`;

/** @param {string} text */
const shown = (text) => parts(text).map(([kind, words]) => (kind === 'sv-space' ? ' '.repeat(words.length) : words)).join('');

// A token in the text: the space before its word carries no mark.
/** @param {string} text @param {string} status */
const written = (text, status) => {
  const [, lead, rest] = /^(\s*)(.*)$/s.exec(shown(text));
  return html`<span ...${VERBATIM}>${lead}</span><span class="sv-sample sv-is-${status}"><span class="sv-body" ...${VERBATIM}>${rest}</span></span>`;
};

/** @param {string} text */
const word = (text) => html`<span class="sv-body" ...${VERBATIM}>${parts(text).map(([kind, words]) => html`<span class=${kind}>${words}</span>`)}</span>`;

// What a token is at this moment: pale until its verdict is known, marked while a person guesses it.
/** @param {Moment} moment @param {number} place */
const stateOf = ({ beat, tokens, hasFallen }, place) => {
  if (place < beat.settled || (place === beat.asked && hasFallen)) return tokens[place].status;
  return place === beat.asked ? 'asked' : 'drafted';
};

// The draft's bar is outlined, the target's solid below it; the random draw is a line through both.
/** @param {Moment} moment @param {GuessedToken} token @param {number} place */
function guess(moment, token, place) {
  const { isRead, from } = moment, { text, draft, target, q, p, draw, fell, longer } = token, state = stateOf(moment, place);
  const isSettled = state !== 'drafted' && state !== 'asked', order = place - from;
  return html`<li key=${place} class="sv-guess sv-state-${state} ${isSettled && place >= from ? 'sv-guess-fresh' : ''}" style=${{ '--order': String(order > 0 ? order : 0), '--place': String(place) }}>
    <span class="sv-guess-chip sv-sample sv-is-${isSettled ? state : 'drafted'}">${word(text)}</span>
    <span class="sv-guess-share sv-of-draft" ...${VERBATIM}>${draft}${longer && ' · enlarged'}</span>
    <span class="sv-guess-bar sv-of-draft"><span style=${{ width: `${q}%` }} /></span>
    ${isRead && p !== undefined && html`<span class="sv-guess-bar sv-of-target"><span style=${{ width: `${p}%` }} /></span>
      <span class="sv-guess-share sv-of-target" ...${VERBATIM}>${target}</span>`}
    ${isSettled && draw !== undefined && html`<span class="sv-guess-draw" title=${fell}><span style=${{ left: `${draw}%` }} /></span>`}
    <span class="sv-guess-verdict">${isSettled ? labelOf(state) : state === 'asked' ? '?' : ''}</span></li>`;
}

/** @param {Beat['shares']} rows */
const shares = (rows) => html`<ul class="sv-beat-distribution">${rows.map(([token, width, words, isDrawn]) => html`<li class=${isDrawn ? 'sv-beat-drawn' : ''}>
  <span class="sv-beat-token" ...${VERBATIM}>${token}</span><span class="sv-beat-track"><span class="sv-beat-hatched" style=${{ width: `${width}%` }} /></span>
  <span ...${VERBATIM}>${words}</span></li>`)}</ul>`;

// The target's own token, and what it was drawn from.
/** @param {Moment} moment @param {Told['last']} last */
const ownToken = ({ beat, isLast }, last) => html`<div class="sv-own-token"><span class="sv-own-lead">then one token of the target's own</span>
  ${isLast && last ? html`<span class="sv-guess-chip sv-sample sv-is-${last[1]} sv-own-new">${word(last[0])}</span><span class="sv-guess-verdict sv-state-${last[1]}">${labelOf(last[1])}</span>`
    : html`<span class="sv-guess-chip sv-own-open">?</span>`}
  ${beat.shares && html`<span class="sv-own-lead">shares of the shortfall; one is drawn at random</span>${shares(beat.shares)}`}</div>`;

/** @param {Beat['clocks']} clocks */
const times = (clocks) => html`<dl class="sv-clocks">${clocks.map(([whose, time]) => html`<div><dt>${whose}</dt><dd ...${VERBATIM}>${time}</dd></div>`)}</dl>`;

/** @param {Told} told @param {Moment} moment */
function scene({ tokens, filled, last, drafter, target }, moment) {
  const { beat } = moment;
  return html`<div class="sv-scene-box"><div class="sv-scene" data-filled=${filled} style=${{ '--guesses': String(tokens.length) }}>
    <p class="sv-scene-name sv-of-draft"><b>${drafter[0]}</b> <span ...${VERBATIM}>${drafter[1]}</span></p>
    <p class="sv-scene-name sv-of-target"><b>${target[0]}</b> <span ...${VERBATIM}>${target[1]}</span></p>
    <ol class="sv-guesses">${tokens.map((token, place) => guess(moment, token, place))}
      ${beat.name === 'check' && html`<span class="sv-pass" aria-hidden="true"><span>one pass</span></span>`}</ol>
    ${ownToken(moment, last)}${times(beat.clocks)}</div></div>`;
}

// The text as it grows here and with the target alone, both at the pace that was recorded.
/** @param {NonNullable<Told['race']>} race @param {number} turn */
const race = ({ tokens, here, alone, words }, turn) => html`<div class="sv-race" key=${turn}>${[['the target alone', alone, 3], ['with the draft', here, 2]].map(([whose, time, at]) => html`
  <section class="sv-race-side"><h3>${whose} <span ...${VERBATIM}>${time}</span></h3><p ...${VERBATIM}>${tokens.map((token) => html`<span class=${at === 2 ? `sv-race-${token[1]}` : ''} style=${{ animationDelay: `${token[at]}ms` }}>${token[0]}</span>`)}</p></section>`)}<p class="sv-race-words">${words}</p></div>`;

/** @param {Beat['numbers']} tiles */
const numbers = (tiles) => html`<dl class="sv-beat-numbers">${tiles.map(([value, words]) => html`<div><dd ...${VERBATIM}>${value}</dd><dt>${words}</dt></div>`)}</dl>`;

// What the draw said of the token that could be guessed, and whether the guess was right.
/** @param {GuessedToken} token @param {boolean | null} said @param {number[]} hands */
function verdict({ fell, status }, said, hands) {
  const told = said === null ? '' : said === (status === 'accepted') ? ' You guessed right.' : ' You guessed wrong.';
  const counted = hands[0] + hands[1] ? ` ${hands[0]} said accepted, ${hands[1]} rejected.` : '';
  return `${fell}${told}${counted}`;
}

// Whether a person may guess at this beat before the draw falls.
/** @param {Told} told @param {number} at */
export const asks = ({ beats, tokens }, at) => tokens[beats[at].asked]?.draw !== undefined;

/** @typedef {{ beat: Beat, tokens: GuessedToken[], hasFallen: boolean, isRead: boolean, isLast: boolean, from: number }} Moment from: the first token that gets its verdict now */

/**
 * @param {{ told: Told, at: number, hasFallen: boolean, said: boolean | null, hands: number[], turn: number, does: Pick<Opening, 'go' | 'say' | 'move' | 'close'> }} props
 */
export function Beats({ told, at, hasFallen, said, hands, turn, does }) {
  const { beats, tokens } = told, beat = beats[at], isEnd = at === beats.length - 1, isOpen = asks(told, at) && !hasFallen;
  const isRead = beat.name !== 'draft', isLast = beat.name === 'last' || isEnd, before = beats[at - 1];
  /** @type {Moment} */
  const moment = { beat, tokens, hasFallen: hasFallen || !asks(told, at), isRead, isLast, from: before ? before.settled : 0 };
  const accepted = tokens.filter((token, place) => stateOf(moment, place) === 'accepted');
  const mark = (each, place) => html`<button type="button" class="sv-beat-mark" aria-label="beat ${place + 1} of ${beats.length}"
    aria-current=${place === at ? 'step' : undefined} onClick=${() => does.go(place)} />`;
  return html`<header class="sv-beat-head"><h2>${told.title}</h2>${button('Skip', () => does.close(''))}</header>
    <p class="sv-beat-question"><span ...${VERBATIM}>${told.question}</span><span class="sv-beat-where">How one step works · step ${told.step} of the run</span></p>
    <p class="sv-beat-text"><span class="sv-prompt" ...${VERBATIM}>${told.before}</span>${accepted.map(({ text }) => written(text, 'accepted'))}${isLast && told.last && written(...told.last)}</p>
    ${isEnd && told.race ? race(told.race, turn) : scene(told, moment)}
    ${beat.numbers && numbers(beat.numbers)}
    <div class="sv-beat-guess">${isOpen ? html`<span>Your guess:</span>${GUESSES.map(([words, value], place) => button(html`${words}${hands[place] > 0 && html` <b>${hands[place]}</b>`}`, () => does.say(value)))}`
      : asks(told, at) && html`<p class="sv-beat-said">${verdict(tokens[beat.asked], said, hands)}</p>`}</div>
    <p class="sv-beat-sentence" role="status">${beat.sentence}</p>
    <div class="sv-beat-controls">${button('Back', () => does.move(-1), '', { disabled: at === 0 })}<div class="sv-beat-marks">${beats.map(mark)}</div>
      ${isEnd
        ? html`<div class="sv-beat-ending">${told.note && html`<p class="sv-beat-note">${told.note}</p>`}
          ${button(told.run, () => does.close('run'), 'sv-beat-main')}${button('Again', () => does.go(0))}${button('Why is it exact?', () => does.close('why'))}</div>`
        : button(isOpen ? 'Draw' : 'Next', () => does.move(1), 'sv-beat-main sv-beat-next')}</div>`;
}

// root: the stage's element; ask: for one step's beats; leave(where): "run" or "why" where a person goes on from the last
// beat, else "".
export class Opening {
  /** @type {Told | null} */
  told = null;
  at = 0;
  hasFallen = false;
  /** @type {boolean | null} */
  said = null;
  hands = [0, 0];                                     // of a class: who said accepted, who said rejected
  turn = 0;                                           // of the race
  start = null;
  before = null;                                      // what had the focus

  /** @param {HTMLElement} root @param {{ ask: StageServer['opening'], leave: (where: '' | 'run' | 'why') => void }} host */
  constructor(root, { ask, leave }) {
    this.root = root;
    this.ask = ask;
    this.leave = leave;
    this.box = root.querySelector('.sv-opening');
    const keys = {
      ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1), Escape: () => this.close(''), a: () => this.say(true), r: () => this.say(false),
    };
    this.box.addEventListener('keydown', (event) => {
      event.stopPropagation();                              // these keys are not the stage's while this is open
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    });
    this.box.addEventListener('pointerdown', (event) => { this.start = event.clientX; });
    this.box.addEventListener('pointerup', (event) => {
      const moved = this.start === null ? 0 : event.clientX - this.start;
      this.start = null;
      if (moved < -SWIPE || moved > SWIPE) this.move(moved < 0 ? 1 : -1);
    });
  }

  async open(wanted) {
    const told = await answerOf(this.ask(wanted));
    if (!told) return null;
    this.told = told;
    this.before = /** @type {HTMLElement} */ (document.activeElement);
    this.show(true);
    this.go(0);
    return told;
  }

  show(isOpen) {
    this.box.hidden = !isOpen;
    this.root.toggleAttribute('data-opening', isOpen);
  }

  draw() {
    render(html`<${Beats} told=${this.told} at=${this.at} hasFallen=${this.hasFallen} said=${this.said} hands=${this.hands} turn=${this.turn} does=${this} />`, this.box);
    this.box.dataset.beat = this.told.beats[this.at].name;
    if (!document.activeElement?.closest('input, textarea, select')) this.box.querySelector('.sv-beat-main').focus({ preventScroll: true });
  }

  go(at) {
    Object.assign(this, { at, hasFallen: false, said: null, hands: [0, 0], turn: this.turn + 1 });
    this.draw();
  }

  // A person's guess lets the draw fall. Before a class the hands are counted first.
  /** @param {boolean} guess */
  say(guess) {
    if (!asks(this.told, this.at) || this.hasFallen) return;
    if (!document.documentElement.hasAttribute('data-sv-present')) return this.fall(guess);
    this.hands[guess ? 0 : 1] += 1;
    this.draw();
  }

  /** @param {boolean | null} said */
  fall(said) {
    Object.assign(this, { hasFallen: true, said });
    this.draw();
  }

  move(by) {
    if (by > 0 && asks(this.told, this.at) && !this.hasFallen) this.fall(null);
    else if (this.told.beats[this.at + by]) this.go(this.at + by);
  }

  /** @param {'' | 'run' | 'why'} where */
  close(where) {
    const isHere = this.box.contains(document.activeElement);
    this.show(false);
    if (isHere) (this.root.contains(this.before) ? this.before : this.root.querySelector('.sv-text-scroll')).focus({ preventScroll: true });
    this.leave(where);
  }
}
