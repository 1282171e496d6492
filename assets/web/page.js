// page.js: the app: its pages, the panels beside the stage, ready prompts, saving, and which buttons make sense now.
// Texts go through textContent; no formula, no request of its own.
import { inAddress, markFrame, offerWindow } from './core/address.js';
import { answerOf } from './core/answer.js';
import { button, element } from './core/element.js';
import { loadScript } from './core/files.js';
import { allControls, CHANGED, close, DRAWERS, FIELDS, fold, isOpen, isSimple, keepControls, keepTheme, present, setOpen, theme, toggle } from './core/frame.js';
import { bringLanguage } from './core/language.js';
import { store, stored } from './core/memory.js';
import { Standing } from './core/standing.js';
import { LessonList } from './learn/lesson_list.js';
import { lessonPanel } from './learn/lesson_panel.js';
import { predict } from './learn/predict.js';
import { DraftGame, DraftGameStage } from './learn/draft_game.js';
import { library } from './library/library.js';
import { addKinds } from './reports/blocks.js';
import { sideBySide } from './reports/side_by_side_player.js';
import { mountGetCard } from './get_card.js';
import { mountReport } from './reports/report.js';
import { pageCode } from './share/page_code.js';
import { share } from './share/share.js';
import { guide } from './stage/guide.js';
import { mountHelp } from './stage/help.js';
import { mountStage, pinPlace } from './stage/stage.js';

/** @import { Host, Hub, StageServer } from './core/hub.js' */
/** @import { Values } from './core/standing.js' */
/** @import { MethodShowcase, RunMessage, StandingRun } from './messages.d.ts' */
/** @typedef {Host & { server: StageServer & { standing: (wanted: { run: string }) => Promise<StandingRun | null> } }} PageHost */

const RUN = 'specviz-run', TAB = 'specviz-tab';
const LIVE = ['queued', 'loading', 'running'];
const root = document.documentElement;
/** @type {string | null} */
let current = null;             // the run on the stage
let isLinked = location.hash.startsWith('#run=');   // the fields are a link's, not those of the run that comes back
let refused = () => {};
/** @type {PageHost} */
let stage_ = null;              // what the stage may ask and tell
const standing = new Standing();
/** @type {Set<string>} */
const left = new Set();         // runs that the stage has left: a late last message must not bring them back

const parse = (text) => { try { return text ? JSON.parse(text) : null; } catch (e) { return null; } };

// what the stage sees: the same value, without what belongs to a run that it has left
/** @param {PageHost} host @returns {PageHost} */
function screened(host) {
  return {
    ...host,
    watch: (name, callback) => host.watch(name, () => { if (name !== 'value' || admits(host.props.value)) callback(); }),
  };
}

/** @param {string} text */
function admits(text) {
  /** @type {RunMessage | null} */
  const message = parse(text);
  if (!message || !message.run) return true;
  if (left.has(message.run) && message.state && !message.back) return false;  // a recorded run has no state, and may come back
  left.delete(message.run);
  if (current && current !== message.run) left.add(current);
  const isNew = current !== message.run, wasLive = LIVE.includes(root.dataset.svState);
  current = message.run;
  if (isNew) hold(current);
  const { name, message: words } = message.state || { name: 'opened', message: null };
  root.dataset.svState = name;
  const isOver = !LIVE.includes(name);
  const goesOn = !isOver || name === 'paused';
  if (isNew) stand(current, goesOn, Boolean(message.back));
  else if (standing.isLive && !goesOn) end(current);
  if (isNew || (wasLive && isOver)) {
    reports[root.dataset.svPage]?.look();
    onRun.forEach((tell) => tell({ run: current, isNew, isOver }));
  }
  // a running run that has something to say could not adopt a change: the lists go back to what is in force
  if (name === 'running' && words) refused();
  return true;
}

// the run is this tab's; a tab that is new begins with the latest one of this browser
function hold(run) {
  store(RUN, run, true);
  store(RUN, run, false);
}

