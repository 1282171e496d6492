// opening.js: one step of a run, beat by beat, over the stage. It waits for a person; every number and sentence is
// Python's. A screen reader hears each beat's sentence; nothing moves for whoever wants no motion.
import { answerOf } from '../core/answer.js';
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { render } from '../vendor/preact_htm.js';
import { parts } from './token.js';
/** @import { StageServer } from '../core/hub.js' */
/** @import { Beat, JudgedBar, Opening as Told } from '../messages.d.ts' */

const SWIPE = 40;                                          // pixels
/** @type {[string, boolean][]} */
const GUESSES = [['accepted', true], ['rejected', false]];

const button = (words, press, className = '', more = {}) => html`
  <button type="button" class="sv-button ${className}" onClick=${press} ...${more}>${words}</button>`;

/** @param {Beat['chips'][0]} chip */
const chip = ([text, status, words]) => html`<span class="sv-beat-chip sv-sample sv-is-${status}"><span class="sv-body" ...${VERBATIM}>${parts(text).map(([kind, word]) => html`<span class=${kind}>${word}</span>`)}</span>
  ${words && html`<span class="sv-beat-share">${words}</span>`}</span>`;

/** @param {Told} told @param {Beat} beat */
const text = ({ before, written }, { name, chips = [], sweep }) => html`<p key=${name} class="sv-beat-text ${sweep ? 'sv-beat-sweep' : ''}">
  <span class="sv-prompt" ...${VERBATIM}>${before}</span>${written.map((each) => chip([each, name === 'slow' ? 'plain' : 'prompt', '']))}${chips.map(chip)}</p>`;

// The bar is what the draft gave the token, its solid part what accepts it; the draw is there once it has fallen.
/** @param {JudgedBar} bar @param {boolean} hasFallen */
const probabilities = ({ token, fill, x, u, target, draft }, hasFallen) => html`<div class="sv-beat-probabilities">
  <p class="sv-beat-shares" ...${VERBATIM}>${[token, draft && `draft ${draft}`, `target ${target}`].filter(Boolean).join(' · ')}</p>
  ${fill !== undefined && html`<div class="sv-beat-bar"><span class="sv-beat-solid" style=${{ width: `${fill}%` }} />
    ${hasFallen && html`<span class="sv-beat-draw" style=${{ left: `${x}%` }}><span class="sv-beat-draw-words" ...${VERBATIM}>${u}</span></span>`}</div>`}</div>`;

/** @param {Beat['shares']} rows */
const shares = (rows) => html`<ul class="sv-beat-distribution">${rows.map(([token, width, words, isDrawn]) => html`<li class=${isDrawn ? 'sv-beat-drawn' : ''}>
  <span class="sv-beat-token" ...${VERBATIM}>${token}</span><span class="sv-beat-track"><span class="sv-beat-hatched" style=${{ width: `${width}%` }} /></span>
  <span ...${VERBATIM}>${words}</span></li>`)}</ul>`;

/** @param {Beat['numbers']} tiles */
const numbers = (tiles) => html`<dl class="sv-beat-numbers">${tiles.map(([value, words]) => html`<div><dd ...${VERBATIM}>${value}</dd><dt>${words}</dt></div>`)}</dl>`;

/** @param {JudgedBar} bar @param {boolean | null} guess */
function verdict({ u, accepted }, guess) {
  const fell = u === undefined ? '' : `The random draw falls at ${u}: `;
  const told = guess === null ? '' : guess === accepted ? ' You guessed right.' : ' You guessed wrong.';
  return `${fell}${accepted ? 'accepted' : 'rejected'}.${told}`;
}

// What a beat shows besides its tokens. hasFallen: whether the draw on its bar is there; guess: what a person said before.
/** @param {Beat} beat @param {boolean} hasFallen @param {boolean | null} guess */
const middle = ({ bar, shares: rows, numbers: tiles }, hasFallen, guess) => [
  rows && shares(rows), tiles && numbers(tiles), bar && probabilities(bar, hasFallen),
  bar && hasFallen && html`<p class="sv-beat-said">${verdict(bar, guess)}</p>`,
];

