// blocks.js: the parts of a report page, each a function of plain data that arrives computed: words, verdicts, tables,
// bars, charts, a text cut into steps. Texts are children, never markup; nothing is reckoned here.
import { element, VERBATIM, worded } from '../core/element.js';
import { drawFigure, fillTable, frame, loadPlotly, themed } from '../core/figure.js';
import { saveText } from '../core/files.js';
import { Button, html } from '../core/html.js';
import { useLayoutEffect, useRef, useState } from '../vendor/preact_htm.js';
import { tokenTexts } from './token_texts.js';
/** @import { BarRow, BarsBlock, ChartBlock, DetailsBlock, DownloadBlock, ExampleBlock, LinksBlock, PageBlock, ProgressBlock, SegmentsBlock, TableBlock, TableCell, VerdictBlock, WordsBlock } from '../messages.d.ts' */

/**
 * What a block may use of what it stands in.
 * @typedef {object} BlockHost
 * @property {HTMLElement} root
 * @property {string} title of what stands around
 * @property {string} [why] the id of the sentence that says why its buttons wait
 * @property {(section: string, does: string, values: Record<string, string>, isFree?: boolean) => void} act
 * @property {() => void} halt
 */

/** @type {Record<VerdictBlock['state'], string>} */
const MARKS = { exact: '=', consistent: '✓', suspicious: '!', differs: '✗', unsure: '?' };
const LONG = 44;                                    // characters of a cell that may be broken into lines

// A block that draws itself: fill(node, block, host) may give what is to be done when it goes.
/**
 * @template B
 * @param {string} className
 * @param {(node: HTMLElement, block: B, host: BlockHost) => void | (() => void)} fill
 * @returns {(props: { block: B, host: BlockHost }) => unknown}
 */
export const drawn = (className, fill) => ({ block, host }) => {
  const node = useRef();
  useLayoutEffect(() => fill(node.current, block, host), []);
  return html`<div class="sv-block ${className}" ref=${node} />`;
};


// The block that has the text which a cell opens hears of it.
/** @param {{ tag: 'td' | 'th', value: string | TableCell, host: BlockHost }} props */
function Cell({ tag, value, host }) {
  /** @type {Partial<TableCell>} */
  const { text, tone, opens, does } = typeof value === 'string' ? { text: value } : value;
  if (Array.isArray(text)) return html`<${tag} class="sv-long">${worded(text)}<//>`;
  const words = String(text);
  const open = () => host.root.dispatchEvent(new CustomEvent('sv-open', { detail: opens }));
  if (does) return html`<${tag}><${Button} className="sv-doer" words=${words} data-act=${does.do} aria-describedby=${host.why} onClick=${() => host.act(does.section, does.do, does.values)} /><//>`;
  if (opens) return html`<${tag} ...${VERBATIM}><button type="button" class="sv-open" onClick=${open}>${words}</button><//>`;
  if (tone) return html`<${tag}><span class="sv-tone sv-tone-${tone}">${words}</span><//>`;
  if (words.length > LONG) return html`<${tag} class="sv-long">${words}<//>`;
  return html`<${tag} ...${VERBATIM}>${words}<//>`;
}

/** @param {string | TableCell} value */
const keyOf = (value) => (typeof value === 'string' ? value : value.sort);

/** @param {TableCell['sort']} a @param {TableCell['sort']} b */
function later(a, b) {                              // texts are ordered as people order them, numbers by size
  if (typeof a === 'string' && typeof b === 'string') return a.localeCompare(b, 'en', { numeric: true });
  return a > b ? 1 : a < b ? -1 : 0;
}

/** @typedef {{ column: number, isDown: boolean }} Order */

// the places of the rows in their order; cells without a key stay at the end
/** @param {TableBlock['rows']} rows @param {Order | null} by */
export function sorted(rows, by) {
  const places = [...rows.keys()], keys = rows.map((cells) => by && keyOf(cells[by.column]));
  return by ? places.sort((a, b) => Number(keys[a] === null) - Number(keys[b] === null) || (by.isDown ? later(keys[b], keys[a]) : later(keys[a], keys[b]))) : places;
}

// a part that scrolls by itself is reached by the keyboard, and has a name
const Scrolling = ({ className, name, children }) => html`
  <div class=${className} tabindex="0" role="region" aria-label=${name || 'table'}>${children}</div>`;

