// blocks.js: the parts of a report page, each made from plain data that arrives computed: words, verdicts, tables, bars,
// charts, a text cut into steps. Texts go through textContent; nothing is reckoned here.
import { element, button, sentence } from '../core/element.js';
import { loadPlotly, themed, frame, fillTable, drawFigure } from '../core/figure.js';
import { saveText } from '../core/files.js';
import { tokenTexts } from './token_texts.js';

const MARKS = { exact: '=', consistent: '✓', suspicious: '!', differs: '✗', unsure: '?' };

// words: a text, or a list of texts of which every second one is set off
function worded(tag, className, words) {
  const made = element(tag, className);
  sentence(made, Array.isArray(words) ? words : [words]);
  return made;
}

const LONG = 44;                                    // characters of a cell that may be broken into lines

// a button that opens a text of this page at a token; the block that has the text hears of it
function opener(text, opens, root) {
  return button('sv-open', text, () => root.dispatchEvent(new CustomEvent('sv-open', { detail: opens })));
}

// a button in a cell, which does what a button of its section would do
function doer(text, { section, do: does, values }, act) {
  const made = button('sv-button sv-doer', text, () => act(section, does, values));
  made.dataset.act = does;
  return made;
}

// a cell: a text, or {text, tone, sort, opens, does}, where the text may be a list of which every second one is set off
function cell(tag, value, { root, act }) {
  const { text: words, tone, opens, does } = value !== null && typeof value === 'object' ? value : { text: value };
  if (Array.isArray(words)) return worded(tag, 'sv-long', words);
  const text = words === null ? '–' : String(words);
  if (opens || does) {
    const holder = element(tag);
    holder.append(does ? doer(text, does, act) : opener(text, opens, root));
    return holder;
  }
  if (!tone) return element(tag, text.length > LONG ? 'sv-long' : '', text);
  const made = element(tag);
  made.append(element('span', `sv-tone sv-tone-${tone}`, text));
  return made;
}

const plain = (value) => (Array.isArray(value) ? value.join('') : value);
const keyOf = (value) => (value !== null && typeof value === 'object' ? value.sort : value);
const isEmpty = (key) => key === null || key === undefined;
const later = (one, other) => {                     // texts are ordered as people order them, numbers by size
  const [a, b] = [plain(one), plain(other)];
  if (typeof a === 'string' && typeof b === 'string') return a.localeCompare(b, 'en', { numeric: true });
  return a > b ? 1 : a < b ? -1 : 0;
};

// heads that sort: numbers come largest first, texts from A; cells without a key stay at the end
function sortHead(heads, rows, lines, body) {
  heads.forEach((head, column) => {
    const press = button('sv-sort', head.textContent);
    head.replaceChildren(press);
    press.addEventListener('click', () => {
      const keys = rows.map((cells) => keyOf(cells[column]));
      const before = head.getAttribute('aria-sort'), isNumber = keys.some((key) => typeof key === 'number');
      const isDown = before ? before === 'ascending' : isNumber;
      const order = keys.map((key, place) => place).sort((a, b) => {
        if (isEmpty(keys[a]) || isEmpty(keys[b])) return isEmpty(keys[a]) ? (isEmpty(keys[b]) ? 0 : 1) : -1;
        return isDown ? later(keys[b], keys[a]) : later(keys[a], keys[b]);
      });
      heads.forEach((each) => each.removeAttribute('aria-sort'));
      head.setAttribute('aria-sort', isDown ? 'descending' : 'ascending');
      body.append(...order.map((place) => lines[place]));
    });
  });
}

// a part that scrolls by itself is reached by the keyboard, and has a name
function scrolling(box, name) {
  box.tabIndex = 0;
  box.setAttribute('role', 'region');
  box.setAttribute('aria-label', name || 'table');
  return box;
}

// what the table is about stands over it and stays where it is when the table scrolls
function table({ columns, rows, caption, marked, sortable }, host) {
  const around = element('div', 'sv-block sv-tabled'), box = element('div', 'sv-table-scroll'), made = element('table'), head = element('tr');
  head.append(...columns.map((title) => Object.assign(element('th', '', title), { scope: 'col' })));
  const lines = rows.map((cells, place) => {
    const line = element('tr', place === marked ? 'sv-marked' : '');
    line.append(...cells.map((value, column) => cell(column ? 'td' : 'th', value, host)));
    return line;
  });
  const top = element('thead'), body = element('tbody');
  top.append(head);
  body.append(...lines);
  if (sortable) sortHead([...head.children], rows, lines, body);
  made.append(top, body);
  box.append(made);
  if (caption) made.setAttribute('aria-label', caption);
  around.append(...(caption ? [element('p', 'sv-caption', caption)] : []), scrolling(box, caption || host.title));
  return around;
}

function bar({ label, parts, values, tick }) {
  const line = element('tr'), track = element('td', 'sv-track'), holder = element('div', 'sv-track-box');
  for (const [tone, width] of parts) {
    const part = element('span', `sv-part sv-fill-${tone}`);
    part.style.width = `${width}%`;
    holder.append(part);
  }
  if (tick !== null) {
    const mark = element('span', 'sv-track-tick');
    mark.style.left = `${tick}%`;
    holder.append(mark);
  }
  holder.setAttribute('aria-hidden', 'true');
  track.append(holder);
  line.append(Object.assign(element('th', '', label), { scope: 'row' }), track, ...values.map((value) => element('td', '', value)));
  return line;
}

