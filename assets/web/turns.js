// turns.js: you are the draft model: a line to type in, what became of the last turn, the score, and a stage that shows
// the text like that of any run. The words go to the server; everything shown comes from there.
'use strict';
(() => {
  const { element, sentence } = window.specviz;
  const SECTION = 'be-the-draft';
  let isTyping = false;                               // the last turn was typed: the line is ready for the next one

  function line(block, act) {
    const form = element('form', 'sv-turns-form'), field = element('label', 'sv-control'), input = element('input');
    const tick = element('label', 'sv-turns-tick'), joined = Object.assign(element('input'), { type: 'checkbox' });
    const send = Object.assign(element('button', 'sv-button sv-primary', 'Hand them over'), { type: 'submit' });
    Object.assign(input, { type: 'text', name: 'words', autocomplete: 'off', spellcheck: false, maxLength: block.most + 1 });
    input.setAttribute('autocapitalize', 'none');
    input.setAttribute('enterkeyhint', 'send');
    input.placeholder = 'what comes next';
    field.append(element('span', '', 'Your next words'), input);
    tick.append(joined, element('span', '', 'they go on in the middle of a word'));
    send.dataset.act = 'turn';
    form.append(field, send, tick);
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      if (send.disabled) return;
      isTyping = true;
      act(SECTION, 'turn', { ...block.setup, game: block.game, words: input.value, joined: joined.checked ? 'yes' : 'no' });
    });
    form.ready = () => { if (isTyping) input.focus({ preventScroll: true }); };
    return form;
  }

  function tiles(list) {
    const made = element('dl', 'sv-turns-tiles');
    made.append(...list.map(([number, words]) => {
      const tile = element('div');
      tile.append(element('dt', '', words), element('dd', '', number));
      return tile;
    }));
    return made;
  }

  // A stage of its own, at the step that was just made.
  async function stage(holder, { feed, focus }) {
    const message = JSON.parse(await window.specviz.unpack(feed));
    holder.append(window.specviz.stageMarkup());
    const hub = window.specviz.mountStage(holder, { source: window.specviz.embeddedSource(message), quiet: true });
    hub.pin(focus[0], focus[1], 'auto');
  }

  function saved({ game }) {
    const made = element('p', 'sv-turns-save'), link = element('a', '', 'Save this text as a trace');
    link.href = `/specviz/trace/${game}`;
    link.download = '';
    made.append(link);
    return made;
  }

  window.specviz.blockKinds.turns = (block, { act }) => {
    const made = element('div', 'sv-block sv-turns'), said = element('div', 'sv-turns-said');
    said.setAttribute('role', 'status');
    said.append(...block.said.map((words) => { const told = element('p'); sentence(told, words); return told; }));
    if (block.end) said.append(element('p', 'sv-turns-end', block.end));
    made.append(said);
    if (block.end) isTyping = false;
    else {
      const form = line(block, act);
      made.append(form);
      requestAnimationFrame(form.ready);
    }
    if (block.tiles.length) made.append(tiles(block.tiles));
    if (!block.feed) {
      made.prepend(element('p', 'sv-turns-prompt', block.prompt));
      return made;
    }
    const holder = element('div', 'sv-turns-stage');
    made.append(holder, saved(block));
    stage(holder, block);
    return made;
  };
})();
