// inspector.js: one token explained: a sentence, both models' probabilities in one bar per token, and the random draw.
// Widths and words arrive computed; "throw again" only places a random point on the bar that is already there.
import { sentence, spelled, VERBATIM, verbatim } from '../core/element.js';
import { html } from '../core/html.js';
import { labelOf } from '../core/palette.js';
import { render } from '../vendor/preact_htm.js';
import { Evidence } from './evidence.js';
import { Token } from './token.js';
/** @import { Hub } from '../core/hub.js' */
/** @import { DrawOnBar, RunHead, ShownStep, TokenLook, TokenPlace } from '../messages.d.ts' */

const ROLES = { drafted: 'drafted', emitted: 'emitted', both: 'drafted, accepted' };
/** @type {('p' | 'q')[]} */
const SIDES = ['p', 'q'];
const MANY = 100;
const ROW_TURN = 30, WIDE_TURN = 55;                // percent; left of a row's bar there is room, right of it a heading
const BUTTONS = ['again', 'many', 'of-token', 'of-draft', 'log', 'raw', 'before', 'after', 'close'];

const bar = (className, from, width) => html`<span class="sv-bar ${className}" style=${{ left: `${from}%`, width: `${width}%` }} />`;
const point = (className, at, inner) => html`<span class=${className} style=${{ left: `${at}%` }}>${inner}</span>`;
/** @typedef {{ log: boolean, raw: boolean }} Options */
/** @param {TokenLook} look @param {Options} options */
const isLog = (look, options) => options.log || look.view === 'threshold';

// turn: from where on its words stand left of it
/** @param {DrawOnBar} draw */
const randomDraw = ({ x, u }, hasWords = true, turn = WIDE_TURN) => point(`sv-random-draw${x > turn ? ' sv-random-draw-left' : ''}`, x, hasWords && html`
  <span class="sv-random-draw-words">random draw <span ...${VERBATIM}>${u}</span><span class="sv-random-draw-more"> of the bar</span></span>`);

// spread, so that a hundred can be seen
/** @typedef {{ at: number, top: number, isIn: boolean }} Thrown */
/** @param {Thrown} draw */
const thrown = ({ at, top, isIn }) => html`<span class="sv-throw ${isIn ? 'sv-throw-in' : 'sv-throw-out'}" style=${{ left: `${at}%`, top: `${top}%` }} />`;

// The bars, or in a log scale the dots, of the row at this place.
/** @param {TokenLook} look @param {number} place @param {Options} options */
export function bars(look, place, options) {
  const { rows } = look, made = [];
  if (isLog(look, options)) {
    if (rows.q && rows.q_dot[place] !== null) made.push(point('sv-dot sv-dot-q', rows.q_dot[place]));
    if (rows.p_dot[place] !== null) made.push(point('sv-dot sv-dot-p', rows.p_dot[place]));
    return made;
  }
  if (look.view === 'draw') {
    made.push(bar(look.status === 'resampled' ? 'sv-shortfall' : 'sv-distribution', 0, rows.distribution[place]));
  } else {
    if (rows.both[place] > 0) made.push(bar('sv-both', 0, rows.both[place]));
    if (rows.shortfall[place] > 0) made.push(bar('sv-shortfall', rows.both[place], rows.shortfall[place]));
    if (rows.excess[place] > 0) made.push(bar('sv-excess', rows.both[place], rows.excess[place]));
  }
  if (options.raw && rows.p_raw) {
    if (rows.p_raw[place] !== null) made.push(bar('sv-raw sv-raw-p', 0, rows.p_raw[place]));
    if (rows.q_raw && rows.q_raw[place] !== null && look.view === 'overlay') made.push(bar('sv-raw sv-raw-q', 0, rows.q_raw[place]));
  }
  return made;
}

/** @param {{ look: TokenLook, place: number, options: Options, randomDraws: Thrown[] }} props */
export function Row({ look, place, options, randomDraws }) {
  const { rows, status } = look, role = rows.role[place];
  const words = role === 'emitted' && status !== 'bonus' && status !== 'plain' ? 'resampled' : ROLES[role];
  const hasDraw = place === 0 && look.draw && look.view === 'overlay' && !options.log;
  return html`<div class="sv-probabilities-row${role ? ` sv-role-${role}` : ''} sv-is-${status}" role="row"><span class="sv-probabilities-name" role="rowheader">
      ${role === 'others' ? html`<span class="sv-token-word">${rows.text[place]}</span>` : html`<${Token} className="sv-probabilities-token" text=${rows.text[place]} />`}
      ${words && html`<span class="sv-probabilities-role">${words}</span>`}</span>
    <span class="sv-track">${bars(look, place, options)}${hasDraw && randomDraw(look.draw, !look.zoom, ROW_TURN)}${place === 0 && !look.zoom && randomDraws.map(thrown)}</span>
    ${SIDES.map((side) => rows[side] && html`<span class="sv-probabilities-number sv-probabilities-${side}" role="cell" ...${VERBATIM}>${rows[side][place]}</span>`)}</div>`;
}

