// pages.js: what tests mount by hand, on pages that have no server.
import { recall } from '../../assets/web/core/memory.js';
import { embeddedSource } from '../../assets/web/core/hub.js';
import { palette } from '../../assets/web/core/palette.js';
import { predict } from '../../assets/web/learn/predict.js';
import { keepRuns } from '../../assets/web/library/keeping.js';
import { addKinds, makeBlock } from '../../assets/web/reports/blocks.js';
import { mountReport } from '../../assets/web/reports/report.js';
import { mountStage } from '../../assets/web/stage/stage.js';

addKinds({ predict });
window.specviz = { recall, embeddedSource, palette, keepRuns, makeBlock, mountReport, mountStage };
