// player.js: the buttons that move through the steps, and one stacked bar per step with the running rate above it.
// Replaying costs no request: all steps already lie in the page.
import { spelled, framed, verbatim } from '../core/element.js';
/** @import { Hub } from '../core/hub.js' */
/** @import { ShownStep, StepBar } from '../messages.d.ts' */

const SVG = 'http://www.w3.org/2000/svg';
const WIDE = 14, NARROW = 5, HEIGHT = 46;           // pixels per bar; fewer when there are many steps
/** @type {(keyof StepBar)[]} */
const PARTS = ['accepted', 'rejected', 'ignored', 'refused'];

export class Player {
  /** @param {HTMLElement} root @param {Hub} hub */
  constructor(root, hub) {
    this.root = root;
    this.hub = hub;
    this.strip = this.root.querySelector('.sv-bars');
    this.svg = this.strip.querySelector('svg');
    this.layer = this.svg.querySelector('.sv-bars-layer');
    this.rate = this.svg.querySelector('.sv-rate');
    this.cursor = this.svg.querySelector('.sv-bars-cursor');
    this.chosen = this.svg.querySelector('.sv-bars-chosen');
    this.place = this.root.querySelector('.sv-place');
    /** @type {Map<number, Element>} */
    this.groups = new Map();
    this.deepest = 1;
    this.width = WIDE;
    this.first = 0;
    this.isStale = false;
    this.redraw = framed(() => this.layout());
    this.pace = /** @type {HTMLSelectElement} */ (this.root.querySelector('.sv-pace'));
    for (const name of ['first', 'back', 'toggle', 'forward', 'last']) {
      this.button(name).addEventListener('click', () => this.hub[name]());
    }
    this.pace.addEventListener('change', () => this.hub.setPace(this.pace.value));
    this.strip.addEventListener('click', (event) => {
      const index = this.stepAt(event);
      if (index < 0) return;
      this.hub.seek(index + 1);
      this.hub.pinStep(index);
    });
    this.strip.addEventListener('pointermove', (event) => {
      const step = this.hub.steps[this.stepAt(event)];
      this.strip.title = step ? [...step.changes, step.say].join(' · ') : '';
      if (event.pointerType !== 'touch') this.hub.hoverStep(this.stepAt(event));
    });
    this.strip.addEventListener('pointerleave', () => this.hub.hover(null));
    this.hub.on('reset', () => {
      this.groups.forEach((made) => made.remove());
      this.groups = new Map();
      this.deepest = 1;
      this.first = 0;
      this.rate.setAttribute('points', '');
      this.shade();
      this.position();
    });
    this.hub.on('grow', ({ from }) => {
      const before = this.deepest;
      for (const step of this.hub.steps.slice(from)) if (this.draft(step) > this.deepest) this.deepest = this.draft(step);
      this.isStale = this.isStale || this.deepest !== before;
      this.redraw();
    });
    this.hub.on('cursor', () => { this.position(); this.redraw(); });
    this.hub.on('info', () => this.position());
    this.hub.on('select', () => this.choose());
    new ResizeObserver(this.redraw).observe(this.strip);
  }

  /** @returns {HTMLButtonElement} */
  button(name) { return this.root.querySelector(`[data-do="${name}"]`); }

  /** @param {ShownStep} step */
  draft(step) { return PARTS.reduce((sum, part) => sum + step.bar[part], 0); }

