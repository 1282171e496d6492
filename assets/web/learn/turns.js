// turns.js: you are the draft model: a line to type in, what became of the last turn, the score, and a stage that shows
// the text like that of any run. The words go to the server; everything shown comes from there.
import { element, button, sentence } from '../core/element.js';
import { unpack } from '../core/files.js';
import { embeddedSource } from '../core/hub.js';
import { stageMarkup, mountStage } from '../stage/stage.js';

const SECTION = 'be-the-draft';
let isTyping = false;                               // the last turn was typed: the line is ready for the next one

// The one choice where the text ends in a letter, with what would stand there.
function joining({ words, label, is_on: isOn, letters }, input) {
  const box = element('div', 'sv-turns-join'), said = element('p'), tick = element('label', 'sv-turns-tick');
  const joined = Object.assign(element('input'), { type: 'checkbox', checked: isOn }), shown = element('span', 'sv-word');
  const tell = () => {
    const typed = input.value.trim();
    shown.textContent = typed && `${letters}${joined.checked ? '' : ' '}${typed}`;
  };
  sentence(said, words);
  tick.append(joined, element('span', '', label), shown);
  for (const [node, name] of [[input, 'input'], [joined, 'change']]) node.addEventListener(name, tell);
  tell();
  box.append(said, tick);
  return [box, () => joined.checked];
}

function line(block, act) {
  const form = element('form', 'sv-turns-form'), field = element('label', 'sv-control'), input = element('input');
  const send = Object.assign(element('button', 'sv-button sv-primary', 'Hand them over'), { type: 'submit' });
  const finish = button('sv-button', 'Finish here');
  const problem = element('p', 'sv-turns-problem', block.problem);
  Object.assign(input, { type: 'text', name: 'words', autocomplete: 'off', spellcheck: false, maxLength: block.most + 1 });
  input.setAttribute('autocapitalize', 'none');
  input.setAttribute('enterkeyhint', 'send');
  input.placeholder = 'what comes next';
  input.value = block.typed;
  problem.id = 'sv-turns-problem';
  problem.setAttribute('role', 'alert');
  if (block.problem) {
    input.setAttribute('aria-invalid', 'true');
    input.setAttribute('aria-describedby', problem.id);
  }
  field.append(element('span', '', 'Your next words'), input);
  send.dataset.act = 'turn';
  finish.dataset.act = 'finish';
  const [join, isJoined] = block.join ? joining(block.join, input) : [null, () => false];
  form.append(...(join ? [join] : []), field, send, ...(block.can_finish ? [finish] : []), problem);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    if (send.disabled) return;
    isTyping = true;
    problem.textContent = '';
    act(SECTION, 'turn', { ...block.setup, game: block.game, words: input.value, joined: isJoined() ? 'yes' : 'no' });
  });
  finish.addEventListener('click', () => act(SECTION, 'finish', { ...block.setup, game: block.game }));
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
  const message = JSON.parse(await unpack(feed));
  holder.append(stageMarkup());
  const hub = mountStage(holder, { source: embeddedSource(message), quiet: true });
  hub.pin(focus[0], focus[1], 'auto');
}

function saved({ game }) {
  const made = element('p', 'sv-turns-save'), link = element('a', '', 'Save this text as a trace');
  link.href = `/specviz/trace/${game}`;
  link.download = '';
  made.append(link);
  return made;
}

export const turns = (block, { act }) => {
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
  if (block.prompt) made.prepend(element('p', 'sv-turns-prompt', block.prompt));
  return made;
};

export const turnsStage = (block) => {
  const made = element('div', 'sv-block sv-turns'), holder = element('div', 'sv-turns-stage');
  made.append(holder, saved(block));
  stage(holder, block);
  return made;
};
