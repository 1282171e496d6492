// worker.js: the engine beside the page, so that the page never freezes. It loads models, makes one run at a time, and tells
// each event; between two steps it hears what the page wants.
import { bytesOf } from '../core/base64.js';
import { Llama } from './forward.js';
import { runEvents } from './run.js';
import { Tokenizer } from './tokenizer.js';
/** @import { Asked, Controls, Engine } from './run.js' */

/** @typedef {{ do: 'load', name: string, config: any, files: string[] }} Load files: in base64 */
/** @typedef {{ do: 'begin', tokenizer: any, template: Engine['template'] }} Begin */
/** @typedef {{ do: 'run', id: string, asked: Asked }} RunOrder */
/** @typedef {{ do: 'control', controls: Controls, pause: number }} Control pause: milliseconds between two steps */
/** @typedef {{ do: 'go', steps: number } | { do: 'stop' }} Go steps: at most so many; 0 pauses */
/** @typedef {{ loaded: string, error?: string } | { ratio: number } | { id: string, event: Record<string, any> } | { error: string }} Told */

const FIVE = 5, BEHIND = 32;                        // tokens of a pass, and before it
const PASSES = 10, BLOCKS = 3, SEEN = 5, SOON = 500;   // passes of a block, blocks, the least time of one and the wait before, in milliseconds

/** @type {Engine} */
const engine = { models: new Map(), tokenizer: null, template: null, environment: { browser: navigator.userAgent } };
/** @type {Controls} */
let controls, pause = 0, wanted = 0, isStopped = false, runs = 0, isTimed = false, number = 0;

/** @param {Told} words */
const tell = (words) => self.postMessage(words);
// A turn of the loop in which messages are heard, without the four milliseconds that a timer takes at least.
const turn = new MessageChannel();
const breathe = () => new Promise((done) => {
  turn.port1.onmessage = done;
  turn.port2.postMessage(null);
});
/** @param {number} milliseconds */
const rest = (milliseconds) => new Promise((done) => { setTimeout(done, milliseconds); });

// Waits until a step is wanted; a change of the pace is seen at once.
async function awaitStep(since) {
  await breathe();
  while (!isStopped && (wanted < 1 || performance.now() - since < pause)) await rest(Math.min(20, Math.max(1, pause)));
}

async function make({ id, asked }) {
  const mine = number += 1, events = runEvents(asked, () => (isStopped ? null : { ...controls }), engine);
  let made = performance.now();
  for (const event of events) {
    tell({ id, event });
    if (event.event !== 'step') continue;
    wanted -= 1;
    await awaitStep(made);
    if (mine !== number) return;                    // another run has taken its place
    made = performance.now();
  }
}

// What the page says of its speed, once; a run is not held up by it.
function timeWhenIdle() {
  const target = engine.models.get(engine.template.target);
  if (isTimed || runs || !target) return;
  isTimed = true;
  const ratio = timePasses(target);
  if (ratio) tell({ ratio: Math.round(ratio * 10) / 10 });
}

// How many passes over one token take as long as one over five: the median of blocks that take turns. A browser's clock may
// be coarse; null where it does not see a block.
/** @param {Llama} model @returns {number | null} */
function timePasses(model) {
  const text = Array.from({ length: BEHIND }, (_, at) => at + 1), ratios = [];
  const time = (size) => {
    const started = performance.now();
    for (let pass = 0; pass < PASSES; pass += 1) model.forward([...text, ...text.slice(0, size)], size);
    return performance.now() - started;
  };
  time(FIVE);                                       // a browser compiles what runs often
  for (let block = 0; block < BLOCKS; block += 1) {
    const one = time(1);
    if (one < SEEN) return null;
    ratios.push(time(FIVE) / one);
  }
  return ratios.sort((one, other) => one - other)[BLOCKS >> 1];
}

const ORDERS = {
  /** @param {Begin} order */
  begin({ tokenizer, template }) { Object.assign(engine, { tokenizer: new Tokenizer(tokenizer), template }); },
  /** @param {Load} order */
  load({ name, config, files }) {
    try {
      const model = new Llama(config, files.map(bytesOf));
      engine.models.set(name, model);
      engine.environment.forward = model.kernel.isFast ? 'WebAssembly' : 'JavaScript';
      tell({ loaded: name });
    } catch (error) {
      tell({ loaded: name, error: wordsOf(error) });
    }
    setTimeout(timeWhenIdle, SOON);
  },
  /** @param {Control} order */
  control(order) { ({ controls, pause } = order); },
  /** @param {RunOrder} order */
  async run(order) {
    isStopped = false;
    runs += 1;
    try {
      await make(order);
    } finally {
      runs -= 1;
      timeWhenIdle();
    }
  },
  go({ steps }) { wanted = steps; },
  stop() { isStopped = true; },
};

const wordsOf = (error) => (error instanceof Error ? error.message : String(error));

self.addEventListener('message', async ({ data }) => {
  try {
    await ORDERS[data.do](data);
  } catch (error) {
    tell({ error: wordsOf(error) });
  }
});