// What the table is about stands over it and stays when the table scrolls. Heads sort: numbers largest first, texts from A.
/** @param {{ block: TableBlock, host: BlockHost }} props */
function Table({ block: { columns, rows, caption, marked, sortable }, host }) {
  const [by, setBy] = useState(/** @type {Order | null} */ (null));
  /** @param {number} column */
  const press = (column) => setBy((before) => ({
    column, isDown: before?.column === column ? !before.isDown : rows.some((cells) => typeof keyOf(cells[column]) === 'number'),
  }));
  /** @param {string} title @param {number} column */
  const head = (title, column) => html`<th scope="col" aria-sort=${by?.column === column ? (by.isDown ? 'descending' : 'ascending') : undefined}>
    ${sortable ? html`<button type="button" class="sv-sort" onClick=${() => press(column)}>${title}</button>` : title}</th>`;
  /** @param {number} place */
  const line = (place) => html`<tr key=${place} class=${place === marked ? 'sv-marked' : undefined}>
    ${rows[place].map((value, column) => html`<${Cell} tag=${column ? 'td' : 'th'} value=${value} host=${host} />`)}</tr>`;
  return html`<div class="sv-block sv-tabled">${caption && html`<p class="sv-caption">${caption}</p>`}
    <${Scrolling} className="sv-table-scroll" name=${caption || host.title}><table aria-label=${caption || undefined}>
      <thead><tr>${columns.map(head)}</tr></thead><tbody>${sorted(rows, by).map(line)}</tbody></table><//></div>`;
}

/** @param {{ row: BarRow }} props */
const Bar = ({ row: { label, parts, values, tick } }) => html`<tr><th scope="row" ...${VERBATIM}>${label}</th>
  <td class="sv-track"><div class="sv-track-box" aria-hidden="true">
    ${parts.map(([tone, width]) => html`<span class="sv-part sv-fill-${tone}" style=${{ width: `${width}%` }} />`)}
    ${tick !== null && html`<span class="sv-track-tick" style=${{ left: `${tick}%` }} />`}</div></td>
  ${values.map((value) => html`<td ...${VERBATIM}>${value}</td>`)}</tr>`;

/** @param {{ block: BarsBlock, host: BlockHost }} props */
const Bars = ({ block: { rows, heads, key, first }, host }) => html`<div class="sv-block sv-bars">
  <${Scrolling} className="sv-bars-table" name=${host.title}><table>
    ${heads.length > 0 && html`<thead><tr><th><span class="sv-hidden">${first}</span></th><th><span class="sv-hidden">bar</span></th>
      ${heads.map((title) => html`<th scope="col">${title}</th>`)}</tr></thead>`}
    <tbody>${rows.map((row) => html`<${Bar} row=${row} />`)}</tbody></table><//>
  ${key.length > 0 && html`<ul class="sv-bars-key">${key.map(([tone, words]) => html`<li>
    <span class=${tone === 'tick' ? 'sv-key-tick' : `sv-key-fill sv-fill-${tone}`} /><span>${words}</span></li>`)}</ul>`}</div>`;

/** @param {{ block: SegmentsBlock }} props */
function Segments({ block: { tokens, by_k: byK, k } }) {
  const choices = Object.keys(byK), [place, setPlace] = useState(choices.indexOf(String(k)));
  const { lengths, kinds, words } = byK[choices[place]], rest = tokens[Symbol.iterator]();
  /** @param {number} length @param {number} number */
  const step = (length, number) => html`<span class="sv-segment">${Array.from({ length }, (_, done) => html`<span
    class="sv-segment-token sv-is-${done + 1 === length ? kinds[number] : 'accepted'}">${rest.next().value}</span>`)}</span>`;
  return html`<div class="sv-block sv-segments"><label class="sv-segments-head"><span>K</span>
    <input type="range" min="0" max=${choices.length - 1} step="1" value=${place} aria-valuetext="K ${choices[place]}"
      onInput=${(event) => setPlace(Number(event.target.value))} />
    <b class="sv-segments-k" ...${VERBATIM}>${choices[place]}</b><span class="sv-segments-words" role="status">${worded(words)}</span></label>
    <div class="sv-segments-text" ...${VERBATIM}>${lengths.map(step)}</div></div>`;
}

/** @param {{ block: VerdictBlock }} props */
const Verdict = ({ block: { state, words } }) => html`<p class="sv-block sv-verdict sv-verdict-${state}">
  <span class="sv-verdict-mark" aria-hidden="true">${MARKS[state]}</span><span>${worded(words)}</span></p>`;

