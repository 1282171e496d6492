// progress.js: what this browser remembers of the lessons, and which of them is open in this tab.
import { recall } from '../core/memory.js';
/** @import { Hub } from '../core/hub.js' */
/** @import { LessonEntry } from '../messages.d.ts' */

const OPEN = 'specviz-lesson';

const isKept = (name) => recall(name, [false, true]);
export const taskName = (name, place) => `task ${name} ${place}`;

// What this browser remembers of a lesson: whether all its tasks were done, else how many, in words.
/** @param {Pick<LessonEntry, 'name' | 'tasks'>} lesson */
export const lessonState = ({ name, tasks: { places, words } }) => {
  const done = places.filter((place) => isKept(taskName(name, place))).length, wasThere = isKept(`lesson ${name}`);
  const isDone = places.length ? done === places.length : wasThere;
  return { isDone, words: isDone ? '✓ done' : (done || wasThere) && words[done] || '' };
};

// The lesson that is open in this tab: the same page, loaded anew, opens it again.
const tab = (work) => { try { return work(sessionStorage); } catch (error) { return null; } };
export const setLessonOpen = (name) => tab((memory) => (name ? memory.setItem(OPEN, name) : memory.removeItem(OPEN)));
export const lessonOpen = () => tab((memory) => memory.getItem(OPEN)) || '';

// a run that is on the stage already, shown once more
/** @param {Hub} hub @param {string} how */
export const shownAgain = (hub, how) => {
  if (how === 'whole') hub.last();
  if (how !== 'play') return;
  hub.seek(0);
  hub.toggle();
};
