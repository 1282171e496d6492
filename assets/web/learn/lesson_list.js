// lesson_list.js: the plan as cards: lessons with a picture each, games and breaks, with what this browser has done already.
import { worded } from '../core/element.js';
import { html } from '../core/html.js';
import { recall, remember } from '../core/memory.js';
import { useEffect, useState } from '../vendor/preact_htm.js';
import { Picture } from './picture.js';
import { lessonState } from './progress.js';

const WAY = 'plan way';

function Lesson({ entry }) {
  const { isDone, words } = lessonState(entry);
  return html`<${Picture} picture=${entry.picture} /><h3 class="sv-plan-title">${`${entry.number}. ${entry.title}`}<span class="sv-plan-done" data-open=${isDone ? undefined : ''}>${words && ` ${words}`}</span></h3>
    <p class="sv-plan-question">${entry.question}</p>
    <a class="sv-button sv-primary" href="#lesson=${entry.name}" aria-label="Start lesson ${entry.number}: ${entry.title}">${isDone ? 'Again' : 'Start'}</a>
    <details class="sv-fold sv-plan-teacher"><summary>For the teacher</summary><p class="sv-plan-wrong">${worded(['Breaks: ', entry.misconception])}</p>${entry.teacher.map((words_) => html`<p>${worded(words_)}</p>`)}</details>`;
}

function Pause({ entry: { title, words, section } }) {
  const go = () => document.querySelector(`[data-section="${section}"]`)?.scrollIntoView({ block: 'start' });
  return html`<h3 class="sv-plan-title">${title}</h3><p class="sv-plan-question">${words}</p>
    ${section && html`<button type="button" class="sv-button" aria-label="Go to: ${title}" onClick=${go}>Go there</button>`}`;
}

const Ways = ({ ways, way, choose }) => html`<div class="sv-plan-ways" role="group" aria-label="How much of the plan">${ways.map((words, place) => html`
  <button type="button" class="sv-button sv-mode" aria-pressed=${String(place === way)} onClick=${() => choose(place)}>${words}</button>`)}</div>`;

const File = ({ file: { words, href, name, note } }) => html`
  <p class="sv-plan-file"><a class="sv-button" href=${href} download=${name}>${words}</a><span>${note}</span></p>`;

// One way through the plan: what it leaves out is not there, and the clock goes by it.
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
  const row = (entry) => html`<li class="sv-plan-entry${entry.name ? '' : ' sv-plan-pause'}" hidden=${entry.clocks[way] === null}>
    ${entry.name ? html`<${Lesson} entry=${entry} />` : html`<${Pause} entry=${entry} />`}
    <p class="sv-plan-time"><span>${entry.clocks[way]}</span><span>${entry.minutes}</span></p></li>`;
  return html`<div class="sv-block sv-plan">${ways.length > 0 && html`<${Ways} ways=${ways} way=${way} choose=${choose} />`}
    <ol class="sv-plan-list">${entries.map(row)}</ol>${file && html`<${File} file=${file} />`}</div>`;
}