// this run is on the stage; its settings are put into the fields, unless they came from there
function stand(run, isLive, isBack) {
  const isOther = standing.begin(run, isLive, isBack);
  if (isOther && !isLinked) settled.then(() => { if (run === current) stage_.trigger('made', {}); });
  isLinked = false;
  hear(run);
}

// now that the run is over, the server can tell how it was made
function end(run) {
  standing.end();
  hear(run);
}

// what Run says while this run is on the stage; the last question's answer counts
let questions = 0;
/** @param {string} run */
async function hear(run) {
  const question = questions += 1;
  const told = await answerOf(stage_.server.standing({ run }));
  if (told && question === questions) standing.say(told);
}

/** @param {string[]} names @param {Values[string][]} values @returns {Values} */
const byName = (names, values) => Object.fromEntries(names.map((name, place) => [name, values[place]]));
function changed(names, values) {
  standing.fields(byName(names, values));
  document.dispatchEvent(new Event(CHANGED));
}

function stands(names, values) {
  changed(names, values);
  standing.keep();
}

function remember(names, values) {
  changed(names, values);
  standing.touch();
  store(FIELDS, JSON.stringify(byName(names, values)), false);
}

// first: the values of a new page. What differs from them and is out of sight in the simple view comes into sight.
function restored(first, values) {
  if (first.some((value, place) => String(value) !== String(values[place]))) allControls(true);
  document.dispatchEvent(new Event(FIELDS));
}

// a page that was just opened asks for what it had; the server judges whether it may have it
const recalled = () => ({ fields: parse(stored(FIELDS, false)), own: stored(RUN, true), latest: stored(RUN, false) });

/** @param {Host} host */
function ask(host, { fields, own, latest }) {
  if (fields) document.addEventListener(FIELDS, settle, { once: true });
  else settle();
  if (fields) host.trigger('restore', { fields });
  const { run: recorded, step, ref } = inAddress(location.search);
  if (recorded) {
    onRun.push(({ run }) => { if (run === `shipped:${recorded}` && Number(step) > 0) pinPlace(hub, { step: Number(step) - 1, ref }); });
    return host.trigger('arrive', { recorded });
  }
  // whoever follows a link to a run or to a lesson waits for what that shows, not for another run
  const isInvited = /^#(run|lesson)=/.test(location.hash);
  if (!own && (host.props.value || isInvited)) return;
  host.trigger('arrive', { run: own || latest, isOwn: Boolean(own), isFirst: !fields && !latest });
}

// ---- the pages: one is shown; a report page is told what is looked at on the stage whenever it is opened ----
const PAGES = ['explore', 'compare', 'check', 'learn'];
/** @type {Record<string, ReturnType<typeof mountReport>>} */
const reports = {};
/** @type {Record<string, (rest: string) => void>} */
const routes = {};              // name -> who takes what stands behind "#name=" in the address
const LOOK = 120, PATIENCE = 10000;                                // milliseconds between two looks at a page, and for all
let asked = null;               // what is to be done in a page as soon as that is idle
/** @type {(value?: any) => void} */
let settle = () => {};
const settled = new Promise((done) => { settle = done; });          // the fields are as this browser remembers them
/** @type {((told: { run: string, isNew: boolean, isOver: boolean }) => void)[]} */
const onRun = [];               // who is told that another run is on the stage, or that one is over
/** @type {Hub} */
let hub = null;

function place() {
  const selected = hub && hub.selected();
  return { run: current, step: selected ? selected.step : null, ref: selected ? selected.ref : null };
}

function open(name) {
  root.dataset.svPage = name;
  for (const button of document.querySelectorAll('#pages [data-page]')) {
    if (button.dataset.page === name) button.setAttribute('aria-current', 'page');
    else button.removeAttribute('aria-current');
  }
  close();
  setOpen('setup', false);
  window.scrollTo(0, 0);
  reports[name]?.look();
  window.dispatchEvent(new Event('resize'));
}

