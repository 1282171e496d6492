// report.js: a page of sections. Each section arrives whole; what has not changed stays where it is, and what a person
// has set stays set. A button sends the values of its section; one piece of work goes on at a time.
'use strict';
(() => {
  const { element } = window.specviz;

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
      Object.assign(box, { name, value, placeholder: hint, maxLength: most, rows: 3 });
      field.append(element('span', '', label), box);
      return field;
    },
    button({ do: does, label, primary }, send) {
      const made = Object.assign(element('button', `sv-button${primary ? ' sv-primary' : ''}`, label), { type: 'button' });
      made.dataset.act = does;
      made.addEventListener('click', () => send(does));
      return made;
    },
  };

  // The values of a section's fields by name, as texts; null where a number is out of its bounds, which is then said.
  function valuesOf(controls) {
    const fields = [...controls.querySelectorAll('input, select, textarea')];
    if (!fields.every((field) => field.reportValidity())) return null;
    return Object.fromEntries(fields.map(({ name, value }) => [name, value]));
  }

  function section(host) {
    const node = element('section', 'sv-card sv-section'), title = element('h2'), lead = element('p', 'sv-section-lead');
    const controls = element('div', 'sv-controls'), body = element('div', 'sv-blocks');
    let shownControls = '', shown = [];                  // per block: its data as text, and what was made of it
    node.append(title, lead, controls, body);

    function setControls(list) {
      if (JSON.stringify(list) === shownControls) return;
      shownControls = JSON.stringify(list);
      const send = (does) => {
        const values = valuesOf(controls);
        if (values) host.act(node.dataset.section, does, values);
      };
      controls.replaceChildren(...list.map((each) => MAKERS[each.kind](each, send)));
      controls.hidden = !list.length;
    }

    function setBlocks(list) {
      const made = list.map((block, place) => {
        const text = JSON.stringify(block), before = shown[place];
        if (before && before.text === text) return before;
        const fresh = { text, node: window.specviz.blocks.make(block, host) };
        if (before && before.node.open) fresh.node.open = true;
        return fresh;
      });
      for (const before of shown) if (!made.includes(before)) before.node.release?.();
      made.forEach(({ node: each }, place) => { if (body.children[place] !== each) body.insertBefore(each, body.children[place] || null); });
      while (body.children.length > made.length) body.lastElementChild.remove();
      shown = made;
    }

    return {
      node,
      repaint: () => shown.forEach(({ node: each }) => each.repaint?.()),
      set(props) {
        node.dataset.section = props.id;
        title.textContent = props.title;
        window.specviz.sentence(lead, Array.isArray(props.lead) ? props.lead : [props.lead]);
        lead.hidden = !props.lead.length;
        setControls(props.controls);
        setBlocks(props.blocks);
      },
    };
  }

  // element: holds .sv-report. host: Gradio's props, watch and trigger; `place` says what is looked at on the stage.
  window.specviz.mountReport = (holder, { props, watch, trigger, place }) => {
    const root = holder.querySelector('.sv-report'), body = root.querySelector('.sv-report-body'), live = root.querySelector('.sv-live');
    const sections = new Map();
    const host = {
      root,
      act: (name, does, values) => {
        setBusy(true);
        trigger('act', { section: name, do: does, values, place: place() });
      },
      halt: () => trigger('halt', {}),
    };

    function setBusy(isBusy) {
      root.toggleAttribute('data-busy', isBusy);
      for (const made of root.querySelectorAll('[data-act]')) made.disabled = isBusy;
    }

    function take(message) {
      if (message.order) {
        for (const [name, { node }] of sections) if (!message.order.includes(name)) { node.remove(); sections.delete(name); }
      }
      for (const each of message.sections) {
        if (!sections.has(each.id)) sections.set(each.id, section(host));
        sections.get(each.id).set(each);
      }
      for (const name of message.order || []) body.append(sections.get(name).node);
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
    return { look: () => trigger('look', { place: place() }) };
  };
})();
