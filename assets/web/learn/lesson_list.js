// lesson_list.js: the plan as a list: lessons, games and breaks by the clock, with what this browser has done already.
import { element, button, sentence } from '../core/element.js';
import { recall, remember } from '../core/memory.js';
import { lessonState } from './progress.js';

export const lessonList = ({ entries, ways, file }) => {
  const WAY = 'plan way';
  const done = new Map();

  function teacher(paragraphs) {
    const fold = element('details', 'sv-fold sv-plan-teacher');
    fold.append(element('summary', '', 'For the teacher'), ...paragraphs.map((words) => {
      const made = element('p');
      sentence(made, words);
      return made;
    }));
    return fold;
  }

  function lesson(entry) {
    const head = element('h3', 'sv-plan-title', `${entry.number}. ${entry.title}`), mark = element('span', 'sv-plan-done');
    const start = Object.assign(element('a', 'sv-button sv-primary', 'Start'), { href: `#lesson=${entry.name}` });
    const wrong = element('p', 'sv-plan-wrong');
    sentence(wrong, ['Breaks: ', entry.misconception]);
    start.setAttribute('aria-label', `Start lesson ${entry.number}: ${entry.title}`);
    done.set(entry, { mark, start });
    head.append(mark);
    return [head, element('p', 'sv-plan-question', entry.question), wrong, start, teacher(entry.teacher)];
  }

  function pause(entry) {
    const made = [element('h3', 'sv-plan-title', entry.title), element('p', 'sv-plan-question', entry.words)];
    if (!entry.section) return made;
    const game = () => document.querySelector(`[data-section="${entry.section}"]`);
    const open = button('sv-button', 'Go there', () => game()?.scrollIntoView({ block: 'start' }));
    open.setAttribute('aria-label', `Go to: ${entry.title}`);
    return [...made, open];
  }

  const rows = entries.map((entry) => {
    const made = element('li', `sv-plan-entry${entry.name ? '' : ' sv-plan-pause'}`), time = element('p', 'sv-plan-time');
    const clock = element('span');
    time.append(clock, element('span', '', entry.minutes));
    made.append(time, ...(entry.name ? lesson(entry) : pause(entry)));
    return { made, clock, clocks: entry.clocks };
  });

  const choices = ways.map((words, way) => button('sv-button sv-mode', words, () => {
    remember(WAY, way);
    show(way);
  }));

  // one way through the plan: what it leaves out is not there, and the clock goes by it
  function show(way) {
    choices.forEach((each, place) => each.setAttribute('aria-pressed', String(place === way)));
    for (const { made, clock, clocks } of rows) {
      made.hidden = clocks[way] === null;
      clock.textContent = clocks[way] || '';
    }
  }

  function tick() {
    done.forEach(({ mark, start }, entry) => {
      const { isDone, words } = lessonState(entry);
      mark.textContent = words && ` ${words}`;
      mark.toggleAttribute('data-open', !isDone);
      start.textContent = isDone ? 'Again' : 'Start';
    });
  }

  const node = element('div', 'sv-block sv-plan'), list = element('ol', 'sv-plan-list');
  list.append(...rows.map(({ made }) => made));
  if (choices.length) {
    const bar = element('div', 'sv-plan-ways');
    bar.setAttribute('role', 'group');
    bar.setAttribute('aria-label', 'How much of the plan');
    bar.append(...choices);
    node.append(bar);
  }
  if (file) {
    const line = element('p', 'sv-plan-file');
    line.append(Object.assign(element('a', 'sv-button', file.words), { href: file.href, download: file.name }), element('span', '', file.note));
    node.append(line);
  }
  node.append(list);
  show(recall(WAY, [0, ...ways.keys()]));
  tick();
  document.addEventListener('sv-lesson-done', tick);
  node.release = () => document.removeEventListener('sv-lesson-done', tick);
  node.repaint = tick;
  return node;
};
