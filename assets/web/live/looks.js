// looks.js: what the inspector shows of each token of a step, as views/explore/inspector.py makes it of a chain under
// speculative sampling: bars of both models' probabilities, where the random draw fell, and a sentence.
import { divides, label, percent, percents, quote, randomDraw, say, shorten, TINY } from './number_words.js';
/** @import { LookRows, TokenLook } from '../messages.d.ts' */
/** @import { StepRecord } from './trace.js' */

export const LAST = 'last';                         // names a step's own last token; a drafted one is named by its node
const MOST_ROWS = 8, LOG_DECADES = 4;
const AXES = new Map([[.05, .01], [.1, .02], [.2, .05], [.3, .1], [.4, .1], [.5, .1], [.6, .2], [.8, .2], [1, .2]]);   // end -> distance of ticks
const SMALL_BAR = .2, RAW_MATTERS = 5e-4, RAW_TELLS = .01, VISIBLE = 1e-6;

/** @typedef {{ text: string, role: string, p: number, q: number, both: number, residual: number | null, pRaw: number | null, qRaw: number | null }} Row */
/** @typedef {Record<string, string>} Sentences the templates that Python wrote into the page */

/** @param {Partial<Row>} values @returns {Row} */
const row = (values) => ({ text: '', role: '', p: 0, q: 0, both: 0, residual: null, pRaw: null, qRaw: null, ...values });
/** @param {Partial<Row>} values */
const allOthers = (values) => row({ text: 'all others', role: 'others', ...values });

const nats = (value) => (value === null ? '' : `${value.toFixed(3)} nats`);
const sum = (values) => values.reduce((total, value) => total + value, 0);
// 1 minus the sum of a column; null if a value of it is unknown
const restOf = (column) => (column.includes(null) ? null : Math.max(0, 1 - sum(column)));

/** @param {StepRecord} step */
export const lastToken = (step) => step.emitted.find(({ node }) => node === null) ?? null;
/** @param {StepRecord} step */
export const rejectedNode = (step) => step.draft.findIndex(({ status }) => status === 'rejected');

/** @param {StepRecord} step @param {string} status */
export const countOf = (step, status) => step.draft.filter((token) => token.status === status).length;

// Every look by the token's ref: its node in the draft, or "last".
/** @param {StepRecord} step @param {Sentences} words @returns {Record<string, TokenLook>} */
export function looksOf(step, words) {
  /** @type {Record<string, TokenLook>} */
  const looks = {}, last = lastToken(step);
  for (const position of step.positions) {
    if (position.child !== null) looks[position.child] = lookOfJudged(step, position, words);
    else if (last) looks[LAST] = lookOfLast(step, last, position, words);
  }
  step.draft.forEach((token, node) => { if (token.status === 'ignored') looks[node] = lookOfIgnored(step, token, words); });
  return looks;
}

/** @returns {TokenLook} */
function lookOfIgnored(step, token, words) {
  const template = words.wrote + words.at + words.behind + words['target gives'], rejected = quote(step.draft[rejectedNode(step)]);
  return { status: 'ignored', view: 'words', title: say(template, { token: quote(token), q: percent(token.q), p: percent(token.p), rejected }), note: [words.dropped] };
}

/** @returns {TokenLook} */
function lookOfJudged(step, position, words) {
  const token = step.draft[position.child], emitted = step.emitted[token.depth - 1] ?? null;
  const rows = rowsOfJudged(token, emitted, position), [axis, columns] = layOut(rows, true), shortfall = 1 - position.overlap;
  const chance = `min(1, ${token.p_judged.toFixed(4)} / ${token.q.toFixed(4)}) = ${token.accept_prob.toFixed(4)}`;
  const divergence = position.kl === null ? 'infinite' : nats(position.kl), bar = token.q / axis;
  return {
    status: token.status, view: 'overlay', title: titleOfJudged(step, token, emitted, words), axis: ticks(axis), rows: columns,
    numbers: [chance, (1 - shortfall).toFixed(4), nats(position.p_entropy), nats(position.q_entropy), divergence, '', '', ''],
    note: noteOf(step, position.child, rows.find(({ role }) => role === 'emitted')?.residual, words), draw: drawOn(token, bar),
    ...(bar < SMALL_BAR && { zoom: { ...drawOn(token, 1), words: `the bar of ${quote(token)}, enlarged` } }),
    foot: [shorten(100 * (1 - shortfall)), percent(1 - shortfall), percent(shortfall)],
  };
}

