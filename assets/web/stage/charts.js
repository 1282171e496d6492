// charts.js: summary charts of the run on the stage, drawn while they are open and in sight. Figures and their points
// arrive computed. A click on a place selects what it stands for.
import { element, framed } from '../core/element.js';
import { loadPlotly, themed, frame, fillTable, drawFigure } from '../core/figure.js';

const REDRAW = 250, REST = 4;                       // milliseconds between redraws while a run grows; a long one rests longer

// the same as figures.apply_points: points are appended to, or replace, the lists they name
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
const placeOf = ({ data: [{ customdata }] }, { step, ref }) => {
  const exact = customdata.findIndex(([at]) => at === `${step}:${ref}` || at === String(step));
  return exact >= 0 ? exact : customdata.findIndex(([at]) => at.startsWith(`${step}:`));
};

export const chartsView = (root, hub) => {
  const box = root.querySelector('.sv-charts');
  if (!box) return;                                   // a file without charts
  const host = root.querySelector('.sv-charts-body');
  const charts = new Map();                         // name -> {figure, taken, plot, table, fold, isDrawn, inSight}
  let timer = 0, drawing = false, rest = REDRAW;
  const sight = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      const made = [...charts.values()].find(({ plot }) => plot === entry.target);
      if (made) made.inSight = entry.isIntersecting;
    }
    draw();
  }, { rootMargin: '200px' });
  const highlight = framed(() => { if (box.open) charts.forEach(point); });

  const layoutOf = (made) => ({ ...themed(made.figure, root), shapes: shapes(made), datarevision: made.taken });

  function chart(name, figure) {
    const { holder, ...parts } = frame(figure);
    parts.plot.dataset.chart = name;
    host.append(holder);
    const made = { figure: structuredClone(figure), taken: 0, ...parts, isDrawn: false, inSight: false };
    made.fold.addEventListener('toggle', () => tabulate(made));
    charts.set(name, made);
    sight.observe(made.plot);
  }

  function tabulate({ figure, table, fold }) {
    if (fold.open) fillTable(figure, table);
  }

  // ---- the selection, on every chart where it has a place -------------------------------------------------------
  function shapes({ figure }) {
    const selected = hub.selected(), place = selected ? placeOf(figure, selected) : -1;
    if (place < 0) return [];
    const x = figure.data[0].x[place], ink = getComputedStyle(root).color;
    const line = { color: ink, width: 2, dash: 'dot' };
    return [{ type: 'line', x0: x, x1: x, y0: 0, y1: 1, yref: 'paper', line, opacity: 0.7, layer: 'above' }];
  }

  function point(made) {
    if (!made.isDrawn || !made.inSight) return;
    window.Plotly.relayout(made.plot, { shapes: shapes(made) });
  }

  function listen(made) {
    const at = (event) => made.figure.data[0].customdata[event.points[0].pointNumber][0];
    const selects = (event) => {
      const [step, ref] = at(event).split(':');
      return step ? { step: Number(step), ref: ref || hub.steps[Number(step)].focus } : null;
    };
    let hovered = null, aimed = null;               // plotly forgets what it was over when it draws while a button is down
    const pin = (place) => { if (place) hub.pin(place.step, place.ref); };
    made.plot.addEventListener('pointerdown', () => { aimed = hovered; }, true);
    made.plot.addEventListener('click', () => pin(aimed));
    made.plot.on('plotly_click', (event) => pin(selects(event)));   // a finger was over nothing
    const look = (place) => { hovered = place; hub.hover(place); };
    made.plot.on('plotly_hover', (event) => look(selects(event)));
    made.plot.on('plotly_unhover', () => look(null));
  }

  async function show(name, made) {
    for (; made.taken < hub.steps.length; made.taken += 1) apply(made.figure, hub.steps[made.taken].points[name]);
    await drawFigure(made.plot, made.figure, layoutOf(made));
    if (!made.isDrawn) listen(made);
    made.isDrawn = true;
    tabulate(made);
  }

  async function draw() {
    if (!box.open || !hub.head) return;
    try { await loadPlotly(); } catch (error) {
      host.replaceChildren(element('p', 'sv-hint', 'The charts could not be loaded.'));
      return;
    }
    if (drawing) return soon();
    drawing = true;
    const began = performance.now();
    try {
      for (const [name, figure] of Object.entries(hub.head.figures)) if (!charts.has(name)) chart(name, figure);
      for (const [name, made] of charts) if (made.inSight) await show(name, made);
    } finally { drawing = false; }
    const long = REST * (performance.now() - began);
    rest = long > REDRAW ? long : REDRAW;
  }

  function soon() {
    if (timer || !box.open) return;
    timer = setTimeout(() => { timer = 0; draw(); }, rest);
  }

  box.addEventListener('toggle', draw);
  hub.on('reset', () => {
    sight.disconnect();
    for (const { plot, isDrawn } of charts.values()) if (isDrawn) window.Plotly.purge(plot);
    charts.clear();
    host.replaceChildren();
    rest = REDRAW;
  });
  hub.on('grow', soon);
  hub.on('select', highlight);
  new MutationObserver(soon).observe(document.body, { attributes: true, attributeFilter: ['class'] });
};
