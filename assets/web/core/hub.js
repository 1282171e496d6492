// hub.js: the page's one state. It takes increments from a supplier, heals holes, keeps the player's place and the
// selection, and tells the views. Views register a function here and are mounted by stage.js. No formula, no markup.
import { answerOf } from './answer.js';

export const PACES = { slow: 1000, normal: 250, fast: 80 };      // milliseconds per step of the player
const OPENING = { steps: 3, milliseconds: 2200 };          // a first visit begins slowly
const FULL = 850, SHORT = 150;                             // time for all phases of a step, or only for a fade

/** @import { EveryK, LaneCell, NoOtherK, Opening, OtherK, RunEnd, RunHead, RunMessage, RunState, ShownStep, SpeedWords, TokenLook, TokenPlace } from '../messages.d.ts' */

/** @param {string | RunMessage | null} value @returns {RunMessage | null} */
const parse = (value) => {
  if (typeof value !== 'string') return value || null;
  try { return value ? JSON.parse(value) : null; } catch (error) { return null; }
};

// What Gradio gives to a part of the page, or what stands in for it: a value, a call when that is another one, and events
// for Python. Some parts have a server as well: functions of Python's.
/** @typedef {(event: string, data: object) => void} Trigger */
/** @typedef {{ props: { value: string }, watch: (name: string, changed: () => void) => void, trigger: Trigger }} Host */

/** @typedef {(wanted: { run: string }) => Promise<EveryK | NoOtherK | null>} AskEveryK what every K would have done with a run */
/**
 * @typedef {object} StageServer
 * @property {(wanted: { run: string, from: number }) => Promise<string | null>} [since] a run from a step on: a message as Gradio's value has it
 * @property {(wanted: { run: string, step?: number }) => Promise<Opening | null>} opening
 * @property {AskEveryK} every_k
 */
/**
 * @typedef {object} Source a supplier of one run, or of one after another
 * @property {(take: (message: RunMessage | null) => void) => void} start
 * @property {(wanted: { run: string, from: number }) => Promise<string | RunMessage | null>} pull
 * @property {AskEveryK} [everyK]
 */

// A row of the lanes: a step, or what another K would have done.
/** @typedef {Omit<LaneCell, 'status'> & { status: LaneCell['status'] | 'likely', step?: number }} Cell step: of the token in the run */
/** @typedef {Partial<Omit<ShownStep, 'cells' | 'last'>> & Pick<ShownStep, 'changes'> & { cells: Cell[], last: Cell | null, number?: number }} Row */
/** @typedef {OtherK & Pick<ShownStep, 'context'> & { rows: Row[] }} Imagined */

// Supplier 1: Gradio's value, one increment at a time, and a pull for what was missed.
/** @param {Pick<Host, 'props' | 'watch'> & { server?: StageServer }} host @returns {Source} */
export const streamSource = ({ props, watch, server }) => ({
  start(take) {
    const read = () => take(parse(props.value));
    watch('value', read);
    read();
  },
  pull: async (request) => (server && server.since ? server.since(request) : null),
});

// Supplier 2: a whole run that lies in the page.
/** @param {string | RunMessage | null} message @returns {Source} */
export const embeddedSource = (message) => ({
  start(take) { take(parse(message)); },
  pull: async () => null,
});

export class Hub {
  /** @type {string | null} */
  run = null;
  /** @type {RunHead | null} */
  head = null;
  /** @type {ShownStep[]} */
  steps = [];
  /** @type {RunState | null} */
  state = null;
  /** @type {SpeedWords | null} */
  speed = null;
  /** @type {string[] | null} */
  numbers = null;
  /** @type {RunEnd | null} */
  end = null;
  total = 0; cursor = 0; following = true; playing = false; pace = 'normal'; rhythm = 0;
  /** @type {TokenPlace | null} */
  pinned = null;
  /** @type {TokenPlace | null} */
  hovered = null;
  spot = -1;                                          // the step that was last moved to or pinned
  /** @type {Imagined | null} */
  imagined = null;                                    // what another K would have done with the text
  #listeners = new Map(); #source; #pulling = false; #timer = 0; #arrived = 0; #opening = 0;
  isPresented = false;
  #wasLive = false;
  #found = 0;                                         // how many steps a run has that was over when it came
  #sincePause = 0;                                    // how many came since it was paused
  #isChosen = false;                                  // whether a person has pinned a token, or let one go

