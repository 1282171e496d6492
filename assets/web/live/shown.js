// shown.js: a run's records as the messages that the stage takes, as views/explore/feed.py makes them in Python. Its words
// are Python's: they lie in the page.
import { countOf, LAST, lastToken, looksOf, rejectedNode } from './looks.js';
import { fixed, label, percent, prose, quote, randomDraw, say, shortText, shorten, tokenLabel } from './number_words.js';
/** @import { LaneCell, LiveWords, NextStep, RunMessage, ShownStep } from '../messages.d.ts' */
/** @import { StepRecord } from './trace.js' */

// A setting in at most six digits.
const brief = (value) => String(typeof value === 'number' ? Number(value.toPrecision(6)) : value);
const many = (number) => number.toLocaleString('en-US');
const fill = (template, values) => say(template, values).join('');
const rate = (part, whole) => `${fixed(100 * (part / whole), 0)} %`;

// How many tokens and calls there were so far.
class Counts {
  steps = 0; calls = 0; draftCalls = 0; emitted = 0; working = 0; drafting = 0;
  statuses = { accepted: 0, rejected: 0, ignored: 0 };
  kinds = { accepted: 0, resampled: 0, bonus: 0, plain: 0 };
  /** @type {number[]} */
  histogram = [];                                   // of drafting steps, by how many tokens were accepted
  deepest = 0;

  /** @param {StepRecord} step */
  add(step) {
    this.steps += 1;
    this.calls += step.calls.target;
    this.draftCalls += step.calls.draft;
    this.emitted += step.emitted.length;
    this.working += step.timing.total_ms - step.timing.wait_ms;
    for (const { status } of step.draft) this.statuses[status] += 1;
    for (const { kind } of step.emitted) this.kinds[kind] += 1;
    this.deepest = Math.max(this.deepest, step.draft.length);
    if (!step.draft.length) return;
    const accepted = countOf(step, 'accepted');
    this.drafting += 1;
    this.histogram[accepted] = (this.histogram[accepted] ?? 0) + 1;
  }

  get judged() { return this.statuses.accepted + this.statuses.rejected; }
  get drafted() { return this.judged + this.statuses.ignored; }
  get speed() { return 1000 * this.emitted / this.working; }

  // The values of the head's metrics, in their order, as `metrics` in trace/metrics.py gives them.
  numbers() {
    const { statuses, kinds } = this, bars = Array.from({ length: this.deepest + 1 }, (_, size) => this.histogram[size] ?? 0);
    const atLeast = bars.map((_, size) => bars.slice(size).reduce((total, bar) => total + bar, 0)).slice(1);
    const ofDrafts = (words) => (this.drafting ? words() : 'n/a: no token was drafted');
    const perCall = fixed(this.emitted / this.calls, 2);
    return [
      perCall, this.judged ? rate(statuses.accepted, this.judged) : 'n/a: no drafted token was judged', this.working ? fixed(this.speed, 1) : 'n/a: no time was measured',
      ofDrafts(() => rate(statuses.accepted, this.drafted)), ofDrafts(() => fixed(1 + statuses.accepted / this.drafting, 2)),
      ...[this.steps, this.drafted, statuses.accepted, statuses.rejected, statuses.ignored, this.emitted, kinds.resampled, kinds.bonus, kinds.plain, this.calls, this.draftCalls].map(many),
      ofDrafts(() => atLeast.map((steps) => rate(steps, this.drafting)).join(' ')), ofDrafts(() => bars.join(' ')),
    ];
  }
}

export class Shown {
  #counts = new Counts();
  /** @type {StepRecord | null} */
  #before = null;
  /** @type {{ at: { step: number, ref: string }, token: string, worth: number } | null} */
  #rejection = null;                                // the most telling one

  /** @param {LiveWords} words @param {string} run its id */
  constructor(words, run) {
    this.words = words;
    this.run = run;
  }

