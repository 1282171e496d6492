// report.js: a page of sections. Each section arrives whole; what has not changed stays where it is, and what a person
// has set stays set. A button sends the values of its section; one piece of work goes on at a time.
import { element, button, sentence } from '../core/element.js';
import { makeBlock } from './blocks.js';

const MAKERS = {
  choice({ name, label, options, value }) {
    const field = element('label', 'sv-control'), select = element('select');
    select.append(...options.map(([words, each]) => Object.assign(element('option', '', words), { value: each })));
    select.value = value;
    select.name = name;
    field.append(element('span', '', label), select);
    return field;
  },
  count({ name, label, value, low, high }) {
    const field = element('label', 'sv-control'), input = element('input');
    Object.assign(input, { type: 'number', min: low, max: high, step: 1, value, name });
    field.append(element('span', '', label), input);
    return field;
  },
  lines({ name, label, value, hint, most }) {
    const field = element('label', 'sv-control sv-control-lines'), box = element('textarea');
    Object.assign(box, { name, value, placeholder: hint, maxLength: most + 1, rows: 3 });   // one too many is refused in words
    field.append(element('span', '', label), box);
    return field;
  },
  button({ do: does, label, primary }, send) {
    const made = button(`sv-button${primary ? ' sv-primary' : ''}`, label, () => send(does));
    made.dataset.act = does;
    return made;
  },
};

// The values of a section's fields by name, as texts; null where a number is out of its bounds, which is then said.
function valuesOf(controls) {
  const fields = [...controls.querySelectorAll('input, select, textarea')];
  if (!fields.every((field) => field.reportValidity())) return null;
  return Object.fromEntries(fields.map(({ name, value }) => [name, value]));
}

// what a field holds, put into another one that can hold it
function keepValue(from, to) {
  const one = from.querySelector('input, select, textarea'), other = to.querySelector('input, select, textarea');
  if (other.options && ![...other.options].some(({ value }) => value === one.value)) return;
  other.value = one.value;
}

// exactly these nodes, in this order; what stands in its place already is not touched
function arrange(holder, nodes) {
  for (const child of [...holder.children]) if (!nodes.includes(child)) child.remove();
  nodes.forEach((node, place) => { if (holder.children[place] !== node) holder.insertBefore(node, holder.children[place] || null); });
}

function section(host) {
  const node = element('section', 'sv-card sv-section'), title = element('h2'), lead = element('p', 'sv-section-lead');
  const controls = element('div', 'sv-controls'), body = element('div', 'sv-blocks');
  const within = { ...host, title: '' };
  let fields = [], shown = [];                         // per control, per block: its data as text, and what was made of it
  node.append(title, lead, controls, body);

  const send = (does) => {
    const values = valuesOf(controls);
    if (values) host.act(node.dataset.section, does, values);
  };

  // a field keeps what a person has set, unless the value that it was given has changed
  function setControls(list) {
    fields = list.map((control) => {
      const text = JSON.stringify(control);
      const before = fields.find(({ control: { kind, name, do: does } }) => kind === control.kind && name === control.name && does === control.do);
      if (before && before.text === text) return before;
      const fresh = { control, text, node: MAKERS[control.kind](control, send) };
      if (before && control.name && before.control.value === control.value) keepValue(before.node, fresh.node);
      return fresh;
    });
    arrange(controls, fields.map((each) => each.node));
    controls.hidden = !list.length;
  }

  function setBlocks(list) {
    const left = new Set(shown);
    const taken = (fits) => {
      const found = [...left].find(fits);
      left.delete(found);
      return found;
    };
    const made = list.map((block) => {
      const text = JSON.stringify(block), same = taken((before) => before.text === text);
      return same || { text, kind: block.kind, title: block.title, node: null, block };
    });
    for (const fresh of made.filter(({ node: each }) => !each)) {
      const kept = taken(({ kind, node: each }) => each.moveOn && kind === fresh.kind);
      if (kept) {
        fresh.node = kept.node;
        fresh.node.moveOn(fresh.block);
        continue;
      }
      const before = fresh.title && taken(({ title: name }) => name === fresh.title);
      fresh.node = makeBlock(fresh.block, within);
      if (before && before.node.open) fresh.node.open = true;
      before?.node.release?.();
    }
    for (const before of left) before.node.release?.();
    arrange(body, made.map(({ node: each }) => each));
    shown = made.map(({ text, kind, title: name, node: each }) => ({ text, kind, title: name, node: each }));
  }

  return {
    node,
    repaint: () => shown.forEach(({ node: each }) => each.repaint?.()),
    set(props) {
      node.dataset.section = props.id;
      title.textContent = within.title = props.title;
      sentence(lead, Array.isArray(props.lead) ? props.lead : [props.lead]);
      lead.hidden = !props.lead.length;
      setControls(props.controls);
      setBlocks(props.blocks);
    },
  };
}

// element: holds .sv-report. host: Gradio's props, watch and trigger; `place` says what is looked at on the stage, `tab`
// what this tab is called.
export const mountReport = (holder, { props, watch, trigger, place, tab }) => {
  const root = holder.querySelector('.sv-report'), body = root.querySelector('.sv-report-body'), live = root.querySelector('.sv-live');
  const sections = new Map();
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
    for (const made of root.querySelectorAll('[data-act]')) made.disabled = isBusy;
  }

  const waiting = element('p', 'sv-waiting', 'Waiting for the server…');
  body.append(waiting);

  function take(message) {
    waiting.remove();
    if (message.order) {
      for (const name of sections.keys()) if (!message.order.includes(name)) sections.delete(name);
    }
    for (const each of message.sections) {
      if (!sections.has(each.id)) sections.set(each.id, section(host));
      sections.get(each.id).set(each);
    }
    if (message.order) arrange(body, message.order.map((name) => sections.get(name).node));
    setBusy(Boolean(message.busy));
    live.textContent = message.say || '';
  }

  const read = () => {
    if (props.value) take(JSON.parse(props.value));
  };
  watch('value', read);
  read();
  new MutationObserver(() => sections.forEach(({ repaint }) => repaint()))
    .observe(document.body, { attributes: true, attributeFilter: ['class'] });
  return { look: () => trigger('look', { place: place(), tab }), act: host.act };
};
