// lesson_file.js: all lessons in one file: the plan, a lesson beside a stage, two runs side by side, a game. Runs lie in
// the page compressed and are unpacked when they are first shown. No server, no network.
'use strict';
(() => {
  const { specviz } = window;
  const { documentElement: root } = document;
  const quiet = { trigger: () => {}, watch: () => {} };

  function turnTo(name) {
    root.dataset.svPage = name;
    window.dispatchEvent(new Event('resize'));
  }

  // one stage for all runs
  function makeStage(holder) {
    const stage = specviz.stageMarkup();
    specviz.inFile.withoutCharts(stage);
    holder.append(stage);
    return specviz.mountStage(holder, { source: specviz.embeddedSource(null) });
  }

  function stageOf(hub) {
    const unpacked = new Map();
    let wanted = '';

    const parts = (run) => {
      if (!unpacked.has(run)) unpacked.set(run, Promise.all(specviz.inFile.text(`sv-run-${run}`).split('\n').map(specviz.unpack)));
      return unpacked.get(run);
    };

    async function show({ run, id }, how, then) {
      wanted = id;
      turnTo('explore');
      const texts = hub.run === id ? [] : await parts(run);
      if (wanted !== id) return;                       // another one was asked for meanwhile
      texts.forEach((text, place) => hub.take({ ...JSON.parse(text), play: !place && how !== 'whole' }, { heal: false }));
      if (!texts.length) specviz.shownAgain(hub, how);
      then();
    }
    return show;
  }

  function comparing(holder) {
    let shown = null;
    return async (runs) => {
      turnTo('compare');
      const block = JSON.parse(await specviz.unpack(specviz.inFile.text(`sv-duel-${runs.map(({ run }) => run).join('-')}`)));
      shown?.release?.();
      const report = holder.querySelector('.sv-report'), host = { root: report, title: '', act: () => {}, halt: () => {} };
      shown = specviz.blocks.make(block, host);
      holder.querySelector('.sv-blocks').replaceChildren(shown);
    };
  }

  function leave() {
    location.hash = 'plan';
  }

  // isBack: the page was loaded anew
  function follow(panel, lessons, isBack = false) {
    const [, name] = /^#lesson=([a-z0-9-]{1,160})$/.exec(location.hash) || [];
    root.toggleAttribute('data-sv-lesson', Boolean(name));
    window.scrollTo(0, 0);
    if (!name) {
      panel.close();
      return turnTo('learn');
    }
    turnTo('explore');
    if (Object.hasOwn(lessons, name)) panel.open(lessons[name], isBack && specviz.lessonOpen() === name);
    else panel.refuse('There is no such lesson in this file.');
  }

  specviz.mountLessonFile = () => {
    const holder = document.getElementById('sv-file'), place = (id) => document.getElementById(id);
    specviz.inFile.present(place('sv-present'));
    return specviz.inFile.open(holder, async () => {
      const { lessons, page } = JSON.parse(await specviz.unpack(specviz.inFile.text('sv-data')));
      const hub = makeStage(place('stage'));
      specviz.mountReport(place('learn'), { ...quiet, props: { value: JSON.stringify(page) }, place: () => null });
      const panel = specviz.mountLesson(place('lesson'), {
        hub: () => hub,
        show: stageOf(hub),
        compare: comparing(place('compare')),
        game(section) {
          turnTo('learn');
          document.querySelector(`[data-section="${section}"]`).scrollIntoView({ block: 'start' });
        },
        go(name) {
          if (location.hash === `#lesson=${name}`) follow(panel, lessons);
          else location.hash = `lesson=${name}`;
        },
        plan: leave,
        leave,
      });
      window.addEventListener('hashchange', () => follow(panel, lessons));
      follow(panel, lessons, true);
    });
  };
})();
