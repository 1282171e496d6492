// report.js: a page of sections. Each section arrives whole; what has not changed stays where it is, and what a person
// has set stays set. A button sends the values of its section; one piece of work goes on at a time.
import { VERBATIM, worded } from '../core/element.js';
import { html } from '../core/html.js';
import { render, useLayoutEffect, useRef } from '../vendor/preact_htm.js';
import { Blocks } from './blocks.js';
/** @import { Host } from '../core/hub.js' */
/** @import { ChoiceControl, CountControl, LinesControl, PageControl, PageMessage, PageSection } from '../messages.d.ts' */
/** @import { Ref } from '../vendor/preact_htm.js' */
/** @import { BlockHost } from './blocks.js' */

const LONG = 5;                                        // sections from which on a page has a list of them

/** @typedef {ChoiceControl | CountControl | LinesControl} FieldControl */
/** @typedef {HTMLSelectElement & HTMLInputElement & HTMLTextAreaElement} Box whichever of them it is */

/** @param {FieldControl} control @param {Ref<Box>} box */
function boxOf(control, box) {
  const { kind, name } = control;
  if (kind === 'choice') return html`<select name=${name} ref=${box} ...${VERBATIM}>
    ${control.options.map(([words, value]) => html`<option key=${value} value=${value}>${words}</option>`)}</select>`;
  if (kind === 'count') return html`<input type="number" min=${control.low} max=${control.high} step="1" name=${name} ref=${box} />`;
  // one character too many is refused in words
  return html`<textarea name=${name} placeholder=${control.hint} maxlength=${control.most + 1} rows="3" ref=${box} />`;
}

// It keeps what a person has set, unless the value that it was given has changed or what was set is no choice any more.
/** @param {{ control: FieldControl }} props */
function Field({ control }) {
  const { kind, label, value } = control, box = useRef(/** @type {Box} */ (undefined)), given = useRef(), before = box.current?.value;
  useLayoutEffect(() => {
    const isKept = given.current === value && (control.kind !== 'choice' || control.options.some(([, each]) => each === before));
    const wanted = isKept ? before : String(value);
    given.current = value;
    if (box.current.value !== wanted) box.current.value = wanted;
  });
  return html`<label class="sv-control${kind === 'lines' ? ' sv-control-lines' : ''}"><span>${label}</span>${boxOf(control, box)}</label>`;
}

/** @param {{ control: PageControl, send: (does: string) => void }} props */
const Control = ({ control, send }) => (control.kind !== 'button' ? html`<${Field} control=${control} />` : html`
  <button type="button" class="sv-button${control.primary ? ' sv-primary' : ''}" data-act=${control.do} onClick=${() => send(control.do)}>${control.label}</button>`);

// The values of a section's fields by name, as texts; null where a number is out of its bounds, which is then said.
/** @param {HTMLElement} controls */
function valuesOf(controls) {
  const fields = [.../** @type {NodeListOf<Box>} */ (controls.querySelectorAll('input, select, textarea'))];
  if (!fields.every((field) => field.reportValidity())) return null;
  return Object.fromEntries(fields.map(({ name, value }) => [name, value]));
}

/** @param {PageControl} control */
const keyOfControl = (control) => `${control.kind} ${control.kind === 'button' ? control.do : control.name}`;

/** @param {PageSection & { host: Omit<BlockHost, 'title'> }} props */
export function Section({ id, title, lead, controls, blocks, host }) {
  const row = useRef();
  const send = (does) => {
    const values = valuesOf(row.current);
    if (values) host.act(id, does, values);
  };
  return html`<section class="sv-card sv-section" data-section=${id} tabindex="-1">
    <h2>${title}</h2><p class="sv-section-lead" hidden=${!lead.length}>${worded(lead)}</p>
    <div class="sv-controls" hidden=${!controls.length} ref=${row}>${controls.map((control) => html`
      <${Control} key=${keyOfControl(control)} control=${control} send=${send} />`)}</div>
    <div class="sv-blocks"><${Blocks} blocks=${blocks} host=${{ ...host, title }} /></div></section>`;
}

// Where a page is long: its sections as links, which the address keeps ("#compare/costs").
/** @param {{ page: string, sections: Pick<PageSection, 'id' | 'title'>[] }} props */
export const Contents = ({ page, sections }) => html`<nav class="sv-contents" aria-label="On this page"><ul>${sections.map(({ id, title }) => html`
  <li key=${id}><a href=${`#${page}/${id}`}>${title}</a></li>`)}</ul></nav>`;

// page: its name, for the addresses of its sections, where it has a list of them. holder: holds .sv-report. host: Gradio's props, watch and trigger; `place` says what is looked at on the stage, `tab`
// what this tab is called.
/** @param {HTMLElement} holder @param {Host & { place: () => object | null, tab?: string, page?: string }} host */
export function mountReport(holder, { props, watch, trigger, place, tab, page }) {
  const root = holder.querySelector('.sv-report'), body = root.querySelector('.sv-report-body'), live = root.querySelector('.sv-live');
  const sections = new Map();                         // what was drawn, by name: one that is the same costs nothing
  /** @type {string[]} */
  let order = [];
  /** @type {Omit<BlockHost, 'title'>} */
  const host = {
    root,
    act: (name, does, values) => {
      setBusy(true);
      trigger('act', { section: name, do: does, values, place: place(), tab });
    },
    halt: () => trigger('halt', {}),
  };

  function setBusy(isBusy) {
    root.toggleAttribute('data-busy', isBusy);
    for (const made of /** @type {NodeListOf<HTMLButtonElement>} */ (root.querySelectorAll('[data-act]'))) made.disabled = isBusy;
  }

  /** @param {PageMessage} message */
  function take(message) {
    order = message.order || order;
    for (const each of message.sections) sections.set(each.id, html`<${Section} key=${each.id} ...${each} host=${host} />`);
    for (const name of sections.keys()) if (!order.includes(name)) sections.delete(name);
    const drawn = order.map((name) => sections.get(name));
    const contents = page && drawn.length >= LONG && html`<${Contents} key="contents" page=${page} sections=${drawn.map((each) => each.props)} />`;
    render([contents, ...drawn], body);
    setBusy(Boolean(message.busy));
    live.textContent = message.say;
  }

  const read = () => { if (props.value) take(JSON.parse(props.value)); };
  render(html`<p class="sv-waiting">Waiting for the server…</p>`, body);
  watch('value', read);
  read();
  return { look: () => trigger('look', { place: place(), tab }), act: host.act };
}
