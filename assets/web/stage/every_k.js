// every_k.js: K over a finished run. What every K would have done is Python's, sent once; a slider chooses one, and the
// stage shows its sentence, its numbers and its lanes. At the run's own K these are the run's own again.
import { answerOf } from '../core/answer.js';
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { render } from '../vendor/preact_htm.js';
/** @import { AskEveryK, Cell, Hub, Row, Trigger } from '../core/hub.js' */
/** @import { EveryK as Told, NoOtherK, OtherK } from '../messages.d.ts' */

const PER_ROW = 5;                                         // tokens in a row where no step begins or ends for sure
const UNKNOWN = '·';                                       // a drafted token that nobody has recorded

/** @param {Told['tokens'][0]} token @param {string} status @param {Partial<Cell>} [more] @returns {Cell} */
const emitted = ([text, step, ref], status, more) => ({ text, step, ref, status: /** @type {Cell['status']} */ (status), say: `${text}, ${status}`, ...more });

// A step that is sure, as the lanes show those of a run: tokens accepted, how many were drafted, what its last token is.
/** @param {Told} told @param {OtherK['steps'][0]} step @param {number} start */
function stepRow({ tokens, drafted, kinds }, [accepted, number, kind], start) {
  const cells = tokens.slice(start, start + accepted).map((token) => emitted(token, 'accepted', { fill: 100 }));
  const place = start + accepted, known = drafted[place] || [], isRejected = kinds[kind] === 'resampled';
  const [, step, ref] = tokens[place] || tokens[place - 1];  // a click leads to the place in the text
  while (cells.length < number) {
    const status = isRejected && cells.length === accepted ? 'rejected' : 'ignored';
    cells.push(emitted([known[cells.length - accepted] || UNKNOWN, step, ref], status, status === 'rejected' ? { fill: 0 } : {}));
  }
  const last = kinds[kind] === 'accepted' ? null : emitted(tokens[place], kinds[kind]);
  return { cells, last, cut_off: last ? 0 : 1, changes: [], drawless: true };
}

/** @param {Told} told @param {OtherK['steps']} steps @returns {Row[]} */
function sureRows(told, steps) {
  let start = 0;
  return steps.map((step) => {
    const row = stepRow(told, step, start);
    start += step[0] + (row.last ? 1 : 0);
    return row;
  });
}

/** @param {Told} told @param {OtherK['chances']} chances @returns {Row[]} */
function likelyRows({ tokens, labels }, chances) {
  const cells = tokens.map((token, place) => {
    const [label, fill] = labels[chances[place]];
    return emitted(token, 'likely', { fill, label, say: `${token[0]}: accepted ${label} of the time` });
  });
  const rows = [];
  for (let at = 0; at < cells.length; at += PER_ROW) rows.push({ cells: cells.slice(at, at + PER_ROW), last: null, changes: [], number: at + 1 });
  return rows;
}

// the rows of the lanes at one of the Ks
/** @param {Told} told @param {OtherK} chosen */
export const rowsOf = (told, { steps, chances }) => (steps ? sureRows(told, steps) : likelyRows(told, chances));

// Tokens per target call over all Ks: the run's own K is a ring, the chosen one a dot.
/** @param {{ told: Told, k: number }} props */
function Curve({ told: { curve, curve_words, own }, k }) {
  const mark = (name, [x, y]) => html`<circle class=${name} cx=${x} cy=${y} r="3.5" />`;
  return html`<svg class="sv-curve" viewBox="0 0 96 24" role="img" aria-label=${curve_words}><title>${curve_words}</title><polyline points=${curve.join(' ')} />
    ${own && curve[own - 1] && mark('sv-curve-own', curve[own - 1])}${own !== k && mark('sv-curve-at', curve[k - 1])}</svg>`;
}

/** @param {{ told: Told | null, refusal: NoOtherK | null, k: number, isImagined: boolean, choose: (k: number) => void, really?: (k: number) => void }} props */
export function Slider({ told, refusal, k, isImagined, choose, really }) {
  if (refusal) return html`<span class="sv-every-k-why" title=${refusal.why}>${refusal.refusal}</span>`;
  if (!told) return null;
  return html`<label><span>What if K<span class="sv-every-k-had"> had been</span></span> <input type="range" min="1" max=${told.by_k.length} step="1" value=${k} aria-valuetext=${told.by_k[k - 1].sentence.join('')}
      onInput=${(event) => choose(Number(event.target.value))} /><b ...${VERBATIM}>${k}</b></label><${Curve} told=${told} k=${k} />
    ${isImagined && really && html`<button type="button" class="sv-button sv-mode" onClick=${() => really(k)}>Run it for real</button>`}`;
}

// trigger: the server's, to run a K.
export class EveryK {
  /** @type {Told | null} */
  told = null;
  /** @type {NoOtherK | null} */
  refusal = null;
  asked = null;
  k = 0;

  /** @param {HTMLElement} root @param {Hub} hub @param {{ ask: AskEveryK, trigger?: Trigger }} server */
  constructor(root, hub, { ask, trigger }) {
    this.root = root;
    this.hub = hub;
    this.ask = ask;
    this.trigger = trigger;
    this.box = root.querySelector('.sv-every-k');
    this.hub.on('reset', () => this.tell(null));
    this.hub.on('info', () => this.look());
    this.hub.on('imagine', () => {
      if (!this.hub.imagined) this.k = this.told ? this.told.at : 0;
      this.draw();
    });
  }

  // once per run, when all of it is there
  async look() {
    const { run, end, steps, total } = this.hub;
    if (this.asked === run || !end || this.hub.isLive() || !steps.length || steps.length < total) return;
    this.asked = run;
    const told = await answerOf(this.ask({ run }));
    if (this.hub.run === run) this.tell(told);
  }

  /** @param {Told | NoOtherK | null} answer */
  tell(answer) {
    this.told = answer && 'by_k' in answer ? answer : null;
    this.refusal = answer && 'refusal' in answer ? answer : null;
    this.k = this.told ? this.told.at : 0;
    if (!answer) this.asked = null;
    this.draw();
  }

  /** @param {number} k */
  choose(k) {
    this.k = k;
    if (this.hub.cursor < this.hub.steps.length) this.hub.last();
    const chosen = this.told.by_k[k - 1], { context } = this.hub.steps[this.hub.steps.length - 1];
    this.hub.imagine(k === this.told.own ? null : { ...chosen, context, rows: rowsOf(this.told, chosen) });
  }

  draw() {
    const really = this.trigger && ((k) => this.trigger('really', { k }));
    const isImagined = Boolean(this.hub.imagined);
    render(html`<${Slider} told=${this.told} refusal=${this.refusal} k=${this.k} isImagined=${isImagined} choose=${(k) => this.choose(k)} really=${really} />`, this.box);
    this.root.toggleAttribute('data-imagined', isImagined);
    this.root.toggleAttribute('data-likely', isImagined && !this.told.sure);
  }
}
