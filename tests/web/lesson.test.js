// A lesson beside a stage: its screens, what it puts on the stage, and how each kind of task is watched and remembered.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { all, fire, later, node, texts, until } from './dom.js';
import { keeping, sent, staged } from './messages.js';
import { mountLesson } from '../../assets/web/learn/lesson.js';
/** @import { Stage } from '../../assets/web/learn/lesson.js' */

// the lesson of this name, in a browser that has kept this
/** @param {string} name @param {{ kept?: object } & Partial<Stage>} [given] */
async function begun(name, { kept = {}, ...more } = {}) {
  document.body.replaceChildren(...all(document, '#sv-palette'));
  const own = await staged(), holder = node(), done = [], pinned = [], memory = keeping(kept), { hub } = own;
  const noted = (each) => (what) => done.push([each, what]);
  /** @type {Stage} */
  const stage = {
    hub: () => hub,
    show: ({ id }, how, then) => {
      done.push(['show', id, how]);
      if (hub.run !== id && sent.shipped[id.slice(8)]) hub.take(structuredClone(sent.shipped[id.slice(8)]));
      then();
    },
    compare: noted('compare'), game: noted('game'), live: noted('live'), go: noted('go'), plan: noted('plan'), leave: noted('leave'), ...more,
  };
  hub.on('select', (detail) => { if (detail?.how === 'key') pinned.push(hub.pinned); });
  document.body.append(holder);
  const panel = mountLesson(holder, stage), lesson = sent.lessons[name], find = (selector) => all(holder, selector), text = (selector) => texts(holder, selector)[0];
  if (lesson) panel.open(lesson, false);
  await later();
  return {
    own, hub, panel, done, memory, find, text, lesson,
    settled: () => until(() => pinned.length, 'the lesson pins its place'),
    next: () => fire(find('.sv-lesson-foot .sv-primary')[0], 'click'),
    back: () => fire(find('.sv-lesson-foot button').find((each) => each.textContent === 'Back'), 'click'),
    press: (words) => fire(find('.sv-lesson-body button').find((each) => each.textContent === words), 'click'),
    isDone: () => find('[data-done]').length === 1,
    count: () => text('.sv-lesson-count'),
    async to(at) { for (let screen = 0; screen < at; screen += 1) await this.next(); },
  };
}

test('each screen has its title, its sentences and its place, and the last one leads to the next lesson', async () => {
  const made = await begun('stage'), { screens, next } = made.lesson;
  for (const [at, screen] of screens.entries()) {
    assert.deepEqual([made.text('h3'), made.text('.sv-lesson-number'), made.find('.sv-lesson-track span')[0].style.width], [screen.title, screen.place, `${screen.width}%`]);
    assert.ok(screen.words.every((words) => made.text('.sv-lesson-body').includes(words.join(''))));
    assert.equal(document.documentElement.dataset.svLit, screen.lit.join(' '));
    assert.equal(made.memory()['at stage'], at);
    await made.next();
  }
  assert.deepEqual([made.done.at(-1), made.memory()['lesson stage']], [['go', next.name], true]);
});

test('a replay is done when its end was watched, not when it stands there', async () => {
  const made = await begun('stage');
  await made.next();
  assert.deepEqual([made.done.at(-1), made.isDone()], [['show', 'shipped:sum', 'play'], false]);
  made.hub.seek(1);
  made.hub.last();
  await later();
  assert.ok(made.isDone());
});

test('pinned tokens of the wanted kind are counted once each, and not what the lesson pins itself', async () => {
  const made = await begun('stage'), isCut = ({ status }) => status === 'rejected';
  await made.to(2);
  await made.settled();
  assert.deepEqual([made.hub.pinned, made.count(), made.own.root.hasAttribute('data-sheet')], [made.lesson.screens[2].show.pin, '0 of 2', false]);
  const cuts = sent.shipped['first-visit'].steps.flatMap(({ index, cells }) => cells.filter(isCut).map(({ ref }) => [index, ref])).slice(1);
  const kept = sent.shipped['first-visit'].steps.flatMap(({ index, cells }) => cells.filter(({ status }) => status === 'accepted').map(({ ref }) => [index, ref]));
  for (const [[step, ref], count] of [[cuts[0], '1 of 2'], [cuts[0], '1 of 2'], [kept[0], '1 of 2'], [cuts[1], '2 of 2']]) {
    made.hub.pin(step, ref);
    await later();
    assert.equal(made.count(), count);
  }
  assert.ok(made.isDone());
});

