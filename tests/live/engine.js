// engine.js: the live page's engine for tests in Python. Reads one JSON order from the standard input, writes the answer as
// JSON. The models lie in assets/models.
import { readdirSync, readFileSync } from 'node:fs';
import { text } from 'node:stream/consumers';
import { seeded } from '../../assets/web/live/draws.js';
import { Llama } from '../../assets/web/live/forward.js';
import { makeKernel, plainKernel } from '../../assets/web/live/kernel.js';
import { runEvents } from '../../assets/web/live/run.js';
import { Shown } from '../../assets/web/live/shown.js';
import { speculate } from '../../assets/web/live/speculate.js';
import { Tokenizer } from '../../assets/web/live/tokenizer.js';

const MODELS = new URL('../../assets/models/', import.meta.url);
const json = (path) => JSON.parse(readFileSync(path, 'utf8'));
const tokenizer = new Tokenizer(json(new URL('fable-target/tokenizer.json', MODELS)));

function load(name, kernel = makeKernel) {
  const folder = new URL(`${name}/`, MODELS), files = readdirSync(folder).filter((file) => file.endsWith('.safetensors')).sort();
  return new Llama(json(new URL('config.json', folder)), files.map((file) => new Uint8Array(readFileSync(new URL(file, folder)))), kernel);
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
  return { events, messages };
}

const ORDERS = {
  encode: ({ texts }) => texts.map((each) => tokenizer.encode(each)),
  // per text: what each of its ids is, one by one, and alone
  decode: ({ texts }) => texts.map((ids) => ({ pieces: ids.map(tokenizer.incremental()), labels: ids.map((id) => tokenizer.label(id)) })),
  logits: ({ model, texts, plain }) => {
    const made = load(model, plain ? (_, most) => plainKernel(most) : makeKernel);
    return { isFast: made.kernel.isFast, rows: texts.map((ids) => made.forward(ids, ids.length).map((row) => [...row])) };
  },
  draws: ({ seed, places }) => places.map((place) => seeded(seed).below(1, ...place).u),
  runs: ({ runs, words, models }) => {
    const engine = { tokenizer, template: words.template, environment: {}, models: new Map(models.map((name) => [name, load(name)])) };
    return runs.map((each) => run(each, engine, words));
  },
};

const order = JSON.parse(await text(process.stdin));
process.stdout.write(JSON.stringify(ORDERS[order.do](order)));