// A page of sections, opened; once this section is there, and idle if it is to act (without `does`: it is not), it is shown.
// Says whether it came to that: not where it takes too long, nor where something else was asked for meanwhile.
/** @param {string} page @param {string} section @param {string} [does] @param {Record<string, string>} [values] */
async function actIn(page, section, does, values) {
  const own = { page, section };
  asked = own;
  if (root.dataset.svPage !== page) shared.go(page);
  for (let waited = 0; waited < PATIENCE && asked === own; waited += LOOK) {
    const report = document.querySelector(`#${page} .sv-report`), found = report?.querySelector(`[data-section="${section}"]`);
    if (root.dataset.svPage === page && found && !(does && report.hasAttribute('data-busy'))) {
      if (does) reports[page].act(section, does, values);
      found.scrollIntoView({ block: 'start' });
      return true;
    }
    await new Promise((look) => { setTimeout(look, LOOK); });
  }
  return false;
}

const address = () => location.hash.slice(1).split('/');       // a page, and a section of it
const named = () => (PAGES.includes(address()[0]) ? address()[0] : PAGES[0]);

// A section that an entry of a page's list names: its page stays as it is, and the keyboard goes on from there.
async function turnTo(page, section) {
  if (root.dataset.svPage !== page) open(page);
  if (await actIn(page, section)) document.querySelector(`#${page} [data-section="${section}"]`).focus({ preventScroll: true });
}

function go() {
  const [page, section] = address();
  if (PAGES.includes(page) && /^[a-z_-]+$/.test(section || '')) turnTo(page, section);
  else open(named());
}

function follow(name) {
  const [, asked, rest] = /^#([a-z]+)=(.*)$/.exec(location.hash) || [];
  if (asked && (!name || name === asked)) routes[asked]?.(rest);
}

// What a panel beside the stage may use of the page.
/** @typedef {typeof shared} Page */
const shared = {
  hub: () => hub,
  run: () => current,
  go: (name) => { location.hash = name; },
  act: (page, section, does, values) => reports[page].act(section, does, values),
  actIn,
  toggle, close, allControls, keepControls,
  route: (name, take) => { routes[name] = take; follow(name); },      // also for the address as it is now
  onRun: (tell) => onRun.push(tell),
  settled,
  filled: () => new Promise((done) => document.addEventListener(FIELDS, done, { once: true })),
};

// panels beside the stage by name
const PANELS = { 'library-panel': library, 'share-panel': share, 'page-code': pageCode, 'guide-panel': guide, lesson: lessonPanel };
function panel(name, element, host) {
  PANELS[name](element, { ...host, page: shared });
}

function pages(element) {
  for (const button of element.querySelectorAll('[data-page]')) {
    button.addEventListener('click', () => { location.hash = button.dataset.page; });
  }
  window.addEventListener('hashchange', () => { go(); follow(); });
  if (!root.hasAttribute('data-sv-embed')) offerWindow(element.querySelector('.sv-pages'));
  go();
}

// what this tab calls itself to the server, also after a reload: what was found on its pages is still its own
function tab() {
  const random = () => [...crypto.getRandomValues(new Uint8Array(16))].map((each) => each.toString(16).padStart(2, '0')).join('');
  if (!stored(TAB, true)) store(TAB, random(), true);
  return stored(TAB, true);
}

/** @param {string} name @param {HTMLElement} element @param {Host} host */
function report(name, element, host) {
  reports[name] = mountReport(element, { ...host, place, tab: tab(), page: name });
  if (root.dataset.svPage === name) reports[name].look();
}

