// run_file.js: one run's stage in a file of its own. The run lies in the page in compressed parts, which the hub pulls
// one after another as it would from the server; what only a server can do is not there.
import { saveText, unpack } from './core/files.js';
import { fileText, presentable, openFile } from './share/one_file.js';
import { pinPlace, stageMarkup, mountStage } from './stage/stage.js';

/** @import { AskEveryK, Source } from './core/hub.js' */
/** @import { RunFileIndex, RunMessage } from './messages.d.ts' */

const holder = document.getElementById('sv-file');
/** @type {RunFileIndex} */
const { starts, selection, file } = JSON.parse(fileText('sv-about'));
const parts = fileText('sv-run').split('\n');
/** @param {number} place @returns {Promise<RunMessage>} */
const part = async (place) => JSON.parse(await unpack(parts[place]));
/** @type {Source['pull']} */
const pull = async ({ from }) => (starts.includes(from) ? part(starts.indexOf(from)) : null);
document.getElementById('sv-save').addEventListener('click', async () => saveText(file, await unpack(fileText('sv-trace'))));
presentable(document.getElementById('sv-present'));
openFile(holder, async () => {
  const first = await part(0), stage = stageMarkup();
  if (!fileText('sv-plotly')) stage.querySelector('.sv-charts').remove();
  holder.append(stage);
  /** @type {AskEveryK | undefined} */
  const everyK = fileText('sv-every-k') ? async () => JSON.parse(await unpack(fileText('sv-every-k'))) : undefined;
  const hub = mountStage(holder, { source: { start: (take) => take(first), pull, everyK } });
  if (selection) pinPlace(hub, selection, stage);
}, fileText);
