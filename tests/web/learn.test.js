import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, node, texts } from './dom.js';
import { LessonList } from '../../assets/web/learn/lesson_list.js';
import { Task } from '../../assets/web/learn/lesson_task.js';
import { Ask } from '../../assets/web/learn/predict.js';
import { lessonState } from '../../assets/web/learn/progress.js';
import { Picture } from '../../assets/web/learn/picture.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
import { LOOK, TASK } from './small_messages.js';
/** @import { LessonEntry, LessonPicture, LessonTask, LessonsBlock, PauseEntry, PlaceToGuess } from '../../assets/web/messages.d.ts' */

function remembering(kept = {}) {
  Object.assign(globalThis, { localStorage: { getItem: () => JSON.stringify(kept), setItem: (_, text) => { kept = JSON.parse(text); } } });
  return () => kept;
}
const drawn = (view) => {
  const root = node();
  render(view, root);
  return root;
};
/** @param {Partial<LessonTask>} [more] @returns {LessonTask} */
const task = (more) => ({ ...TASK, words: ['What is ', 'right', '?'], options: [{ words: 'A', right: false, why: 'No.' }, { words: 'B', right: true, why: 'Because.' }],
  praise: 'Well done.', reveal: 'It was B.', ...more });

function begun(more, watched = null) {
  const said = [], briefs = [];
  const root = drawn(html`<${Task} task=${task(more)} name="task x 0" stage=${{}} watched=${() => watched} brief=${(words) => briefs.push(words)} say=${(words) => said.push(words)} />`);
  return { root, said, briefs, press: (place) => fire(all(root, '.sv-lesson-option')[place], 'click') };
}

test('a wrong answer says why and leaves the task open, the right one ends it and is remembered', async () => {
  const kept = remembering(), { root, said, briefs, press } = begun();
  await press(0);
  assert.match(texts(root, '.sv-lesson-why')[0], /No\.$/);
  assert.equal(all(root, '[data-done]').length, 0);
  await press(1);
  assert.deepEqual(said.map((words) => words.split('. ').at(-1)), ['No.', 'Because.', 'Well done.']);
  assert.deepEqual([all(root, '.sv-wrong').length, all(root, '.sv-right').length, all(root, '[data-done]').length], [1, 1, 1]);
  assert.deepEqual(kept(), { 'task x 0': true });
  assert.deepEqual([briefs[0], briefs.at(-1)], ['○ Your task', '✓ Done']);
});

test('a guess reveals what was right beside what was said, and both stand there again', async () => {
  const kept = remembering(), first = begun({ kind: 'guess' });
  assert.deepEqual(texts(first.root, '.sv-lesson-own'), []);
  await first.press(0);
  for (const { root } of [first, begun({ kind: 'guess' })]) {
    assert.deepEqual(texts(root, '.sv-lesson-why'), ['It was B.']);
    assert.deepEqual(texts(root, '.sv-right'), ['B']);
    assert.equal(all(root, '.sv-wrong').length, 0);
    assert.deepEqual(texts(root, '.sv-lesson-own'), ['your guess']);
  }
  assert.equal(kept()['task x 0 guess'], 0);
});

test('a task that is done can be done again, with nothing found out yet', async () => {
  remembering({ 'task x 0': true });
  const { root } = begun();
  assert.deepEqual(texts(root, '.sv-lesson-why'), ['Because.']);
  await fire(all(root, '.sv-button').at(-1), 'click');
  assert.deepEqual([texts(root, '.sv-lesson-why'), all(root, '.sv-right').length, all(root, '[data-done]').length], [[''], 0, 0]);
});

test('what is watched is counted until it is done', async () => {
  remembering();
  let tell = null;
  const { root, briefs } = begun({ kind: 'pin', options: [], counts: ['0 of 2', '1 of 2', '2 of 2'], times: 2 }, { begin: (_, take) => { tell = take; }, end() {} });
  assert.deepEqual(texts(root, '.sv-lesson-count'), ['0 of 2']);
  tell(1);
  await fire(root, 'none');
  assert.deepEqual([texts(root, '.sv-lesson-count'), briefs.at(-1)], [['1 of 2'], '○ 1 of 2']);
  tell(2);
  await fire(root, 'none');
  assert.deepEqual([texts(root, '.sv-lesson-count'), briefs.at(-1)], [['2 of 2'], '✓ Done']);
});

