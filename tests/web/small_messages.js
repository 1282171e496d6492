// small_messages.js: whole messages with as little in them as their records allow. A test sets what it is about.
/** @import { LessonTask, RunHead, RunMessage, RunState, ShownStep, SpeedWords, TokenLook } from '../../assets/web/messages.d.ts' */

/** @type {SpeedWords} */
export const SPEED = { value: '', words: '', note: '', can_measure: false, progress: null };

/** @type {RunHead} */
export const HEAD = { prompt: [], is_code: false, recorded: false, legend: [], figures: {}, metrics: [], look_numbers: [], log_ticks: [] };

/** @type {RunState} */
export const STATE = { name: 'running', message: null, ahead: 0, fraction: null, words: '', progress: null };

/** @type {TokenLook} */
export const LOOK = { status: 'accepted', view: 'words', title: [] };

/** @type {ShownStep} */
export const STEP = {
  index: 0, k: 0, cells: [], more: 0, more_words: [], refused: null, last: null, cut_off: 0, pieces: [], looks: {}, focus: 'last',
  has_rejected: false, drawless: false, whole: false, bar: { accepted: 0, rejected: 0, ignored: 0, refused: 0 },
  totals: { tokens_per_call: '', accepted: '', accepted_words: '', accepted_share: null, counts: {} }, say: '', changes: [], written: '',
};

/** @param {string} ref @returns {ShownStep['cells'][0]} */
export const cell = (ref) => ({ ref, status: 'accepted', text: ref, say: ref });

/** @type {RunMessage} */
export const MESSAGE = { run: 'run', from: 0, total: 0, speed: SPEED, numbers: [] };

/** @type {LessonTask} */
export const TASK = { words: [], praise: '', kind: 'choose', times: 1, counts: [''], status: [], runs: [], options: [], reveal: '' };