// The drafted tokens at one place, in the order in which they are judged.
/** @param {{ siblings: TokenLook['siblings'], chosen: string, pin: (ref: string) => void }} props */
export const Siblings = ({ siblings, chosen, pin }) => siblings.map(([ref, text, status, ...probabilities]) => html`<tr class=${ref === chosen ? 'sv-this' : undefined}>
  <th scope="row"><button type="button" class="sv-sibling" onClick=${() => pin(ref)}><${Token} text=${text} /></button></th>
  ${probabilities.map((words) => html`<td ...${VERBATIM}>${words}</td>`)}<td class="sv-fate sv-is-${status}">${labelOf(status)}</td></tr>`);

/** @param {{ ticks: TokenLook['axis'] }} props */
const Axis = ({ ticks }) => ticks.map(([at, words]) => point('sv-axis-tick', at, html`<span class="sv-axis-words" ...${VERBATIM}>${words}</span>`));

/** @param {{ shape: DrawOnBar, randomDraws: Thrown[] }} props */
const Enlarged = ({ shape, randomDraws }) => html`${bar('sv-both', 0, shape.fill)}${bar('sv-excess', shape.fill, shape.bar - shape.fill)}${randomDraw(shape)}
  ${shape.words && html`<span class="sv-enlarged-words">${shape.words}</span>`}${randomDraws.map(thrown)}`;

/** @param {{ numbers: TokenLook['numbers'], names: RunHead['look_numbers'] }} props */
const Numbers = ({ numbers, names }) => numbers.map((value, place) => value && html`
  <dt>${names[place][0]}</dt><dd ...${VERBATIM}>${value}</dd><dd class="sv-formula" ...${VERBATIM}>${names[place][1]}</dd>`);

// What the inspector takes of a hub: also of one that has no run, only looks.
/**
 * @typedef {Pick<Hub, 'run' | 'on' | 'selected' | 'look' | 'pin' | 'moveToken'>
 *   & { head: Pick<RunHead, 'look_numbers' | 'log_ticks'>, steps: Pick<ShownStep, 'made'>[] }} Looks
 */

export class Inspector {
  /** @type {Options} */
  options = { log: false, raw: false };
  /** @type {Thrown[]} */
  randomDraws = [];                                   // at the token that is shown
  /** @type {TokenLook | null} */
  shown = null;
  ofDraft = false;                                    // how the draft was made is shown, not the token's probabilities
  looks = 0;                                          // counted, so that each look is drawn from the beginning

  /** @param {HTMLElement} root @param {Looks} hub */
  constructor(root, hub) {
    this.root = root;
    this.hub = hub;
    this.host = root.querySelector('.sv-inspector');
    /** @type {Record<string, HTMLElement>} */
    this.parts = {};
    for (const node of this.host.querySelectorAll('[data-part]')) this.parts[node.dataset.part] = node;
    const close = () => root.removeAttribute('data-sheet');
    const does = [() => this.throwDraws(1), () => this.throwDraws(MANY), () => this.turn(false), () => this.turn(true),
      () => this.option('log'), () => this.option('raw'), () => hub.moveToken(-1), () => hub.moveToken(1), close];
    BUTTONS.forEach((name, place) => this.parts[name].addEventListener('click', does[place]));
    root.querySelector('.sv-shade').addEventListener('click', close);
    hub.on('reset', () => { this.shown = null; close(); this.draw(); });
    hub.on('select', (detail) => {
      this.draw();
      if (detail && (detail.how === 'pointer' || detail.how === 'key')) root.dataset.sheet = 'open';
      if (detail && detail.how === 'release') close();
    });
  }

  draw() {
    const place = this.hub.selected(), look = this.hub.look();
    this.host.classList.toggle('sv-nothing', !look);
    if (!look) {
      this.shown = null;
      return;
    }
    this.how(place);
    if (look === this.shown) return;
    this.shown = look;
    this.render();
  }

  // How the step's draft was made, where there is something to tell of it.
  /** @param {TokenPlace} place */
  how({ step, ref }) {
    const { parts, ofDraft } = this, made = this.hub.steps[step].made || null, press = (to) => this.hub.pin(this.hub.selected().step, to);
    parts.views.hidden = !made;
    parts['of-token'].setAttribute('aria-pressed', String(!ofDraft));
    parts['of-draft'].setAttribute('aria-pressed', String(ofDraft));
    this.host.dataset.shows = made && ofDraft ? 'draft' : 'token';
    render(made && ofDraft ? html`<${Evidence} key=${`${this.hub.run} ${step}`} ...${made} chosen=${ref} press=${press} />` : null, parts.made);
  }

