// speculate.js: speculative sampling (Leviathan et al. 2022, arXiv:2211.17192, algorithm 1): the draft writes K tokens, the
// target reads them in one pass, each is judged. It knows token ids, no text. The same loop as decoding/engine.py.
import { ACCEPT, DRAFT, FINAL, ROOT } from './draws.js';
import { mostLikely, probabilities } from './sampling.js';
/** @import { Draws } from './draws.js' */
/** @import { Sampling } from './sampling.js' */

/** @typedef {{ forward: (tokens: number[], wanted?: number) => Float32Array[], contextLimit: number, calls: number, fed: number }} Model */
/** @typedef {{ target: Model, draft: Model | null, sampling: Sampling, k: number }} Plan the models and settings of one step; k: at most so many tokens are drafted */
/** @typedef {{ token: number, q: Float32Array, logits: Float32Array }} Drafted */
/** @typedef {{ p: number, q: number, chance: number, u: number, accepted: boolean }} Check */
/** @typedef {{ calls: number, fed: number }} Work */
/**
 * @typedef {object} Step a round: the draft's tokens, how they were judged, and the tokens that the text gets
 * @property {number} index
 * @property {number} position how many tokens stood before it
 * @property {Drafted[]} drafted
 * @property {Float32Array[]} logits the target's, behind the text and behind each drafted token
 * @property {Float32Array[]} probs the same as probabilities
 * @property {Check[]} checks
 * @property {number} numAccepted
 * @property {'resampled' | 'bonus' | 'plain'} kind of its own last token
 * @property {Float32Array} final the row that it was drawn from
 * @property {number} token drawn from it
 * @property {number[]} tokens for the text, up to its end
 * @property {number} truncated tokens behind the end of the text
 * @property {string | null} finish why the text ends here: 'length', 'eos', 'context'
 * @property {{ draft: number, verify: number, accept: number }} times in milliseconds
 * @property {Work} targetWork
 * @property {Work} draftWork
 */

// Continues `tokens`, which are at least one; `plan` is asked before each step.
/** @param {number[]} tokens @param {() => Plan} plan @param {Draws} draws @param {{ maxNewTokens: number, eos?: number }} limits @returns {Generator<Step>} */
export function* speculate(tokens, plan, draws, { maxNewTokens, eos }) {
  const text = [...tokens], end = tokens.length + maxNewTokens;
  let step = null;
  for (let index = 0; !step?.finish; index += 1) {
    const now = plan();
    if (text.length >= now.target.contextLimit) throw new Error(`the text has ${text.length} tokens, and the target reads at most ${now.target.contextLimit}`);
    step = makeStep(index, text, now, draws, end, eos);
    text.push(...step.tokens);
    yield step;
  }
}

/** @param {number} index @param {number[]} text @param {Plan} plan @param {Draws} draws @param {number} end @param {number} [eos] @returns {Step} */
function makeStep(index, text, plan, draws, end, eos) {
  const { target, draft, sampling } = plan, position = text.length, before = [workOf(target), workOf(draft)];
  const room = Math.min(end, target.contextLimit) - position, started = performance.now();
  const drafted = draft ? propose(text, draft, Math.min(plan.k, room - 1), sampling, draws) : [];
  const haveDrafted = performance.now();
  const ids = drafted.map((each) => each.token), logits = target.forward([...text, ...ids], drafted.length + 1);
  const probs = logits.map((row) => probabilities(row, sampling));
  const haveRead = performance.now();
  for (const row of [...drafted.map(({ q }) => q), ...probs]) if (Number.isNaN(row[0])) throw new Error('a model gave not-a-number in place of probabilities: its weights are damaged');
  const verdict = judge(drafted, probs, draws, position);
  const token = draws.sample(verdict.final, FINAL, position, ROOT), emitted = [...ids.slice(0, verdict.numAccepted), token];
  const kept = emitted.slice(0, room), last = kept.indexOf(eos);
  const tokens = last < 0 ? kept : kept.slice(0, last + 1), length = position + tokens.length;
  return {
    index, position, drafted, logits, probs, ...verdict, token, tokens, truncated: emitted.length - tokens.length,
    finish: last >= 0 ? 'eos' : length >= end ? 'length' : length >= target.contextLimit ? 'context' : null,
    times: { draft: haveDrafted - started, verify: haveRead - haveDrafted, accept: performance.now() - haveRead },
    targetWork: since(before[0], workOf(target)), draftWork: since(before[1], workOf(draft)),
  };
}

// K tokens, each drawn from the draft's own distribution q.
/** @param {number[]} text @param {Model} draft @param {number} k @param {Sampling} sampling @param {Draws} draws @returns {Drafted[]} */
function propose(text, draft, k, sampling, draws) {
  const drafted = [], most = Math.min(k, draft.contextLimit - text.length + 1);
  for (let node = 0; node < most; node += 1) {
    const [logits] = draft.forward([...text, ...drafted.map(({ token }) => token)]), q = probabilities(logits, sampling);
    const token = sampling.temperature === 0 ? mostLikely(q) : draws.sample(q, DRAFT, text.length + node, node);
    drafted.push({ token, q, logits });
  }
  return drafted;
}

// Token after token up to the first rejection: accepted if u < p / q. A rejected one is replaced from max(0, p - q).
/** @param {Drafted[]} drafted @param {Float32Array[]} probs @param {Draws} draws @param {number} position @returns {Pick<Step, 'checks' | 'numAccepted' | 'kind' | 'final'>} */
function judge(drafted, probs, draws, position) {
  const checks = [];
  for (const [node, { token, q: row }] of drafted.entries()) {
    const p = probs[node][token], q = row[token];
    const { u, passed } = draws.below(p / q, ACCEPT, position + node, node);
    checks.push({ p, q, chance: Math.min(1, p / q), u, accepted: passed });
    if (!passed) return { checks, numAccepted: node, kind: 'resampled', final: shortfall(probs[node], row) };
  }
  return { checks, numAccepted: drafted.length, kind: drafted.length ? 'bonus' : 'plain', final: probs[drafted.length] };
}

// What the draft left out: norm(max(0, p - q)); p itself where nothing is left (p = q up to rounding).
/** @param {Float32Array} p @param {Float32Array} q */
function shortfall(p, q) {
  const left = p.map((share, token) => Math.max(0, share - q[token])), whole = left.reduce((sum, share) => sum + share, 0);
  return whole > 0 ? left.map((share) => share / whole) : p;
}

/** @param {Model | null} model @returns {Work} */
const workOf = (model) => (model ? { calls: model.calls, fed: model.fed } : { calls: 0, fed: 0 });
/** @param {Work} before @param {Work} now @returns {Work} */
const since = (before, now) => ({ calls: now.calls - before.calls, fed: now.fed - before.fed });
