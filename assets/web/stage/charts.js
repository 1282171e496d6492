// charts.js: summary charts of the run on the stage, drawn while they are open and in sight. Figures and their points
// arrive computed. A click on a place selects what it stands for.
import { element, framed } from '../core/element.js';
import { loadPlotly, themed, frame, fillTable, drawFigure } from '../core/figure.js';
/** @import { Figure } from '../core/figure.js' */
/** @import { Hub } from '../core/hub.js' */
/** @import { ShownStep, TokenPlace } from '../messages.d.ts' */

const REDRAW = 250, REST = 4;                       // milliseconds between redraws while a run grows; a long one rests longer

// the same as figures.apply_points: points are appended to, or replace, the lists they name
/** @param {Figure} figure @param {ShownStep['points'][string]} points */
function apply(figure, points) {
  for (const name of Object.keys(points)) {
    if (name === 'mode') continue;
    const holders = name.split('.'), last = holders.pop();
    figure.data.forEach((trace, place) => {
      let holder = trace;
      for (const part of holders) holder = holder[part];
      if (points.mode === 'append') holder[last].push(...points[name][place]);
      else holder[last] = [...points[name][place]];
    });
  }
}

// what a click on a place selects, and the place of a selection: "step" or "step:token" stands in its customdata
/** @param {Figure} figure @param {TokenPlace} place */
const placeOf = ({ data: [{ customdata }] }, { step, ref }) => {
  const exact = customdata.findIndex(([at]) => at === `${step}:${ref}` || at === String(step));
  return exact >= 0 ? exact : customdata.findIndex(([at]) => at.startsWith(`${step}:`));
};

/** @typedef {ReturnType<typeof frame> & { figure: Figure, taken: number, isDrawn: boolean, inSight: boolean }} Made taken: steps */

export class Charts {
  /** @param {HTMLElement} root @param {Hub} hub */
  constructor(root, hub) {
    this.root = root;
    this.hub = hub;
    this.box = /** @type {HTMLDetailsElement} */ (this.root.querySelector('.sv-charts'));
    if (!this.box) return;                            // a file without charts
    this.host = this.root.querySelector('.sv-charts-body');
    /** @type {Map<string, Made>} */
    this.charts = new Map();
    this.timer = 0;
    this.drawing = false;
    this.rest = REDRAW;
    this.sight = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const made = [...this.charts.values()].find(({ plot }) => plot === entry.target);
        if (made) made.inSight = entry.isIntersecting;
      }
      this.draw();
    }, { rootMargin: '200px' });
    this.highlight = framed(() => { if (this.box.open) this.charts.forEach((made) => this.point(made)); });
    this.box.addEventListener('toggle', () => this.draw());
    this.hub.on('reset', () => {
      this.sight.disconnect();
      for (const { plot, isDrawn } of this.charts.values()) if (isDrawn) window.Plotly.purge(plot);
      this.charts.clear();
      this.host.replaceChildren();
      this.rest = REDRAW;
    });
    this.hub.on('grow', () => this.soon());
    this.hub.on('select', this.highlight);
    new MutationObserver(() => this.soon()).observe(document.body, { attributes: true, attributeFilter: ['class'] });
  }

  /** @param {Made} made */
  layoutOf(made) { return ({ ...themed(made.figure, this.root), shapes: this.shapes(made), datarevision: made.taken }); }

  /** @param {string} name @param {Figure} figure */
  chart(name, figure) {
    const holder = element('div', 'sv-chart'), parts = frame(holder, figure);
    parts.plot.dataset.chart = name;
    this.host.append(holder);
    const made = { figure: structuredClone(figure), taken: 0, ...parts, isDrawn: false, inSight: false };
    made.fold.addEventListener('toggle', () => this.tabulate(made));
    this.charts.set(name, made);
    this.sight.observe(made.plot);
  }

  /** @param {Made} made */
  tabulate({ figure, table, fold }) {
    if (fold.open) fillTable(figure, table);
  }

  // ---- the selection, and what was changed during the run, on every chart where they have a place ----------------
  /** @param {Made} made */
  shapes({ figure }) {
    const color = getComputedStyle(this.root).color, selected = this.hub.selected();
    const line = (at, dash, words = '') => {
      const place = at ? placeOf(figure, at) : -1, x = place < 0 ? null : figure.data[0].x[place];
      const label = { text: words, textposition: 'end', textangle: 0, xanchor: 'left', font: { size: 12, color } };
      return x === null ? [] : [{ type: 'line', x0: x, x1: x, y0: 0, y1: 1, yref: 'paper', line: { color, width: 2, dash }, opacity: 0.7, layer: 'above', label }];
    };
    const changed = this.hub.steps.flatMap(({ changes, focus }, step) => (changes.length ? line({ step, ref: focus }, 'dash', changes.join(', ')) : []));
    return [...changed, ...line(selected, 'dot')];
  }

  /** @param {Made} made */
  point(made) {
    if (!made.isDrawn || !made.inSight) return;
    window.Plotly.relayout(made.plot, { shapes: this.shapes(made) });
  }

  /** @param {Made} made */
  listen(made) {
    const at = (event) => made.figure.data[0].customdata[event.points[0].pointNumber][0];
    const selects = (event) => {
      const [step, ref] = at(event).split(':');
      return step ? { step: Number(step), ref: ref || this.hub.steps[Number(step)].focus } : null;
    };
    let hovered = null, aimed = null;               // plotly forgets what it was over when it draws while a button is down
    const pin = (place) => { if (place) this.hub.pin(place.step, place.ref); };
    made.plot.addEventListener('pointerdown', () => { aimed = hovered; }, true);
    made.plot.addEventListener('click', () => pin(aimed));
    made.plot.on('plotly_click', (event) => pin(selects(event)));   // a finger was over nothing
    const look = (place) => { hovered = place; this.hub.hover(place); };
    made.plot.on('plotly_hover', (event) => look(selects(event)));
    made.plot.on('plotly_unhover', () => look(null));
  }

  /** @param {string} name @param {Made} made */
  async show(name, made) {
    for (; made.taken < this.hub.steps.length; made.taken += 1) apply(made.figure, this.hub.steps[made.taken].points[name]);
    await drawFigure(made.plot, made.figure, this.layoutOf(made));
    if (!made.isDrawn) this.listen(made);
    made.isDrawn = true;
    this.tabulate(made);
  }

  async draw() {
    if (!this.box.open || !this.hub.head) return;
    try { await loadPlotly(); } catch (error) {
      this.host.replaceChildren(element('p', 'sv-hint', 'The charts could not be loaded.'));
      return;
    }
    if (this.drawing) return this.soon();
    this.drawing = true;
    const began = performance.now();
    try {
      for (const [name, figure] of Object.entries(this.hub.head.figures)) if (!this.charts.has(name)) this.chart(name, figure);
      for (const [name, made] of this.charts) if (made.inSight) await this.show(name, made);
    } finally { this.drawing = false; }
    const long = REST * (performance.now() - began);
    this.rest = long > REDRAW ? long : REDRAW;
  }

  soon() {
    if (this.timer || !this.box.open) return;
    this.timer = setTimeout(() => { this.timer = 0; this.draw(); }, this.rest);
  }
}
