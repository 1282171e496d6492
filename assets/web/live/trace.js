// trace.js: a run as the lines of a trace file (specviz/trace/events.py has its records). What is recorded of a distribution
// is what session/recorder.py records: both models' most likely tokens, the drafted and the emitted one, and sums.
import { softmax } from './sampling.js';
/** @import { Step } from './speculate.js' */
/** @import { Sampling } from './sampling.js' */
/** @import { Tokenizer } from './tokenizer.js' */

const SHOWN = 8;                                    // of each model's most likely tokens
const SMALLEST = 1e-37;                             // a smaller probability counts as none
const LEAST = 1e-12;                                // one that is written as 0

// Nine significant digits, as every recorded number has.
const nine = (value) => (Math.abs(value) < LEAST ? 0 : Number(value.toPrecision(9)));
const share = (value) => Math.min(1, Math.max(0, value));
const sum = (values) => values.reduce((total, value) => total + value, 0);

// The most likely tokens, most likely first; none without any probability.
/** @param {Float32Array} row */
function largest(row) {
  const best = [];
  for (let token = 0; token < row.length; token += 1) {
    if (row[token] < LEAST || (best.length === SHOWN && row[token] <= row[best.at(-1)])) continue;
    let place = best.length;
    while (place && row[best[place - 1]] < row[token]) place -= 1;
    best.splice(place, 0, token);
    best.length = Math.min(best.length, SHOWN);
  }
  return best;
}

/** @param {Float32Array} p @param {Float32Array | null} q */
function sums(p, q) {
  let shortfall = 0, pLogP = 0, qLogQ = 0, pLogQ = 0, beyond = 0;
  for (let token = 0; token < p.length; token += 1) {
    if (p[token] > SMALLEST) pLogP += p[token] * Math.log(p[token]);
    if (!q) continue;
    if (p[token] > q[token]) shortfall += p[token] - q[token];
    if (q[token] > SMALLEST) {
      const log = Math.log(q[token]);
      qLogQ += q[token] * log;
      pLogQ += p[token] * log;
    } else beyond += p[token];
  }
  return { shortfall, pEntropy: -pLogP, qEntropy: -qLogQ, kl: beyond ? null : Math.max(0, pLogP - pLogQ) };
}

/**
 * @typedef {object} StepSettings what a step's record says of its settings: see `Settings` in events.py
 * @property {number} k
 * @property {number} temperature
 * @property {number} top_k
 * @property {number} top_p
 * @property {number} [min_p] missing: 0
 * @property {string} target
 * @property {string | null} draft_model
 */
/** @typedef {{ index: number, context_length: number, truncated: number, settings: StepSettings, changed: string[], calls: { target: number, draft: number }, draft: any[], emitted: any[], positions: any[], timing: Record<string, number> }} StepRecord */

export class Recorder {
  #decode; #at = 0;

  /** @param {Tokenizer} text */
  constructor(text) {
    this.text = text;
    this.#decode = text.incremental();
  }

  // The record of a step. waited: how long nothing was done before it, in milliseconds; changed: the names of settings.
  /** @param {Step} step @param {{ settings: StepSettings, sampling: Sampling, changed: string[], waited: number }} more */
  record(step, { settings, sampling, changed, waited }) {
    const started = performance.now(), { times } = step, positions = this.#positions(step, sampling), draft = this.#drafted(step), emitted = this.#emitted(step);
    const record_ms = performance.now() - started, own = times.draft + times.verify + times.accept + record_ms;
    const timing = { draft_ms: times.draft, verify_ms: times.verify, accept_ms: times.accept, record_ms, wait_ms: waited, total_ms: own + waited };
    const at_ms = this.#at + waited;
    this.#at = at_ms + own;
    return {
      event: 'step', index: step.index, at_ms: nine(at_ms), context_length: step.position, truncated: step.truncated, settings, changed,
      calls: { target: step.targetWork.calls, draft: step.draftWork.calls }, fed: { target: step.targetWork.fed, draft: step.draftWork.fed },
      draft, emitted, positions, timing: Object.fromEntries(Object.entries(timing).map(([name, ms]) => [name, nine(ms)])), evidence: {},
    };
  }

