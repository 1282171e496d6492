// run_file.js: one run's stage in a file of its own. The run lies in the page in compressed parts, which the hub pulls
// one after another as it would from the server; what only a server can do is not there.
import { saveText, unpack } from './core/files.js';
import { fileText, presentable, openFile } from './share/one_file.js';
import { SETTLED, stageMarkup, mountStage } from './stage/stage.js';

function whenThere(hub, step, then) {
  let isDone = false;
  const look = () => {
    if (isDone || hub.steps.length <= step || hub.steps.length < hub.total) return;
    isDone = true;
    setTimeout(then, SETTLED);
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

const holder = document.getElementById('sv-file');
const { starts, selection, file } = JSON.parse(fileText('sv-about')), parts = fileText('sv-run').split('\n');
const part = async (place) => JSON.parse(await unpack(parts[place]));
const pull = async ({ from }) => (starts.includes(from) ? part(starts.indexOf(from)) : null);
document.getElementById('sv-save').addEventListener('click', async () => saveText(file, await unpack(fileText('sv-trace'))));
document.documentElement.toggleAttribute('data-sv-framed', window.self !== window.top);
presentable(document.getElementById('sv-present'));
openFile(holder, async () => {
  const first = await part(0), stage = stageMarkup();
  if (!fileText('sv-plotly')) stage.querySelector('.sv-charts').remove();
  holder.append(stage);
  const hub = mountStage(holder, { source: { start: (take) => take(first), pull } });
  if (selection) pin(stage, hub, selection);
});