// A beat with a bar on which a person may guess before the draw falls.
/** @param {Beat} beat */
export const asks = ({ name, bar }) => name === 'judge' && bar?.x !== undefined;

/**
 * @param {{ told: Told, at: number, hasFallen: boolean, guess: boolean | null, does: Pick<Opening, 'go' | 'fall' | 'move' | 'close'> }} props
 */
export function Beats({ told, at, hasFallen, guess, does }) {
  const beat = told.beats[at], isLast = at === told.beats.length - 1, isOpen = asks(beat) && !hasFallen;
  const mark = (each, place) => html`<button type="button" class="sv-beat-mark" aria-label="beat ${place + 1} of ${told.beats.length}"
    aria-current=${place === at ? 'step' : undefined} onClick=${() => does.go(place)} />`;
  return html`<header class="sv-beat-head"><span class="sv-beat-where">Step ${told.step}, beat by beat</span>${button('Skip', () => does.close(''))}</header>
    <p class="sv-beat-question">${told.question}</p>${text(told, beat)}
    <div class="sv-beat-middle">${middle(beat, !isOpen, guess)}<div class="sv-beat-guess">${isOpen && [
      html`<span>Your guess:</span>`, ...GUESSES.map(([words, value]) => button(words, () => does.fall(value)))]}</div></div>
    <p class="sv-beat-sentence" role="status">${beat.sentence}</p>
    <div class="sv-beat-controls">${button('Back', () => does.move(-1), '', { disabled: at === 0 })}<div class="sv-beat-marks">${told.beats.map(mark)}</div>
      ${isLast
        ? html`<div class="sv-beat-ending">
          ${button('Run it yourself', () => does.close('run'), 'sv-beat-main')}${button('Again', () => does.go(0))}${button('Why is it exact?', () => does.close('why'))}</div>`
        : button(isOpen ? 'Let it fall' : 'Next', () => does.move(1), 'sv-beat-main sv-beat-next')}</div>`;
}

// root: the stage's element; ask: for one step's beats; leave(where): "run" or "why" where a person goes on from the last
// beat, else "".
export class Opening {
  /** @type {Told | null} */
  told = null;
  at = 0;
  hasFallen = false;
  /** @type {boolean | null} */
  guess = null;
  start = null;
  before = null;                                      // what had the focus

  /** @param {HTMLElement} root @param {{ ask: StageServer['opening'], leave: (where: '' | 'run' | 'why') => void }} host */
  constructor(root, { ask, leave }) {
    this.root = root;
    this.ask = ask;
    this.leave = leave;
    this.box = root.querySelector('.sv-opening');
    const keys = { ArrowRight: () => this.move(1), ArrowLeft: () => this.move(-1), Escape: () => this.close('') };
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
    if (!told) return;
    this.told = told;
    this.before = /** @type {HTMLElement} */ (document.activeElement);
    this.show(true);
    this.go(0);
  }

  show(isOpen) {
    this.box.hidden = !isOpen;
    this.root.toggleAttribute('data-opening', isOpen);
  }

  draw() {
    render(html`<${Beats} told=${this.told} at=${this.at} hasFallen=${this.hasFallen} guess=${this.guess} does=${this} />`, this.box);
    this.box.dataset.beat = this.told.beats[this.at].name;
    if (!document.activeElement?.closest('input, textarea, select')) this.box.querySelector('.sv-beat-main').focus({ preventScroll: true });
  }

  go(at) {
    Object.assign(this, { at, hasFallen: false, guess: null });
    this.draw();
  }

  /** @param {boolean | null} guess */
  fall(guess) {
    Object.assign(this, { hasFallen: true, guess });
    this.draw();
  }

  move(by) {
    if (by > 0 && asks(this.told.beats[this.at]) && !this.hasFallen) this.fall(null);
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
