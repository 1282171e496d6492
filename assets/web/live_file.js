// live_file.js: the live page in a file of its own, or in a folder: the engine, the models and the stage, without a server.
import { inAddress } from './core/address.js';
import { mountLive } from './live/live.js';
import { bringText, openFile, presentable } from './share/one_file.js';

presentable(document.getElementById('sv-present'));
openFile(document.getElementById('sv-file'), async () => {
  const live = await mountLive(document.getElementById('live'), bringText), follow = () => live?.fill(inAddress(location.hash.slice(1)));
  window.addEventListener('hashchange', follow);
  follow();
}, bringText);
