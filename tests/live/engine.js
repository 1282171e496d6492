// engine.js: the live page's engine for tests in Python. Reads one JSON order from the standard input, writes the answer as
// JSON.
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { seeded } from '../../assets/web/live/draws.js';
import { Llama } from '../../assets/web/live/forward.js';
import { makeKernel, plainKernel } from '../../assets/web/live/kernel.js';
import * as numberWords from '../../assets/web/live/number_words.js';
import { runEvents } from '../../assets/web/live/run.js';
import { probabilities } from '../../assets/web/live/sampling.js';
import { Shown } from '../../assets/web/live/shown.js';
import { timePasses } from '../../assets/web/live/timing.js';
import { Tokenizer } from '../../assets/web/live/tokenizer.js';
import { asLines } from '../../assets/web/live/trace.js';
import { law } from './law.js';

const json = (path) => JSON.parse(readFileSync(path, 'utf8'));
const plain = (_, most) => plainKernel(most);
const numbers = (row) => Buffer.from(row.buffer, row.byteOffset, row.byteLength).toString('base64');   // of float32
const tokenizerOf = (folder) => new Tokenizer(json(join(folder, 'tokenizer.json')));

function load(folder, kernel = makeKernel) {
  const files = readdirSync(folder).filter((file) => file.endsWith('.safetensors')).sort();
  return new Llama(json(join(folder, 'config.json')), files.map((file) => new Uint8Array(readFileSync(join(folder, file)))), kernel);
}

// The kind of an error and its words, or null where nothing was refused.
function refusal(work) {
  try { work(); } catch (error) { return { kind: error.constructor.name, words: error.message }; }
  return null;
}

// A run with a list of controls, of which the first holds until the step that the second names, and so on.
function run({ asked, controls }, engine, words) {
  let steps = 0;
  const read = () => controls.filter(({ from = 0 }) => from <= steps).at(-1).set, shown = new Shown(words, 'run'), events = [], messages = [];
  for (const event of runEvents(asked, read, engine)) {
    events.push(event);
    if (event.event === 'step') {
      steps += 1;
      messages.push(shown.message(event, { head: shown.head(asked.prompt) }));
    }
    if (event.event === 'footer') messages.push(shown.end(event.reason, asked.prompt));
  }
  return { file: asLines(events), messages };
}

function engineOf(models, words) {
  const loaded = new Map(Object.entries(models).map(([name, folder]) => [name, load(folder)]));
  return { tokenizer: tokenizerOf(models[words.template.target]), template: words.template, environment: {}, models: loaded };
}

const ORDERS = {
  encode({ folder, texts }) {
    const tokenizer = tokenizerOf(folder);
    return texts.map((each) => tokenizer.encode(each));
  },
  // per text: what each of its ids is as it comes behind the others, and alone
  decode({ folder, texts }) {
    const tokenizer = tokenizerOf(folder);
    return texts.map((ids) => ({ pieces: ids.map(tokenizer.incremental()), alone: ids.map((id) => tokenizer.token(id)), labels: ids.map((id) => tokenizer.label(id)) }));
  },
  assigned: ({ characters }) => characters.map((each) => /\P{Cn}/u.test(each)),
  // asked: [tokens, wanted] one after the other, of one model with its cache
  logits({ folder, isPlain, asked }) {
    const model = load(folder, isPlain ? plain : makeKernel);
    return asked.map(([tokens, wanted]) => {
      const before = model.fed, rows = model.forward(tokens, wanted).map(numbers);
      return { rows, fed: model.fed - before, isFast: model.kernel.isFast };
    });
  },
  // the same product by both kernels; the numbers of `weights` and `states` lie in files of float32
  products({ cases, weights, states }) {
    const read = (path) => { const bytes = readFileSync(path); return new Float32Array(bytes.buffer, bytes.byteOffset, bytes.length / 4); };
    const all = [read(weights), read(states)];
    return cases.map(({ tokens, width, out, stride }) => [makeKernel, plain].map((make) => {
      const kernel = make(out * (stride ?? width), tokens * Math.max(width, out)), matrix = kernel.room(out * (stride ?? width));
      matrix.set(all[0].subarray(0, matrix.length));
      const product = kernel.multiply(matrix, all[1].slice(0, tokens * width), tokens, { out, stride });
      return { isFast: kernel.isFast, product: numbers(product) };
    }));
  },
  // blocks: milliseconds of a pass over one token, and over five, in each block; `stopsAt`: how often it was asked when it may not go on
  timing({ blocks, stopsAt }) {
    let clock = 0, done = 0;
    Object.defineProperty(globalThis, 'performance', { value: { now: () => clock } });
    const forward = (_, wanted) => { clock += blocks[done >> 1][wanted === 1 ? 0 : 1]; };
    return timePasses({ forward }, async () => (done += 1) !== stopsAt);
  },
  draws: ({ places }) => places.map(([seed, ...place]) => seeded(seed).below(1, ...place).u),
  probabilities: ({ asked }) => asked.map(({ logits, sampling }) => numbers(probabilities(Float32Array.from(logits), sampling))),
  words: ({ asked }) => asked.map(([name, ...values]) => numberWords[name](...values)),
  laws: ({ asked }) => asked.map(law),
  runs({ runs, words, models }) {
    const engine = engineOf(models, words);
    return runs.map((each) => run(each, engine, words));
  },
  refusals: ({ folders = [], tokenizers = [] }) => [
    ...folders.map((folder) => refusal(() => load(folder))), ...tokenizers.map((file) => refusal(() => new Tokenizer(file))),
  ],
  refusedRuns({ runs, words, models }) {
    const engine = engineOf(models, words);
    return runs.map((each) => refusal(() => run(each, engine, words)));
  },
};

const order = JSON.parse(await text(process.stdin));
process.stdout.write(JSON.stringify(await ORDERS[order.do](order)));