function titleOfJudged(step, token, emitted, words) {
  const isAccepted = token.status === 'accepted', verdict = words[isAccepted ? 'accepted' : emitted ? 'replaced' : 'ended'];
  const [target, drafted] = percents(token.p_judged, token.q), [chance, u] = randomDraw(token.accept_prob, token.u);
  const values = { token: quote(token), emitted: emitted && quote(emitted), p: target, q: drafted, u, chance, bound: chance.slice(1) };
  if (step.settings.temperature === 0) return say(words.greedy + words[isAccepted ? 'same token' : 'another token'] + verdict, values);
  const name = token.p_judged >= token.q ? 'always' : token.p_judged === 0 ? 'never' : token.p_judged < TINY ? 'hardly'
    : chance[0] === '<' ? 'less' : chance[0] === '>' ? 'more' : divides(target, drafted, chance) ? 'exactly' : 'about';
  return say(words.gave + words['the target'] + words[name] + words.fell + verdict, values);
}

function noteOf(step, node, residual, words) {
  const last = lastToken(step), isOutside = step.draft[node].status === 'accepted' && node >= step.emitted.length;
  if (isOutside) return [words['behind the end']];
  if (last?.kind !== 'resampled' || node !== rejectedNode(step) || !residual) return [];
  return say(words[step.settings.temperature === 0 ? 'most likely' : 'hatched'], { token: quote(last), share: percent(residual) });
}

// The drafted token, the one that was written, others by their probability, and one row for all that are not shown.
/** @returns {Row[]} */
function rowsOfJudged(token, emitted, { top, overlap }) {
  const roles = new Map([[token.id, 'drafted']]);
  if (emitted) roles.set(emitted.id, emitted.id === token.id ? 'both' : 'emitted');
  const rows = new Map(top.map(([id, text, p, q, residual, pRaw, qRaw]) => (
    [id, row({ text: label(text, id === token.id ? token.bytes : undefined), role: roles.get(id) ?? '', p, q, both: Math.min(p, q), residual, pRaw, qRaw })])));
  const shown = chooseRows(rows, [...roles.keys()]), rest = (name) => restOf(shown.map((each) => each[name]));
  const p = rest('p'), q = rest('q'), both = Math.min(Math.max(0, rest('both') - (1 - overlap)), p, q);
  return p + q < VISIBLE ? shown : [...shown, allOthers({ p, q, both, pRaw: rest('pRaw'), qRaw: rest('qRaw') })];
}

// The tokens `first`, then the others that matter most to either model, by p.
/** @param {Map<number, Row>} rows @param {number[]} first */
function chooseRows(rows, first) {
  const chosen = first.filter((id) => rows.has(id)).map((id) => rows.get(id));
  const isTelling = ({ p, q, pRaw, qRaw }) => p > 0 || q > 0 || pRaw > RAW_TELLS || qRaw > RAW_TELLS;
  const others = [...rows].filter(([id, each]) => !first.includes(id) && isTelling(each)).map(([, each]) => each);
  others.sort((one, other) => Math.max(other.p, other.q) - Math.max(one.p, one.q));
  return [...chosen, ...others.slice(0, MOST_ROWS - chosen.length).sort((one, other) => other.p - one.p || other.q - one.q)];
}

