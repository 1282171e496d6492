// Every message that Python writes can be drawn, and what it says stands there.
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test as anyTest } from 'node:test';
import { all, fire, later, node, parsed, texts, until } from './dom.js';
import { markup, missing, said, written } from './written.js';
import { Standing } from '../../assets/web/core/standing.js';
import { DraftGame, DraftGameStage } from '../../assets/web/learn/draft_game.js';
import { mountLesson } from '../../assets/web/learn/lesson.js';
import { LessonList } from '../../assets/web/learn/lesson_list.js';
import { predict } from '../../assets/web/learn/predict.js';
import { Group } from '../../assets/web/library/library.js';
import { addKinds, Blocks } from '../../assets/web/reports/blocks.js';
import { Places } from '../../assets/web/reports/places.js';
import { mountReport } from '../../assets/web/reports/report.js';
import { sideBySide } from '../../assets/web/reports/side_by_side_player.js';
import { EveryK } from '../../assets/web/stage/every_k.js';
import { Help } from '../../assets/web/stage/help.js';
import { Inspector } from '../../assets/web/stage/inspector.js';
import { Chips } from '../../assets/web/stage/next.js';
import { Beats } from '../../assets/web/stage/opening.js';
import { mountStage } from '../../assets/web/stage/stage.js';
import { html, render } from '../../assets/web/vendor/preact_htm.js';
/** @import { Hub } from '../../assets/web/core/hub.js' */
/** @import { Looks } from '../../assets/web/stage/inspector.js' */
/** @import { DraftPart, PageBlock, PredictBlock, RunMessage } from '../../assets/web/messages.d.ts' */

/** @param {string} name @param {() => void | Promise<void>} work */
const test = (name, work) => anyTest(name, async () => {
  for (const each of shown.splice(0)) each.remove();
  await work();
});
const shown = [];                                    // what the last test has put into the document

addKinds({ side_by_side: sideBySide, predict, draft_game: DraftGame, 'draft-game-stage': DraftGameStage, lessons: LessonList, places: Places });
Object.assign(globalThis, {
  localStorage: { getItem: () => null, setItem() {} }, sessionStorage: { getItem: () => null, setItem() {}, removeItem() {} },
  matchMedia: () => ({ matches: true }), location: { hash: '', search: '', hostname: 'localhost', origin: '', pathname: '/' },
});

const placed = (root = node()) => {
  document.body.append(root);
  shown.push(root);
  return root;
};
const drawn = (view) => {
  const root = placed();
  render(view, root);
  return root;
};

// ---- report pages ----------------------------------------------------------------------------------------------------
const REPORT = '<div class="sv-report"><div class="sv-report-body"></div><p class="sv-live"></p></div>';
const READ = ['title', 'lead', 'say', 'label', 'words', 'caption', 'text', 'rest', 'prompt', 'problem', 'end', 'said', 'question', 'misconception', 'teacher', 'minutes', 'note', 'takes'];
const LISTED = ['columns', 'heads', 'tokens', 'source'];
/** @param {PageBlock[]} blocks @returns {PageBlock[]} */
const nested = (blocks) => blocks.flatMap((block) => [block, ...(block.kind === 'details' || block.kind === 'example' ? nested(block.blocks) : [])]);
const everyBlock = () => written.PageMessage.flatMap(({ sections }) => sections.flatMap(({ blocks }) => nested(blocks)));

// A file to be saved has its words in no page, every other K is behind its slider, and no task is done yet.
const readable = ({ sections, say }) => [{ say }, JSON.parse(JSON.stringify(sections), (name, value) => {
  if (value?.kind === 'download') return { label: value.label };
  if (value?.kind === 'segments') return { words: value.by_k[value.k].words };
  if (name === 'figure') return { title: value.layout.meta.title };
  return name === 'tasks' ? null : value;
})];

test('each page of sections is drawn, and all its words stand there', () => {
  for (const message of written.PageMessage) {
    const root = placed(parsed(REPORT));
    mountReport(root, { props: { value: JSON.stringify(message) }, watch() {}, trigger() {}, place: () => null });
    assert.deepEqual(missing(said(readable(message), READ, LISTED), root), []);
  }
});

