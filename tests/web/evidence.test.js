// How a draft was made: every part that was sent, a tree that is walked and pressed, and what the lanes tell of it.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fire } from './dom.js';
import { run, sent, staged } from './messages.js';
import { labelOf } from '../../assets/web/core/palette.js';

const MADE = Object.keys(sent.runs).filter((name) => name.startsWith('made '));
const stepOf = ({ steps }) => steps.findIndex(({ made }) => made);

// a stage that shows how the first such draft was made
async function shows(name) {
  const message = run(name), stage = await staged(message), step = stepOf(message), { made } = message.steps[step];
  stage.hub.pin(step, message.steps[step].focus);
  await stage.press('[data-part=of-draft]');
  return { ...stage, made, kind: (wanted) => made.parts.find(({ kind }) => kind === wanted), told: (selector) => stage.find(selector).map((each) => each.textContent) };
}

for (const name of MADE) {
  test(`${name}: every part has its title, its tokens and its facts, under headings of the second order`, async () => {
    const { made, told, find } = await shows(name), of = (kind) => made.parts.filter((part) => part.kind === kind);
    assert.deepEqual(told('.sv-part-title'), made.parts.map(({ title }) => title));
    assert.deepEqual(told('.sv-chip .sv-body'), of('lines').flatMap(({ lines }) => lines.flatMap(([, row]) => row.map(([text]) => text))));
    assert.deepEqual(told('.sv-facts > dt, .sv-facts > dd'), of('facts').flatMap(({ items }) => items.flat()));
    assert.deepEqual(find('.sv-made h1, .sv-made h3, .sv-made h4'), []);
    const nodes = of('tree').flatMap((part) => part.nodes);
    assert.deepEqual(find('[role=treeitem]').map((each) => [each.dataset.ref, /sv-is-(\w+)/.exec(each.className)[1], each.getAttribute('aria-level')]), nodes.map(([ref, , status, depth]) => [ref, status, String(depth)]));
    assert.deepEqual([find('.sv-edge').length, find('.sv-edge.sv-taken').length], [nodes.length, nodes.filter(([, , status]) => status === 'accepted').length]);
  });
}

test('the keys walk the tree, one node alone is reached by Tab, and Enter pins it', async () => {
  const { kind, find, hub } = await shows('made tree'), { nodes } = kind('tree');
  const active = () => /** @type {HTMLElement} */ (document.activeElement);
  const focused = () => active().dataset.ref, press = (key) => fire(active(), 'keydown', { key });
  find('.sv-node')[0].focus();
  const start = focused();
  await press('ArrowRight');
  assert.equal(nodes.find(([ref]) => ref === focused())[3], 2);
  await press('ArrowLeft');
  assert.equal(focused(), start);
  await press('End');
  await press('ArrowUp');
  assert.equal(focused(), nodes.at(-2)[0]);
  await press('Enter');
  assert.deepEqual([hub.pinned, find('.sv-node.sv-on').map(({ dataset }) => dataset.ref), focused()], [{ step: 0, ref: nodes.at(-2)[0] }, [nodes.at(-2)[0]], nodes.at(-2)[0]]);
  assert.equal(find('.sv-node[tabindex=0]').length, 1);
});

test('a press on a node pins it and stays with the draft until the token is asked for', async () => {
  const { kind, find, hub, press } = await shows('made medusa'), [ref] = kind('tree').nodes.at(-1);
  await fire(find(`.sv-node[data-ref=${ref}] .sv-token-word`)[0], 'click');
  assert.deepEqual([hub.pinned.ref, find('.sv-tree').length], [ref, 1]);
  assert.equal(find('[data-part=status]')[0].textContent, labelOf(kind('tree').nodes.at(-1)[2]));
  await press('[data-part=of-token]');
  assert.equal(find('.sv-tree').length, 0);
});

test('a step of which nothing can be told offers no second view, and the choice is kept for the next that has one', async () => {
  const { find, hub, isThere } = await shows('made tree');
  hub.pin(1, '0');
  assert.deepEqual([isThere('[data-part=views]'), isThere('[data-part=probabilities]'), find('.sv-tree').length], [false, true, 0]);
  hub.pin(0, '0');
  assert.equal(find('.sv-tree').length, 1);
  assert.ok(!(await staged(run('chain'))).isThere('[data-part=views]'));
});

test('the lane of a tree counts what is off the path', async () => {
  const { told, text } = await shows('made wide_tree');
  assert.deepEqual([told('.sv-row .sv-more').map((words) => parseInt(words, 10)), text('[data-number=accepted-words]')], [[56], 'acceptance rate, siblings included']);
});

test('a reasoning step that was refused has its mark in its lane and in its bar, and counts as one', async () => {
  const { find, text } = await shows('made refused'), [mark] = find('.sv-refused');
  assert.match(mark.getAttribute('aria-label'), /reasoning step of 13 tokens, rejected/);
  assert.equal(mark.title, mark.getAttribute('aria-label'));
  assert.deepEqual([find('.sv-bar-refused').length, text('[data-number=accepted]'), text('[data-number=accepted-words]')], [1, '1 of 2', 'reasoning steps accepted']);
});
