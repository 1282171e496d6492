import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts } from './dom.js';
import { keepRuns } from '../../assets/web/library/kept_runs.js';
import { Group } from '../../assets/web/library/library.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { RunEntry } from '../../assets/web/messages.d.ts' */

/** @param {string} title @returns {RunEntry} */
const about = (title, date = '') => ({ title, words: `${title} in words`, facts: '64 tokens', date });

function drawn(more = {}) {
  const root = node(), done = [], list = ['a', 'b', 'c'].map((id) => [id, about(`Run <${id}>`), [['Open', () => done.push(['open', id])], ['Delete', () => done.push(['delete', id])]]]);
  render(html`<${Group} title="Runs" note="" list=${list} shown="b" ticked=${[]} tick=${(ticked) => done.push(['tick', ticked])} ...${more} />`, root);
  return { root, done };
}

test('each run has its words and its buttons, and the one on the stage says so', async () => {
  const { root, done } = drawn();
  assert.deepEqual(texts(root, 'h3'), ['Run <a>', 'Run <b>', 'Run <c>']);
  assert.deepEqual(all(root, '.sv-library-entry').map((each) => each.attributes['aria-current']), [undefined, 'true', undefined]);
  for (const each of all(root, '.sv-library-press').slice(2, 4)) await fire(each, 'click');
  assert.deepEqual(done, [['open', 'b'], ['delete', 'b']]);
});

test('two runs can be ticked and no third; a tick that is taken away is gone', async () => {
  const { root, done } = drawn({ ticked: ['a', 'c'] }), boxes = all(root, 'input');
  assert.deepEqual(boxes.map(({ checked, disabled }) => [checked, disabled]), [[true, false], [false, true], [true, false]]);
  boxes[0].checked = false;
  await fire(boxes[0], 'change');
  assert.deepEqual(done, [['tick', ['c']]]);
  const one = drawn({ ticked: ['a'] });
  all(one.root, 'input')[1].checked = true;
  await fire(all(one.root, 'input')[1], 'change');
  assert.deepEqual(one.done, [['tick', ['a', 'b']]]);
});

test('a date that is none is left out', () => {
  const facts = (date) => texts(drawn({ list: [['a', about('A', date), []]] }).root, '.sv-library-facts')[0];
  assert.equal(facts('yesterday'), '64 tokens');
  assert.match(facts('2026-03-04T05:06:07Z'), /^64 tokens · \d Mar 2026/);
});

test('where the browser keeps nothing runs stay for the page, newest first, and the oldest go when there are too many', async () => {
  Object.assign(globalThis, { indexedDB: { open() { throw new Error('not here'); } } });
  const kept = await keepRuns(), run = (key, at, size) => ({ key, ...about(key), run: key, at, size });
  assert.equal(kept.isLasting, false);
  for (const each of [run('old', 1, 5), run('new', 3, 5), run('mid', 2, 5)]) assert.equal(await kept.put(each, `packed ${each.key}`), false);
  const keys = async () => (await kept.list()).map(({ key }) => key);
  assert.deepEqual(await keys(), ['new', 'mid', 'old']);
  assert.equal(await kept.packed('mid'), 'packed mid');
  assert.equal(await kept.trim({ most_runs: 3, most_bytes: 15 }), false);
  assert.equal(await kept.trim({ most_runs: 3, most_bytes: 12 }), true);
  assert.deepEqual(await keys(), ['new', 'mid']);
  assert.equal(await kept.trim({ most_runs: 1, most_bytes: 1 }), true);      // the newest stays, however large
  assert.deepEqual(await keys(), ['new']);
  assert.equal(await kept.remove('new'), true);
  assert.equal(await kept.packed('new'), null);
});
