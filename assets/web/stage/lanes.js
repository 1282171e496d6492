// lanes.js: one row per step, one cell per drafted token: the fill is the chance to be accepted or the stopping test, the line is the random draw.
// The same rows show what another K would have done. Only rows near the visible part exist, so a thousand steps cost as much as ten.
import { button, element, framed, spelled, verbatim } from '../core/element.js';
import { pointing } from './pointing.js';
import { tokenLabel } from './token.js';
/** @import { Cell, Hub, Row } from '../core/hub.js' */
/** @import { RefusedStep } from '../messages.d.ts' */

const ROW = 40, CHANGE = 24, BEYOND = 6;            // pixels of a row, of a change between rows; rows kept outside
const GLYPHS_FROM = 5;                              // on a narrow page cells beyond these are glyphs

// A cell as it looks; the help shows some.
/** @param {Pick<Cell, 'status' | 'behind_end' | 'fill' | 'tick' | 'text' | 'label'>} cell */
export function drawCell(cell) {
  const made = button(`sv-cell sv-is-${cell.status}${cell.behind_end ? ' sv-behind-end' : ''}`);
  made.tabIndex = -1;
  if (cell.fill !== undefined) {
    const fill = element('span', 'sv-fill');
    fill.style.width = `${cell.fill}%`;
    made.append(fill);
  }
  if (cell.tick !== undefined) {                    // some rules have no random draw
    const tick = element('span', 'sv-tick');
    tick.style.left = `${cell.tick}%`;
    made.append(tick);
  }
  made.append(tokenLabel('sv-cell-text', cell.text));
  if (cell.label) made.append(verbatim('span', 'sv-chance', cell.label));
  return made;
}

export class Lanes {
  /** @param {HTMLElement} root @param {Hub} hub */
  constructor(root, hub) {
    this.root = root;
    this.hub = hub;
    this.host = this.root.querySelector('.sv-lanes-body');
    this.sheet = this.root.querySelector('.sv-lanes-sheet');
    this.tops = [0];                                   // tops[i]: where row i begins, its change line included
    /** @type {Map<number, HTMLElement>} */
    this.rows = new Map();
    this.columns = 1;
    this.newest = -1;
    this.toNewest = false;
    this.stays = false;                                // the newest row is in sight and shall stay there
    this.isUnseen = false;                             // what is to be revealed waits for a stage that has a height
    this.redraw = framed(() => this.draw());
    this.isImagined = false;
    this.left = { top: 0, stays: false };              // the run's own lanes while others are imagined
    this.hub.on('reset', () => {
      this.isImagined = false;
      this.clear();
    });
    this.hub.on('imagine', () => {
      const wasImagined = this.isImagined;
      this.isImagined = Boolean(this.hub.imagined);
      if (this.isImagined && !wasImagined) this.left = { top: this.host.scrollTop, stays: this.stays };
      this.clear();
      this.measure(this.count);
      if (this.isImagined !== wasImagined) this.host.scrollTop = this.isImagined ? 0 : this.left.top;
      this.toNewest = this.stays = !this.isImagined && this.left.stays;
      this.redraw();
    });
    this.hub.on('cursor', ({ to }) => {
      this.settle();
      this.newest = to - 1;
      this.drop(this.newest);
      this.measure(to);
      this.toNewest = this.stays = true;
      this.redraw();
    });
    this.hub.on('select', (detail) => {
      const place = this.hub.selected();
      const how = detail && detail.how, wasHere = this.root.contains(document.activeElement);
      if (place && !this.isImagined && (how === 'key' || how === 'pointer' || how === 'found')) {
        this.toNewest = this.stays = false;
        this.isUnseen = !this.host.clientHeight;
        this.reveal(place.step);
        this.draw();
      }
      const on = this.mark();
      if (on && how) this.aside(on);
      if (on && how === 'key' && wasHere) on.focus({ preventScroll: true });
    });
    this.host.addEventListener('scroll', () => {
      this.stays = this.host.scrollTop + this.host.clientHeight >= this.tops[this.count] - 1;
      this.redraw();
    }, { passive: true });
    new ResizeObserver(() => this.resized()).observe(this.host);
    window.addEventListener('resize', () => this.resized());
    pointing(this.sheet, '.sv-cell', this.hub);
  }

