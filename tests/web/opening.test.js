import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts } from './dom.js';
import { Beats, asks } from '../../assets/web/stage/opening.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { JudgedBar, Opening } from '../../assets/web/messages.d.ts' */

/** @type {JudgedBar} */
const BAR = { token: '␣they', fill: 62.5, x: 81.6, u: '0.82', accepted: false, target: '25 %', draft: '40 %' };
/** @type {Opening} */
const TOLD = { step: 3, question: 'Why?', before: 'Because', written: ['␣a'], beats: [
  { name: 'slow', sentence: 'One by one.' },
  { name: 'judge', sentence: 'Accept it?', bar: BAR, chips: [['␣they', 'judged', '40 %'], ['␣saw', 'drafted', '9 %']] },
  { name: 'last', sentence: 'Resampled.', shares: [['␣went', 100, '73 %', true], ['␣<b>', 9.5, '7 %', false]] },
  { name: 'point', sentence: 'Two for one.', numbers: [['2.78', 'tokens per target call']] },
] };

function drawn(at, more = {}) {
  const root = node(), done = [], does = Object.fromEntries(['go', 'fall', 'move', 'close'].map((name) => [name, (value) => done.push([name, value])]));
  render(html`<${Beats} told=${TOLD} at=${at} hasFallen=${false} guess=${null} does=${does} ...${more} />`, root);
  return { root, done };
}

test('before the draw falls a guess is asked for and nothing tells the verdict', () => {
  const { root } = drawn(1);
  assert.equal(asks(TOLD.beats[1]), true);
  assert.equal(all(root, '.sv-beat-draw').length, 0);
  assert.deepEqual(texts(root, '.sv-beat-said'), []);
  assert.deepEqual(all(root, '.sv-beat-guess')[0].childNodes.map((each) => each.textContent), ['Your guess:', 'accepted', 'rejected']);
  assert.equal(all(root, '.sv-beat-solid')[0].style.width, '62.5%');
});

test('once it has fallen the draw stands at its place and the guess is told right or wrong', () => {
  const said = (guess) => texts(drawn(1, { hasFallen: true, guess }).root, '.sv-beat-said')[0];
  assert.equal(said(false), 'The random draw falls at 0.82: rejected. You guessed right.');
  assert.equal(said(true), 'The random draw falls at 0.82: rejected. You guessed wrong.');
  assert.equal(said(null), 'The random draw falls at 0.82: rejected.');
  assert.equal(all(drawn(1, { hasFallen: true }).root, '.sv-beat-draw')[0].style.left, '81.6%');
});

test('each beat shows its own part, and what a model wrote stays text', () => {
  assert.deepEqual(texts(drawn(2).root, '.sv-beat-token'), ['␣went', '␣<b>']);
  assert.equal(all(drawn(2).root, '.sv-beat-drawn').length, 1);
  assert.deepEqual(texts(drawn(3).root, '.sv-beat-numbers'), ['2.78tokens per target call']);
  for (const at of [0, 1, 2, 3]) assert.deepEqual(texts(drawn(at).root, '.sv-beat-sentence'), [TOLD.beats[at].sentence]);
});

test('the last beat leads on, the others go forward, and a mark leads to its beat', async () => {
  const { root, done } = drawn(3);
  for (const each of all(all(root, '.sv-beat-ending')[0], '.sv-button')) await fire(each, 'click');
  assert.deepEqual(done, [['close', 'run'], ['go', 0], ['close', 'why']]);
  const other = drawn(0);
  await fire(all(other.root, '.sv-beat-next')[0], 'click');
  await fire(all(other.root, '.sv-beat-mark')[2], 'click');
  assert.deepEqual(other.done, [['move', 1], ['go', 2]]);
  assert.equal(all(other.root, '.sv-beat-controls')[0].childNodes[0].disabled, true);
});
