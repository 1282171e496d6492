// lesson.js: one lesson, screen by screen: its texts, what it puts on the stage, and its task. `stage` is whatever it
// stands beside: the app, or a file with all its runs in it. Texts are children, never markup.
import { worded } from '../core/element.js';
import { Button, html } from '../core/html.js';
import { recall, remember } from '../core/memory.js';
import { Blocks } from '../reports/blocks.js';
import { SETTLED } from '../stage/stage.js';
import { render, useState } from '../vendor/preact_htm.js';
import { Task } from './lesson_task.js';
import { setLessonOpen, taskName } from './progress.js';
import { watchTasks } from './tasks.js';
/** @import { Hub } from '../core/hub.js' */
/** @import { LessonPanel, LessonScreen, RecordedRun, RunPair, TokenPlace } from '../messages.d.ts' */
/** @import { BlockHost } from '../reports/blocks.js' */

const NOT_IN_FILE = 'This needs specviz itself, with a model: a file can only replay.';
const FILLED = 'The setup is filled in. Press Run when you are ready.';
const WHOLE = ['guess', 'choose', 'see'];           // tasks beside a run that is not replayed

/** @param {LessonScreen} screen */
const needsInspector = ({ lit }) => lit.includes('inspector');

// On a phone the inspector is a sheet that must be opened.
/** @param {{ screen: LessonScreen, again: () => void }} props */
const Shown = ({ screen: { show, compare }, again }) => (show || compare) && html`<div class="sv-lesson-shown">
  <p title=${show ? show.about : ''}>${compare ? 'Side by side: ' : 'On the stage: '}${(compare ? compare.runs : [show]).map(({ title }, place) => html`${place > 0 && ' and '}<b class="sv-word">${title}</b>`)}</p>
  <${Button} words=${compare ? 'Open them again' : 'Show it again'} onClick=${again} /></div>`;

/** @param {{ lesson: LessonPanel, stage: Stage, say: (words: string) => void }} props */
function TryLive({ lesson, stage, say }) {
  const [isFilled, setFilled] = useState(false), words = stage.live ? lesson.not_live : NOT_IN_FILE;
  const fill = () => {
    stage.live(lesson);
    setFilled(true);
    say(FILLED);
  };
  return html`<section class="sv-lesson-live" data-filled=${isFilled ? '' : undefined}><h4>Try it live</h4>${stage.live && html`<p>${lesson.live}</p>`}
    ${stage.live && !lesson.not_live && html`<${Button} words="Fill in this setup" onClick=${fill} />`}<p>${isFilled ? FILLED : words}</p></section>`;
}

// One screen; `of`: the Lesson that it belongs to.
/** @param {{ of: Lesson, lesson: LessonPanel, at: number, screen: LessonScreen }} props */
function Screen({ of, lesson, at, screen }) {
  /** @type {BlockHost} */
  const host = { root: of.host, title: screen.title, act() {}, halt() {} }, say = (words) => of.set({ said: words });
  const brief = (words) => queueMicrotask(() => of.set({ brief: words }));      // not while this is being drawn
  return html`${at === 0 && html`<p class="sv-lesson-question">${lesson.question}</p>`}<h3>${screen.title}</h3>
    ${needsInspector(screen) && html`<${Button} className="sv-lesson-look" words="Open the inspector" onClick=${() => of.inspect()} />`}
    <div class="sv-lesson-words">${screen.words.map((words) => html`<p>${worded(words)}</p>`)}</div>
    ${screen.bars && html`<div class="sv-lesson-bars"><${Blocks} blocks=${[screen.bars]} host=${host} /></div>`}
    <${Shown} screen=${screen} again=${() => of.stageIt(true)} />
    <div class="sv-lesson-doing">${screen.task && html`<${Task} task=${screen.task} name=${taskName(lesson.name, at)} stage=${of.stage} watched=${() => of.watched()} say=${say} brief=${brief} />`}
      ${at === lesson.screens.length - 1 && lesson.live && html`<${TryLive} lesson=${lesson} stage=${of.stage} say=${say} />`}</div>`;
}