  /** @returns {Row[]} */
  get steps() { return this.hub.imagined ? this.hub.imagined.rows : this.hub.steps; }

  get count() { return this.hub.imagined ? this.steps.length : this.hub.cursor; }

  clear() {
    for (const index of this.rows.keys()) this.drop(index);
    this.tops = [0];
    this.columns = 1;
    this.newest = -1;
    this.sheet.style.height = '0px';
  }

  // A row that goes leaves the keyboard where it was.
  /** @param {number} index */
  drop(index) {
    const made = this.rows.get(index);
    if (made?.contains(document.activeElement)) this.host.focus({ preventScroll: true });
    made?.remove();
    this.rows.delete(index);
  }

  /** @param {number} index */
  changed(index) { return this.steps[index].changes.length > 0; }

  heightOf(index) { return ROW + (this.changed(index) ? CHANGE : 0); }

  measure(until) {
    while (this.tops.length <= until) this.tops.push(this.tops[this.tops.length - 1] + this.heightOf(this.tops.length - 1));
    this.sheet.style.height = `${this.tops[until]}px`;
  }

  // All rows in sight share their columns, as many as the widest of them needs.
  widen(from, until) {
    let wanted = 1;
    for (const index of this.rows.keys()) {
      if (index < from || index > until) continue;
      const { cells, last, cut_off, more, refused } = this.steps[index], own = cells.length + (last || cut_off ? 1 : 0) + (more ? 1 : 0) + (refused ? 1 : 0);
      if (own > wanted) wanted = own;
    }
    if (wanted === this.columns) return;
    this.columns = wanted;
    this.root.style.setProperty('--sv-columns', String(this.columns));
    this.root.toggleAttribute('data-many', this.columns > GLYPHS_FROM + 1);
  }

  /** @param {number} index @param {Cell} cell @param {number} place */
  cell(index, cell, place) {
    const made = drawCell(cell), { number } = this.steps[index];
    made.dataset.step = String(cell.step ?? index);
    made.dataset.ref = cell.ref;
    made.setAttribute('aria-label', `${number ? `token ${number + place}` : `step ${index + 1}`}: ${cell.say}`);
    made.style.setProperty('--sv-place', String(place));
    return made;
  }

  // What was drafted and refused as a whole.
  /** @param {RefusedStep} refused */
  refusal({ text: [count, words], say }) {
    const made = element('span', 'sv-refused sv-is-rejected'), body = element('span', 'sv-body', count);
    made.setAttribute('role', 'img');
    made.setAttribute('aria-label', say);
    made.title = say;
    body.append(element('span', 'sv-more-words', words));
    made.append(body);
    return made;
  }

  // How many more there are; the words only where there is room.
  /** @param {string[]} more */
  others([count, words]) {
    const made = element('span', 'sv-more', count);
    if (words) made.append(element('span', 'sv-more-words', words));
    return made;
  }

  /** @param {number} index */
  row(index) {
    const step = this.steps[index], made = element('div', 'sv-row');
    made.style.top = `${this.tops[index]}px`;
    made.style.setProperty('--sv-count', String(step.cells.length));
    if (this.changed(index)) {
      const line = element('div', 'sv-change');
      step.changes.forEach((words) => line.append(element('span', 'sv-change-words', words)));
      made.append(line);
    }
    const lane = element('div', 'sv-lane');
    lane.append(verbatim('span', 'sv-step-number', spelled(step.number || index + 1)));
    step.cells.forEach((cell, place) => lane.append(this.cell(index, cell, place)));
    if (step.more) lane.append(this.others(step.more_words));
    if (step.refused) lane.append(this.refusal(step.refused));
    if (step.last) {
      const last = this.cell(index, step.last, step.cells.length);
      last.classList.add('sv-last');
      lane.append(last);
    } else if (step.cut_off) {
      lane.append(element('span', 'sv-more', 'end of text'));
    }
    if (index === this.newest) made.dataset.phases = this.hub.phases();
    if (step.filled) made.dataset.filled = step.filled;
    made.append(lane);
    return made;
  }