test('throws are counted, a hundred at once too, and stand there when the screen is seen again', async () => {
  const made = await begun('stage');
  await made.to(2);
  await made.settled();
  await made.next();
  for (let throws = 0; throws < 9; throws += 1) await made.own.press('[data-part=again]');
  assert.deepEqual([made.count(), made.isDone()], ['9 of 10', false]);
  await made.own.press('[data-part=many]');
  assert.deepEqual([made.count(), made.isDone()], ['10 of 10', true]);
  await made.next();
  await made.back();
  assert.equal(made.count(), '10 of 10');
  await made.own.press('[data-part=again]');
  assert.deepEqual([made.count(), made.isDone()], ['10 of 10', true]);
});

test('a setup is offered at the end and filled in, never run; a file says what it needs', async () => {
  const made = await begun('stage');
  await made.to(4);
  assert.ok(made.text('.sv-lesson-live').includes(made.lesson.live));
  await made.press('Fill in this setup');
  assert.deepEqual(made.done.at(-1), ['live', made.lesson]);
  const file = await begun('stage', { live: undefined });
  await file.to(4);
  assert.deepEqual([file.find('.sv-lesson-live button').length, file.text('.sv-lesson-live').includes(file.lesson.live)], [0, false]);
});

test('runs to see are shown whole and counted once each', async () => {
  const made = await begun('other');
  await made.next();
  const [first, second] = made.lesson.screens[1].task.runs;
  for (const [run, count] of [[first, '1 of 2'], [first, '1 of 2'], [second, '2 of 2']]) {
    await made.press(run.title);
    assert.deepEqual([made.done.at(-1), made.count()], [['show', run.id, 'whole'], count]);
  }
  assert.ok(made.isDone());
});

test('the making of a draft, runs side by side and the game are reached from their screens', async () => {
  const made = await begun('other'), { compare } = made.lesson.screens[3];
  assert.ok(made.find('.sv-lesson-bars .sv-part').length);
  await made.to(2);
  assert.deepEqual(made.done.at(-1), ['show', 'shipped:eagle', 'come']);
  await made.own.press('[data-part=of-draft]');
  assert.ok(made.isDone());
  await made.next();
  assert.deepEqual(made.done.at(-1), ['compare', compare.runs]);
  await made.next();
  await made.press('Open the game');
  assert.deepEqual(made.done.at(-1), ['game', 'predict']);
  for (const isEnough of [false, true]) {
    document.dispatchEvent(new Event('sv-predicted'));
    await later();
    assert.equal(made.isDone(), isEnough);
  }
});

test('a lesson goes on at its screen, and one that was gone through begins anew unless its page was loaded anew', async () => {
  assert.equal((await begun('stage', { kept: { 'at stage': 2 } })).text('h3'), 'Pin');
  const made = await begun('stage', { kept: { 'at stage': 4 } });
  assert.equal(made.text('h3'), 'Guess');
  made.hub.last();
  made.panel.close();
  assert.ok(made.find('.sv-lesson')[0].hidden);
  const other = await begun('', { kept: { 'at stage': 4 } });
  other.panel.open(sent.lessons.stage, true);
  assert.equal(other.text('h3'), 'Choose');
});

test('a lesson that is refused says why, claims nothing and leads to the plan', async () => {
  const made = await begun('stage');
  made.panel.refuse('there is no such lesson');
  await later();
  assert.deepEqual([made.text('.sv-lesson-body'), made.text('.sv-lesson-number'), made.find('.sv-lesson-track span')[0].style.width], ['there is no such lesson', '', '0']);
  await made.next();
  assert.deepEqual(made.done.at(-1), ['plan', undefined]);
});

test('a folded lesson says how far its task is', async () => {
  const made = await begun('stage');
  await made.to(3);
  await fire(made.find('.sv-lesson-fold')[0], 'click');
  assert.deepEqual([made.find('[data-folded]').length, made.find('.sv-lesson-fold')[0].attributes['aria-expanded'], made.text('.sv-lesson-state')], [1, 'false', '○ 0 of 10']);
  await made.own.press('[data-part=many]');
  assert.equal(made.text('.sv-lesson-state'), '✓ Done');
});

test('a hostile lesson stays text in every field', async () => {
  const made = await begun('hostile'), { title } = made.lesson;
  assert.deepEqual([made.text('.sv-lesson-title'), made.text('h3')], [title, title]);
  await fire(made.find('.sv-lesson-option')[0], 'click');
  assert.ok(made.isDone());
  assert.equal(made.find('img, script').length, 0);
});
