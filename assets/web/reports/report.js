// report.js: a page of sections. Each section arrives whole; what has not changed stays where it is, and what a person
// has set stays set. A button sends the values of its section; one piece of work goes on at a time.
import { VERBATIM, worded } from '../core/element.js';
import { html } from '../core/html.js';
import { render, useLayoutEffect, useRef } from '../vendor/preact_htm.js';
import { Blocks } from './blocks.js';
/** @import { Host } from '../core/hub.js' */
/** @import { ButtonControl, ChoiceControl, CountControl, LinesControl, PageControl, PageMessage, PageSection } from '../messages.d.ts' */
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

/** @param {{ control: ButtonControl, why: string, send: (control: ButtonControl) => void }} props why: the id of the sentence that says why it is disabled */
const Button = ({ control, why, send }) => html`<button type="button" class="sv-button${control.primary ? ' sv-primary' : ''}"
  data-act=${control.do} data-free=${control.free || undefined} aria-describedby=${why} onClick=${() => send(control)}>${control.label}</button>`;

// The values of a section's fields by name, as texts; null where a number is out of its bounds, which is then said where it is.
/** @param {HTMLElement} controls */
function valuesOf(controls) {
  const fields = [.../** @type {NodeListOf<Box>} */ (controls.querySelectorAll('input, select, textarea'))];
  const wrong = fields.find((field) => !field.reportValidity()), fold = wrong?.closest('details');
  if (fold && !fold.open) {
    fold.open = true;
    wrong.reportValidity();
  }
  if (wrong) return null;
  return Object.fromEntries(fields.map(({ name, value }) => [name, value]));
}

/** @param {{ kind: string }} control */
const isButton = ({ kind }) => kind === 'button';
/** @param {{ kind: string }} block */
const isExample = ({ kind }) => kind === 'example';
/** @param {PageControl[]} controls */
const fieldsOf = (controls) => /** @type {FieldControl[]} */ (controls.filter((control) => !isButton(control))).map((control) => html`
  <${Field} key=${`${control.kind} ${control.name}`} control=${control} />`);

// An example is looked at first, then the controls, then what was found. Fields that few people need stand behind a fold.
/** @param {PageSection & { host: Omit<BlockHost, 'title' | 'why'> }} props */
export function Section({ id, title, lead, controls, options, takes, blocks, host }) {
  const row = useRef(), why = `sv-why-${id}`, inside = { ...host, title, why };
  /** @param {ButtonControl} control */
  const send = (control) => {
    const values = valuesOf(row.current);
    if (values) host.act(id, control.do, values, control.free);
  };
  return html`<section class="sv-card sv-section" data-section=${id} tabindex="-1">
    <h2>${title}</h2><p class="sv-section-lead" hidden=${!lead.length}>${worded(lead)}</p>
    <${Blocks} blocks=${blocks.filter(isExample)} host=${inside} />
    <div class="sv-controls" hidden=${!controls.length} ref=${row}>${fieldsOf(controls)}
      ${options.length > 0 && html`<details class="sv-options"><summary class="sv-button">Options</summary><div class="sv-options-fields">${fieldsOf(options)}</div></details>`}
      ${/** @type {ButtonControl[]} */ (controls.filter(isButton)).map((control) => html`<${Button} key=${control.do} control=${control} why=${why} send=${send} />`)}
      <p class="sv-takes sv-small" hidden=${!takes}>${takes}</p><p class="sv-why sv-small" id=${why} /></div>
    <div class="sv-blocks"><${Blocks} blocks=${blocks.filter((block) => !isExample(block))} host=${inside} /></div></section>`;
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
  /** @type {Omit<BlockHost, 'title' | 'why'>} */
  const host = {
    root,
    act: (name, does, values, isFree) => {
      if (!isFree) setBusy(name);
      trigger('act', { section: name, do: does, values, place: place(), tab });
    },
    halt: () => trigger('halt', {}),
  };

  // While a section works, only what asks the models waits, and its section says why. name: of the section that works
  /** @param {string | null} name */
  function setBusy(name) {
    root.toggleAttribute('data-busy', Boolean(name));
    for (const made of /** @type {NodeListOf<HTMLButtonElement>} */ (root.querySelectorAll('[data-act]:not([data-free])'))) made.disabled = Boolean(name);
    for (const said of root.querySelectorAll('.sv-why')) said.textContent = name ? `One task at a time: ${sections.get(name)?.props.title || 'another one'} is running.` : '';
  }

  /** @param {PageMessage} message */
  function take(message) {
    order = message.order || order;
    for (const each of message.sections) sections.set(each.id, html`<${Section} key=${each.id} ...${each} host=${host} />`);
    for (const name of sections.keys()) if (!order.includes(name)) sections.delete(name);
    const drawn = order.map((name) => sections.get(name));
    const contents = page && drawn.length >= LONG && html`<${Contents} key="contents" page=${page} sections=${drawn.map((each) => each.props)} />`;
    render([contents, ...drawn], body);
    setBusy(message.busy);
    live.textContent = message.say;
  }

  const read = () => { if (props.value) take(JSON.parse(props.value)); };
  render(html`<p class="sv-waiting">Waiting for the server…</p>`, body);
  watch('value', read);
  read();
  return { look: () => trigger('look', { place: place(), tab }), act: host.act };
}
