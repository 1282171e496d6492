// side_by_side_player.js: two stages that one player moves, frame by frame: by time as both runs were recorded, or token by token. The
// place where their texts part is marked on both. Every frame, width and word arrives computed.
import { element, isStill, sentence, verbatim } from '../core/element.js';
import { unpack } from '../core/files.js';
import { html } from '../core/html.js';
import { embeddedSource } from '../core/hub.js';
import { recall } from '../core/memory.js';
import { stageMarkup, mountStage } from '../stage/stage.js';
import { render } from '../vendor/preact_htm.js';
import { drawn } from './blocks.js';
/** @import { PlayerData, PlayerMode, PlayerSide, SideBySideBlock } from '../messages.d.ts' */
/** @import { Ref } from '../vendor/preact_htm.js' */
/** @import { Kinds } from './blocks.js' */

const isNarrow = () => window.matchMedia('(max-width: 1000px)').matches;
const FIELDS = 'input, select, textarea, [contenteditable]';
const PLAY = 'M5 3v10l8-5z', PAUSE = 'M5 3v10M11 3v10';

const isLesson = () => document.documentElement.hasAttribute('data-sv-lesson');       // its text is about the parting

// one side: what is said over its stage, how far it is, and the stage itself
/** @param {PlayerSide} about @param {PlayerData['part']} part */
function side({ title, said, widths, message }, part) {
  const node = element('section', 'sv-side-by-side-side'), head = element('header', 'sv-side-by-side-head');
  const track = element('div', 'sv-side-by-side-track'), fill = element('span', 'sv-side-by-side-fill');
  const words = element('p', 'sv-side-by-side-said'), end = element('p', 'sv-side-by-side-end'), holder = element('div', 'sv-side-by-side-stage');
  node.setAttribute('aria-label', title);
  track.setAttribute('aria-hidden', 'true');
  track.append(fill);
  head.append(verbatim('h3', 'sv-side-by-side-title', title), words, track, end);
  node.append(head, holder);
  holder.append(stageMarkup());
  const hub = mountStage(holder, { source: embeddedSource(message), quiet: true });
  /** @type {PlayerMode['frames'][0][2]} */
  let plain = null;                                 // tokens shown plainly; null: all

  // tokens beyond the other side's are faint, so that both show the same number
  function mark() {
    const pieces = holder.querySelectorAll('.sv-text-body .sv-piece:not(.sv-is-rejected)');
    pieces.forEach((piece, place) => {
      const isAhead = plain !== null && place >= plain, isPart = place === part;
      piece.classList.toggle('sv-side-by-side-ahead', isAhead);
      piece.classList.toggle('sv-side-by-side-part', isPart);
      piece.title = isPart ? 'the texts differ from here' : isAhead ? 'written in the same step, ahead of the other side' : '';
    });
  }

  hub.on('cursor', mark);
  mark();
  return {
    node,
    /** @param {number} steps @param {PlayerMode['frames'][0][2]} tokens @param {string} ending */
    show(steps, tokens, ending) {
      plain = tokens;
      if (hub.cursor === steps) mark(); else hub.seek(steps);
      words.textContent = said[steps];
      fill.style.width = `${widths[steps]}%`;
      end.textContent = steps === hub.steps.length ? ending : '';
      node.toggleAttribute('data-done', steps === hub.steps.length);
    },
  };
}

/** @param {PlayerMode} mode */
const last = (mode) => mode.frames.length - 1;

/** @typedef {{ mode: PlayerMode, at: number, isPlaying: boolean, said: string }} Now at: the place of the frame that is shown */
/**
 * @param {Now & {
 *   modes: PlayerMode[], press: () => void, seek: (at: number) => void, turn: (mode: PlayerMode) => void, repace: () => void,
 *   pace: Ref<HTMLSelectElement>,
 * }} props
 */
export function Controls({ modes, mode, at, isPlaying, said, press, seek, turn, repace, pace }) {
  const [words] = mode.frames[at];
  return html`<button type="button" class="sv-button sv-side-by-side-toggle" aria-label=${isPlaying ? 'pause both' : 'replay both'} onClick=${press}>
      <svg viewBox="0 0 16 16" aria-hidden="true"><path d=${isPlaying ? PAUSE : PLAY} /></svg></button>
    <span class="sv-side-by-side-clock">${words}</span>
    <input class="sv-side-by-side-scrub" type="range" min="0" step="1" max=${last(mode)} value=${at} aria-label="place in both runs" aria-valuetext=${words}
      onInput=${({ target }) => seek(Number(target.value))} />
    <select class="sv-side-by-side-pace" aria-label="speed of the replay" key=${mode.name} ref=${pace} onChange=${repace}>
      ${mode.paces.map(([name, wait, isChosen]) => html`<option value=${String(wait)} selected=${isChosen}>${name}</option>`)}</select>
    <span class="sv-side-by-side-modes" role="group" aria-label="How the two runs move" hidden=${modes.length < 2}>${modes.map((each) => html`
      <button type="button" class="sv-button sv-mode" data-mode=${each.name} aria-pressed=${String(each === mode)} onClick=${() => turn(each)}>${each.label}</button>`)}</span>
    <p class="sv-hidden" aria-live="polite">${said}</p>`;
}

