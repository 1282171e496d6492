// lesson.js: one lesson, screen by screen: its texts, what it puts on the stage, and its task. `stage` is whatever it
// stands beside: the app, or a file with all its runs in it. Texts go through textContent.
'use strict';
(() => {
  const { element, sentence } = window.specviz;
  const WHOLE = ['guess', 'choose', 'see'];            // tasks beside a run that is not replayed
  const SETTLED = 120;                                // milliseconds until a text that has just arrived rests at its end

  const button = (words, press, className = '') => window.specviz.button(`sv-button ${className}`, words, press);
  const paragraph = (words, className = '') => {
    const made = element('p', className);
    sentence(made, words);
    return made;
  };

  // what this browser remembers of a lesson: whether it was gone through to its end
  window.specviz.lessonDone = (name) => window.specviz.kept(`lesson ${name}`, [false, true]);

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

    // ---- one screen ------------------------------------------------------------------------------------------------
    function law(block) {
      const holder = element('div', 'sv-lesson-law');
      holder.append(window.specviz.blocks.make(block, { root, title: screen().title, act: () => {}, halt: () => {} }));
      return holder;
    }

    function taskBox() {
      const { task } = screen(), mine = at;
      if (!task) return [];
      return [window.specviz.lessonTask(task, {
        name: `task ${lesson.name} ${at}`, stage, watched, button,
        isOn: () => mine === at,
        brief: (words) => { state.textContent = words; },
        say: (words) => { live.textContent = words; },
      })];
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
        ...shownLine(), ...taskBox(), ...tryLive());
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