test('each kind of block is among the pages, and is drawn', () => {
  const types = readFileSync(new URL('../../assets/web/messages.d.ts', import.meta.url), 'utf8');
  const names = /export type PageBlock = ([^;]*);/.exec(types)[1].split(' | ');
  const kinds = names.map((name) => new RegExp(`interface ${name} \\{\\s+kind: "([^"]*)"`).exec(types)[1]);
  const drawnKinds = new Set();
  for (const block of everyBlock()) {
    const root = drawn(html`<${Blocks} blocks=${[block]} host=${{ root: placed(), title: 'Around', act() {}, halt() {} }} />`);
    if (all(root, '.sv-block').length && root.textContent) drawnKinds.add(block.kind);
  }
  assert.deepEqual([...drawnKinds].sort(), kinds.sort());
});

test('two runs side by side have their titles, where they part, and what is said of each at its end', async () => {
  const data = written.PlayerData, blocks = everyBlock().filter(({ kind }) => kind === 'side_by_side');
  for (const [place, block] of blocks.entries()) {
    const root = drawn(html`<${sideBySide} block=${block} host=${{ root: node() }} />`), { sides, parted, modes } = data[place];
    await until(() => all(root, '.sv-side-by-side-sides').length, 'two stages');
    const ends = sides.map((side) => side.said.at(-1));
    assert.deepEqual(missing([parted.join(''), ...sides.map(({ title }) => title), ...modes.map(({ label }) => label), ...ends], root), []);
  }
  assert.equal(blocks.length, data.length);
});

test('the text that is chosen is unpacked and stands there', async () => {
  for (const block of everyBlock().filter(({ kind }) => kind === 'texts')) {
    const root = drawn(html`<${Blocks} blocks=${[block]} host=${{ root: placed(), title: '', act() {}, halt() {} }} />`);
    await until(() => all(root, '.sv-texts-prompt').length, 'a text');
    const [{ words, texts: [first] }] = written.TextChunk;
    assert.equal(texts(root, '.sv-texts-line')[0], [first.prompt, ...first.tokens].map((each) => words[each]).join(''));
    assert.deepEqual(missing([words[first.drafts[0].words], ...said(block, [], ['facts', 'draft_facts'])], root), []);
  }
});

test('each game of verdicts is played to its end, and explains every place', async () => {
  const games = written.PredictGame, packed = everyBlock().filter((block) => block.kind === 'predict').flatMap((block) => /** @type {PredictBlock} */ (block).runs.map((run) => ({ ...block, runs: [run] })));
  assert.equal(packed.length, games.length);
  for (const [number, { places, learned }] of games.entries()) {
    const root = drawn(html`<${predict} block=${packed[number]} host=${{ root: node() }} />`), next = () => all(root, '.sv-primary').find((each) => !each.hidden);
    await until(() => all(root, '.sv-predict-accepted').length, 'the game');
    for (const { ask, look, accepted } of places) {
      assert.deepEqual(missing(said(ask, ['title', 'note']), root), []);
      await fire(all(root, accepted ? '.sv-predict-accepted' : '.sv-predict-rejected')[0], 'click');
      assert.deepEqual(missing(['✓ Right', ...said(look, ['title', 'note'])], root), []);
      await fire(next(), 'click');
    }
    assert.deepEqual(missing([learned.join('')], root), []);
  }
});

// ---- runs ------------------------------------------------------------------------------------------------------------
/** @param {RunMessage} message @returns {{ hub: Hub, root: any }} */
function staged(message) {
  const root = placed(markup()), hub = mountStage(root, { source: { start: (take) => take(message), pull: async () => null }, trigger() {} });
  return { hub, root };
}
const LOOK = ['title', 'note', 'words'], COLUMNS = ['text', 'p', 'q', 'numbers'];
const STEP = ['sentence', 'say', 'accepted', 'tokens_per_call', 'accepted_words'];
const wholeRuns = () => written.RunMessage.filter(({ head }) => head);

// the inspector of a stage, which is shown one token after another
/** @param {RunMessage} message */
function inspected({ run, head, steps }) {
  const root = placed(markup()).firstChild;
  let place = null, tell = () => {};
  /** @type {Looks} */
  const hub = {
    run, head, steps, selected: () => place, look: () => place && steps[place.step].looks[place.ref], pin() {}, moveToken() {},
    on(name, listener) { if (name === 'select') tell = listener; },
  };
  new Inspector(root, hub);
  const show = (step, ref) => {
    place = { step, ref };
    tell();
  };
  return { show, inspector: all(root, '.sv-inspector')[0] };
}

