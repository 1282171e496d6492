import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, parsed, texts } from './dom.js';
import { sent } from './messages.js';
import { Beats, Opening, asks } from '../../assets/web/stage/opening.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { JudgedBar, Opening as Told } from '../../assets/web/messages.d.ts' */

/** @type {JudgedBar} */
const BAR = { token: '␣they', fill: 62.5, x: 81.6, u: '0.82', accepted: false, target: '25 %', draft: '40 %' };
/** @type {Told} */
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
  assert.match(said(false), /0\.82: rejected.* right/);
  assert.match(said(true), /0\.82: rejected.* wrong/);
  assert.doesNotMatch(said(null), /guessed/);
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

// ---- over a stage ----------------------------------------------------------------------------------------------------
function opened() {
  const root = parsed('<div><section class="sv-opening" hidden></section><div class="sv-text-scroll"></div></div>').firstChild, left = [], asked = [];
  document.body.append(root);
  const opening = new Opening(root, { ask: async (wanted) => { asked.push(wanted); return sent.opening; }, leave: (where) => left.push(where) });
  const [box] = all(root, '.sv-opening'), sentence = () => texts(box, '.sv-beat-sentence')[0];
  return { root, box, left, asked, opening, sentence, key: (name) => fire(box, 'keydown', { key: name }), swipe: async (by) => { await fire(box, 'pointerdown', { clientX: 100 }); await fire(box, 'pointerup', { clientX: 100 + by }); } };
}

test('every beat waits, is said and marked, and the one with a bar lets its draw fall first', async () => {
  const { box, opening, sentence } = opened(), { beats } = sent.opening;
  await opening.open({ run: 'one', step: 1 });
  for (const [at, beat] of beats.entries()) {
    assert.deepEqual([sentence(), all(box, '[aria-current=step]')[0].attributes['aria-label'], box.dataset.beat], [beat.sentence, `beat ${at + 1} of ${beats.length}`, beat.name]);
    if (asks(beat)) {
      await fire(all(box, '.sv-beat-next')[0], 'click');
      assert.equal(all(box, '.sv-beat-draw').length, 1);
    }
    if (at + 1 < beats.length) await fire(all(box, '.sv-beat-next')[0], 'click');
  }
  assert.ok(beats.some(asks));
});

test('keys and swipes go through it and are not the stage\'s meanwhile; Escape gives the focus back', async () => {
  const { root, box, opening, sentence, key, swipe, left } = opened(), { beats } = sent.opening, heard = [], [scroll] = all(root, '.sv-text-scroll');
  root.addEventListener('keydown', ({ key: name }) => heard.push(name));
  scroll.focus();
  await opening.open({ run: 'one' });
  assert.ok(box.contains(document.activeElement) && root.hasAttribute('data-opening'));
  /** @type {[() => Promise<void>, number][]} */
  const moves = [[() => key('ArrowRight'), 1], [() => key('ArrowLeft'), 0], [() => swipe(-41), 1], [() => swipe(-40), 1], [() => swipe(41), 0], [() => key('Home'), 0]];
  for (const [go, at] of moves) {
    await go();
    assert.equal(sentence(), beats[at].sentence);
  }
  await key('Escape');
  assert.deepEqual([box.hidden, left, heard, document.activeElement], [true, [''], [], scroll]);
});
