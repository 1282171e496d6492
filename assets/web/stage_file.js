// stage_file.js: one run's stage in a file of its own. The run lies in the page in compressed parts, which the hub pulls
// one after another as it would from the server; what only a server can do is not there.
'use strict';
(() => {
  const { specviz } = window;

  function whenThere(hub, step, then) {
    let isDone = false;
    const look = () => {
      if (isDone || hub.steps.length <= step || hub.steps.length < hub.total) return;
      isDone = true;
      setTimeout(then, specviz.SETTLED);
    };
    hub.on('info', look);
    look();
  }

  // The chosen token is shown in the text and in the lanes; no sheet opens before anybody has touched the page.
  function pin(stage, hub, { step, ref }) {
    whenThere(hub, step, () => {
      if (!hub.steps[step].looks[ref]) return;
      hub.pin(step, ref, 'key');
      stage.removeAttribute('data-sheet');
      if (!stage.querySelector('.sv-text .sv-on')) stage.querySelector('.sv-text .sv-now')?.scrollIntoView({ block: 'nearest' });
    });
  }

  specviz.mountStageFile = () => {
    const { text, open, present, withoutCharts } = specviz.inFile, holder = document.getElementById('sv-file');
    const { starts, selection, file } = JSON.parse(text('sv-about')), parts = text('sv-run').split('\n');
    const part = async (place) => JSON.parse(await specviz.unpack(parts[place]));
    const pull = async ({ from }) => (starts.includes(from) ? part(starts.indexOf(from)) : null);
    document.getElementById('sv-save').addEventListener('click', async () => specviz.saveText(file, await specviz.unpack(text('sv-trace'))));
    document.documentElement.toggleAttribute('data-sv-framed', window.self !== window.top);
    present(document.getElementById('sv-present'));
    return open(holder, async () => {
      const first = await part(0), stage = specviz.stageMarkup();
      if (!text('sv-plotly')) withoutCharts(stage);
      holder.append(stage);
      const hub = specviz.mountStage(holder, { source: { start: (take) => take(first), pull } });
      if (selection) pin(stage, hub, selection);
    });
  };
})();