test('each look at a token is drawn', () => {
  for (const message of wholeRuns()) {
    const { show, inspector } = inspected(message);
    for (const [step, { looks }] of message.steps.entries()) {
      for (const [ref, look] of Object.entries(looks)) {
        show(step, ref);
        const { siblings = [], axis = [], foot: [, ...foot] = [null] } = look, ticks = look.view === 'threshold' ? [] : axis.map(([, words]) => words);
        const words = [...said(look, LOOK, COLUMNS), ...siblings.flatMap(([, text, , ...more]) => [text, ...more]), ...foot, ...ticks];
        assert.deepEqual(missing(words, inspector), [], `${message.run} ${step} ${ref}`);
      }
    }
  }
});

/** @param {DraftPart} part */
function textsOf(part) {
  if (part.kind === 'facts') return part.items.flat();
  if (part.kind === 'tree') return part.nodes.flatMap(([, text, , , , , score]) => [text, score]);
  if (part.kind === 'lines') return part.lines.flatMap(([name, chips, more]) => [name, ...chips.flatMap(([text, , note]) => [text, note]), more]);
  return [];
}

test('how each draft was made is drawn', async () => {
  const kinds = new Set();
  for (const message of wholeRuns()) {
    const { show, inspector } = inspected(message);
    await fire(all(inspector, '[data-part=of-draft]')[0], 'click');
    for (const [step, { made, focus }] of message.steps.entries()) {
      if (!made) continue;
      show(step, focus);
      const items = made.parts.flatMap(textsOf);
      assert.deepEqual(missing([...said(made, ['lead', 'title', 'note', 'heads', 'text']), ...items], all(inspector, '[data-part=made]')[0]), []);
      for (const { kind } of made.parts) kinds.add(kind);
    }
  }
  assert.deepEqual([...kinds].sort(), ['facts', 'lines', 'passage', 'tree']);
});

test('each step is drawn in the text, the lanes and the player', async () => {
  for (const message of wholeRuns()) {
    const { hub, root } = staged(message);
    for (let cursor = 1; cursor <= message.steps.length; cursor += 1) {
      hub.seek(cursor);
      await later();
      const { looks, made, ...step } = hub.steps[cursor - 1], context = step.context.map(([, words]) => words);
      assert.deepEqual(missing([...said(step, STEP, ['changes', 'more_words']), ...context], root), [], `${message.run} ${cursor}`);
    }
    assert.deepEqual(missing([...message.head.prompt.map(([text, role]) => role || text), message.speed.words, ...(message.end ? [message.end.words] : [])], root), []);
  }
});

test('each beat of each opening is drawn', () => {
  for (const told of written.Opening) {
    for (const [at, beat] of told.beats.entries()) {
      const root = drawn(html`<${Beats} told=${told} at=${at} hasFallen=${true} said=${null} hands=${[0, 0]} turn=${0} does=${{}} />`);
      const { shares = [], numbers = [], clocks, name } = beat, isRace = name === 'point' && told.race;
      const guesses = told.tokens.flatMap(({ text, draft, target }) => [text.replace(/␣/g, ' ').trim() ? text : '', draft, name === 'draft' ? '' : target]);
      const words = [...shares.flatMap(([token, , share]) => [token, share]), ...numbers.flat(), ...(isRace ? told.race.tokens.map(([text]) => text) : [...clocks.flat(), ...guesses])];
      assert.deepEqual(missing([told.title, told.question, told.before, beat.sentence, ...words], root), []);
    }
  }
});

test('each K is drawn on the stage with its sentence and its numbers, or why there is none', async () => {
  const [message] = wholeRuns();
  for (const answer of [...written.EveryK, ...written.NoOtherK]) {
    const { hub, root } = staged({ ...message, steps: [] });
    const every = new EveryK(all(root, '.sv-stage')[0], hub, { ask: async () => answer });
    hub.take(message);
    await later();
    if ('refusal' in answer) {
      assert.deepEqual(missing([answer.refusal, answer.why], all(root, '.sv-every-k')[0]), []);
      continue;
    }
    assert.deepEqual(missing([answer.curve_words, answer.curve.join(' ')], all(root, '.sv-curve')[0]), []);
    for (const { k, sentence, totals } of answer.by_k) {
      every.choose(k);
      if (k !== answer.own) assert.deepEqual(missing([sentence.join(''), ...Object.values(totals)], root), []);
    }
  }
});

