// worker.js: the engine beside the page, so that the page never freezes. It loads models, makes one run at a time, and tells
// each event; between two steps it hears what the page wants.
import { bytesOf } from '../core/base64.js';
import { Llama } from './forward.js';
import { runEvents } from './run.js';
import { timePasses } from './timing.js';
import { Tokenizer } from './tokenizer.js';
import { wordsOf } from './words_of.js';
/** @import { Asked, Controls, Loaded } from './run.js' */

/** @typedef {{ controls: Controls, pause: number }} Force what counts from the next step on; pause: milliseconds between two steps */
/** @typedef {{ do: 'begin', tokenizer: any, template: Loaded['template'] }} Begin */
/** @typedef {{ do: 'load', name: string, config: any, files: string[] }} Load files: in base64 */
/** @typedef {{ do: 'run', id: string, asked: Asked, steps: number } & Force} Run steps: how many are made before it pauses */
/** @typedef {{ do: 'control' } & Force} Control */
/** @typedef {{ do: 'leave' }} Leave */
/** @typedef {{ do: 'go', steps: number }} Go steps: how many more; 0 pauses, Infinity goes on */
/** @typedef {{ loaded: string, error?: string } | { ratio: number } | { id: string, event: Record<string, any>, isSingle: boolean } | { error: string }} Told */

const SOON = 500, LATEST = 60000, LOOK = 20;        // milliseconds until the passes are timed, and between two looks at the orders

/** @type {Loaded} */
const loaded = { models: new Map(), tokenizer: null, template: null, environment: { browser: navigator.userAgent } };
/** @type {Force} */
let force = null;
let wanted = 0, newest = 0, isRunning = false, isTimed = false, timer = 0, later = SOON;    // steps, the number of the newest run; until the next try

/** @param {Told} words */
const tell = (words) => self.postMessage(words);

// A turn of the loop in which messages are heard, without the four milliseconds that a timer takes at least.
const breathe = () => new Promise((done) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = done;
  port2.postMessage(null);
});
/** @param {number} milliseconds */
const rest = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

// Waits until this run may make a step, or another run has taken its place. Single steps wait for no pace.
/** @param {number} own @param {number} since */
async function awaitStep(own, since) {
  await breathe();
  const isEarly = () => wanted === Infinity && performance.now() - since < force.pause;
  while (own === newest && (wanted < 1 || isEarly())) await rest(LOOK);
}

/** @param {Run} order */
async function run({ id, asked, steps, controls, pause }) {
  const own = newest += 1;
  force = { controls, pause };
  wanted = steps;
  isRunning = true;
  try {
    let started = performance.now();
    for (const event of runEvents(asked, () => ({ ...force.controls }), loaded)) {
      tell({ id, event, isSingle: wanted < Infinity });
      if (event.event !== 'step') continue;
      wanted -= 1;
      await awaitStep(own, started);
      if (own !== newest) return;
      started = performance.now();
    }
  } finally {
    if (own === newest) isRunning = false;
    timeWhenIdle();
  }
}

// What the page says of its speed, once; a run waits for one block at most. What could not be measured is tried again, ever
// later.
async function timeWhenIdle() {
  const target = loaded.models.get(loaded.template.target);
  if (isTimed || isRunning || !target) return undefined;
  isTimed = true;
  const ratio = await timePasses(target, async () => {
    await breathe();
    return !isRunning;
  });
  if (ratio) return tell({ ratio: Math.round(ratio * 10) / 10 });
  isTimed = false;
  later = Math.min(2 * later, LATEST);
  return timeAfter(later);
}

/** @param {number} milliseconds */
function timeAfter(milliseconds) {
  clearTimeout(timer);
  timer = setTimeout(timeWhenIdle, milliseconds);
}

const ORDERS = {
  /** @param {Begin} order */
  begin({ tokenizer, template }) { Object.assign(loaded, { tokenizer: new Tokenizer(tokenizer), template }); },
  /** @param {Load} order */
  load({ name, config, files }) {
    try {
      const model = new Llama(config, files.map(bytesOf));
      loaded.models.set(name, model);
      loaded.environment.forward = model.kernel.isFast ? 'WebAssembly' : 'JavaScript';
      tell({ loaded: name });
    } catch (error) {
      tell({ loaded: name, error: `${name} cannot be read: ${wordsOf(error)}` });
    }
    timeAfter(SOON);
  },
  run,
  leave() {                                         // the run that goes on is not looked at any more
    newest += 1;
    isRunning = false;
  },
  /** @param {Control} order */
  control({ controls, pause }) { force = { controls, pause }; },
  /** @param {Go} order */
  go({ steps }) { wanted = steps && wanted < Infinity && steps < Infinity ? wanted + steps : steps; },
};

self.addEventListener('message', async ({ data }) => {
  try {
    await ORDERS[data.do](data);
  } catch (error) {
    tell({ error: wordsOf(error) });
  }
});
