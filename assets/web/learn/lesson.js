// lesson.js: one lesson, screen by screen: its texts, what it puts on the stage, and its task. `stage` is whatever it
// stands beside: the app, or a file with all its runs in it. Texts go through textContent.
import { element, button as makeButton, sentence } from '../core/element.js';
import { recall, remember } from '../core/memory.js';
import { lessonTask } from './lesson_task.js';
import { taskName, setLessonOpen } from './progress.js';
import { watchTasks } from './tasks.js';
import { makeBlock } from '../reports/blocks.js';
import { SETTLED } from '../stage/stage.js';

const NOT_IN_FILE = 'This needs specviz itself, with a model: a file can only replay.';
const WHOLE = ['guess', 'choose', 'see'];            // tasks beside a run that is not replayed

const button = (words, press, className = '') => makeButton(`sv-button ${className}`, words, press);
const paragraph = (words, className = '') => {
  const made = element('p', className);
  sentence(made, words);
  return made;
};

// host: an empty element. stage: {hub(), show(run, how, then), compare(runs), game(section), live(lesson), go(name), plan(),
// leave()}. how: 'play' replays a run, 'come' only when it comes onto the stage, 'whole' shows it at its end. live is
// absent where no model can run. Gives {open(lesson, isBack), refuse(reason), close()}; isBack: the page was loaded anew.
export const mountLesson = (host, stage) => {
  const root = element('aside', 'sv-report sv-lesson');
  const head = element('header', 'sv-lesson-head'), place = element('p', 'sv-lesson-place');
  const state = element('span', 'sv-lesson-state');  // the task in short, where the task itself is out of sight
  const title = Object.assign(element('h2', 'sv-lesson-title'), { tabIndex: -1 });
  const body = element('div', 'sv-lesson-body'), foot = element('footer', 'sv-lesson-foot');
  const fold = button('Fold', () => setFolded(!root.hasAttribute('data-folded')), 'sv-lesson-fold');
  const close = button('×', () => stage.leave(), 'sv-icon sv-lesson-close');
  const live = element('p', 'sv-hidden'), track = element('div', 'sv-lesson-track'), bar = element('span');
  const back = button('Back', () => turn(-1)), next = button('Next', () => turn(1), 'sv-primary');
  const number = element('span', 'sv-lesson-number'), down = button('↓ Your task', () => box?.scrollIntoView({ block: 'nearest' }), 'sv-lesson-down');
  const play = button('', () => stage.game(lesson.game.section), 'sv-lesson-play');
  let lesson = null, at = 0, tasks = null, box = null, sight = null;

  root.setAttribute('aria-label', 'Lesson');
  live.setAttribute('aria-live', 'polite');
  close.setAttribute('aria-label', 'Close the lesson');
  track.setAttribute('aria-hidden', 'true');
  track.append(bar);
  state.setAttribute('aria-hidden', 'true');
  head.append(place, state, fold, close, title);
  foot.append(track, play, back, number, down, next);
  root.append(head, body, foot, live);
  root.hidden = true;
  host.replaceChildren(root);

  function setFolded(isFolded) {
    root.toggleAttribute('data-folded', isFolded);
    fold.textContent = isFolded ? 'Unfold' : 'Fold';
    fold.setAttribute('aria-expanded', String(!isFolded));
  }

  const screen = () => lesson.screens[at];
  const last = () => lesson.screens.length - 1;

  function turn(by) {
    if (!lesson) return stage.plan();
    if (at + by > last()) return finish();
    if (at + by < 0) return;
    at += by;
    draw();
    title.focus({ preventScroll: true });
  }

  function finish() {
    if (lesson.next) stage.go(lesson.next.name);
    else stage.plan();
  }

  function watched() {
    if (!tasks && stage.hub()) tasks = watchTasks(stage.hub());
    return tasks;
  }

  // ---- what stands on the stage ----------------------------------------------------------------------------------
  // Where something is asked of the text, or runs are compared, it stands there whole.
  function howShown(again) {
    const { show, task } = screen();
    if (show.pin || (task && WHOLE.includes(task.kind))) return 'whole';
    return again ? 'play' : 'come';
  }

  function stageIt(again) {
    const { show, compare } = screen();
    const isStill = () => lesson && !root.hidden && screen().show === show;
    if (compare) stage.compare(compare.runs);
    if (!show) return;
    stage.show(show, howShown(again), () => {
      if (!show.pin) return;                         // the text rests once it was drawn
      const settled = () => setTimeout(() => { if (isStill()) pin(show.pin, again); }, SETTLED);
      requestAnimationFrame(() => requestAnimationFrame(settled));
    });
  }

  // As by a key, so that text and lanes follow, but it is not the person's doing. withSheet: on a phone the inspector opens.
  function pin({ step, ref }, withSheet) {
    const before = document.querySelector('.sv-stage[data-sheet]');
    watched()?.aside(() => stage.hub().pin(step, ref, 'key'));
    if (!withSheet && !before) document.querySelectorAll('.sv-stage[data-sheet]').forEach((each) => each.removeAttribute('data-sheet'));
  }

  // Where a screen speaks of odds, or asks to turn from them to how a draft was made, the inspector shows them.
  function turnToOdds() {
    const { show, task } = screen();
    if ((show && show.pin) || (task && ['throw', 'made'].includes(task.kind))) document.querySelector('#stage [data-part=of-token]')?.click();
  }

  // On a phone the inspector is a sheet that must be opened.
  function lookLine() {
    const { show, task } = screen();
    if (!(show && show.pin) && !(task && ['throw', 'made'].includes(task.kind))) return [];
    return [button('Open the inspector', () => {
      if (!stage.hub().pinned && show && show.pin) pin(show.pin, true);
      document.querySelector('#stage .sv-stage').dataset.sheet = 'open';
    }, 'sv-lesson-look')];
  }

  function shownLine() {
    const { show, compare } = screen();
    if (!show && !compare) return [];
    const line = element('div', 'sv-lesson-shown'), runs = compare ? compare.runs : [show];
    const told = element('p');
    sentence(told, [compare ? 'Side by side: ' : 'On the stage: ', runs.map((run) => run.title).join(' and ')]);
    told.title = show ? show.about : '';
    line.append(told, button(compare ? 'Open them again' : 'Show it again', () => stageIt(true)));
    return [line];
  }

  // ---- one screen ------------------------------------------------------------------------------------------------
  function law(block) {
    const holder = element('div', 'sv-lesson-law');
    holder.append(makeBlock(block, { root, title: screen().title, act: () => {}, halt: () => {} }));
    return holder;
  }

  function taskBox() {
    const { task } = screen(), mine = at;
    box = task && lessonTask(task, {
      name: taskName(lesson.name, at), stage, watched, button,
      isOn: () => mine === at,
      brief: (words) => { state.textContent = words; },
      say: (words) => { live.textContent = words; },
    });
    return box ? [box] : [];
  }

  // Until the task has been in sight, a button beside Next leads there.
  function pointDown() {
    const point = (isDown) => { [down.hidden, number.hidden] = [!isDown, isDown]; };
    sight?.disconnect();
    point(false);
    if (!box || box.hasAttribute('data-done')) return;
    sight = new IntersectionObserver(([{ isIntersecting }], observer) => {
      point(!isIntersecting);
      if (isIntersecting) observer.disconnect();
    }, { root: body, threshold: .9 });
    sight.observe(box.querySelector('.sv-lesson-row:last-child, .sv-lesson-options > .sv-button:last-child') || box.querySelector('p'));
  }

  function tryLive() {
    if (at !== last() || !lesson.live) return [];
    const part = element('section', 'sv-lesson-live'), said = element('p', '', stage.live ? lesson.not_live : NOT_IN_FILE);
    part.append(element('h4', '', 'Try it live'), said);
    if (stage.live) part.insertBefore(element('p', '', lesson.live), said);
    if (!stage.live || lesson.not_live) return [part];
    part.insertBefore(button('Fill in this setup', () => {
      stage.live(lesson);
      said.textContent = live.textContent = 'The setup is filled in. Press Run when you are ready.';
    }), said);
    return [part];
  }

  function draw() {
    const now = screen();
    place.textContent = lesson.place;
    title.textContent = lesson.title;
    number.textContent = now.place;
    bar.style.width = `${now.width}%`;
    back.disabled = at === 0;
    next.textContent = at < last() ? 'Next' : lesson.next ? 'Next lesson' : 'To the plan';
    next.title = at === last() && lesson.next ? lesson.next.title : '';
    play.hidden = at < last() || !lesson.game;
    play.textContent = lesson.game ? lesson.game.words : '';
    live.textContent = state.textContent = '';
    watched()?.end();
    body.replaceChildren(
      ...(at ? [] : [paragraph([lesson.question], 'sv-lesson-question')]), element('h3', '', now.title),
      ...lookLine(), ...now.words.map((each) => paragraph(each)), ...(now.law ? [law(now.law)] : []),
      ...shownLine(), ...taskBox(), ...tryLive());
    body.scrollTop = 0;
    pointDown();
    remember(`at ${lesson.name}`, at);
    if (at === last()) {
      remember(`lesson ${lesson.name}`, true);
      document.dispatchEvent(new Event('sv-lesson-done'));
    }
    turnToOdds();
    stageIt(Boolean(now.task && now.task.kind === 'play'));
  }

  return {
    open(props, isBack) {
      lesson = props;
      const places = lesson.screens.map((_, each) => each);
      at = recall(`at ${lesson.name}`, places);
      if (at === last() && !isBack) at = 0;                                     // gone through: it begins anew
      setLessonOpen(lesson.name);
      root.hidden = false;
      setFolded(false);
      draw();
      title.focus({ preventScroll: true });
    },
    refuse(reason) {
      lesson = null;
      watched()?.end();
      [place.textContent, title.textContent] = ['Lesson', 'This lesson cannot be shown'];
      play.hidden = down.hidden = true;
      number.textContent = live.textContent = state.textContent = next.title = '';
      bar.style.width = '0';
      body.replaceChildren(paragraph([reason]));
      back.disabled = true;
      next.textContent = 'To the plan';
      setFolded(false);
      root.hidden = false;
    },
    close() {
      root.hidden = true;
      setLessonOpen('');
      watched()?.end();
    },
  };
};
