// run_file.js: one run's stage in a file of its own. The run lies in the page in compressed parts, which the hub pulls
// one after another as it would from the server; what only a server can do is not there.
import { saveText, unpack } from './core/files.js';
import { fileText, presentable, openFile } from './share/one_file.js';
import { pinPlace, stageMarkup, mountStage } from './stage/stage.js';

const holder = document.getElementById('sv-file');
const { starts, selection, file } = JSON.parse(fileText('sv-about')), parts = fileText('sv-run').split('\n');
const part = async (place) => JSON.parse(await unpack(parts[place]));
const pull = async ({ from }) => (starts.includes(from) ? part(starts.indexOf(from)) : null);
document.getElementById('sv-save').addEventListener('click', async () => saveText(file, await unpack(fileText('sv-trace'))));
presentable(document.getElementById('sv-present'));
openFile(holder, async () => {
  const first = await part(0), stage = stageMarkup();
  if (!fileText('sv-plotly')) stage.querySelector('.sv-charts').remove();
  holder.append(stage);
  const everyK = fileText('sv-every-k') && (async () => JSON.parse(await unpack(fileText('sv-every-k'))));
  const hub = mountStage(holder, { source: { start: (take) => take(first), pull, everyK } });
  if (selection) pinPlace(hub, selection, stage);
});
