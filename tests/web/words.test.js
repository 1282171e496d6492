// The sentences that the views themselves make, each with the case that makes it. All others are Python's.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts, type } from './dom.js';
import { keeping, run, sent, staged } from './messages.js';
import { Task } from '../../assets/web/learn/lesson_task.js';
import { Ask } from '../../assets/web/learn/predict.js';
import { tokenTexts } from '../../assets/web/reports/token_texts.js';
import { Beats } from '../../assets/web/stage/opening.js';
import { Slider } from '../../assets/web/stage/every_k.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { VNode } from '../../assets/web/vendor/preact_htm.js' */

const drawn = (view) => {
  const root = node();
  render(view, root);
  return root;
};

const GUESSED = { text: '␣they', status: 'rejected', draft: '40 %', target: '25 %', q: 40, p: 25, draw: 32.6, fell: 'It falls at 82 %: rejected.' };
const fallen = (said) => html`<${Beats} told=${{ step: 3, title: '', question: '', before: '', drafter: ['', ''], target: ['', ''], tokens: [GUESSED], beats: [{ name: 'judge', sentence: '', settled: 0, asked: 0, clocks: [] }], run: '', note: '' }} at=${0} hasFallen=${true} said=${said} hands=${[0, 0]} turn=${0} does=${{}} />`;
const PLACES = [{ accepted: true, bet: '1 of 1' }, { accepted: false, bet: '1 of 2' }];
const asked = (more) => html`<${Ask} at=${1} places=${PLACES} right=${1} streak=${1} learned=${['You learned.']} ...${more} />`;
/** @type {[string, VNode, string, string][]} */
const SAID = [
  ['a draw that fell, with no guess', fallen(null), '.sv-beat-said', 'It falls at 82 %: rejected.'],
  ['a right guess', fallen(false), '.sv-beat-said', 'It falls at 82 %: rejected. You guessed right.'],
  ['a wrong guess', fallen(true), '.sv-beat-said', 'It falls at 82 %: rejected. You guessed wrong.'],
  ['the score of the game', asked({ state: 'asked' }), '.sv-predict-score', 'token 2 of 2 · you were right 1 of 1 · in a row 1 · always betting on the likelier side: 1 of 1'],
  ['a wrong guess in the game', asked({ state: 'told', isRight: false }), '.sv-predict-outcome', '× Wrong: it was rejected.'],
  ['the end of the game', asked({ state: 'over' }), '.sv-predict-outcome', 'You were right 1 of 2 times. You learned.'],
  ['a K to be chosen', html`<${Slider} told=${{ by_k: [{ sentence: ['K 1'] }], curve: [[5, 5]] }} k=${1} />`, 'label', 'What if K had been 1'],
];
for (const [name, view, selector, words] of SAID) test(name, () => assert.equal(texts(drawn(view), selector)[0], words));

test('the answers to a lesson\'s question', async () => {
  keeping();
  const task = { kind: 'choose', words: ['?'], options: [{ words: 'A', right: false, why: 'No.' }, { words: 'B', right: true, why: 'Because.' }], counts: [], status: [], times: 1, praise: 'Well done.', runs: [], reveal: '' };
  const said = [], root = drawn(html`<${Task} task=${task} name="task" stage=${{}} watched=${() => null} brief=${() => {}} say=${(words) => said.push(words)} />`);
  for (const option of all(root, '.sv-lesson-option')) await fire(option, 'click');
  assert.deepEqual(said, ['Not this one. No.', 'Yes. Because.', 'Done. Well done.']);
});

test('what a search among many texts leaves out or does not find', async () => {
  const box = node();
  tokenTexts(box, sent.texts.many, { root: box, title: '', act() {}, halt() {} });
  assert.equal(texts(box, '.sv-small')[0], 'Showing 200 of 250; search to find others.');
  await type(all(box, 'input')[0], 'nowhere');
  assert.equal(texts(box, '.sv-small')[0], 'No text has this in its id, its tags or the first words of its prompt.');
});

test('the tiles, the place and the throws of a stage', async () => {
  const stage = await staged(run('chain'));
  await stage.press('[data-part=many]');
  await stage.press('[data-part=again]');
  assert.match(stage.text('[data-part=thrown]'), /^would be (accepted|rejected)$/);
  assert.deepEqual([stage.text('.sv-place'), stage.text('[data-part=where]'), stage.text('.sv-badge')], ['step 7 of 7', 'step 2', 'recorded run']);
});
