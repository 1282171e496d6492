// tasks.js: watches what a person does on a stage, and counts it until a lesson's task is done. What a task wants
// arrives as plain data; one task is watched at a time.
/** @import { Hub } from '../core/hub.js' */
/** @import { LessonTask, TokenPlace } from '../messages.d.ts' */

/** @param {Hub} hub */
export const watchTasks = (hub) => {
  /** @type {LessonTask | null} */
  let task = null;
  let count = 0, seen = new Set(), isAside = false;
  /** @type {(count: number) => void} */
  let tell = () => {};

  function add(by) {
    if (count >= task.times) return;
    count = count + by > task.times ? task.times : count + by;
    tell(count);
  }

  const once = (key) => {
    if (seen.has(key)) return;
    seen.add(key);
    add(1);
  };
  /** @param {LessonTask['kind']} kind */
  const wants = (kind) => task !== null && task.kind === kind;

  /** @param {TokenPlace} place */
  function statusOf({ step, ref }) {
    const { looks, cells, last } = hub.steps[step];
    const found = looks[ref] || [...cells, ...(last ? [last] : [])].find((each) => each.ref === ref);
    return found ? found.status : '';
  }

  // a run that arrives whole stands at its end at once: that is not watching it
  hub.on('cursor', ({ from, to }) => {
    const isEnd = to > 0 && to === hub.steps.length && hub.end;
    if (wants('play') && isEnd && (hub.playing || from > 0)) once('end');
  });
  hub.on('select', (detail) => {
    const byHand = detail && (detail.how === 'pointer' || detail.how === 'key');
    if (!wants('pin') || !byHand || isAside || !hub.pinned || !task.status.some((status) => status === statusOf(hub.pinned))) return;
    once(`${hub.run} ${hub.pinned.step} ${hub.pinned.ref}`);
  });
  document.addEventListener('click', ({ target }) => {
    /** @type {HTMLElement} */
    const pressed = /** @type {Element} */ (target).closest('[data-part]');
    if (!pressed) return;
    const { part } = pressed.dataset;
    if (wants('throw') && part === 'again') add(1);
    if (wants('throw') && part === 'many') add(100);
    if (wants('made') && part === 'of-draft') once(part);
  });
  document.addEventListener('sv-predicted', () => { if (wants('predict')) add(1); });

  return {
    /** @param {LessonTask} next @param {(count: number) => void} take */
    begin(next, take) {
      [task, tell, count, seen] = [next, take, 0, new Set()];
    },
    end() { task = null; },
    once,
    // what the page does by itself does not count
    aside(work) {
      isAside = true;
      work();
      isAside = false;
    },
  };
};