  /** @param {Step} step */
  #drafted({ drafted, probs, checks, numAccepted }) {
    return drafted.map(({ token, q }, node) => {
      const check = checks[node], status = node < numAccepted ? 'accepted' : check ? 'rejected' : 'ignored';
      return {
        ...this.text.token(token), parent: node - 1, depth: node + 1, status, p: nine(probs[node][token]), q: nine(q[token]),
        p_judged: check ? nine(check.p) : null, accept_prob: check ? nine(check.chance) : null, u: check ? nine(check.u) : null,
      };
    });
  }

  /** @param {Step} step */
  #emitted({ tokens, drafted, probs, numAccepted, kind }) {
    return tokens.map((token, place) => {
      const isOwn = place === numAccepted, q = isOwn && kind !== 'resampled' ? null : drafted[place].q[token];
      return { ...this.#decode(token), node: isOwn ? null : place, kind: isOwn ? kind : 'accepted', p: nine(probs[place][token]), q: q === null ? null : nine(q) };
    });
  }

  /** @param {Step} step @param {Sampling} sampling */
  #positions({ drafted, logits, probs, checks, numAccepted, final, token }, sampling) {
    const isPlain = sampling.temperature === 1 && sampling.topK === 0 && sampling.topP >= 1 && sampling.minP === 0;
    const raw = (row, behind) => (isPlain ? row : softmax(behind));
    const judged = checks.map((check, node) => {
      const { token: proposed, q, logits: drawn } = drafted[node], emitted = check.accepted ? proposed : token;
      const rows = { p: probs[node], q, pRaw: raw(probs[node], logits[node]), qRaw: raw(q, drawn) };
      return this.#position(node - 1, node, [proposed, emitted], rows);
    });
    return [...judged, this.#position(numAccepted - 1, null, [token], { p: final, q: null, pRaw: raw(probs[numAccepted], logits[numAccepted]), qRaw: null })];
  }

  // A draw: the judgement of a drafted token, or the step's own token. always: the ids that are shown in any case.
  /** @param {number} node @param {number | null} child @param {number[]} always @param {{ p: Float32Array, q: Float32Array | null, pRaw: Float32Array, qRaw: Float32Array | null }} rows */
  #position(node, child, always, { p, q, pRaw, qRaw }) {
    const { shortfall, pEntropy, qEntropy, kl } = sums(p, q), hasDraft = q !== null;
    const ids = [...new Set([...always, ...largest(p), ...(hasDraft ? largest(q) : [])])];
    const residual = (token) => Math.max(0, p[token] - q[token]) / Math.max(shortfall, SMALLEST);
    const columns = {
      p: ids.map((token) => nine(p[token])), q: hasDraft && ids.map((token) => nine(q[token])), residual: hasDraft && ids.map((token) => nine(residual(token))),
      p_raw: ids.map((token) => nine(pRaw[token])), q_raw: hasDraft && ids.map((token) => nine(qRaw[token])),
    };
    const rest = Object.fromEntries(Object.entries(columns).map(([name, values]) => [name, values ? share(Math.round((1 - sum(values)) * 1e9) / 1e9) : null]));
    if (hasDraft && !shortfall) rest.residual = 0;
    const top = ids.map((token, place) => [token, this.text.label(token), ...Object.values(columns).map((values) => (values ? values[place] : null))]);
    return {
      node, child, top, rest, overlap: hasDraft ? nine(share(1 - shortfall)) : null, kl: hasDraft && kl !== null ? nine(kl) : null,
      p_entropy: nine(pEntropy), q_entropy: hasDraft ? nine(qEntropy) : null,
    };
  }
}

// The lines of a file that specviz opens: one event each.
/** @param {object[]} events */
export const asLines = (events) => events.map((event) => `${JSON.stringify(event)}\n`).join('');