test('each button under a run is drawn with its words', () => {
  for (const { end } of wholeRuns().filter((message) => message.end)) {
    const root = drawn(html`<${Chips} steps=${end.next} press=${() => {}} />`);
    assert.deepEqual(missing(said(end.next, ['words', 'note']), root), []);
  }
});

// ---- lessons and panels ----------------------------------------------------------------------------------------------
test('each screen of each lesson is drawn', () => {
  for (const lesson of written.LessonPanel) {
    const host = placed(), { hub } = staged(wholeRuns()[0]);
    const panel = mountLesson(host, { hub: () => hub, show() {}, compare() {}, game() {}, live() {}, go() {}, plan() {}, leave() {} });
    panel.open(lesson, false);
    for (const [at, { task, show, ...screen }] of lesson.screens.entries()) {
      if (at) panel.turn(1);
      const asked = task ? [task.words.join(''), task.praise, ...task.options.map(({ words }) => words)] : [];
      assert.deepEqual(missing([lesson.title, lesson.place, ...said(screen, ['title', 'place', 'words', 'label']), ...asked, ...(show ? [show.title] : [])], host), [], `${lesson.name} ${at}`);
    }
  }
});

test('each help is drawn', () => {
  for (const help of written.MethodHelp) {
    const { title, sources, ...about } = help, root = drawn(html`<${Help} ...${help} />`);
    assert.deepEqual(missing([...said(about, ['summary', 'caution', 'lacks', 'title', 'meaning', 'badge'], ['notes']), ...sources.map(([words]) => words)], root), []);
  }
});

test('each run is an entry of the library', () => {
  const entries = [...written.ShippedEntry.map((entry) => [entry.name, entry, []]), ...written.KeptRun.map((entry) => [entry.key, entry, []])];
  const root = drawn(html`<${Group} title="Runs" note="" list=${entries} ticked=${[]} tick=${() => {}} />`);
  assert.deepEqual(missing(said(entries.map(([, entry]) => entry), ['title', 'words', 'facts']), root), []);
});

test('what can be shared of a run, and what a link brought, are said', async () => {
  const stage = placed(), panel = placed(), [line] = written.SharedRunLine;
  stage.append(node());
  Object.assign(document, { querySelector: () => stage.firstChild });
  document.documentElement.setAttribute('data-sv-share', '');
  let noticed = async () => {};
  Object.assign(globalThis, { MutationObserver: class { constructor(look) { noticed = look; } observe() {} } });
  const { share } = await import('../../assets/web/share/share.js');
  const hub = { pinned: null, on() {}, refs: () => [], pin() {} }, routes = {};
  const page = { hub: () => hub, run: () => 'one', onRun() {}, settled: Promise.resolve(), filled: async () => {}, route: (name, take) => { routes[name] = take; } };
  for (const offer of written.ShareOffer) {
    panel.replaceChildren();
    share({ querySelector: () => panel }, { page, server: { offered: async () => offer, linked: async () => line }, trigger() {} });
    await noticed();
    assert.deepEqual(missing([...offer.words, ...offer.files.flatMap(([, title, about]) => [title, about])], panel), []);
    await routes.run('link');
    assert.deepEqual(missing([line.words.join('')], stage), []);
  }
});

test('what the bar says of a run that stands, and of each field that was changed', () => {
  const words = { nodeType: 3, nodeValue: 'Run' }, button = { childNodes: [words], title: '' };
  Object.assign(document, { querySelector: () => button });
  for (const told of written.StandingRun) {
    const standing = new Standing();
    for (const [method, names] of Object.entries(told.about.counting)) {
      const made = Object.fromEntries(names.map((name) => [name, name === 'method' ? method : 'before']));
      standing.fields(made);
      standing.begin('one', false);
      standing.keep();
      standing.say({ ...told, needs: [] });
      assert.deepEqual([words.nodeValue, button.title], [told.words, told.missing]);
      for (const name of names.filter((each) => each !== 'method')) {
        standing.fields({ ...made, [name]: 'after' });
        assert.equal(words.nodeValue, `Run with ${told.about.whole[name] || `${told.about.titles[name]} after`}`);
      }
    }
  }
});
