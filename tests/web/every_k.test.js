import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, later, node, texts } from './dom.js';
import { EveryK, rowsOf } from '../../assets/web/stage/every_k.js';
import { Hub } from '../../assets/web/core/hub.js';
import { HEAD, MESSAGE, STEP, cell } from './small_messages.js';
/** @import { EveryK as Told, NoOtherK, OtherK, RunEnd, ShownStep } from '../../assets/web/messages.d.ts' */

/** @type {Told['tokens']} */
const TOKENS = [['␣a', 0, '0'], ['␣b', 0, 'last'], ['␣c', 1, 'last'], ['␣d', 2, '0']];
const KINDS = ['resampled', 'bonus', 'plain', 'accepted'];
/** @param {number} k @param {Partial<OtherK>} more @returns {OtherK} */
const about = (k, more) => ({ k, sentence: ['With ', `K ${k}`, ', this text takes 3 target calls.'], totals: { tokens_per_call: '1.3', accepted: '50 %', accepted_words: 'acceptance rate' }, ...more });
/** @type {Told} */
const SURE = { own: 2, at: 2, sure: true, tokens: TOKENS, kinds: KINDS, labels: [], drafted: { 2: ['␣x', '␣y'] },
  curve: [[5, 20], [48, 9], [91, 5]], curve_words: 'tokens per pass: 1.0 with K 1, 1.3 with K 3',
  by_k: [about(1, { steps: [[1, 1, 1], [0, 1, 0], [1, 1, 3]] }), about(2, { steps: [[2, 2, 1], [1, 2, 3]] }), about(3, { steps: [[2, 3, 0], [1, 3, 3]] })] };
/** @type {Told} */
const LIKELY = { ...SURE, own: null, at: 1, sure: false, labels: [['0 %', 0], ['63 %', 63.2]], by_k: [about(1, { chances: [1, 0, 1, 0] })] };
const shown = ({ cells, last }) => [cells.map(({ text, status }) => `${text} ${status}`), last && `${last.text} ${last.status}`];

test('a sure step is a lane: accepted tokens, the rejected one, what stood on it, the token of the step', () => {
  assert.deepEqual(rowsOf(SURE, SURE.by_k[2]).map(shown), [
    [['␣a accepted', '␣b accepted', '␣x rejected'], '␣c resampled'],
    [['␣d accepted', '· ignored', '· ignored'], null],
  ]);
  assert.deepEqual(rowsOf(SURE, SURE.by_k[0]).map(shown), [
    [['␣a accepted'], '␣b bonus'], [['␣x rejected'], '␣c resampled'], [['␣d accepted'], null],
  ]);
  assert.deepEqual(rowsOf(SURE, SURE.by_k[2])[0].cells.map(({ step, ref }) => [step, ref]), [[0, '0'], [0, 'last'], [1, 'last']]);
});

test('where chance decides each token has its chance, and none is called rejected', () => {
  const [row, ...others] = rowsOf(LIKELY, LIKELY.by_k[0]);
  assert.deepEqual(row.cells.map(({ text, status, fill, label }) => [text, status, fill, label]), [
    ['␣a', 'likely', 63.2, '63 %'], ['␣b', 'likely', 0, '0 %'], ['␣c', 'likely', 63.2, '63 %'], ['␣d', 'likely', 0, '0 %'],
  ]);
  assert.equal(others.length, 0);
});

/** @param {Told | NoOtherK} told @param {(...what: any[]) => void} [trigger] */
function staged(told, trigger) {
  const hub = new Hub({ start() {}, pull: async () => null }), box = node(), marks = new Set(), asked = [];
  const root = Object.assign(node(), { querySelector: () => box, toggleAttribute: (name, on) => (on ? marks.add(name) : marks.delete(name)) });
  const ask = async (what) => { asked.push(what); return told; };
  new EveryK(root, hub, { ask, trigger });
  /** @type {ShownStep} */
  const step = { ...STEP, last: cell('last'), context: [] };
  /** @type {RunEnd} */
  const end = { reason: 'length', words: 'done', next: [] };
  const over = async (run = 'one') => {
    hub.take({ ...MESSAGE, run, head: HEAD, total: 1, steps: [step], end });
    await later();
  };
  return { hub, box, marks, asked, over };
}

async function slide(box, k) {
  const [input] = all(box, 'input');
  input.value = String(k);
  await fire(input, 'input');
}

test('a run that is over is asked about once; a drag shows that K, and the own K is the run itself again', async () => {
  const done = [], { hub, box, marks, asked, over } = staged(SURE, (name, data) => done.push([name, data]));
  assert.equal(all(box, 'input').length, 0);
  await over();
  await over();
  assert.deepEqual(asked, [{ run: 'one' }]);
  assert.equal(all(box, 'button').length, 0);
  await slide(box, 3);
  assert.equal(hub.imagined.rows.length, 2);
  assert.deepEqual(texts(box, 'b'), ['3']);
  assert.ok(marks.has('data-imagined') && !marks.has('data-likely'));
  await fire(all(box, 'button')[0], 'click');
  assert.deepEqual(done, [['really', { k: 3 }]]);
  await slide(box, 2);
  assert.equal(hub.imagined, null);
  assert.ok(!marks.has('data-imagined'));
});

test('another run, or a move of the player, ends it; without a server nothing can be run', async () => {
  const { hub, box, over } = staged(LIKELY);
  await over();
  await slide(box, 1);
  assert.equal(all(box, 'button').length, 0);
  hub.seek(0);
  assert.equal(hub.imagined, null);
  hub.seek(1);
  await slide(box, 1);
  hub.take({ ...MESSAGE, run: 'two', head: HEAD, total: 1, steps: [] });
  assert.equal(hub.imagined, null);
  assert.equal(all(box, 'input').length, 0);
});

test('the curve marks the run’s own K with a ring and the chosen one with a dot', async () => {
  const { box, over } = staged(SURE), marks = () => all(box, 'circle').map((each) => [each.getAttribute('class'), each.getAttribute('cx'), each.getAttribute('cy')].map(String));
  await over();
  assert.deepEqual(marks(), [['sv-curve-own', '48', '9']]);
  await slide(box, 3);
  assert.deepEqual(marks(), [['sv-curve-own', '48', '9'], ['sv-curve-at', '91', '5']]);
  assert.deepEqual(all(box, 'polyline').map((each) => each.getAttribute('points')), ['5,20 48,9 91,5']);
});

test('where the distribution does not allow it one sentence stands there instead', async () => {
  const { box, over } = staged({ refusal: 'No other K here: the run had no draft.', why: 'The whole reason.' });
  await over();
  assert.deepEqual([texts(box, '.sv-every-k-why'), all(box, 'input').length], [['No other K here: the run had no draft.'], 0]);
  assert.equal(all(box, '.sv-every-k-why')[0].title, 'The whole reason.');
});
