// lesson_panel.js: the lesson beside the pages of the app: a recorded run comes from the server, a setup goes into the
// fields, both as events.
import { answerOf } from '../core/answer.js';
import { mountLesson } from './lesson.js';
import { lessonOpen, shownAgain } from './progress.js';
/** @import { Host, Hub } from '../core/hub.js' */
/** @import { LessonPanel, PanelRefusal } from '../messages.d.ts' */
/** @import { Page } from '../page.js' */

/** @param {HTMLElement} element @param {Host & { page: Page, server: { lesson: (wanted: { name: string }) => Promise<LessonPanel | PanelRefusal> } }} host */
export const lessonPanel = (element, { page, server, trigger }) => {
  const { documentElement: root } = document;
  /** @type {Hub | null} */
  let heard = null;
  /** @type {{ id: string, then: () => void } | null} */
  let pending = null;
  let isBack = false, stays = false;                   // loaded anew: with this lesson, on this page

  function hub() {
    const found = page.hub();
    if (found && !heard) {
      heard = found;
      found.on('grow', () => {
        if (!pending || found.run !== pending.id) return;
        const { then } = pending;
        pending = null;
        queueMicrotask(then);                          // when the run has been taken whole
      });
    }
    return found;
  }

  function goTo(name) { if (root.dataset.svPage !== name && !stays) page.go(name); }

  function close() {
    panel.close();
    root.removeAttribute('data-sv-lesson');
    page.keepControls();
    if (location.hash.startsWith('#lesson=')) history.replaceState(null, '', '#explore');
    window.dispatchEvent(new Event('resize'));
  }

  /** @param {string} name */
  async function open(name) {
    const answer = await answerOf(server.lesson({ name: name.slice(0, 200) }));
    root.setAttribute('data-sv-lesson', '');
    page.allControls(true);                             // a lesson asks for what the simple view does not show
    if (!answer) panel.refuse('The server did not answer.');
    else if ('refusal' in answer) panel.refuse(answer.refusal);
    else panel.open(answer, isBack);
    isBack = stays = false;
    window.dispatchEvent(new Event('resize'));
  }

  const panel = mountLesson(element.querySelector('.sv-panel'), {
    hub,
    show({ run, id }, how, then) {
      const now = hub();
      goTo('explore');
      if (now && now.run === id) {
        shownAgain(now, how);
        return then();
      }
      pending = { id, then };
      trigger('show', { run, play: how !== 'whole' });
    },
    compare([left, right]) {
      if (stays && root.dataset.svPage !== 'compare') return;
      page.actIn('compare', 'two-runs', 'show', { left: left.id, right: right.id });
    },
    game: (section) => page.actIn('learn', section),
    live({ name }) {
      goTo('explore');
      trigger('setup', { name });
    },
    go(name) {
      if (location.hash === `#lesson=${name}`) open(name);
      else location.hash = `lesson=${name}`;
    },
    plan() { close(); page.go('learn'); },
    leave: close,
  });
  // a page that is loaded anew has the lesson that was open in this tab, also where a lesson has led to another page
  const named = location.hash.startsWith('#lesson='), before = lessonOpen();
  isBack = location.hash === `#lesson=${before}`;
  page.route('lesson', open);
  if (!before || named || location.hash.startsWith('#run=')) return;
  isBack = stays = true;
  open(before);
};