  // What the stage gets of one more record. `first`: what it is told with the first one.
  /** @param {StepRecord} record @param {Partial<RunMessage>} first @returns {RunMessage} */
  message(record, first = {}) {
    this.#counts.add(record);
    const steps = [this.#step(record)];
    this.#before = record;
    this.#noteRejection(record);
    return { ...this.news(), ...(record.index ? {} : first), from: record.index, steps };
  }

  // The prompt and all that stays, for the first message.
  /** @param {string} prompt @returns {RunMessage['head']} */
  head(prompt) { return { ...this.words.head, prompt: [[prose(prompt), '']], is_code: new RegExp(`^(?:${this.words.code})`).test(prompt) }; }

  // What is true between two steps, and at the end.
  /** @returns {RunMessage} */
  news() {
    const { steps, speed } = this.#counts;
    const said = { value: Number.isFinite(speed) ? fixed(speed, 0) : '', words: this.words.speed, note: '', can_measure: false, progress: null };
    return { run: this.run, from: steps, total: steps, speed: said, numbers: steps ? this.#counts.numbers() : [] };
  }

  /** @param {keyof LiveWords['endings']} reason @param {string} prompt @returns {RunMessage} */
  end(reason, prompt) {
    const { steps, emitted } = this.#counts;
    const words = `${this.words.endings[reason]}${steps ? ` · ${many(emitted)} tokens in ${many(steps)} steps` : ''}`;
    return { ...this.news(), done: steps, end: { reason: /** @type {any} */ (reason), words, next: this.#next(prompt) }, steps: [] };
  }

  /** @param {string} prompt @returns {NextStep[]} */
  #next(prompt) {
    const why = this.#rejection && /** @type {NextStep} */ ({ does: 'pin', words: ['Why was ', this.#rejection.token, ' rejected?'], at: this.#rejection.at });
    return [...(why ? [why] : []), { does: 'picture', words: ['Save picture'], shows: { question: '', start: prose(prompt) } }];
  }

  // A whole word tells more than a part of one; then the one that was the more likely to be accepted.
  #noteRejection(record) {
    const node = rejectedNode(record);
    if (node < 0) return;
    const token = record.draft[node], worth = Number(/^ \p{L}{2,}$/u.test(token.text)) + token.accept_prob;
    if (worth > (this.#rejection?.worth ?? -1)) this.#rejection = { at: { step: record.index, ref: String(node) }, token: quote(token), worth };
  }

  /** @param {StepRecord} record @returns {ShownStep} */
  #step(record) {
    const { settings, emitted } = record, last = lastToken(record), node = rejectedNode(record), hasNew = JSON.stringify(settings) !== JSON.stringify(this.#before?.settings);
    const bar = { accepted: countOf(record, 'accepted'), rejected: countOf(record, 'rejected'), ignored: countOf(record, 'ignored'), refused: 0 };
    return {
      index: record.index, k: settings.k, cells: record.draft.map((_, each) => this.#cell(record, each)), more: 0, more_words: [], refused: null,
      last: last && this.#lastCell(last), cut_off: record.truncated, pieces: piecesOf(record), looks: looksOf(record, this.words.sentences),
      focus: node >= 0 ? String(node) : last ? LAST : String(emitted.at(-1).node), has_rejected: node >= 0, drawless: false, whole: false,
      bar, totals: this.#totals(), say: this.#speech(record), changes: this.#changes(record), written: emitted.map(({ text }) => text).join(''),
      ...(hasNew && { sentence: this.words.headlines[settings.k][settings.temperature === 0 ? 0 : 1], context: this.#context(settings) }),
    };
  }

  /** @returns {LaneCell} */
  #cell(record, node) {
    const token = record.draft[node], text = tokenLabel(token), isBehind = token.status === 'accepted' && node >= record.emitted.length, { cell } = this.words;
    const [chance, u] = token.u === null ? [] : randomDraw(token.accept_prob, token.u);
    const say = fill(cell.token, { text, status: this.words.statuses[token.status] }) + (isBehind ? cell['behind the end'] : '') + (chance ? fill(cell.drawn, { test: 'chance', chance, u }) : '');
    return {
      ref: String(node), status: token.status, text, ...(isBehind && { behind_end: true }), say,
      ...(chance && { fill: shorten(100 * token.accept_prob, 1), tick: shorten(100 * token.u, 1), label: percent(token.accept_prob) }),
    };
  }

  /** @returns {LaneCell} */
  #lastCell(last) {
    const text = tokenLabel(last);
    return { ref: LAST, status: last.kind, text, say: fill(this.words.cell.token, { text, status: this.words.statuses[last.kind] }) };
  }

  #totals() {
    const { statuses, kinds, judged, emitted, calls } = this.#counts, { rejected, ignored } = statuses, accepted = statuses.accepted / judged;
    return {
      tokens_per_call: fixed(emitted / calls, 1), accepted: judged ? rate(statuses.accepted, judged) : '', accepted_words: this.words.accepted,
      accepted_share: judged ? Number(fixed(100 * accepted, 1)) : null, counts: { ...kinds, rejected, ignored },
    };
  }

  #speech(record) {
    const { speech } = this.words, last = lastToken(record), rejected = record.draft[rejectedNode(record)];
    const outcome = record.draft.length ? fill(speech.some, { accepted: countOf(record, 'accepted'), drafted: record.draft.length }) : speech.nothing;
    const parts = [rejected && fill(speech.rejected, { tokens: quote(rejected) }), last && fill(speech[last.kind], { tokens: quote(last) })];
    return `${fill(speech.step, { number: record.index + 1 })}${outcome}${parts.filter(Boolean).join('')}.`;
  }

  #changes({ settings, changed }) {
    return changed.map((name) => `${this.words.changes[name]} ${label(brief(this.#before.settings[name] ?? 0))} → ${label(brief(settings[name] ?? 0))}`);
  }

  // Roles and the parts at work: the promise, the models with their sizes, the sampling.
  /** @returns {[string, string][]} */
  #context({ target, draft_model: draft, temperature, top_k: topK, top_p: topP, min_p: minP = 0 }) {
    const filters = [topK ? `top-k ${topK}` : '', topP < 1 ? `top-p ${brief(topP)}` : '', minP ? `min-p ${brief(minP)}` : ''];
    const sampling = [`temperature ${brief(temperature)}`, ...filters].filter(Boolean).join(', ');
    return [['exact', this.words.promise], ['target', this.words.models[target]], ['draft', this.words.models[draft]], ['sampling', sampling]];
  }
}

// The step's text in reading order; a rejected token stands before its replacement.
/** @param {StepRecord} record @returns {ShownStep['pieces']} */
function piecesOf(record) {
  const node = rejectedNode(record), pieces = /** @type {ShownStep['pieces']} */ ([]);
  record.emitted.forEach((token, place) => {
    if (place === node) pieces.push([shortText(record.draft[node]), 'rejected', String(node)]);
    pieces.push([token.bytes && !token.text ? tokenLabel(token) : prose(token.text), token.kind, token.node === null ? LAST : String(token.node)]);
  });
  return pieces;
}