test('hands are counted before a room', async () => {
  remembering();
  const { root } = begun({ kind: 'guess' }), [, second] = all(root, '.sv-lesson-hands');
  for (let hand = 0; hand < 3; hand += 1) await fire(second, 'click');
  assert.deepEqual(texts(root, '.sv-lesson-hands'), ['0', '3']);
});

test('a lesson is done when its tasks are, else when its end was seen', () => {
  /** @param {number[]} places */
  const lesson = (places) => ({ name: 'x', tasks: { places, words: ['begun', '1 of 2 tasks', '2 of 2'] } });
  /** @type {[object, number[], [boolean, string]][]} */
  const cases = [
    [{}, [0, 2], [false, '']], [{ 'task x 0': true }, [0, 2], [false, '1 of 2 tasks']], [{ 'task x 0': true, 'task x 2': true }, [0, 2], [true, '✓ done']],
    [{ 'lesson x': true }, [0, 2], [false, 'begun']], [{ 'lesson x': true }, [], [true, '✓ done']], [{ 'task x 0': 'yes' }, [0], [false, '']],
  ];
  for (const [kept, places, expected] of cases) {
    remembering(kept);
    assert.deepEqual(Object.values(lessonState(lesson(places))), expected);
  }
});

test('the plan shows the way that is chosen, and what was done', async () => {
  const kept = remembering({ 'lesson a': true });
  /** @param {string} name @param {LessonEntry['clocks']} clocks @returns {LessonEntry} */
  const entry = (name, clocks) => ({ name, number: '1', title: name, question: '?', misconception: 'm', minutes: '5 min', teacher: [['t']], clocks, picture: { words: '' }, tasks: { places: [], words: [] } });
  /** @type {PauseEntry} */
  const pause = { title: 'Break', words: 'w', minutes: '10 min', clocks: ['9:10', '9:05'], section: '' };
  /** @type {LessonsBlock} */
  const block = { kind: 'lessons', entries: [entry('a', ['9:00', '9:00']), entry('b', ['9:05', null]), pause], ways: ['all', 'short'], file: null };
  const root = drawn(html`<${LessonList} block=${block} />`);
  const clocks = () => all(root, '.sv-plan-entry').filter((each) => !each.hidden).map((each) => texts(all(each, '.sv-plan-time')[0], 'span')[0]);
  assert.deepEqual([clocks(), texts(root, '.sv-primary')], [['9:00', '9:05', '9:10'], ['Again', 'Start']]);
  await fire(all(root, '.sv-mode')[1], 'click');
  assert.deepEqual([clocks(), kept()['plan way']], [['9:00', '9:05'], 1]);
});

test('a picture says what it shows and draws what it was given: lanes, or bars with a tick', () => {
  /** @param {LessonPicture} picture */
  const draw = (picture) => drawn(html`<${Picture} picture=${picture} />`);
  const lanes = draw({ words: 'two steps', lanes: [['step 1', [['␣they', 'accepted'], ['␣<b>', 'rejected']]]] });
  assert.equal(all(lanes, '.sv-picture')[0].attributes['aria-label'], 'Picture: two steps');
  assert.deepEqual([texts(lanes, '.sv-is-accepted'), texts(lanes, '.sv-is-rejected')], [['␣they'], ['␣<b>']]);
  const bars = draw({ words: 'a draw', bars: [{ label: '␣saw', parts: [['both', 25], ['excess', 75]], values: [], tick: 82 }] });
  assert.deepEqual([all(bars, '.sv-part').map((each) => each.style.width), all(bars, '.sv-track-tick')[0].style.left], [['25%', '75%'], '82%']);
  assert.equal(draw({ words: '' }).childNodes.length, 0);
});

test('the game offers what can be pressed in each of its states', () => {
  /** @type {PlaceToGuess} */
  const place = { step: 0, ref: '0', before: [], after: [], ask: LOOK, look: LOOK, accepted: true, bet: '1 of 1' };
  const props = { at: 1, places: [place, { ...place, accepted: false, bet: '1 of 2' }], right: 1, streak: 1, learned: ['You learned.'], guess() {}, go() {}, restart() {} };
  const pressed = (state) => all(drawn(html`<${Ask} ...${props} state=${state} isRight=${false} />`), 'button').filter((each) => !each.hidden);
  const named = (state) => pressed(state).map((each) => /sv-predict-\w+|sv-primary/.exec(each.className)[0]);
  assert.deepEqual(['asked', 'told', 'over'].map(named), [['sv-predict-accepted', 'sv-predict-rejected'], ['sv-primary'], ['sv-primary']]);
  assert.ok(pressed('falling').every((each) => each.disabled));
});
