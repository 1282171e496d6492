// lesson_panel.js: the lesson beside the pages of the app: a recorded run comes from the server, a setup goes into the
// fields, both as events.
'use strict';
window.specviz.panels.lesson = (element, { page, server, trigger }) => {
  const { documentElement: root } = document;
  const POLL = 120, PATIENCE = 80;                     // milliseconds, and how often a page is looked at that is being built
  let heard = null, pending = null;

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

  function goTo(name) { if (root.dataset.svPage !== name) page.go(name); }

  // once a page of sections has this one and is idle
  function once(name, section, then, tries = PATIENCE) {
    const report = document.querySelector(`#${name} .sv-report`), found = report?.querySelector(`[data-section="${section}"]`);
    if (found && !report.hasAttribute('data-busy')) then(found);
    else if (tries) setTimeout(once, POLL, name, section, then, tries - 1);
  }

  function close() {
    panel.close();
    root.removeAttribute('data-sv-lesson');
    if (location.hash.startsWith('#lesson=')) history.replaceState(null, '', '#explore');
    window.dispatchEvent(new Event('resize'));
  }

  async function open(name) {
    const answer = await server.lesson({ name: name.slice(0, 200) });
    root.setAttribute('data-sv-lesson', '');
    if (!answer || answer.refusal) panel.refuse(answer ? answer.refusal : 'The server did not answer.');
    else panel.open(answer);
    window.dispatchEvent(new Event('resize'));
  }

  const panel = window.specviz.mountLesson(element.querySelector('.sv-panel'), {
    hub,
    show({ run, id }, how, then) {
      const now = hub();
      goTo('explore');
      if (now && now.run === id) {
        window.specviz.shownAgain(now, how);
        return then();
      }
      pending = { id, then };
      trigger('show', { run, play: how !== 'whole' });
    },
    compare([left, right]) {
      goTo('compare');
      once('compare', 'two-runs', (section) => {
        page.act('compare', 'two-runs', 'show', { left: left.id, right: right.id });
        section.scrollIntoView({ block: 'start' });
      });
    },
    game() {
      goTo('learn');
      once('learn', 'predict', (section) => section.scrollIntoView({ block: 'start' }));
    },
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
  page.route('lesson', open);
};