// the player: its place is a frame of the mode that is chosen
class Player {
  node = element('div', 'sv-side-by-side-player');
  /** @type {Now} */
  now = { mode: null, at: 0, isPlaying: false, said: '' };
  /** @type {Ref<HTMLSelectElement>} */
  pace = { current: null };
  due = 0;

  /**
   * @param {PlayerMode[]} modes
   * @param {SideBySideBlock['by']} by
   * @param {ReturnType<typeof side>[]} sides
   * @param {string} parted
   */
  constructor(modes, by, sides, parted) {
    this.modes = modes;
    this.sides = sides;
    this.parted = parted;
    this.turn(modes.find(({ name }) => name === by) || modes[0]);
  }

  /** @param {Partial<Now>} changes */
  set(changes) {
    const at = changes.at ?? this.now.at, mode = changes.mode || this.now.mode, [, steps, tokens] = mode.frames[at];
    if ('at' in changes) this.sides.forEach((each, place) => each.show(steps[place], tokens, mode.ends[place]));
    this.now = { ...this.now, ...changes };
    if (!this.now.isPlaying) cancelAnimationFrame(this.timer);
    const does = { press: () => this.press(), seek: (to) => this.set({ at: to, isPlaying: false }), turn: (to) => this.turn(to), repace: () => { this.due = 0; } };
    render(html`<${Controls} modes=${this.modes} pace=${this.pace} ...${this.now} ...${does} />`, this.node);
  }

  rest() {
    const { mode, at } = this.now;
    this.set({ isPlaying: false, said: at === mode.rest && at < last(mode) ? this.parted : mode.ends.join('; ') });
  }

  tick(now) {
    const { mode, at, isPlaying } = this.now;
    if (!isPlaying) return;
    const wait = Number(this.pace.current.value);
    let next = at;
    if (!this.due) this.due = now + wait;
    while (this.due <= now && next < last(mode)) {
      this.due += wait;
      next += 1;
      if (next === mode.rest) break;
    }
    if (next !== at) this.set({ at: next });
    if (next !== at && (next === last(mode) || next === mode.rest)) this.rest();
    else this.timer = requestAnimationFrame((then) => this.tick(then));
  }

  press() {
    const { mode, at, isPlaying } = this.now;
    if (isPlaying) return this.set({ isPlaying: false });
    if (isStill()) {
      this.set({ at: last(mode) });
      return this.rest();
    }
    this.due = 0;
    this.set({ isPlaying: true, ...(at === last(mode) ? { at: 0 } : {}) });
    this.timer = requestAnimationFrame((now) => this.tick(now));
  }

  /** @param {PlayerMode} mode */
  turn(mode) { this.set({ mode, at: isLesson() && mode.rest > 0 ? mode.rest : last(mode), isPlaying: false }); }
}

// Space belongs to both at once, wherever it is pressed on one of the stages.
function keys(made, press) {
  made.addEventListener('keydown', (event) => {
    const { target } = event;
    if (event.key !== ' ' || event.ctrlKey || event.metaKey || event.altKey || target.closest(FIELDS)) return;
    if (target.closest('button, summary, a') && !target.closest('.sv-cell')) return;
    if (!recall('keys', [true, false])) return;
    event.preventDefault();
    event.stopPropagation();
    press();
  }, true);
}

/** @param {HTMLElement} made @param {PlayerData} data @param {SideBySideBlock['by']} by */
function build(made, { sides, modes, part, parted }, by) {
  const words = element('p', 'sv-side-by-side-parted'), row = element('div', 'sv-side-by-side-sides');
  sentence(words, parted);
  const both = sides.map((each) => side(each, part));
  row.append(...both.map(({ node }) => node));
  const moved = new Player(modes, by, both, parted.join(''));
  made.replaceChildren(moved.node, words, row);
  keys(made, () => moved.press());
  if (isLesson()) requestAnimationFrame(() => (isNarrow() ? words : made).scrollIntoView({ block: 'start' }));
  return () => moved.set({ isPlaying: false });
}

/** @type {Kinds['side_by_side']} */
export const sideBySide = drawn('sv-side-by-side', (node, { data, by, titles }) => {
  let stop = () => {}, isGone = false;
  node.setAttribute('role', 'group');
  node.setAttribute('aria-label', titles.join(' beside '));
  node.append(element('p', 'sv-words', 'Two stages are being laid out …'));
  const lost = () => node.replaceChildren(element('p', 'sv-words', 'The two runs could not be unpacked: it takes a browser of 2023 or later.'));
  unpack(data).then((text) => { if (!isGone) stop = build(node, JSON.parse(text), by); }, lost);
  return () => {
    isGone = true;
    stop();
  };
});