  turn(toDraft) {
    this.ofDraft = toDraft;
    if (this.hub.selected()) this.how(this.hub.selected());
  }

  option(name) {
    this.options[name] = !this.options[name];
    if (this.shown) this.render();
  }

  // another look, or another way to look
  render() {
    const { parts, options, shown: look } = this, place = this.hub.selected();
    this.randomDraws = [];
    this.looks += 1;
    parts.status.textContent = labelOf(look.status);
    parts.status.className = `sv-pill sv-is-${look.status}`;
    parts.where.textContent = `step ${spelled(place.step + 1)}`;
    sentence(parts.title, look.title);
    sentence(parts.note, look.note || []);
    parts.note.hidden = !(look.note && look.note.length);
    this.host.dataset.view = look.view;
    parts.key.hidden = look.view !== 'overlay' || options.log;
    parts['raw-key'].hidden = !options.raw;
    parts['log-key'].hidden = !(look.rows && isLog(look, options));
    parts.siblings.hidden = !look.siblings;
    render(html`<${Siblings} siblings=${look.siblings || []} chosen=${place.ref} pin=${(ref) => this.hub.pin(place.step, ref)} />`, /** @type {HTMLTableElement} */ (parts.siblings).tBodies[0]);
    this.foot(look);
    this.tools(look);
    this.probabilities();
  }

  // The rows, and the drafted bar over the whole width: for rules with no other picture, and where it is too small to be read.
  probabilities() {
    const { parts, options, randomDraws, shown: look } = this, { rows } = look, shape = look.view === 'threshold' ? look.draw : options.log ? null : look.zoom;
    parts.probabilities.hidden = !rows;
    if (rows) {
      parts.probabilities.dataset.distributions = rows.q ? '2' : '1';
      parts.probabilities.style.setProperty('--sv-rows', String(rows.text.length));
      parts.heading.textContent = look.heading || 'target';
      render(html`<${Axis} ticks=${isLog(look, options) ? this.hub.head.log_ticks : look.axis} />`, parts.axis);
      render(rows.text.map((_, place) => html`<${Row} key=${`${this.looks} ${place}`} look=${look} place=${place} options=${options} randomDraws=${randomDraws} />`), parts.rows);
    }
    parts.enlarged.hidden = !shape;
    render(shape ? html`<${Enlarged} key=${this.looks} shape=${shape} randomDraws=${randomDraws} />` : null, parts.enlarged);
  }

  /** @param {TokenLook} look */
  foot(look) {
    const { parts } = this;
    parts.foot.hidden = !look.foot;
    if (!look.foot) return;
    const [width, agree, shortfall] = look.foot;
    parts.agree.style.width = `${width}%`;
    parts['agree-words'].replaceChildren('both agree ', verbatim('span', '', agree));
    parts['shortfall-words'].replaceChildren('shortfall ', verbatim('span', '', shortfall));
  }

  /** @param {TokenLook} look */
  tools(look) {
    const { parts, options } = this, canThrow = look.view === 'overlay' && !options.log;
    for (const name of ['again', 'many']) parts[name].hidden = !canThrow;
    parts.log.hidden = !look.rows || look.view === 'threshold';
    parts.raw.hidden = !(look.rows && look.rows.p_raw) || options.log;
    parts.log.setAttribute('aria-pressed', String(options.log));
    parts.raw.setAttribute('aria-pressed', String(options.raw));
    parts.thrown.textContent = '';
    parts['numbers-box'].hidden = !look.numbers;
    render(html`<${Numbers} numbers=${look.numbers || []} names=${this.hub.head.look_numbers} />`, parts.numbers);
  }

  // A random point on the drafted bar: inside the solid part the token would be accepted, else rejected. Single throws add up.
  throwDraws(count) {
    const { bar: width, fill } = this.shown.zoom || this.shown.draw;
    if (count > 1 || this.randomDraws.length >= MANY) this.randomDraws = [];
    const fresh = Array.from({ length: count }, () => ({ at: Math.random() * width, top: 20 + 60 * Math.random() }));
    this.randomDraws = [...this.randomDraws, ...fresh.map((each) => ({ ...each, isIn: each.at < fill }))];
    this.probabilities();
    const accepted = this.randomDraws.filter(({ isIn }) => isIn).length;
    this.parts.thrown.textContent = this.randomDraws.length === 1 ? (accepted ? 'would be accepted' : 'would be rejected') : `accepted ${accepted} of ${this.randomDraws.length}`;
  }
}
