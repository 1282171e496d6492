// charts.js: summary charts drawn by plotly, which is loaded only when they are opened. Figures and their points arrive
// computed; colours follow the page's theme. A click on a bar selects its step; each chart is also a table.
'use strict';
(() => {
  const { element } = window.specviz;
  const REDRAW = 250;                                 // milliseconds between redraws while a run grows
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

  window.specviz.views.charts = (root, hub) => {
    const box = root.querySelector('.sv-charts');
    const host = root.querySelector('.sv-charts-body');
    const charts = new Map();                         // name -> {figure, taken, plot, table}
    let timer = 0;

    const isDark = () => Boolean(root.closest('.dark'));
    const variable = (name) => getComputedStyle(root).getPropertyValue(name).trim();

    function themed(figure) {
      const theme = isDark() ? 'dark' : 'light', line = variable('--sv-line');
      for (const trace of figure.data) {
        const entry = window.specviz.palette.statuses[trace.meta && trace.meta.status];
        if (!entry) continue;
        for (const part of ['marker', 'line', 'error_y']) if (trace[part]) trace[part].color = entry[theme];
      }
      const layout = { ...figure.layout, font: { color: variable('--sv-ink'), family: getComputedStyle(root).fontFamily, size: 12 } };
      for (const axis of ['xaxis', 'yaxis', 'yaxis2']) {
        if (layout[axis]) layout[axis] = { ...layout[axis], gridcolor: line, linecolor: line, zerolinecolor: line };
      }
      return layout;
    }

    function chart(name, figure) {
      const holder = element('div', 'sv-chart'), plot = element('div', 'sv-plot');
      const fold = element('details', 'sv-chart-table'), table = element('table');
      plot.setAttribute('role', 'img');
      plot.setAttribute('aria-label', `chart: ${name.replaceAll('_', ' ')}; the table below holds its numbers`);
      fold.append(element('summary', '', 'as a table'), table);
      holder.append(plot, fold);
      host.append(holder);
      const made = { figure: structuredClone(figure), taken: 0, plot, table, fold, isDrawn: false };
      fold.addEventListener('toggle', () => tabulate(made));
      charts.set(name, made);
    }

    function tabulate({ figure, table, fold }) {
      if (!fold.open) return;
      const head = element('tr');
      head.append(element('th', '', figure.layout.xaxis.title.text), ...figure.data.map((trace) => element('th', '', trace.name)));
      const rows = figure.data[0].x.map((x, place) => {
        const row = element('tr');
        row.append(element('th', '', String(x)), ...figure.data.map((trace) => element('td', '', trace.y[place] === null ? '–' : String(trace.y[place]))));
        return row;
      });
      table.replaceChildren(head, ...rows);
    }

    async function draw() {
      if (!box.open || !hub.head) return;
      try { await load(); } catch (error) {
        host.replaceChildren(element('p', 'sv-hint', 'The charts could not be loaded.'));
        return;
      }
      const figures = Object.entries(hub.head.figures);
      for (const [name, figure] of figures) if (!charts.has(name)) chart(name, figure);
      for (const [name] of figures) {
        const made = charts.get(name);
        for (; made.taken < hub.steps.length; made.taken += 1) apply(made.figure, hub.steps[made.taken].points[name]);
        await window.Plotly.react(made.plot, made.figure.data, { ...themed(made.figure), datarevision: made.taken }, CONFIG);
        if (!made.isDrawn && name === 'step_bars') {
          made.plot.on('plotly_click', (event) => hub.pinStep(event.points[0].x - 1));
        }
        made.isDrawn = true;
        tabulate(made);
      }
    }

    function soon() {
      if (timer || !box.open) return;
      timer = setTimeout(() => { timer = 0; draw(); }, REDRAW);
    }

    box.addEventListener('toggle', draw);
    hub.on('reset', () => {
      charts.clear();
      host.replaceChildren();
    });
    hub.on('grow', soon);
    new MutationObserver(soon).observe(document.body, { attributes: true, attributeFilter: ['class'] });
  };
})();