// What stands around a screen, or around the words that refuse a lesson. isBelow: the task is out of sight below.
/** @param {Omit<State, 'isHidden'> & { of: Lesson }} props */
function Frame({ of, lesson, at, refusal, isFolded, isBelow, brief, said, drawn }) {
  const screen = lesson?.screens[at], isLast = lesson && at === lesson.screens.length - 1;
  const next = !lesson ? 'To the plan' : !isLast ? 'Next' : lesson.next ? 'Next lesson' : 'To the plan';
  return html`<header class="sv-lesson-head"><p class="sv-lesson-place">${lesson ? lesson.place : 'Lesson'}</p>
      <span class="sv-lesson-state" aria-hidden="true">${brief}</span>
      <${Button} className="sv-lesson-fold" words=${isFolded ? 'Unfold' : 'Fold'} aria-expanded=${String(!isFolded)} onClick=${() => of.set({ isFolded: !isFolded })} />
      <${Button} className="sv-icon sv-lesson-close" words="×" aria-label="Close the lesson" onClick=${() => of.stage.leave()} />
      <h2 class="sv-lesson-title" tabindex="-1">${lesson ? lesson.title : 'This lesson cannot be shown'}</h2></header>
    <div class="sv-lesson-body">${lesson ? html`<${Screen} key=${drawn} of=${of} lesson=${lesson} at=${at} screen=${screen} />` : html`<p>${refusal}</p>`}</div>
    <footer class="sv-lesson-foot"><div class="sv-lesson-track" aria-hidden="true"><span style=${{ width: screen ? `${screen.width}%` : '0' }} /></div>
      <${Button} className="sv-lesson-play" words=${lesson?.game ? lesson.game.words : ''} hidden=${!isLast || !lesson.game} onClick=${() => of.stage.game(lesson.game.section)} />
      <${Button} words="Back" disabled=${!lesson || at === 0} onClick=${() => of.turn(-1)} />
      <span class="sv-lesson-number" hidden=${isBelow}>${screen ? screen.place : ''}</span>
      <${Button} className="sv-lesson-down" words="↓ Your task" hidden=${!isBelow} onClick=${() => of.box()?.scrollIntoView({ block: 'nearest' })} />
      <${Button} className="sv-primary" words=${next} title=${isLast && lesson.next ? lesson.next.title : ''} onClick=${() => of.turn(1)} /></footer>
    <p class="sv-hidden" aria-live="polite">${said}</p>`;
}

/**
 * What a lesson stands beside.
 * @typedef {object} Stage
 * @property {() => Hub} hub
 * @property {(run: RecordedRun, how: 'play' | 'come' | 'whole', then: () => void) => void} show 'play'
 *   replays a run, 'come' only when it comes onto the stage, 'whole' shows it at its end
 * @property {(runs: RunPair['runs']) => void} compare
 * @property {(section: string) => void} game
 * @property {(lesson: LessonPanel) => void} [live] absent where no model can run
 * @property {(name: string) => void} go
 * @property {() => void} plan
 * @property {() => void} leave
 */

/**
 * @typedef {object} State
 * @property {LessonPanel | null} lesson
 * @property {number} at the place of its screen
 * @property {string} refusal
 * @property {boolean} isFolded
 * @property {boolean} isHidden
 * @property {boolean} isBelow
 * @property {string} brief
 * @property {string} said
 * @property {number} drawn counts the screens that were drawn
 */

class Lesson {
  /** @type {State} */
  shown = { lesson: null, at: 0, refusal: '', isFolded: false, isHidden: true, isBelow: false, brief: '', said: '', drawn: 0 };
  /** @type {ReturnType<typeof watchTasks> | null} */
  tasks = null;
  /** @type {IntersectionObserver | null} */
  sight = null;

  /** @param {HTMLElement} host @param {Stage} stage */
  constructor(host, stage) {
    this.host = host;
    this.stage = stage;
    this.set({});
  }

  /** @param {Partial<State>} changes */
  set(changes) {
    this.shown = { ...this.shown, ...changes };
    const { isHidden, isFolded } = this.shown;
    render(html`<aside class="sv-report sv-lesson" aria-label="Lesson" hidden=${isHidden} data-folded=${isFolded ? '' : undefined}><${Frame} of=${this} ...${this.shown} /></aside>`, this.host);
  }

  screen() { return this.shown.lesson.screens[this.shown.at]; }
  last() { return this.shown.lesson.screens.length - 1; }
  box() { return this.host.querySelector('.sv-lesson-task'); }

  /** @param {1 | -1} by */
  turn(by) {
    const { lesson, at } = this.shown, { stage } = this;
    if (!lesson || (at + by > this.last() && !lesson.next)) return stage.plan();
    if (at + by > this.last()) return stage.go(lesson.next.name);
    if (at + by >= 0) this.draw(at + by);
  }