// The right end of the scale, and the rows as columns: widths in percent of it, labels, places on the log axis.
/** @param {Row[]} rows @param {boolean} isOverlay @returns {[number, LookRows]} */
function layOut(rows, isOverlay) {
  const column = (name) => rows.map((each) => each[name]), [p, q, both, pRaw, qRaw] = ['p', 'q', 'both', 'pRaw', 'qRaw'].map(column);
  const above = (shares) => shares.map((share, at) => (share > both[at] ? share - both[at] : 0));
  const shares = isOverlay ? { p, q } : { p };
  const widths = isOverlay ? { both, excess: above(q), shortfall: above(p) } : { distribution: p };
  const hasRaw = differ(pRaw, p) || differ(qRaw, q), longest = Math.max(...p, ...q, ...(hasRaw ? [...pRaw, ...qRaw] : []));
  if (hasRaw) Object.assign(widths, { p_raw: pRaw, q_raw: qRaw });
  const axis = [...AXES.keys()].find((end) => longest <= end) ?? 1;
  const columns = { text: column('text'), role: column('role') };
  for (const [name, values] of Object.entries(shares)) Object.assign(columns, { [name]: values.map(percent), [`${name}_dot`]: values.map(logPlace) });
  for (const [name, values] of Object.entries(widths)) columns[name] = values.map((share) => share && shorten(100 * share / axis));
  return [axis, /** @type {LookRows} */ (/** @type {unknown} */ (columns))];
}

// Whether the unfiltered probabilities at temperature 1 differ visibly from those judged against.
const differ = (raw, judged) => raw.some((share, at) => share !== null && Math.abs(share - judged[at]) > RAW_MATTERS);

function ticks(axis) {
  const distance = AXES.get(axis);
  return Array.from({ length: Math.round(axis / distance) + 1 }, (_, number) => /** @type {[number, string]} */ (
    [Number((100 * number * distance / axis).toFixed(2)), percent(number * distance)]));
}

function logPlace(share) {
  if (share > 10 ** -LOG_DECADES) return shorten(100 * (1 + Math.log10(share) / LOG_DECADES), 1);
  return share > 0 ? 0 : null;
}

// The place at which u falls on a bar of this width, a share of the axis.
function drawOn(token, bar) {
  const [, u] = randomDraw(token.accept_prob, token.u);
  return { x: shorten(100 * (token.u * bar)), bar: shorten(100 * bar), fill: shorten(100 * (token.accept_prob * bar)), u, accepted: token.status === 'accepted' };
}

// The step's own last token: bars of the distribution that it was drawn from.
/** @returns {TokenLook} */
function lookOfLast(step, last, { top, p_entropy: entropy }, words) {
  const isResampled = last.kind === 'resampled';
  const rows = new Map(top.map(([id, text, p, , , pRaw]) => (
    [id, row({ text: label(text, id === last.id ? last.bytes : undefined), role: id === last.id ? 'emitted' : '', p, pRaw: isResampled ? null : pRaw })])));
  const shown = chooseRows(rows, [last.id]), share = shown[0].p, rest = restOf(shown.map(({ p }) => p));
  if (rest > VISIBLE) shown.push(allOthers({ p: rest, pRaw: restOf(shown.map(({ pRaw }) => pRaw)) }));
  const [axis, columns] = layOut(shown, false);
  return {
    status: last.kind, view: 'draw', title: titleOfLast(step, last, share, words), heading: isResampled ? 'share' : 'target',
    axis: ticks(axis), rows: columns, numbers: ['', '', nats(entropy), '', '', '', '', ''],
  };
}

function titleOfLast(step, last, share, words) {
  const accepted = countOf(step, 'accepted'), values = { token: quote(last), share: percent(share), number: String(accepted) };
  if (last.kind === 'resampled') return say(words.resampled + words.replaces, { ...values, rejected: quote(step.draft[rejectedNode(step)]) });
  const lead = last.kind === 'plain' ? 'nothing drafted' : accepted > 1 ? 'all accepted' : 'one accepted';
  return say(words[lead] + words.drawn, values);
}