function bars({ rows, heads, key, first: named }, { title: around }) {
  const holder = element('div', 'sv-block sv-bars'), box = element('div', 'sv-bars-table'), made = element('table');
  if (heads.length) {
    const head = element('tr'), top = element('thead');
    const empty = () => { const corner = element('th'); corner.append(element('span', 'sv-hidden', 'bar')); return corner; };
    const first = element('th');
    first.append(element('span', 'sv-hidden', named));
    head.append(first, empty(), ...heads.map((title) => Object.assign(element('th', '', title), { scope: 'col' })));
    top.append(head);
    made.append(top);
  }
  const body = element('tbody');
  body.append(...rows.map(bar));
  made.append(body);
  box.append(made);
  holder.append(scrolling(box, around));
  if (key.length) {
    const list = element('ul', 'sv-bars-key');
    list.append(...key.map(([tone, words]) => {
      const entry = element('li');
      entry.append(element('span', tone === 'tick' ? 'sv-key-tick' : `sv-key-fill sv-fill-${tone}`), element('span', '', words));
      return entry;
    }));
    holder.append(list);
  }
  return holder;
}

function verdict({ state, words }) {
  const made = element('p', `sv-block sv-verdict sv-verdict-${state}`), text = worded('span', '', words);
  const mark = element('span', 'sv-verdict-mark', MARKS[state]);
  mark.setAttribute('aria-hidden', 'true');
  made.append(mark, text);
  return made;
}

// the bar of a job moves on instead of being made anew: Stop stays where a press on it has begun
function progress(block, { halt }) {
  const made = element('div', 'sv-block sv-job'), track = element('div', 'sv-progress'), fill = element('span', 'sv-progress-bar');
  const told = element('span', 'sv-job-words');
  track.setAttribute('role', 'progressbar');
  track.append(fill);
  made.append(track, told, button('sv-button', 'Stop', halt));
  made.moveOn = ({ width, words }) => {
    track.setAttribute('aria-label', words);
    track.setAttribute('aria-valuenow', String(width));
    fill.style.width = `${width}%`;
    told.textContent = words;
  };
  made.moveOn(block);
  return made;
}

function chart({ figure }, { root }) {
  const mine = structuredClone(figure), { holder, plot, fold, table: numbers } = frame(mine);
  holder.classList.add('sv-block');
  fold.addEventListener('toggle', () => { if (fold.open) fillTable(mine, numbers); });
  let isDrawn = false;
  const draw = async () => {
    try { await loadPlotly(); } catch (error) {
      plot.replaceChildren(element('p', 'sv-hint', 'The chart could not be loaded.'));
      return;
    }
    if (!plot.isConnected) return;
    await drawFigure(plot, mine, themed(mine, root));
    isDrawn = true;
  };
  const sight = new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting && !isDrawn) draw();
  }, { rootMargin: '200px' });
  sight.observe(plot);
  holder.release = () => {
    sight.disconnect();
    if (isDrawn) window.Plotly.purge(plot);
  };
  holder.repaint = () => { if (isDrawn) draw(); };
  return holder;
}

function segments({ tokens, by_k: byK, k }) {
  const made = element('div', 'sv-block sv-segments'), head = element('label', 'sv-segments-head');
  const slider = Object.assign(element('input'), { type: 'range', min: 0, max: Object.keys(byK).length - 1, step: 1 });
  const choices = Object.keys(byK), shown = element('b', 'sv-segments-k'), words = element('span', 'sv-segments-words');
  const text = element('div', 'sv-segments-text');
  slider.value = String(choices.indexOf(String(k)));
  words.setAttribute('role', 'status');
  head.append(element('span', '', 'K'), slider, shown, words);
  const cut = () => {
    const chosen = choices[Number(slider.value)], { lengths, kinds, words: told } = byK[chosen];
    shown.textContent = chosen;
    slider.setAttribute('aria-valuetext', `K ${chosen}`);
    sentence(words, Array.isArray(told) ? told : [told]);
    const rest = tokens[Symbol.iterator]();
    text.replaceChildren(...lengths.map((length, place) => {
      const step = element('span', 'sv-segment');
      for (let done = 1; done <= length; done += 1) {
        const kind = done === length ? kinds[place] : 'accepted';
        step.append(element('span', `sv-segment-token sv-is-${kind}`, rest.next().value));
      }
      return step;
    }));
  };
  slider.addEventListener('input', cut);
  cut();
  made.append(head, text);
  return made;
}

function download({ label, file, text }) {
  const made = element('p', 'sv-block sv-download');
  made.append(button('sv-button', label, () => saveText(file, text)));
  return made;
}

function links({ entries }) {
  const made = element('p', 'sv-block sv-links');
  made.append(...entries.map(([words, href]) => Object.assign(element('a', '', words), { href, download: '' })));
  return made;
}

function details({ title, blocks }, host) {
  const made = element('details', 'sv-block sv-fold');
  const inner = blocks.map((block) => makeBlock(block, { ...host, title }));
  made.append(element('summary', '', title), ...inner);
  made.release = () => inner.forEach((each) => each.release?.());
  made.repaint = () => inner.forEach((each) => each.repaint?.());
  return made;
}

const MAKERS = {
  words: ({ words, small }) => worded('p', `sv-block sv-words${small ? ' sv-small' : ''}`, words),
  verdict, progress, table, bars, chart, segments, download, links, details,
  texts: tokenTexts,
};

// host: {root, halt, title}, title: of what stands around. What is made may have `release`, when it goes, `repaint`,
// when the theme has changed, and `moveOn`, which shows the next block of its kind in its place.
export function makeBlock(block, host) {
  return MAKERS[block.kind](block, host);
}

// further kinds that a page has: name -> maker
export const addKinds = (makers) => Object.assign(MAKERS, makers);