  watched() {
    if (!this.tasks && this.stage.hub()) this.tasks = watchTasks(this.stage.hub());
    return this.tasks;
  }

  // Where something is asked of the text, or runs are compared, it stands there whole.
  stageIt(again) {
    const screen = this.screen(), { show, compare, task } = screen, { stage } = this;
    if (compare) stage.compare(compare.runs);
    if (!show) return;
    stage.show(show, show.pin || (task && WHOLE.includes(task.kind)) ? 'whole' : again ? 'play' : 'come', () => {
      if (!show.pin) return;                          // the text rests once it was drawn
      const isStill = () => this.shown.lesson && !this.shown.isHidden && this.screen() === screen;
      const settled = () => setTimeout(() => { if (isStill()) this.pin(show.pin, again); }, SETTLED);
      requestAnimationFrame(() => requestAnimationFrame(settled));
    });
  }

  // As by a key, so that text and lanes follow, but it is not the person's doing. withSheet: on a phone the inspector opens.
  /** @param {TokenPlace} place @param {boolean} withSheet */
  pin({ step, ref }, withSheet) {
    const before = document.querySelector('.sv-stage[data-sheet]');
    this.watched()?.aside(() => this.stage.hub().pin(step, ref, 'key'));
    if (!withSheet && !before) document.querySelectorAll('.sv-stage[data-sheet]').forEach((each) => each.removeAttribute('data-sheet'));
  }

  // on a phone, where it is a sheet
  inspect() {
    const { show } = this.screen();
    if (!this.stage.hub().pinned && show && show.pin) this.pin(show.pin, true);
    document.querySelector('#stage .sv-stage').dataset.sheet = 'open';
  }

  // Until the task has been in sight, a button beside Next leads there.
  pointDown() {
    const box = this.box();
    this.sight?.disconnect();
    if (!box || box.hasAttribute('data-done')) return;
    this.sight = new IntersectionObserver(([{ isIntersecting }], observer) => {
      this.set({ isBelow: !isIntersecting });
      if (isIntersecting) observer.disconnect();
    }, { root: this.host.querySelector('.sv-lesson-body'), threshold: .9 });
    this.sight.observe(box.querySelector('.sv-lesson-row:last-child, .sv-lesson-options > .sv-button:last-child') || box.querySelector('p'));
  }

  draw(at) {
    this.set({ at, said: '', brief: '', isBelow: false, drawn: this.shown.drawn + 1 });
    const { lesson } = this.shown, screen = this.screen();
    this.host.querySelector('.sv-lesson-body').scrollTop = 0;
    this.pointDown();
    remember(`at ${lesson.name}`, at);
    if (at === this.last()) {
      remember(`lesson ${lesson.name}`, true);
      document.dispatchEvent(new Event('sv-lesson-done'));
    }
    // where a screen speaks of probabilities, or asks to turn from them to how a draft was made, the inspector shows them
    if (needsInspector(screen)) document.querySelector('#stage [data-part=of-token]')?.click();
    this.stageIt(Boolean(screen.task && screen.task.kind === 'play'));
    document.documentElement.dataset.svLit = screen.lit.join(' ');
    this.host.querySelector('.sv-lesson-title').focus({ preventScroll: true });
  }

  // isBack: the page was loaded anew
  /** @param {LessonPanel} lesson @param {boolean} isBack */
  open(lesson, isBack) {
    const at = recall(`at ${lesson.name}`, [...lesson.screens.keys()]);
    this.set({ lesson, at, isHidden: false, isFolded: false });
    setLessonOpen(lesson.name);
    this.draw(at === this.last() && !isBack ? 0 : at);                          // gone through: it begins anew
  }

  refuse(refusal) { this.set({ lesson: null, refusal, isHidden: false, isFolded: false, isBelow: false, brief: '', said: '' }); }

  close() {
    this.set({ isHidden: true });
    delete document.documentElement.dataset.svLit;
    setLessonOpen('');
    this.watched()?.end();
  }
}

// host: an empty element. Gives {open(lesson, isBack), refuse(reason), close()}; isBack: the page was loaded anew.
/** @param {HTMLElement} host @param {Stage} stage */
export const mountLesson = (host, stage) => new Lesson(host, stage);
