// site.js: specviz without a server: recorded runs on the stage, lessons, games, races and checks. Texts lie compressed in
// the page (all lessons in one file) or in files beside it (a folder), and are unpacked when they are first shown.
import { inAddress, offerWindow } from './core/address.js';
import { bringPlotly } from './core/figure.js';
import { loadScript, unpack } from './core/files.js';
import { html } from './core/html.js';
import { embeddedSource } from './core/hub.js';
import { recall, remember } from './core/memory.js';
import { mountLesson } from './learn/lesson.js';
import { LessonList } from './learn/lesson_list.js';
import { predict } from './learn/predict.js';
import { mountLive } from './live/live.js';
import { lessonOpen, shownAgain } from './learn/progress.js';
import { Blocks, addKinds } from './reports/blocks.js';
import { Places } from './reports/places.js';
import { sideBySide } from './reports/side_by_side_player.js';
import { mountReport } from './reports/report.js';
import { bringText, presentable, openFile } from './share/one_file.js';
import { pinPlace, stageMarkup, mountStage } from './stage/stage.js';
import { render } from './vendor/preact_htm.js';
/** @import { AskEveryK, Hub, StageServer } from './core/hub.js' */
/** @import { PageMessage, PageSection, RecordedRun, RunMessage, RunOpenings, SiteContent } from './messages.d.ts' */
/** @import { BlockHost } from './reports/blocks.js' */

const { documentElement: root } = document;
const SHIPPED = 'shipped:', NAME = /^[a-z0-9-]{1,160}$/;
const place = (id) => document.getElementById(id);
const unpacked = async (id) => JSON.parse(await unpack(await bringText(id)));

