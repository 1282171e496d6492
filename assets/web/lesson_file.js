// lesson_file.js: all lessons in one file: the plan, a lesson beside a stage, two runs side by side, a game. Runs lie in
// the page compressed and are unpacked when they are first shown. No server, no network.
import { unpack } from './core/files.js';
import { embeddedSource } from './core/hub.js';
import { mountLesson } from './learn/lesson.js';
import { LessonList } from './learn/lesson_list.js';
import { predict } from './learn/predict.js';
import { lessonOpen, shownAgain } from './learn/progress.js';
import { Blocks, addKinds } from './reports/blocks.js';
import { duel } from './reports/duel.js';
import { mountReport } from './reports/report.js';
import { fileText, presentable, openFile } from './share/one_file.js';
import { stageMarkup, mountStage } from './stage/stage.js';
import { html, render } from './vendor/preact_htm.js';

const { documentElement: root } = document;
const quiet = { trigger: () => {}, watch: () => {} };

function turnTo(name) {
  root.dataset.svPage = name;
  window.dispatchEvent(new Event('resize'));
}

// one stage for all runs
function makeStage(holder) {
  const stage = stageMarkup();
  stage.querySelector('.sv-charts').remove();
  holder.append(stage);
  return mountStage(holder, { source: embeddedSource(null) });
}

function stageOf(hub) {
  const unpacked = new Map();
  let wanted = '';

  const parts = (run) => {
    if (!unpacked.has(run)) unpacked.set(run, Promise.all(fileText(`sv-run-${run}`).split('\n').map(unpack)));
    return unpacked.get(run);
  };

  async function show({ run, id }, how, then) {
    wanted = id;
    turnTo('explore');
    const texts = hub.run === id ? [] : await parts(run);
    if (wanted !== id) return;                       // another one was asked for meanwhile
    texts.forEach((text, place) => hub.take({ ...JSON.parse(text), play: !place && how !== 'whole' }, { heal: false }));
    if (!texts.length) shownAgain(hub, how);
    then();
  }
  return show;
}

const comparing = (holder) => async (runs) => {
  turnTo('compare');
  const block = JSON.parse(await unpack(fileText(`sv-duel-${runs.map(({ run }) => run).join('-')}`)));
  const host = { root: holder.querySelector('.sv-report'), title: '', act: () => {}, halt: () => {} };
  render(html`<${Blocks} blocks=${[block]} host=${host} />`, holder.querySelector('.sv-blocks'));
};

function leave() {
  location.hash = 'plan';
}

// isBack: the page was loaded anew
function follow(panel, lessons, isBack = false) {
  const [, name] = /^#lesson=([a-z0-9-]{1,160})$/.exec(location.hash) || [];
  root.toggleAttribute('data-sv-lesson', Boolean(name));
  window.scrollTo(0, 0);
  if (!name) {
    panel.close();
    return turnTo('learn');
  }
  turnTo('explore');
  if (Object.hasOwn(lessons, name)) panel.open(lessons[name], isBack && lessonOpen() === name);
  else panel.refuse('There is no such lesson in this file.');
}

addKinds({ duel, predict, lessons: LessonList });
const holder = document.getElementById('sv-file'), place = (id) => document.getElementById(id);
presentable(place('sv-present'));
openFile(holder, async () => {
  const { lessons, page } = JSON.parse(await unpack(fileText('sv-data')));
  const hub = makeStage(place('stage'));
  mountReport(place('learn'), { ...quiet, props: { value: JSON.stringify(page) }, place: () => null });
  const panel = mountLesson(place('lesson'), {
    hub: () => hub,
    show: stageOf(hub),
    compare: comparing(place('compare')),
    game(section) {
      turnTo('learn');
      document.querySelector(`[data-section="${section}"]`).scrollIntoView({ block: 'start' });
    },
    go(name) {
      if (location.hash === `#lesson=${name}`) follow(panel, lessons);
      else location.hash = `lesson=${name}`;
    },
    plan: leave,
    leave,
  });
  window.addEventListener('hashchange', () => follow(panel, lessons));
  follow(panel, lessons, true);
});
