// pages.js: what tests mount by hand, on pages that have no server.
import { embeddedSource } from '../../assets/web/core/hub.js';
import { palette } from '../../assets/web/core/palette.js';
import { predict } from '../../assets/web/learn/predict.js';
import { keepRuns } from '../../assets/web/library/kept_runs.js';
import { addKinds, Blocks } from '../../assets/web/reports/blocks.js';
import { mountReport } from '../../assets/web/reports/report.js';
import { mountStage } from '../../assets/web/stage/stage.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';

const drawBlock = (block, host, holder) => render(html`<${Blocks} blocks=${[block]} host=${host} />`, holder);
addKinds({ predict });
window.specviz = { embeddedSource, palette, keepRuns, drawBlock, mountReport, mountStage };