/** @param {HTMLElement} element @param {PageHost} host */
function stage(element, host) {
  const before = recalled();
  stage_ = host;
  refused = () => host.trigger('refused', {});
  keepTheme();
  keepControls();
  window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', keepTheme);
  close();
  admits(host.props.value);
  hub = mountStage(element, screened(host));
  if (root.hasAttribute('data-sv-embed')) offerWindow(element.querySelector('.sv-below'));
  ask(host, before);
  // a phone that slept has lost its stream: what is still going on comes back
  const goesOn = () => LIVE.includes(root.dataset.svState) || hub.speed?.progress;
  document.addEventListener('visibilitychange', () => {
    if (!document.hidden && current && goesOn()) host.trigger('arrive', { run: current, isOwn: true });
  });
}

/** @param {HTMLElement} holder @param {Host} host */
function picker(holder, { props, watch, trigger }) {
  const select = holder.querySelector('select');
  const list = () => {
    /** @type {Record<string, string[]>} */
    const titlesByKind = parse(props.value) || {};
    select.replaceChildren(Object.assign(element('option', '', 'Choose…'), { value: '' }));
    for (const [kind, titles] of Object.entries(titlesByKind)) {
      const group = Object.assign(element('optgroup'), { label: kind });
      for (const title of titles) {
        const option = Object.assign(element('option', '', title), { value: title });
        option.dataset.kind = kind;
        group.append(option);
      }
      select.append(group);
    }
  };
  watch('value', list);
  list();
  select.addEventListener('change', () => {
    const { value, dataset } = select.selectedOptions[0];
    if (value) trigger('choose', { kind: dataset.kind, title: value });
    select.value = '';
  });
}

// what shows the chosen method best, offered until it is asked
/** @param {HTMLElement} holder @param {Host} host */
function showcase(holder, { props, watch, trigger }) {
  const box = holder.querySelector('.sv-showcase');
  const show = () => {
    /** @type {MethodShowcase | null} */
    const offered = parse(props.value);
    box.replaceChildren(...(offered ? [button('sv-button', offered.words, () => {
      box.replaceChildren();
      trigger('show', { method: offered.method, target: offered.target });
    })] : []));
  };
  watch('value', show);
  show();
}

// Escape first closes an open list, which says so itself only until its own listener has run
let closesList = false;
document.addEventListener('keydown', ({ target }) => { closesList = /** @type {Element} */ (target).matches('[role=combobox][aria-expanded=true]'); }, true);
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || closesList) return;
  if (DRAWERS.some(isOpen)) close();
  else if (isOpen('present')) present();
});

// a list opens when it is entered: one that was closed by Escape is left, so that the click enters it again
document.addEventListener('mousedown', ({ target }) => {
  const list = /** @type {HTMLElement} */ (target);
  if (list === document.activeElement && list.matches('[role=combobox][aria-expanded=false]')) list.blur();
}, true);

// what the browser does alone is done here, also while the server is away
const DOES = {
  theme, present, 'all-controls': () => allControls(isSimple(), true), more: () => toggle('drawer'), 'library-open': () => toggle('library'), 'share-open': () => toggle('share'), 'guide-open': () => toggle('guide'),
  back: () => hub?.back(), forward: () => hub?.forward(),
};
document.addEventListener('click', ({ target }) => {
  const name = /** @type {Element} */ (target).closest('button')?.id;
  if (name === 'run' || name === 'step') setOpen('setup', false);
  else if (Object.hasOwn(DOES, name)) DOES[name]();
});

bringLanguage(async (name) => (await loadScript(`specviz/words/${name}.js`)).packed);
markFrame();
document.addEventListener('sv-present', present);
document.addEventListener('sv-opened', ({ detail }) => {           // a person goes on from the opening's last beat
  if (detail === 'run' && standing.plain.missing) stage_.trigger('first', {});    // what was shown cannot be run here
  else if (detail === 'run') document.querySelector('#run').click();
  else if (detail === 'why') shared.go('check');
});
addKinds({ side_by_side: sideBySide, predict, draft_game: DraftGame, 'draft-game-stage': DraftGameStage, lessons: LessonList });
window.specvizPage = { fold, present, stage, pages, report, panel, picker, showcase, getting: mountGetCard, help: mountHelp, remember, restored, changed, stands, hub: shared.hub };