  shape(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const key of Object.keys(attributes)) made.setAttribute(key, attributes[key]);
    return made;
  }

  /** @param {number} index */
  group(index) {
    const step = this.hub.steps[index], made = this.shape('g', { class: 'sv-step-bar' });
    let y = HEIGHT;
    for (const part of PARTS) {
      const height = (step.bar[part] / this.deepest) * HEIGHT;
      if (!height) continue;
      y -= height;
      made.append(this.shape('rect', { class: `sv-bar-${part}`, x: 1, width: this.width - 2, y, height: height - 1 < 1 ? 1 : height - 1 }));
    }
    if (step.changes.length) made.append(this.shape('line', { class: 'sv-bar-changed', y2: HEIGHT }));
    made.setAttribute('transform', `translate(${index * this.width} 0)`);
    made.dataset.step = String(index);
    return made;
  }

  // As many bars as fit, around the player's place.
  layout() {
    const force = this.isStale;
    this.isStale = false;
    const space = this.strip.clientWidth || 400, count = this.hub.steps.length;
    const wide = count * WIDE <= space ? WIDE : count * NARROW >= space ? NARROW : Math.floor(space / count);
    const fit = Math.floor(space / wide);
    let start = this.first;
    if (count <= fit) start = 0;
    else if (this.hub.cursor - 1 < this.first || this.hub.cursor > this.first + fit) start = this.hub.cursor - Math.floor(fit / 2);
    if (start + fit > count) start = count - fit;
    if (start < 0) start = 0;
    const isNew = force || wide !== this.width;
    this.width = wide;
    this.first = start;
    this.groups.forEach((made, index) => {
      if (!isNew && index >= this.first && index < this.first + fit) return;
      made.remove();
      this.groups.delete(index);
    });
    const shift = `translate(${-this.first * this.width} 0)`;
    for (const node of [this.layer, this.rate]) if (node.getAttribute('transform') !== shift) node.setAttribute('transform', shift);
    for (let index = this.first; index < count && index < this.first + fit; index += 1) {
      if (this.groups.has(index)) continue;
      const made = this.group(index);
      this.groups.set(index, made);
      this.layer.append(made);
    }
    if (this.svg.getAttribute('width') !== String(space)) this.svg.setAttribute('width', String(space));
    this.line();
    this.shade();
  }

  shade() {
    this.groups.forEach((made, index) => {
      const isAhead = index >= this.hub.cursor;
      if (made.classList.contains('sv-ahead') !== isAhead) made.classList.toggle('sv-ahead', isAhead);
    });
    this.cursor.setAttribute('transform', `translate(${(this.hub.cursor - 1 - this.first) * this.width} 0)`);
    this.cursor.setAttribute('width', String(this.width));
    this.cursor.style.visibility = this.hub.cursor ? 'visible' : 'hidden';
    this.choose();
  }

  choose() {
    const selected = this.hub.selected();
    this.chosen.style.visibility = selected ? 'visible' : 'hidden';
    if (!selected) return;
    this.chosen.setAttribute('transform', `translate(${(selected.step - this.first) * this.width} 0)`);
    this.chosen.setAttribute('width', String(this.width));
  }

  line() {
    const points = [];
    for (const index of [...this.groups.keys()].sort((one, other) => one - other)) {
      const share = this.hub.steps[index].totals.accepted_share;
      if (share !== null) points.push(`${(index + 0.5) * this.width},${HEIGHT - (share / 100) * HEIGHT}`);
    }
    this.rate.setAttribute('points', points.join(' '));
  }

  position() {
    const shown = this.hub.cursor, total = this.hub.steps.length;
    this.place.textContent = total ? `step ${spelled(shown)} of ${spelled(total)}` : '';
    this.strip.setAttribute('aria-valuenow', String(shown));
    this.strip.setAttribute('aria-valuemax', String(total));
    this.strip.setAttribute('aria-valuetext', shown ? this.hub.steps[shown - 1].say : 'no step yet');
    const step = this.hub.steps[shown - 1];
    this.root.querySelector('.sv-rate-words').replaceChildren(...(step && step.totals.accepted ? [verbatim('span', '', step.totals.accepted), ' accepted so far'] : []));
    this.buttons();
  }

  buttons() {
    const none = !this.hub.steps.length;
    for (const name of ['first', 'back']) this.button(name).disabled = none || this.hub.cursor <= 1;
    for (const name of ['forward', 'last']) this.button(name).disabled = none || this.hub.cursor >= this.hub.steps.length;
    this.button('toggle').disabled = none;
    this.button('toggle').setAttribute('aria-label', this.hub.playing ? 'pause the replay' : 'replay');
    this.root.toggleAttribute('data-playing', this.hub.playing);
  }

  /** @param {MouseEvent} event */
  stepAt(event) {
    const box = this.strip.getBoundingClientRect();
    const index = this.first + Math.floor((event.clientX - box.left) / this.width);
    return index >= 0 && index < this.hub.steps.length ? index : -1;
  }
}
