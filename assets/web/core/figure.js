// figure.js: one chart as plotly draws it, in the page's own colours, with its title, its notes and its numbers as a
// table. plotly is loaded when the first chart is drawn. Figures arrive computed.
import { element, verbatim } from './element.js';
import { loadScript } from './files.js';
import { palette } from './palette.js';

const BELOW = 44;                                   // pixels of a margin that holds no note
const CONFIG = { displayModeBar: false, responsive: true };
const AXES = ['xaxis', 'yaxis', 'yaxis2'];
const SERVED = 'specviz/plotly.min.js';
let library = null, bring = () => loadScript(SERVED);

export function loadPlotly() {
  library = library || (window.Plotly ? Promise.resolve() : bring().catch((error) => {
    library = null;
    throw error;
  }));
  return library;
}

// for a page that has the library in itself
export const bringPlotly = (work) => { bring = work; };

/** @typedef {import('../messages.d.ts').ChartBlock['figure']} Figure what plotly draws, and its notes and table for the page */

/** @param {string} name @param {'light' | 'dark'} theme */
const shade = (name, theme) => {
  const group = Object.values(palette()).find((entries) => entries[name]);
  return group && group[name][theme];
};

// colours the figure's data for the theme around `root`, and gives a layout in its colours
/** @param {Figure} figure @param {Element} root */
export function themed(figure, root) {
  const theme = root.closest('.dark') ? 'dark' : 'light';
  const { color, fontFamily: family } = getComputedStyle(root), line = getComputedStyle(root).getPropertyValue('--sv-line').trim();
  for (const trace of figure.data) {
    const colour = shade(trace.meta.status, theme);
    for (const part of ['marker', 'line', 'error_y']) if (trace[part]) trace[part].color = colour;
  }
  const layout = { ...figure.layout, font: { color, family, size: 12 } };
  for (const axis of AXES) {
    if (layout[axis]) layout[axis] = { ...layout[axis], gridcolor: line, linecolor: line, zerolinecolor: line };
  }
  if (layout.annotations) Object.assign(layout, { annotations: [], margin: { ...layout.margin, b: BELOW } });   // they stand below, as text
  return layout;
}

// the place of a chart within `holder`; the table is filled by `fillTable`
/** @param {Element} holder @param {Figure} figure */
export function frame(holder, figure) {
  const plot = verbatim('div', figure.data.length > 4 ? 'sv-plot sv-many-lines' : 'sv-plot');   // many names take room
  const fold = element('details', 'sv-chart-table'), table = element('table'), { title } = figure.layout.meta;
  plot.setAttribute('role', 'img');
  plot.setAttribute('aria-label', `chart: ${title}; the table below holds its numbers`);
  fold.append(element('summary', '', 'as a table'), table);
  const notes = (figure.layout.annotations || []).map(({ text }) => element('p', 'sv-chart-note', text));
  holder.append(element('h3', 'sv-chart-title', title), plot, ...notes, fold);
  return { plot, fold, table };
}

/** @param {Figure} figure @param {HTMLTableElement} table */
export function fillTable({ data, layout }, table) {
  const columns = layout.meta.table, head = element('tr');
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
      return verbatim(column ? 'td' : 'th', '', value === null || value === undefined ? '–' : String(value));
    }));
    return row;
  });
  table.replaceChildren(head, ...rows);
}

export const drawFigure = (plot, figure, layout) => window.Plotly.react(plot, figure.data, layout, CONFIG);
