import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, parsed, texts } from './dom.js';
import { sent } from './messages.js';
import { Beats, Opening, asks } from '../../assets/web/stage/opening.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { Opening as Told } from '../../assets/web/messages.d.ts' */

/** @type {Told} */
const TOLD = {
  step: 3, title: 'A small model guesses.', question: 'Why?', before: 'Because', drafter: ['draft model', 'small'], target: ['target model', 'large'],
  tokens: [
    { text: '␣so', status: 'accepted', draft: '50 %', target: '70 %', q: 50, p: 70, draw: 12.5, fell: 'It falls at 25 %.' },
    { text: '␣they', status: 'rejected', draft: '40 %', target: '25 %', q: 40, p: 25, draw: 32.6, fell: 'It falls at 82 %: rejected.' },
    { text: '␣saw', status: 'ignored', draft: '9 %', target: '', q: 9 },
  ],
  last: ['␣<b>', 'resampled'],
  beats: [
    { name: 'draft', sentence: 'Three ahead.', settled: 0, clocks: [['here', '3 ms']] },
    { name: 'check', sentence: 'One pass.', settled: 0, clocks: [] },
    { name: 'judge', sentence: 'Accept it?', settled: 1, asked: 1, clocks: [] },
    { name: 'last', sentence: 'Resampled.', settled: 3, clocks: [], shares: [['␣went', 100, '73 %', false], ['␣<b>', 9.5, '7 %', true]] },
    { name: 'point', sentence: 'Two for one.', settled: 3, clocks: [], numbers: [['2.78', 'tokens per target call']] },
  ],
  race: { tokens: [['Because', 'accepted', 10.5, 60.5], [' <b>', 'resampled', 10.5, 121]], here: '0.1 s', alone: '0.9 s', words: 'The first 2 of 9 tokens.' },
  run: 'Run large instead', note: 'small is not here',
};

function drawn(at, more = {}, told = TOLD) {
  const root = node(), done = [], does = Object.fromEntries(['go', 'say', 'move', 'close'].map((name) => [name, (value) => done.push([name, value])]));
  render(html`<${Beats} told=${told} at=${at} hasFallen=${false} said=${null} hands=${[0, 0]} turn=${1} does=${does} ...${more} />`, root);
  return { root, done };
}
const widths = (root, whose) => all(root, `.sv-guess-bar.sv-of-${whose}`).map((bar) => bar.childNodes[0].style.width);

test('the draft\'s bars are there from the first beat on, the target\'s from its pass on', () => {
  assert.deepEqual([widths(drawn(0).root, 'draft'), widths(drawn(0).root, 'target')], [['50%', '40%', '9%'], []]);
  assert.deepEqual(widths(drawn(1).root, 'target'), ['70%', '25%']);
  assert.deepEqual([0, 1, 2].map((at) => all(drawn(at).root, '.sv-pass').length), [0, 1, 0], 'one band for all guesses');
});

test('the scene says how one pass filled the draft, where one did', () => {
  const filled = (told) => all(drawn(0, {}, told).root, '.sv-scene')[0].dataset.filled;
  assert.deepEqual([filled({ ...TOLD, filled: 'in turn' }), filled(TOLD)], ['in turn', undefined]);
});

test('before the draw falls a guess is asked for and nothing tells the verdict', () => {
  const { root } = drawn(2);
  assert.deepEqual([0, 1, 2].map((at) => asks(TOLD, at)), [false, false, true]);
  assert.equal(all(root, '.sv-guess-draw').length, 1, 'that of the token before');
  assert.deepEqual(texts(root, '.sv-guess-verdict'), ['accepted', '?', '']);
  assert.deepEqual(all(root, '.sv-beat-guess')[0].childNodes.map((each) => each.textContent), ['Your guess:', 'accepted', 'rejected']);
});

test('once it has fallen the draw stands at its place and the guess is told right or wrong', () => {
  const told = (said) => texts(drawn(2, { hasFallen: true, said }).root, '.sv-beat-said')[0];
  assert.match(told(false), /82 %: rejected.* right/);
  assert.match(told(true), /82 %: rejected.* wrong/);
  assert.doesNotMatch(told(null), /guessed/);
  assert.equal(all(drawn(2, { hasFallen: true }).root, '.sv-guess-draw')[1].childNodes[0].style.left, '32.6%');
});

test('each beat shows its own part, and what a model wrote stays text', () => {
  assert.deepEqual(texts(drawn(3).root, '.sv-beat-token'), ['␣went', '␣<b>']);
  assert.equal(all(drawn(3).root, '.sv-beat-drawn').length, 1);
  assert.deepEqual(texts(drawn(3).root, '.sv-guess-verdict'), ['accepted', 'rejected', 'not judged', 'resampled']);
  assert.equal(texts(drawn(3).root, '.sv-beat-text')[0], 'Because so <b>');
  assert.deepEqual(texts(drawn(4).root, '.sv-beat-numbers'), ['2.78tokens per target call']);
  for (const at of TOLD.beats.keys()) assert.deepEqual(texts(drawn(at).root, '.sv-beat-sentence'), [TOLD.beats[at].sentence]);
});

test('the race shows one text twice, each token when it was there', () => {
  const [alone, here] = all(drawn(4).root, '.sv-race-side');
  assert.deepEqual(texts(drawn(4).root, '.sv-race-side'), ['the target alone 0.9 sBecause <b>', 'with the draft 0.1 sBecause <b>']);
  const delays = (side) => all(side.childNodes[1], 'span').map((each) => each.style.animationDelay).filter(Boolean);
  assert.deepEqual([delays(alone), delays(here)], [['60.5ms', '121ms'], ['10.5ms', '10.5ms']]);
  assert.equal(all(drawn(4, {}, { ...TOLD, race: undefined }).root, '.sv-scene').length, 1, 'without a measured pace the lanes stay');
});

test('the last beat leads on and says what runs, the others go forward, and a mark leads to its beat', async () => {
  const { root, done } = drawn(4), ending = all(root, '.sv-beat-ending')[0];
  assert.deepEqual([texts(ending, '.sv-beat-main'), texts(ending, '.sv-beat-note')], [[TOLD.run], [TOLD.note]]);
  for (const each of all(ending, '.sv-button')) await fire(each, 'click');
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
    if (asks(sent.opening, at)) {
      await fire(all(box, '.sv-beat-next')[0], 'click');
      assert.equal(texts(box, '.sv-beat-said').length, 1);
    }
    if (at + 1 < beats.length) await fire(all(box, '.sv-beat-next')[0], 'click');
  }
  assert.ok(beats.some((_, at) => asks(sent.opening, at)));
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

test('a guess lets the draw fall; before a class the hands are counted until it is drawn', async () => {
  const { box, opening, key } = opened(), at = sent.opening.beats.findIndex((_, place) => asks(sent.opening, place)), guesses = () => all(all(box, '.sv-beat-guess')[0], '.sv-button');
  await opening.open({ run: 'one' });
  opening.go(at);
  await fire(guesses()[0], 'click');
  assert.match(texts(box, '.sv-beat-said')[0], /You guessed/);
  document.documentElement.setAttribute('data-sv-present', '');
  opening.go(at);
  await fire(guesses()[0], 'click');
  for (const name of ['a', 'r', 'a']) await key(name);
  assert.deepEqual(guesses().map((each) => each.textContent), ['accepted 3', 'rejected 1']);
  await fire(all(box, '.sv-beat-next')[0], 'click');
  assert.match(texts(box, '.sv-beat-said')[0], /3 said accepted, 1 rejected\./);
  document.documentElement.removeAttribute('data-sv-present');
});