  // The rows that the visible part needs, by binary search over their tops.
  rowAt(y) {
    let low = 0, high = this.count;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.tops[middle + 1] <= y) low = middle + 1; else high = middle;
    }
    return low;
  }

  draw() {
    if (this.toNewest) this.host.scrollTop = this.tops[this.count];
    this.toNewest = false;
    const height = this.host.clientHeight || ROW * 5;
    const first = this.rowAt(this.host.scrollTop), last = this.rowAt(this.host.scrollTop + height - 1);
    const from = first - BEYOND, until = last + BEYOND;
    for (const index of this.rows.keys()) if (index < from || index > until || index >= this.count) this.drop(index);
    for (let index = from < 0 ? 0 : from; index <= until && index < this.count; index += 1) {
      if (this.rows.has(index)) continue;
      const made = this.row(index);
      this.rows.set(index, made);
      this.sheet.append(made);
    }
    this.widen(first, last);
    const now = this.steps[this.count - 1];
    this.root.toggleAttribute('data-whole', Boolean(now && now.whole));
    this.root.toggleAttribute('data-drawless', Boolean(now && now.drawless) && !this.sheet.querySelector('.sv-tick'));
    this.mark();
  }

  settle() {
    const before = this.rows.get(this.newest);
    if (before) delete before.dataset.phases;
  }

  mark() {
    const place = this.hub.selected();
    for (const made of this.sheet.querySelectorAll('.sv-on')) {
      made.classList.remove('sv-on');
      made.tabIndex = -1;
      made.removeAttribute('aria-current');
    }
    for (const made of this.sheet.querySelectorAll('.sv-now')) made.classList.remove('sv-now');
    if (!this.isImagined && this.rows.has(this.hub.spot)) this.rows.get(this.hub.spot).classList.add('sv-now');
    const lane = place && (this.isImagined ? this.sheet : this.rows.get(place.step));
    const on = lane && [...lane.querySelectorAll('.sv-cell')].find(({ dataset }) => dataset.ref === place.ref && dataset.step === String(place.step));
    if (!on) return null;
    on.classList.add('sv-on');
    on.tabIndex = 0;
    on.setAttribute('aria-current', 'true');
    return on;
  }

  // Brings a chosen cell out from under the last one, which stays at the edge.
  /** @param {HTMLElement} cell */
  aside(cell) {
    const { host } = this, left = cell.offsetLeft - cell.offsetWidth, right = cell.offsetLeft + 2 * cell.offsetWidth - host.clientWidth;
    if (cell.classList.contains('sv-last')) return;
    if (left < host.scrollLeft) host.scrollLeft = left;
    if (right > host.scrollLeft) host.scrollLeft = right;
  }

  reveal(index) {
    const top = this.tops[index], bottom = this.tops[index + 1];
    if (top < this.host.scrollTop) this.host.scrollTop = top;
    else if (bottom > this.host.scrollTop + this.host.clientHeight) this.host.scrollTop = bottom - this.host.clientHeight;
  }

  resized() {
    this.toNewest = this.toNewest || this.stays;
    const chosen = this.isUnseen ? this.hub.selected() : this.hub.pinned;
    this.isUnseen = this.isUnseen && !this.host.clientHeight;
    if (!this.toNewest && !this.isImagined && chosen && chosen.step < this.hub.cursor) this.reveal(chosen.step);
    this.redraw();
  }
}
