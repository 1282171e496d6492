// lesson.js: one lesson, screen by screen: its texts, what it puts on the stage, and its task. `stage` is whatever it
// stands beside: the app, or a file with all its runs in it. Texts go through textContent.
'use strict';
(() => {
  const { element, sentence } = window.specviz;
  const MARKS = { open: '○', done: '✓' };
  const WHOLE = ['guess', 'choose', 'see'];            // tasks beside a run that is not replayed
  const SETTLED = 120;                                // milliseconds until a text that has just arrived rests at its end

  const button = (words, press, className = '') => window.specviz.button(`sv-button ${className}`, words, press);
  const paragraph = (words, className = '') => {
    const made = element('p', className);
    sentence(made, words);
    return made;
  };

  const taskName = (lesson, place) => `task ${lesson.name} ${place}`;
  const isKept = (name) => window.specviz.kept(name, [false, true]);

  // what this browser remembers of a lesson: whether it was gone through to its end
  window.specviz.lessonDone = (name) => isKept(`lesson ${name}`);

  // a run that is on the stage already, shown once more
  window.specviz.shownAgain = (hub, how) => {
    if (how === 'whole') hub.last();
    if (how !== 'play') return;
    hub.seek(0);
    hub.toggle();
  };

  // host: an empty element. stage: {hub(), show(run, how, then), compare(runs), game(), live(lesson), go(name), plan(),
  // leave()}. how: 'play' replays a run, 'come' only when it comes onto the stage, 'whole' shows it at its end. live is
  // absent where no model can run. Gives {open(lesson), refuse(reason), close()}.
  window.specviz.mountLesson = (host, stage) => {
    const root = element('aside', 'sv-report sv-lesson');
    const head = element('header', 'sv-lesson-head'), place = element('p', 'sv-lesson-place');
    const state = element('span', 'sv-lesson-state');  // the task in short, where the task itself is out of sight
    const title = Object.assign(element('h2', 'sv-lesson-title'), { tabIndex: -1 });
    const body = element('div', 'sv-lesson-body'), foot = element('footer', 'sv-lesson-foot');
    const fold = button('Fold', () => setFolded(!root.hasAttribute('data-folded')), 'sv-lesson-fold');
    const close = button('×', () => stage.leave(), 'sv-icon sv-lesson-close');
    const live = element('p', 'sv-hidden'), track = element('div', 'sv-lesson-track'), bar = element('span');
    const back = button('Back', () => turn(-1)), next = button('Next', () => turn(1), 'sv-primary');
    const number = element('span', 'sv-lesson-number');
    let lesson = null, at = 0, tasks = null;

    root.setAttribute('aria-label', 'Lesson');
    live.setAttribute('aria-live', 'polite');
    close.setAttribute('aria-label', 'Close the lesson');
    track.setAttribute('aria-hidden', 'true');
    track.append(bar);
    state.setAttribute('aria-hidden', 'true');
    head.append(place, state, fold, close, title);
    foot.append(track, back, number, next);
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
      if (!tasks && stage.hub()) tasks = window.specviz.watchTasks(stage.hub());
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
        if (show.pin) setTimeout(() => { if (isStill()) pin(show.pin, again); }, SETTLED);
      });
    }

    // As by a key, so that text and lanes follow, but it is not the person's doing. withSheet: on a phone the inspector opens.
    function pin({ step, ref }, withSheet) {
      const before = document.querySelector('.sv-stage[data-sheet]');
      watched()?.aside(() => stage.hub().pin(step, ref, 'key'));
      if (!withSheet && !before) document.querySelectorAll('.sv-stage[data-sheet]').forEach((each) => each.removeAttribute('data-sheet'));
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
      sentence(told, [compare ? 'Side by side: ' : 'On the stage: ', runs.map((run) => run.title).join(' and '), compare ? '' : `. ${show.about}`]);
      line.append(told, button(compare ? 'Open them again' : 'Show it again', () => stageIt(true)));
      return [line];
    }

    // ---- the task --------------------------------------------------------------------------------------------------
    function answered(option, pressed, box, said, task, finished) {
      box.querySelectorAll('[aria-pressed]').forEach((each) => each.setAttribute('aria-pressed', String(each === pressed)));
      if (task.kind === 'guess') {
        said.textContent = task.reveal;
        return finished();
      }
      pressed.classList.add(option.right ? 'sv-right' : 'sv-wrong');
      said.textContent = `${option.right ? 'Yes.' : 'Not this one.'} ${option.why}`;
      live.textContent = said.textContent;
      if (option.right) finished();
    }

    // isDone: what was found out before stands there again
    function options(task, finished, isDone) {
      const box = element('div', 'sv-lesson-options'), said = element('p', 'sv-lesson-why');
      for (const option of task.options) {
        const made = button(option.words, () => answered(option, made, box, said, task, finished), 'sv-lesson-option');
        made.setAttribute('aria-pressed', 'false');
        box.append(made);
        if (!isDone || !option.right || said.textContent) continue;
        made.classList.add('sv-right');
        said.textContent = option.why;
      }
      if (isDone && task.kind === 'guess') said.textContent = task.reveal;
      return [box, said];
    }

    function runs(task) {
      const box = element('div', 'sv-lesson-options');
      for (const run of task.runs) {
        box.append(button(run.title, () => stage.show(run, 'whole', () => { if (tasks) tasks.once(run.run); }), 'sv-lesson-option'));
      }
      return [box];
    }

    function parts(task, finished, isDone) {
      if (task.options.length) return options(task, finished, isDone);
      if (task.kind === 'see') return runs(task);
      return task.kind === 'predict' ? [button('Open the game', () => stage.game())] : [];
    }

    function taskBox(task) {
      const name = taskName(lesson, at), mine = at, box = element('section', 'sv-lesson-task');
      const mark = element('span', 'sv-lesson-mark'), heading = element('h4'), count = element('span', 'sv-lesson-count');
      const praise = element('p', 'sv-lesson-praise', task.praise), again = button('Do it again', () => begin(true));
      heading.append(mark, element('span', '', 'Your task'), count);
      mark.setAttribute('aria-hidden', 'true');

      function set(isDone) {
        box.toggleAttribute('data-done', isDone);
        mark.textContent = isDone ? MARKS.done : MARKS.open;
        heading.children[1].textContent = isDone ? 'Done' : 'Your task';
        praise.hidden = again.hidden = !isDone;
        tell(isDone ? task.counts.at(-1) : task.counts[0]);
      }
      function tell(words) {
        count.textContent = words || '';
        state.textContent = box.hasAttribute('data-done') ? `${MARKS.done} Done` : `${MARKS.open} ${words || 'Your task'}`;
      }
      function finished() {
        if (mine !== at) return;
        window.specviz.keep(name, true);
        set(true);
        live.textContent = `Done. ${task.praise}`;
      }
      function begin(isNew) {
        const isDone = !isNew && isKept(name);
        set(isDone);
        box.replaceChildren(heading, paragraph(task.words), ...parts(task, finished, isDone), praise, again);
        watched()?.begin(task, (done) => {
          if (!box.hasAttribute('data-done')) tell(task.counts[done]);
          if (done >= task.times) finished();
        });
      }
      begin(false);
      return box;
    }

    // ---- one screen ------------------------------------------------------------------------------------------------
    function law(block) {
      const holder = element('div', 'sv-lesson-law');
      holder.append(window.specviz.blocks.make(block, { root, title: screen().title, act: () => {}, halt: () => {} }));
      return holder;
    }

    function tryLive() {
      if (at !== last() || !lesson.live) return [];
      const box = element('section', 'sv-lesson-live'), said = element('p');
      box.append(element('h4', '', 'Try it live'), element('p', '', lesson.live), said);
      if (!stage.live || lesson.not_live) {
        said.textContent = stage.live ? lesson.not_live : 'This needs specviz itself, with a model: a file can only replay.';
        return [box];
      }
      box.insertBefore(button('Fill in this setup', () => {
        stage.live(lesson);
        said.textContent = live.textContent = 'The setup is filled in. Press Run when you are ready.';
      }), said);
      return [box];
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
      live.textContent = state.textContent = '';
      watched()?.end();
      body.replaceChildren(
        ...(at ? [] : [paragraph([lesson.question], 'sv-lesson-question')]), element('h3', '', now.title),
        ...lookLine(), ...now.words.map((each) => paragraph(each)), ...(now.law ? [law(now.law)] : []),
        ...shownLine(), ...(now.task ? [taskBox(now.task)] : []), ...tryLive());
      body.scrollTop = 0;
      window.specviz.keep(`at ${lesson.name}`, at);
      if (at === last()) {
        window.specviz.keep(`lesson ${lesson.name}`, true);
        document.dispatchEvent(new Event('sv-lesson-done'));
      }
      stageIt(Boolean(now.task && now.task.kind === 'play'));
    }

    return {
      open(props) {
        lesson = props;
        const places = lesson.screens.map((_, each) => each);
        at = window.specviz.kept(`at ${lesson.name}`, places);
        if (at === last() && window.specviz.lessonDone(lesson.name)) at = 0;      // gone through: it begins anew
        root.hidden = false;
        setFolded(false);
        draw();
        title.focus({ preventScroll: true });
      },
      refuse(reason) {
        lesson = null;
        watched()?.end();
        [place.textContent, title.textContent] = ['Lesson', 'This lesson cannot be shown'];
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
        watched()?.end();
      },
    };
  };
})();

// The panel of the app: a recorded run comes from the server, a setup goes into the fields, both as events.
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
