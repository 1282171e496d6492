// run.js: one run, event by event, as a trace has them. Its settings may change between two steps.
import { seeded } from './draws.js';
import { speculate } from './speculate.js';
import { Recorder } from './trace.js';
/** @import { LiveTemplate } from '../messages.d.ts' */
/** @import { Llama } from './forward.js' */
/** @import { Tokenizer } from './tokenizer.js' */

const CHANGING = ['k', 'temperature', 'top_k', 'top_p', 'min_p', 'draft_model'];

/** @typedef {{ k: number, temperature: number, top_k: number, top_p: number, min_p: number, draft_model: string }} Controls what may change while tokens flow */
/** @typedef {{ prompt: string, seed: number, max_new_tokens: number }} Asked */
/** @typedef {{ models: Map<string, Llama>, tokenizer: Tokenizer, template: LiveTemplate, environment: Record<string, string> }} Loaded template: what a trace of this page always holds */

// Yields the header, the models in force, the steps, and the footer. `read` gives the controls of the next step. Throws an
// Error for a prompt that the target cannot read.
/** @param {Asked} asked @param {() => Controls} read @param {Loaded} loaded @returns {Generator<Record<string, any>>} */
export function* runEvents(asked, read, { models, tokenizer, template, environment }) {
  if (/\p{Cs}/u.test(asked.prompt)) throw new Error('the prompt has half a character, which no tokenizer reads');
  const ids = tokenizer.encode(asked.prompt), target = models.get(template.target);
  if (!ids.length) throw new Error('the prompt is empty; type at least one word');
  if (ids.length >= target.contextLimit) throw new Error(`the prompt must have fewer than ${target.contextLimit} tokens, which is what the target reads (got ${ids.length})`);
  const recorder = new Recorder(tokenizer), draws = seeded(asked.seed), infoOf = (name) => modelInfo(name, models.get(name), template.tokenizer_sha);
  let controls = read(), before = null, numModels = 0, finish = null, left = performance.now();
  const plan = () => ({ target, draft: controls.k ? models.get(controls.draft_model) : null, k: controls.k, sampling: samplingOf(controls) });
  const { draft_model: draft, ...settings } = controls, request = { ...template.header.request, ...asked, ...settings, draft };
  const prompt = { text: asked.prompt, tokens: ids.map((id) => tokenizer.token(id)) };
  yield { ...template.header, created: `${new Date().toISOString().slice(0, 19)}Z`, request, environment, prompt };
  for (const steps = speculate(ids, plan, draws, { maxNewTokens: asked.max_new_tokens, eos: template.eos }); !finish; controls = read()) {
    if (controls.draft_model !== before?.draft_model) {
      yield { event: 'models', index: numModels, target: infoOf(template.target), draft_model: infoOf(controls.draft_model) };
      numModels += 1;
    }
    const waited = before ? performance.now() - left : 0, { value: step } = steps.next();
    const changed = before ? CHANGING.filter((name) => controls[name] !== before[name]) : [];
    const stepSettings = { ...template.settings, ...controls, min_p: controls.min_p || undefined, target: template.target };
    const record = recorder.record(step, { settings: stepSettings, sampling: samplingOf(controls), changed, waited });
    before = { ...controls };
    finish = step.finish;
    left = performance.now();
    yield record;
  }
  yield { event: 'footer', reason: finish, message: null, baseline: null };
}

/** @param {Controls} controls */
const samplingOf = ({ temperature, top_k: topK, top_p: topP, min_p: minP }) => ({ temperature, topK, topP, minP });

/** @param {string} name @param {Llama} model @param {string} sha */
const modelInfo = (name, model, sha) => ({
  name, revision: null, num_parameters: model.numParameters, dtype: 'float32', device: 'browser', vocab_size: model.vocabSize, context_limit: model.contextLimit, tokenizer_sha: sha,
});