function turnTo(name) {
  root.dataset.svPage = name;
  for (const link of /** @type {NodeListOf<HTMLAnchorElement>} */ (document.querySelectorAll('.sv-pages a'))) {
    if (link.hash === `#${name}`) link.setAttribute('aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  window.dispatchEvent(new Event('resize'));
}

// one stage for all runs; a folder holds plotly, and what the opening tells of every step
function makeStage(holder, isFolder) {
  const stage = stageMarkup();
  /** @type {Map<string, Promise<RunOpenings>>} */
  const told = new Map();
  if (!isFolder) stage.querySelector('.sv-charts').remove();
  holder.append(stage);
  /** @type {StageServer['opening']} */
  const opening = async ({ run, step }) => {
    if (!told.has(run)) told.set(run, unpacked(`sv-opening-${run.slice(SHIPPED.length)}`));
    const { telling, steps } = await told.get(run);
    return steps[step ?? telling];
  };
  /** @type {AskEveryK} */
  const everyK = ({ run }) => unpacked(`sv-every-k-${run.slice(SHIPPED.length)}`);
  return mountStage(holder, { source: embeddedSource(null), server: isFolder ? { opening, every_k: everyK } : null });
}

/** @param {Hub} hub */
function stageOf(hub) {
  /** @type {Map<string, Promise<string[]>>} */
  const known = new Map();
  let wanted = '';

  /** @param {string} run */
  const parts = (run) => {
    if (!known.has(run)) known.set(run, bringText(`sv-run-${run}`).then((text) => Promise.all(text.split('\n').map(unpack))));
    return known.get(run);
  };

  /** @param {Pick<RecordedRun, 'run' | 'id'>} wanted_ @param {string} how @param {() => void} then */
  async function show({ run, id }, how, then) {
    wanted = id;
    turnTo('explore');
    const texts = hub.run === id ? [] : await parts(run);
    if (wanted !== id) return;                       // another one was asked for meanwhile
    const begin = { play: how === 'play' || how === 'come', opening: how === 'opening' };
    texts.forEach((text, at) => {
      /** @type {RunMessage} */
      const message = JSON.parse(text);
      hub.take({ ...message, ...(at ? {} : begin) }, { heal: false });
    });
    if (!texts.length) shownAgain(hub, how);
    then();
  }
  return show;
}

async function compare(name) {
  turnTo('compare');
  const block = await unpacked(`sv-side-by-side-${name}`), holder = place('compare');
  /** @type {BlockHost} */
  const host = { root: holder.querySelector('.sv-report'), title: '', act: () => {}, halt: () => {} };
  render(html`<${Blocks} key=${name} blocks=${[block]} host=${host} />`, holder.querySelector('.sv-blocks'));
  window.scrollTo(0, 0);
}

// A page of sections, whole; what it gives brings further sections.
/** @param {string} name @param {PageMessage} message @returns {(sections: PageSection[]) => void} */
function makeReport(name, message) {
  let read = () => {};
  const props = { value: JSON.stringify(message) };
  mountReport(place(`${name}-page`), { props, watch: (_, callback) => { read = callback; }, trigger: () => {}, place: () => null });
  return (sections) => {
    props.value = JSON.stringify({ ...message, sections });
    read();
  };
}

class Site {
  /** @param {SiteContent} content */
  constructor({ lessons, pages, runs, pairs }) {
    this.lessons = lessons;
    this.pages = pages;
    this.runs = runs;
    this.pairs = pairs;
    this.note = '';                                  // what to look for in a lesson's live run
    this.asked = '';                                 // by the address, of the live page
    this.hub = makeStage(place('stage'), runs.length > 0);
    this.reports = Object.fromEntries(Object.entries(pages).map(([name, message]) => [name, makeReport(name, message)]));
    this.show = stageOf(this.hub);
    this.hub.on('head', () => this.ofRun());
    this.panel = mountLesson(place('lesson'), {
      hub: () => this.hub,
      show: this.show,
      compare: (pair) => compare(pair.map(({ run }) => run).join('-')),
      game(section) {
        turnTo('learn');
        document.querySelector(`[data-section="${section}"]`).scrollIntoView({ block: 'start' });
      },
      go: (name) => {
        if (location.hash === `#lesson=${name}`) this.follow();
        else location.hash = `lesson=${name}`;
      },
      live: place('live') && ((lesson) => {
        this.note = lesson.live;
        location.hash = `live&${new URLSearchParams(lesson.in_page)}`;
      }),
      plan: () => { location.hash = 'plan'; },
      leave: () => { location.hash = 'plan'; },
    });
  }

  // the sections that speak of the run on the stage
  async ofRun() {
    if (this.reports.compare) this.reports.compare(await unpacked(`sv-of-${this.hub.run.slice(SHIPPED.length)}`));
  }

  /** @param {string} run @param {string} how @param {{ step?: string, ref?: string }} place */
  open(run, how, { step, ref }) {
    const at = Number(step) - 1;
    this.show({ run, id: SHIPPED + run }, how, () => { if (this.hub.steps[at]) pinPlace(this.hub, { step: at, ref }); });
  }

  // isBack: the page was loaded anew
  follow(isBack = false) {
    const { lesson, run, 'side-by-side': pair, ...more } = inAddress(`${location.search.slice(1)}&${location.hash.slice(1)}`), name = NAME.test(lesson) ? lesson : '';
    root.toggleAttribute('data-sv-lesson', Boolean(name));
    window.scrollTo(0, 0);
    if (name) {
      turnTo('explore');
      if (Object.hasOwn(this.lessons, name)) return this.panel.open(this.lessons[name], isBack && lessonOpen() === name);
      return this.panel.refuse('There is no such lesson in this file.');
    }
    this.panel.close();
    if (this.runs.includes(run)) return this.open(run, 'whole', more);
    if (this.pairs.includes(pair)) return compare(pair);
    const page = [...Object.keys(this.pages), 'explore'].find((each) => each in more) || (place('live') && !('plan' in more) ? 'live' : 'learn');
    turnTo(page);
    if (page === 'live') this.try(more);
    if (page === 'explore' && !this.hub.run) this.welcome();
  }

  async try(asked) {
    const { note } = this;
    this.note = '';
    this.live = this.live || mountLive(place('live'), bringText);
    const live = await this.live;
    if (!live) this.live = null;                     // the next visit tries again
    else if (note || location.hash !== this.asked) live.fill(asked, note);
    this.asked = location.hash;
  }

  welcome() {
    const isFirst = !recall('visited', [false, true]);
    remember('visited', true);
    this.open(this.runs[0], isFirst ? 'opening' : 'whole', {});
  }
}

addKinds({ side_by_side: sideBySide, predict, lessons: LessonList, places: Places });
presentable(place('sv-present'));
openFile(place('sv-file'), async () => {
  const site = new Site(await unpacked('sv-data'));
  if (site.runs.length) bringPlotly(() => loadScript('plotly.min.js'));
  document.addEventListener('sv-opened', ({ detail }) => {           // a person goes on from the opening's last beat
    if (detail) location.href = detail === 'why' ? '#check' : 'docs/README.html';
  });
  offerWindow(document.querySelector(document.documentElement.hasAttribute('data-sv-embed') ? '#stage .sv-below' : 'header'));
  window.addEventListener('hashchange', () => site.follow());
  site.follow(true);
}, bringText);