  /** @param {Source} source */
  constructor(source) { this.#source = source; }

  on(name, listener) {
    if (!this.#listeners.has(name)) this.#listeners.set(name, []);
    this.#listeners.get(name).push(listener);
  }

  emit(name, detail) { (this.#listeners.get(name) || []).forEach((listener) => listener(detail)); }

  // ---- taking increments -------------------------------------------------------------------------------------
  #reset(run) {
    this.#stopTimer();
    Object.assign(this, {
      run, head: null, steps: [], state: null, speed: null, numbers: null, end: null, total: 0,
      cursor: 0, following: true, playing: false, rhythm: 0, pinned: null, hovered: null, spot: -1, imagined: null,
    });
    this.#isChosen = false;
    this.#opening = 0;
    this.#arrived = 0;
    this.#wasLive = false;
    this.#found = this.#sincePause = 0;
    this.emit('reset');
  }

  /** @param {number} from @param {ShownStep[]} steps */
  #append(from, steps) {
    if (from > this.steps.length) return false;
    const fresh = steps.slice(this.steps.length - from);
    for (const step of fresh) {
      const before = this.steps[this.steps.length - 1];
      step.sentence = step.sentence || before?.sentence;  // carried on while nothing changes
      step.context = step.context || before?.context;
      this.steps.push(step);
    }
    if (fresh.length) this.emit('grow', { from: this.steps.length - fresh.length });
    return true;
  }

  /** @param {RunMessage | null} message */
  take(message, { heal = true } = {}) {
    if (!message || typeof message.run !== 'string' || !message.run) return;
    if (message.run !== this.run) this.#reset(message.run);
    if (message.head && !this.head) {
      this.head = message.head;
      this.emit('head');
    }
    const { state = this.state, speed = this.speed, numbers = this.numbers, end = this.end } = message;
    Object.assign(this, { state, speed, numbers, end });
    this.#wasLive = this.#wasLive || Boolean(this.state && this.state.name !== 'finished');
    this.total = message.total === undefined ? this.total : message.total;
    const before = this.steps.length;
    const whole = this.#append(message.from, message.steps || []);
    const added = this.steps.length - before;
    if (message.play && before === 0 && added) return this.#replay();
    if (before === 0 && added && !this.#wasLive) this.#found = this.total;
    if (added) this.#follow(added);
    this.#readSingle(added);
    if (message.end) this.#pinTelling();
    this.emit('info');
    if (message.opening && before === 0 && added) this.emit('opening');
    if (heal && (!whole || this.#lacks())) this.#pull();
  }

  #lacks() { return !this.head || this.steps.length < this.total; }

  async #pull() {
    if (this.#pulling || !this.run) return;
    this.#pulling = true;
    const run = this.run, from = this.head ? this.steps.length : 0, known = this.steps.length, hadHead = Boolean(this.head);
    const answer = parse(await answerOf(this.#source.pull({ run, from })));
    this.#pulling = false;
    if (!answer || answer.run !== run || this.run !== run) return;
    this.take({ ...answer, total: this.total > answer.total ? this.total : answer.total }, { heal: false });
    const isHealing = this.steps.length > known || (!hadHead && this.head);
    if (isHealing && this.#lacks()) this.#pull();
  }

  // ---- the player's place ------------------------------------------------------------------------------------
  #follow(added) {
    const now = performance.now(), gap = this.#arrived ? now - this.#arrived : FULL;
    this.#arrived = now;
    if (!this.following || this.playing) return;
    this.#place(this.steps.length, added === 1 ? gap : 0);
    if (this.#found !== this.total) return;
    this.spot = this.selected().step;                         // the place that is explained is seen, not the end
    this.emit('select', { how: 'found' });
  }

  #place(cursor, rhythm) {
    const from = this.cursor;
    const bounded = cursor < 0 ? 0 : cursor > this.steps.length ? this.steps.length : cursor;
    if (bounded === from) return;
    if (this.imagined) this.imagine(null);
    this.cursor = bounded;
    this.spot = bounded - 1;
    this.rhythm = bounded === from + 1 && rhythm >= SHORT ? rhythm : 0;
    this.emit('cursor', { from, to: bounded });
    this.#pinFirstCut(from, bounded);
    this.emit('select');
  }

  #pinFirstCut(from, to) {
    if (this.#isChosen || this.pinned) return;
    for (let index = from; index < to; index += 1) {
      if (this.steps[index].has_rejected) {
        this.pinned = { step: index, ref: this.steps[index].focus };
        return;
      }
    }
  }

  // Who makes one step at a time wants to read each of them.
  #readSingle(added) {
    const isPaused = this.state?.name === 'paused', isSingle = isPaused && this.#sincePause === 1;
    this.#sincePause = isPaused ? 0 : this.#sincePause + added;
    if (!isSingle || !this.following || !this.pinned || this.#isChosen) return;
    this.pinned = null;
    this.emit('select');
  }

  // A run that was watched to its end: nobody chose the token that is explained, so it is the one that tells most.
  #pinTelling() {
    const telling = this.end.next.find(({ does }) => does === 'pin');
    if (!telling || !this.#wasLive || !this.following || this.#isChosen) return;
    this.pinned = telling.at;
    this.spot = telling.at.step;
    this.emit('select', { how: 'found' });
  }

  #stopTimer() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.playing = false;
  }

  #wait() { return this.#opening > 0 ? OPENING.milliseconds : PACES[this.pace] || PACES.normal; }

  #tick() {
    if (!this.playing) return;
    if (this.cursor >= this.steps.length) return this.#settle();
    const time = this.#wait();
    this.#opening -= 1;
    this.#place(this.cursor + 1, time);
    this.#timer = setTimeout(() => this.#tick(), time);
  }

  #settle() {
    this.#stopTimer();
    this.following = true;
    this.emit('info');
  }

  #replay() {
    this.#opening = OPENING.steps;
    this.following = false;
    this.playing = true;
    this.emit('info');
    if (this.#lacks()) this.#pull();
    this.#tick();
  }

  seek(cursor, { animate = false } = {}) {
    this.#stopTimer();
    this.#opening = 0;
    this.following = cursor >= this.steps.length;
    this.#place(cursor, animate ? 1e9 : 0);
    this.emit('info');
  }

  first() { this.seek(1, { animate: true }); }
  back() { this.seek(this.cursor > 1 ? this.cursor - 1 : 1); }
  forward() { this.seek(this.cursor + 1, { animate: true }); }
  last() { this.seek(this.steps.length); }

  toggle() {
    if (this.playing) {
      this.#stopTimer();
      this.#opening = 0;
    } else if (this.steps.length) {
      if (this.cursor >= this.steps.length) this.#place(0, 0);
      this.following = false;
      this.playing = true;
      this.#tick();
    }
    this.emit('info');
  }

  setPace(pace) { if (PACES[pace]) this.pace = pace; }
  phases() { return this.rhythm >= FULL ? 'full' : this.rhythm ? 'short' : 'none'; }
  isLive() { return Boolean(this.state && ['queued', 'loading', 'running'].includes(this.state.name)); }

  // ---- the selection: hover looks, a click pins, Escape lets go ------------------------------------------------
  /** @param {TokenPlace | null} place_ */
  #isShown(place_) { return Boolean(place_ && place_.step < this.cursor); }

  /** @returns {TokenPlace | null} */
  selected() {
    if (this.#isShown(this.hovered)) return this.hovered;
    if (this.#isShown(this.pinned) && (!this.isPresented || this.pinned.step === this.spot)) return this.pinned;
    const index = this.isPresented ? this.spot : this.cursor - 1, step = this.steps[index];
    return step ? { step: index, ref: step.focus } : null;
  }

  // Before a room, what is explained is the step that stands out.
  present(isPresented) {
    if (isPresented === this.isPresented) return;
    this.isPresented = isPresented;
    this.emit('select');
  }

  /** @returns {TokenLook | null} */
  look() {
    const place_ = this.selected();
    return place_ ? this.steps[place_.step].looks[place_.ref] || null : null;
  }

  /** @param {Imagined | null} imagined */
  imagine(imagined) {
    this.imagined = imagined;
    this.emit('imagine');
  }

  /** @param {TokenPlace | null} place_ */
  hover(place_) {
    if (!place_ && !this.hovered) return;
    this.hovered = place_;
    this.emit('select');
  }

  /** @param {number} step */
  hoverStep(step) { this.hover(this.steps[step] ? { step, ref: this.steps[step].focus } : null); }
  /** @param {number} step @param {string} ref */
  pin(step, ref, how = 'pointer') {
    if (!this.steps[step]) return;
    this.#isChosen = true;
    this.hovered = null;
    this.pinned = { step, ref };
    if (step >= this.cursor) this.seek(step + 1);
    this.spot = step;
    this.emit('select', { how });
  }

  release() {
    this.#isChosen = true;
    this.hovered = null;
    this.pinned = null;
    this.spot = this.cursor - 1;
    this.emit('select', { how: 'release' });
  }

  /** @param {number} step @returns {string[]} */
  refs(step) {
    const found = this.steps[step];
    return found ? [...found.cells.map((cell) => cell.ref), ...(found.last ? [found.last.ref] : [])] : [];
  }

  // Along the tokens of a step and over its ends.
  moveToken(by) {
    const place_ = this.selected();
    if (!place_) return;
    const refs = this.refs(place_.step), next = refs.indexOf(place_.ref) + by;
    if (next >= 0 && next < refs.length) return this.pin(place_.step, refs[next], 'key');
    const step = place_.step + by, others = this.refs(step);
    if (others.length && step < this.cursor) this.pin(step, by > 0 ? others[0] : others[others.length - 1], 'key');
  }

  moveStep(by) {
    const place_ = this.selected();
    if (place_) this.pinStep(place_.step + by);
  }

  pinStep(step) {
    if (this.steps[step] && step < this.cursor) this.pin(step, this.steps[step].focus, 'key');
  }

  start() { this.#source.start((message) => this.take(message)); }
}