/** @param {{ block: ProgressBlock, host: BlockHost }} props */
const Progress = ({ block: { width, words }, host }) => html`<div class="sv-block sv-job">
  <div class="sv-progress" role="progressbar" aria-label=${words} aria-valuenow=${width}><span class="sv-progress-bar" style=${{ width: `${width}%` }} /></div>
  <span class="sv-job-words">${words}</span><${Button} words="Stop" onClick=${host.halt} /></div>`;

/** @param {{ block: LinksBlock }} props */
const Links = ({ block: { entries } }) => html`<p class="sv-block sv-links">${entries.map(([words, href]) => html`<a href=${href} download="">${words}</a>`)}</p>`;

// A chart is drawn when it comes into sight or onto paper, and again when the theme changes.
/** @param {HTMLElement} node @param {ChartBlock} block @param {BlockHost} host */
function chart(node, { figure }, { root }) {
  const mine = structuredClone(figure), { plot, fold, table } = frame(node, mine);
  let isDrawn = false;
  fold.addEventListener('toggle', () => { if (fold.open) fillTable(mine, table); });
  async function draw() {
    try { await loadPlotly(); } catch (error) {
      plot.replaceChildren(element('p', 'sv-hint', 'The chart could not be loaded.'));
      return;
    }
    if (!plot.isConnected) return;
    await drawFigure(plot, mine, themed(mine, root));
    isDrawn = true;
  }
  const sight = new IntersectionObserver(([entry]) => { if (entry.isIntersecting && !isDrawn) draw(); }, { rootMargin: '200px' });
  const theme = new MutationObserver(() => { if (isDrawn) draw(); });
  const forPaper = () => { if (!isDrawn && plot.offsetParent) draw(); };
  addEventListener('beforeprint', forPaper);
  sight.observe(plot);
  theme.observe(document.body, { attributes: true, attributeFilter: ['class'] });
  return () => {
    for (const each of [sight, theme]) each.disconnect();
    removeEventListener('beforeprint', forPaper);
    if (isDrawn) window.Plotly.purge(plot);
  };
}

/** @param {{ block: WordsBlock }} props */
const Words = ({ block: { words, small } }) => html`<p class="sv-block sv-words${small ? ' sv-small' : ''}">${worded(words)}</p>`;

/** @param {{ block: DownloadBlock }} props */
const Download = ({ block: { label, file, text } }) => html`<p class="sv-block sv-download"><${Button} words=${label} onClick=${() => saveText(file, text)} /></p>`;

/** @param {{ block: DetailsBlock, host: BlockHost }} props */
const Details = ({ block: { title, blocks }, host }) => html`<details class="sv-block sv-fold"><summary>${title}</summary>
  <${Blocks} blocks=${blocks} host=${{ ...host, title }} /></details>`;

/** @param {{ block: ExampleBlock, host: BlockHost }} props */
const Example = ({ block: { source, blocks }, host }) => html`<figure class="sv-block sv-exhibit"><figcaption class="sv-small">${worded(source)}</figcaption>
  <div class="sv-blocks"><${Blocks} blocks=${blocks} host=${host} /></div></figure>`;

/** @typedef {{ [B in PageBlock as B['kind']]: (props: { block: B, host: BlockHost }) => unknown }} Kinds who draws each kind of block */
/** @type {Partial<Kinds>} */
const KINDS = {
  words: Words, verdict: Verdict, progress: Progress, table: Table, bars: Bars, segments: Segments, links: Links, download: Download,
  details: Details, example: Example, chart: drawn('sv-chart', chart), texts: drawn('sv-texts', tokenTexts),
};

// further kinds that a page has
/** @param {Partial<Kinds>} kinds */
export const addKinds = (kinds) => Object.assign(KINDS, kinds);

// A block stays as it is while its data do. Work that goes on moves on in its place, so that a press on Stop counts; what
// was unfolded stays so by its title.
/** @param {PageBlock} block */
const keyOfBlock = (block) => (block.kind === 'progress' ? block.kind : block.kind === 'details' ? `details ${block.title}` : JSON.stringify(block));

/** @param {{ blocks: PageBlock[], host: BlockHost }} props */
export const Blocks = ({ blocks, host }) => blocks.map((block) => html`<${KINDS[block.kind]} key=${keyOfBlock(block)} block=${block} host=${host} />`);
