// Many texts, one of them shown: found by a search, walked by keys and pointer, told for the draft that is chosen.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts, type, until } from './dom.js';
import { sent } from './messages.js';
import { tokenTexts } from '../../assets/web/reports/token_texts.js';

const { few, many, saved, tokens } = sent.texts;

async function drawn(block) {
  const root = node(), box = node(), found = (selector) => all(box, selector);
  root.append(box);
  tokenTexts(box, block, { root, title: '', act() {}, halt() {} });
  // until the text that is chosen, or none, is shown
  const shown = (isThere = true) => until(() => Boolean(found('.sv-texts-line')[0].textContent) === isThere);
  await shown();
  const chosen = (line) => until(() => found('.sv-texts-line .sv-agree')[0] !== line);
  return {
    root, found, shown, search: (words) => type(found('input')[0], words),
    at: () => found('.sv-texts-line .sv-agree').findIndex((each) => each.classList.contains('sv-agree-at')),
    facts: () => Object.fromEntries(texts(box, 'dt').map((name, place) => [name, texts(box, 'dd')[place]])),
    press: (place) => fire(found('.sv-texts-line .sv-agree')[place], 'click'),
    choose: async (select, value) => {
      const [line] = found('.sv-texts-line .sv-agree'), isOther = String(select.value) !== String(value);
      select.value = String(value);
      await fire(select, 'change');
      if (isOther) await chosen(line);
    },
    ids: () => texts(box, '.sv-texts-list option').map((words) => words.split(' ')[0]),
  };
}

test('a token tells its facts, for the draft that is chosen, and stays chosen with the text', async () => {
  const made = await drawn(few), [list, drafts] = made.found('select'), savedHere = () => made.facts()['saved if accepted here'];
  await made.press(5);
  assert.deepEqual([made.facts().token, made.facts()['position, from 1']], [tokens[0][5], '6']);
  for (const draft of [0, 2]) {
    await made.choose(drafts, draft);
    assert.deepEqual([savedHere(), made.at()], [`${saved[0][draft][5].toFixed(2)} target calls`, 5]);
  }
  await made.choose(list, 4);
  assert.deepEqual([made.at(), savedHere()], [0, `${saved[4][2][0].toFixed(2)} target calls`]);
  await made.choose(list, 0);
  assert.equal(made.at(), 5);
});

test('the arrow keys, a finger\'s buttons and a mouse go along a text, and never over its ends', async () => {
  const made = await drawn(few), [line] = made.found('.sv-texts-line'), key = (name) => fire(line, 'keydown', { key: name });
  /** @type {[string, number][]} */
  const moves = [['ArrowRight', 1], ['PageUp', 1], ['End', 11], ['ArrowRight', 11], ['ArrowLeft', 10], ['Home', 0], ['ArrowLeft', 0]];
  for (const [name, place] of moves) {
    await key(name);
    assert.equal(made.at(), place, name);
  }
  const [before, after] = made.found('.sv-texts-steps button');
  for (const [button, place] of [[after, 1], [after, 2], [before, 1]]) {
    await fire(button, 'click');
    assert.equal(made.at(), place);
  }
  await fire(made.found('.sv-texts-line .sv-agree')[7], 'pointerover', { pointerType: 'touch' });
  assert.equal(made.at(), 1);
  await fire(made.found('.sv-texts-line .sv-agree')[7], 'pointerover', { pointerType: 'mouse' });
  assert.equal(made.at(), 7);
});

/** @type {[string, number[]][]} */
const SEARCHES = [['tales', [3]], ['AND hawaii', [5]], ['fable-draft 97 %', [1]], ['fable-draft 97\u00a0%', [1]], ['none of it', []]];
for (const [wanted, found] of SEARCHES) {
  test(`a search for "${wanted}" finds tags, prompts and shares, and clears what it does not find`, async () => {
    const made = await drawn(few);
    await made.search(wanted);
    await made.shown(found.length > 0);
    assert.deepEqual(made.ids(), found.map((place) => `story-${place}`));
    if (!found.length) assert.deepEqual([made.found('.sv-texts-about')[0].textContent, made.found('.sv-texts-panel')[0].textContent], ['', '']);
  });
}

test('of many texts some are listed, the number of the others is told, and a search finds them', async () => {
  const made = await drawn(many);
  assert.equal(made.ids().length, 200);
  assert.match(made.found('.sv-small')[0].textContent, /200 of 250/);
  await made.search('story-249 ');
  assert.deepEqual([made.ids(), made.found('.sv-small')[0].textContent], [['story-249'], '']);
});

test('a cell of a table opens a text at its token for its draft, whatever is searched for', async () => {
  const made = await drawn(few), [list, drafts] = made.found('select');
  await made.search('tales');
  made.root.dispatchEvent(new CustomEvent('sv-open', { detail: { text: few.numbers[4], draft: 1, token: 7 } }));
  await until(() => made.at() === 7);
  assert.deepEqual([list.value, drafts.value, made.facts()['saved if accepted here']], ['4', '1', `${saved[4][1][7].toFixed(2)} target calls`]);
  assert.equal(document.activeElement, made.found('.sv-texts-line')[0]);
});

test('texts from outside stay texts', async () => {
  const made = await drawn(few);
  await made.search('story-2 ');
  await until(() => made.found('.sv-texts-line')[0].textContent.includes('<img'));
  assert.equal(made.found('img, script').length, 0);
});
