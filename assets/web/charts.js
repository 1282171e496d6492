// charts.js: summary charts drawn by plotly, which is loaded only when they are opened. Figures and their points arrive
// computed; colours follow the page's theme. A click on a place selects what it stands for; each chart is also a table.
'use strict';
(() => {
  const { element } = window.specviz;
  const REDRAW = 250, REST = 4;                       // milliseconds between redraws while a run grows; a long one rests longer
  const BELOW = 44;                                   // pixels of a margin that holds no note
  const CONFIG = { displayModeBar: false, responsive: true };
  let library = null;

  window.specviz.plotlySrc = window.specviz.plotlySrc || '/specviz/plotly.min.js';

  function load() {
    library = library || (window.Plotly ? Promise.resolve() : new Promise((done, failed) => {
      const script = document.createElement('script');
      script.src = window.specviz.plotlySrc;
      script.onload = done;
      script.onerror = () => { library = null; failed(new Error('plotly did not load')); };
      document.head.append(script);
    }));
    return library;
  }

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

  const shade = (name, theme) => {
    const group = Object.values(window.specviz.palette).find((entries) => entries[name]);
    return group && group[name][theme];
  };

  // what a click on a place selects, and the place of a selection: "step" or "step:token" stands in its customdata
  const placeOf = ({ data: [{ customdata }] }, { step, ref }) => {
    const exact = customdata.findIndex(([at]) => at === `${step}:${ref}` || at === String(step));
    return exact >= 0 ? exact : customdata.findIndex(([at]) => at.startsWith(`${step}:`));
  };

  window.specviz.views.charts = (root, hub) => {
    const box = root.querySelector('.sv-charts');
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
    const highlight = window.specviz.framed(() => { if (box.open) charts.forEach(point); });

    const isDark = () => Boolean(root.closest('.dark'));
    const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();

    function themed(made) {
      const { figure } = made, theme = isDark() ? 'dark' : 'light', line = variable('--sv-line');
      for (const trace of figure.data) {
        const colour = shade(trace.meta.status, theme);
        for (const part of ['marker', 'line', 'error_y']) if (trace[part]) trace[part].color = colour;
      }
      const layout = { ...figure.layout, font: { color: variable('--sv-ink'), family: getComputedStyle(root).fontFamily, size: 12 } };
      for (const axis of ['xaxis', 'yaxis', 'yaxis2']) {
        if (layout[axis]) layout[axis] = { ...layout[axis], gridcolor: line, linecolor: line, zerolinecolor: line };
      }
      if (layout.annotations) Object.assign(layout, { annotations: [], margin: { ...layout.margin, b: BELOW } });   // they stand below, as text
      return { ...layout, shapes: shapes(made), datarevision: made.taken };
    }

    function chart(name, figure) {
      const holder = element('div', 'sv-chart'), plot = element('div', 'sv-plot');
      const fold = element('details', 'sv-chart-table'), table = element('table'), { title } = figure.layout.meta;
      plot.setAttribute('role', 'img');
      plot.setAttribute('aria-label', `chart: ${title}; the table below holds its numbers`);
      plot.dataset.chart = name;
      fold.append(element('summary', '', 'as a table'), table);
      const notes = (figure.layout.annotations || []).map(({ text }) => element('p', 'sv-chart-note', text));
      holder.append(element('h3', 'sv-chart-title', title), plot, ...notes, fold);
      host.append(holder);
      const made = { figure: structuredClone(figure), taken: 0, plot, table, fold, isDrawn: false, inSight: false };
      fold.addEventListener('toggle', () => tabulate(made));
      charts.set(name, made);
      sight.observe(plot);
    }

    function tabulate({ figure, table, fold }) {
      if (!fold.open) return;
      const { data } = figure, columns = figure.layout.meta.table, head = element('tr');
      head.append(...columns.map(([title]) => {
        const made = element('th', '', title);
        made.scope = 'col';
        return made;
      }));
      const rows = data[0].x.map((_, place) => {
        const row = element('tr');
        row.append(...columns.map(([, trace, attribute, ...inner], column) => {
          let value = data[trace][attribute][place];
          for (const index of inner) value = value[index];
          return element(column ? 'td' : 'th', '', value === null ? '–' : String(value));
        }));
        return row;
      });
      table.replaceChildren(head, ...rows);
    }

    // ---- the selection, on every chart where it has a place -------------------------------------------------------
    function shapes({ figure }) {
      const selected = hub.selected(), place = selected ? placeOf(figure, selected) : -1;
      if (place < 0) return [];
      const x = figure.data[0].x[place], line = { color: variable('--sv-ink'), width: 2, dash: 'dot' };
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
      made.plot.on('plotly_click', (event) => {
        const place = selects(event);
        if (place) hub.pin(place.step, place.ref);
      });
      made.plot.on('plotly_hover', (event) => hub.hover(selects(event)));
      made.plot.on('plotly_unhover', () => hub.hover(null));
    }

    async function show(name, made) {
      for (; made.taken < hub.steps.length; made.taken += 1) apply(made.figure, hub.steps[made.taken].points[name]);
      await window.Plotly.react(made.plot, made.figure.data, themed(made), CONFIG);
      if (!made.isDrawn) listen(made);
      made.isDrawn = true;
      tabulate(made);
    }

    async function draw() {
      if (!box.open || !hub.head) return;
      try { await load(); } catch (error) {
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
})();
