// lesson_list.js: the plan as cards: lessons with a picture each, games and breaks, with what this browser has done already.
import { worded } from '../core/element.js';
import { html } from '../core/html.js';
import { recall, remember } from '../core/memory.js';
import { useEffect, useState } from '../vendor/preact_htm.js';
import { Picture } from './picture.js';
import { lessonState } from './progress.js';
/** @import { LessonEntry, LessonFile, LessonsBlock, PauseEntry, PlanEntry } from '../messages.d.ts' */

const WAY = 'plan way';

/** @param {{ entry: LessonEntry }} props */
function Lesson({ entry }) {
  const { isDone, words } = lessonState(entry);
  return html`<${Picture} picture=${entry.picture} /><h3 class="sv-plan-title">${`${entry.number}. ${entry.title}`}<span class="sv-plan-done" data-open=${isDone ? undefined : ''}>${words && ` ${words}`}</span></h3>
    <p class="sv-plan-question">${entry.question}</p>
    <a class="sv-button sv-primary" href="#lesson=${entry.name}" aria-label="Start lesson ${entry.number}: ${entry.title}">${isDone ? 'Again' : 'Start'}</a>
    <details class="sv-fold sv-plan-teacher"><summary>For the teacher</summary><p class="sv-plan-wrong">${worded(['Breaks: ', entry.misconception])}</p>${entry.teacher.map((words_) => html`<p>${worded(words_)}</p>`)}</details>`;
}

/** @param {{ entry: PauseEntry }} props */
function Pause({ entry: { title, words, section } }) {
  const go = () => document.querySelector(`[data-section="${section}"]`)?.scrollIntoView({ block: 'start' });
  return html`<h3 class="sv-plan-title">${title}</h3><p class="sv-plan-question">${words}</p>
    ${section && html`<button type="button" class="sv-button" aria-label="Go to: ${title}" onClick=${go}>Go there</button>`}`;
}

/** @param {{ ways: string[], way: number, choose: (way: number) => void }} props */
const Ways = ({ ways, way, choose }) => html`<div class="sv-plan-ways" role="group" aria-label="How much of the plan">${ways.map((words, place) => html`
  <button type="button" class="sv-button sv-mode" aria-pressed=${String(place === way)} onClick=${() => choose(place)}>${words}</button>`)}</div>`;

/** @param {{ file: LessonFile }} props */
const File = ({ file: { words, href, name, note } }) => html`
  <p class="sv-plan-file"><a class="sv-button" href=${href} download=${name}>${words}</a><span>${note}</span></p>`;

// One way through the plan: what it leaves out is not there, and the clock goes by it.
/** @param {{ block: LessonsBlock }} props */
export function LessonList({ block: { entries, ways, file } }) {
  const [way, setWay] = useState(recall(WAY, [0, ...ways.keys()])), [, draw] = useState(0);
  useEffect(() => {
    const again = () => draw((count) => count + 1);
    document.addEventListener('sv-lesson-done', again);
    return () => document.removeEventListener('sv-lesson-done', again);
  }, []);
  const choose = (place) => {
    remember(WAY, place);
    setWay(place);
  };
  /** @param {PlanEntry} entry */
  const row = (entry) => html`<li class="sv-plan-entry${'name' in entry ? '' : ' sv-plan-pause'}" hidden=${entry.clocks[way] === null}>
    ${'name' in entry ? html`<${Lesson} entry=${entry} />` : html`<${Pause} entry=${entry} />`}
    <p class="sv-plan-time"><span>${entry.clocks[way]}</span><span>${entry.minutes}</span></p></li>`;
  return html`<div class="sv-block sv-plan">${ways.length > 0 && html`<${Ways} ways=${ways} way=${way} choose=${choose} />`}
    <ol class="sv-plan-list">${entries.map(row)}</ol>${file && html`<${File} file=${file} />`}</div>`;
}
