// library.js: the library drawer: runs of this browser, recorded runs that come with specviz, opened files. A run joins
// when it is over; two that are ticked can be compared. Texts go through textContent.
import { isFramed } from '../core/address.js';
import { answerOf } from '../core/answer.js';
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { render } from '../vendor/preact_htm.js';
import { keepRuns } from './kept_runs.js';
/** @import { Entry as OwnEntry } from './kept_runs.js' */
/** @import { Host } from '../core/hub.js' */
/** @import { BroughtRun, KeptRun, LibraryLimits, PanelRefusal, RunEntry, ShippedEntry, StoredRun } from '../messages.d.ts' */
/** @import { Page } from '../page.js' */

const DELETED = 'specviz-deleted', MOST_DELETED = 60;      // runs that a reload must not bring back
const PATIENCE = 5, PAUSE_MS = 1000;                       // a run that has left the stage takes a moment to end
const WORDS = {
  none: 'No runs yet. A run joins when it is over.',
  passing: isFramed
    ? 'In this frame the browser keeps nothing: your runs stay until the page is closed. Open specviz in its own window to keep them.'
    : 'This browser does not let the page keep anything (a private window?): your runs stay here until the page is closed.',
  full: 'This browser has no more room for runs: this one stays here until the page is closed. Delete others, or save its file under Share.',
  gone: 'This run was deleted in another window.',
  stuck: 'This browser does not let the page delete this run.',
  damaged: 'This run cannot be read any more in this browser: delete it.',
  silent: 'The server gives no answer: is it still running?',
  reading: 'Reading the file…',
  tick: 'Tick two runs to compare them.', one: 'Tick one more run to compare it.', two: 'Two runs are ticked.',
};

const later = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
const deleted = () => {
  try {
    const kept = JSON.parse(localStorage.getItem(DELETED));
    return Array.isArray(kept) ? kept : [];
  } catch (error) { return []; }
};
const markDeleted = (runs) => {
  try { localStorage.setItem(DELETED, JSON.stringify([...runs, ...deleted()].slice(0, MOST_DELETED))); } catch (error) { /* private mode */ }
};

// in the time of whoever looks; a run may be as old as it likes
const CLOCK = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit' });
/** @param {string | undefined} date */
const dated = (date) => (Number.isNaN(Date.parse(date)) ? [] : [CLOCK.format(new Date(date))]);

const Press = ({ words, title, press }) => html`<button type="button" class="sv-library-press" aria-label="${words}: ${title}" onClick=${press}>${words}</button>`;

/** @typedef {Omit<RunEntry, 'date'> & Partial<RunEntry>} Words of a run; a recorded one has no date */
/** @typedef {[words: string, press: () => void]} Doer a button */
/** @typedef {[id: string, entry: Words, buttons: Doer[]]} Listed a run in a group */

// One run. ticked: the ids of all that are.
/**
 * @param {{
 *   id: string, entry: Words, buttons: Doer[], ticked: string[], tick: (isOn: boolean) => void, isShown: boolean,
 * }} props
 */
function Entry({ id, entry: { title, words, facts, date }, buttons, ticked, tick, isShown }) {
  const isTicked = ticked.includes(id);
  return html`<li class="sv-library-entry" data-id=${id} aria-current=${isShown ? 'true' : undefined}>
    <label class="sv-library-tick"><input type="checkbox" data-id=${id} checked=${isTicked} disabled=${ticked.length === 2 && !isTicked} aria-label="Compare: ${title}"
      onChange=${({ target }) => tick(target.checked)} /></label>
    <div class="sv-library-about"><h3 ...${VERBATIM}>${title}</h3><p class="sv-library-words">${words}</p><p class="sv-library-facts" ...${VERBATIM}>${[facts, ...dated(date)].join(' · ')}</p>
      <div class="sv-library-row">${buttons.map(([name, press]) => html`<${Press} words=${name} title=${title} press=${press} />`)}
        ${isShown && html`<p class="sv-library-facts">on the stage now</p>`}</div></div></li>`;
}

/**
 * @param {{
 *   title: string, note: string, list: Listed[], shown?: string, ticked: string[], tick: (ids: string[]) => void,
 * }} props
 */
export const Group = ({ title, note, list, shown, ticked, tick }) => html`<section class="sv-library-group"><h2>${title}</h2><p class="sv-library-note">${note}</p>
  <ul>${list.map(([id, entry, buttons]) => html`<${Entry} key=${id} id=${id} entry=${entry} buttons=${buttons} ticked=${ticked} isShown=${id === shown}
    tick=${(isOn) => tick(isOn ? [...ticked, id] : ticked.filter((other) => other !== id))} />`)}</ul></section>`;

const isOpen = () => document.documentElement.hasAttribute('data-sv-library');

/**
 * @typedef {object} LibraryServer
 * @property {(wanted: { run: string, has: string[] }) => Promise<KeptRun | StoredRun | PanelRefusal | null>} kept
 * @property {(wanted: { run: string }) => Promise<boolean>} known
 * @property {(wanted: { packed: string }) => Promise<BroughtRun | PanelRefusal>} bring
 * @property {(wanted: {}) => Promise<ShippedEntry[]>} listed
 */

class LibraryPanel {
  /** @type {Map<string, string>} */
  ids = new Map();                                    // run -> key, of all runs of this page that the drawer knows
  /** @type {Set<string>} */
  asked = new Set();                                  // runs that are joining or have joined
  /** @type {Awaited<ReturnType<typeof keepRuns>> | null} */
  runs = null;
  /** @type {OwnEntry[]} */
  entries = [];
  /** @type {ShippedEntry[] | null} */
  shipped = null;
  /** @type {string[]} */
  ticked = [];
  /** @type {string | null} */
  watched = null;
  /** @type {string | null} */
  reading = null;                                     // the run on the stage while a file is read
  said = '';
  /** @type {{ entry: OwnEntry, packed: string } | null} */
  undo = null;                                        // the run that Undo brings back

  /** @param {HTMLElement} holder @param {Host & { page: Page, server: LibraryServer }} host */
  constructor(holder, { props, trigger, server, page }) {
    this.trigger = trigger;
    this.server = server;
    this.page = page;
    /** @type {LibraryLimits} */
    this.limits = JSON.parse(props.value);
    this.root = holder.querySelector('.sv-panel');
    this.channel = 'BroadcastChannel' in window ? new BroadcastChannel('specviz-library') : null;
    this.root.classList.add('sv-library');
    this.draw();
    this.takeFiles();
    new MutationObserver(() => this.list()).observe(document.documentElement, { attributeFilter: ['data-sv-library'] });
    this.begin();
  }

  async begin() {
    this.runs = await keepRuns();
    if (this.channel) this.channel.onmessage = () => this.renew();
    await this.renew();
    await this.list();
    this.attach();
  }

  async changed() {
    this.channel?.postMessage('');
    await this.renew();
  }

  // what is said while the drawer is closed is announced at the button that opens it
  /** @param {string} words @param {LibraryPanel['undo']} undo */
  say(words, undo = null) {
    document.documentElement.toggleAttribute('data-sv-news', !isOpen());
    Object.assign(this, { said: words, undo });
    this.draw();
  }

  // a recorded run has one name everywhere
  onStage() { return this.ids.get(this.page.hub()?.run) || this.page.hub()?.run; }

  draw() {
    const { runs, entries, shipped, ticked, said, undo } = this, shown = this.onStage(), tick = (list) => { this.ticked = list; this.draw(); };
    /** @type {Listed[]} */
    const own = entries.map((entry) => [entry.key, entry, [['Open', () => this.open(entry)], ['Delete', () => this.remove(entry)]]]);
    /** @type {Listed[]} */
    const recorded = (shipped || []).map((entry) => [`shipped:${entry.name}`, entry, [['Open', () => this.openShipped(entry.name)]]]);
    const note = [runs && !runs.isLasting && WORDS.passing, runs && !entries.length && WORDS.none].filter(Boolean).join(' ');
    render(html`<p class="sv-library-note">A saved run (.jsonl or .jsonl.gz) or SGLang's record of DSpark's decisions, also one that you drop on this page.</p>
      <div class="sv-library-said" role="status"><p>${said}</p>${undo && html`<button type="button" class="sv-library-press" onClick=${() => this.bringBack()}>Undo</button>`}</div>
      <${Group} title="Runs of this browser" note=${note} list=${own} shown=${shown} ticked=${ticked} tick=${tick} />
      <${Group} title="Recorded runs that come with specviz" note="" list=${recorded} shown=${shown} ticked=${ticked} tick=${tick} />
      <div class="sv-library-foot"><p class="sv-library-note">${[WORDS.tick, WORDS.one, WORDS.two][ticked.length]}</p>
        <button type="button" class="sv-library-press sv-library-compare" disabled=${ticked.length < 2} onClick=${() => this.compareTwo()}>Compare these two</button></div>`, this.root);
  }

  async renew() {
    this.entries = await this.runs.list();
    for (const { run, key } of this.entries) if (run) this.ids.set(run, key);
    const known = [...this.entries.map(({ key }) => key), ...(this.shipped || []).map(({ name }) => `shipped:${name}`)];
    this.ticked = this.ticked.filter((id) => known.includes(id));
    this.draw();
  }

  // ---- joining -----------------------------------------------------------------------------------------------------
  // a run that is over joins, also one that another run has driven from the stage
  note() {
    const { run, state } = this.page.hub();
    if (this.watched !== run) {
      if (this.watched) this.join(this.watched, PATIENCE);
      this.watched = run;
      this.draw();
    }
    if (run && (!state || state.name === 'finished')) this.join(run, 1);
  }

  /** @param {string} run @param {number} patience */
  async join(run, patience) {
    if (this.asked.has(run) || deleted().includes(run)) return;
    this.asked.add(run);
    for (let left = patience; left > 0; left -= 1) {
      if (left < patience) await later(PAUSE_MS);
      const kept = await answerOf(this.server.kept({ run, has: this.entries.map(({ key }) => key) }));
      if (kept) return this.keep(run, kept);
    }
    this.asked.delete(run);
  }

  /** @param {string} run @param {KeptRun | StoredRun | PanelRefusal} answer */
  async keep(run, answer) {
    if ('refusal' in answer) return this.say(answer.refusal);
    this.ids.set(run, answer.key);
    if (!('packed' in answer)) return this.draw();
    const { packed, ...entry } = answer;
    const isLasting = await this.runs.put({ ...entry, run, at: Date.now() }, packed);
    if (this.runs.isLasting && !isLasting) this.say(WORDS.full);
    if (await this.runs.trim(this.limits)) this.say(this.limits.let_go);
    await this.changed();
  }

  // ---- what the buttons do -----------------------------------------------------------------------------------------
  showStage() {
    this.page.go('explore');
    this.page.close();
  }

  /** @param {OwnEntry} entry */
  async open(entry) {
    if (entry.key === this.onStage()) return this.showStage();
    const packed = await this.runs.packed(entry.key);
    if (!packed) return this.missing(entry.key);
    this.trigger('show', { packed });
    this.showStage();
  }

  openShipped(name) {
    this.trigger('show', { shipped: name });
    this.showStage();
  }

  async missing(key) {
    await this.renew();
    this.say(this.entries.some((entry) => entry.key === key) ? WORDS.damaged : WORDS.gone);
  }

  /** @param {OwnEntry} entry */
  async remove(entry) {
    const packed = await this.runs.packed(entry.key);
    const copies = [...this.ids].filter(([, key]) => key === entry.key).map(([run]) => run);
    markDeleted([...copies, entry.run].filter(Boolean));
    if (!await this.runs.remove(entry.key)) return this.say(WORDS.stuck);
    this.say(`Deleted: ${entry.title}`, packed && { entry, packed });
    await this.changed();
    this.root.querySelector('.sv-library-said button')?.focus();
  }

  async bringBack() {
    const { entry, packed } = this.undo;
    await this.runs.put(entry, packed);
    this.say(`${entry.title} is back.`);
    await this.changed();
  }

  // what the server calls a run; one that it has forgotten is sent to it again
  /** @param {string} id @returns {Promise<string | void>} */
  async idOf(id) {
    if (id.startsWith('shipped:')) return id;
    const known = [...this.ids].filter(([, key]) => key === id).map(([run]) => run);
    for (const run of known) if (await answerOf(this.server.known({ run }))) return run;
    const packed = await this.runs.packed(id);
    if (!packed) return this.missing(id);
    const answer = await answerOf(this.server.bring({ packed })) || { refusal: WORDS.silent };
    if ('refusal' in answer) return this.say(answer.refusal);
    this.ids.set(answer.run, id);
    this.asked.add(answer.run);
    return answer.run;
  }

  async compareTwo() {
    const [left, right] = [await this.idOf(this.ticked[0]), await this.idOf(this.ticked[1])];
    if (left && right) this.page.actIn('compare', 'two-runs', 'show', { left, right });
  }

  // ---- a file that is dropped on the page is opened as one that is chosen -------------------------------------------
  setReading(isOn) {
    this.reading = isOn ? this.page.run() || '' : null;
    document.documentElement.toggleAttribute('data-sv-reading', isOn);
    if (isOn) Object.assign(this, { said: WORDS.reading, undo: null });
    else if (this.said === WORDS.reading) this.said = '';
    this.draw();
  }

  takeFiles() {
    const hasFile = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
    const setDropping = (isOn) => document.documentElement.toggleAttribute('data-sv-dropping', isOn);
    document.addEventListener('change', ({ target }) => {
      const input = /** @type {HTMLInputElement} */ (target);
      if (input.matches('#library input[type=file]')) this.setReading(input.files.length === 1 && input.files[0].size <= this.limits.most_opened);
    });
    document.addEventListener('sv-refused', () => this.setReading(false));
    this.page.onRun(({ run }) => {
      if (this.reading === null || run === this.reading) return;
      this.setReading(false);
      this.showStage();
    });
    document.addEventListener('dragover', (event) => {
      if (!hasFile(event)) return;
      event.preventDefault();
      setDropping(true);
    });
    document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) setDropping(false); });
    document.addEventListener('drop', (event) => {
      setDropping(false);
      /** @type {HTMLInputElement} */
      const input = document.querySelector('#library input[type=file]');
      if (!hasFile(event) || !input) return;
      event.preventDefault();
      input.value = '';                               // the same file again is a change as well
      input.files = event.dataTransfer.files;
      input.dispatchEvent(new Event('change', { bubbles: true }));
    });
  }

  // ---- the beginning -----------------------------------------------------------------------------------------------
  async list() {
    if (isOpen()) document.documentElement.removeAttribute('data-sv-news');
    if (this.shipped || !isOpen()) return;
    const answer = await answerOf(this.server.listed({}));
    if (!answer) return this.say(WORDS.silent);
    this.shipped = answer;
    this.draw();
  }

  attach() {
    const hub = this.page.hub();
    if (!hub) {
      setTimeout(() => this.attach(), PAUSE_MS);
      return;
    }
    hub.on('info', () => this.note());
    this.note();
  }
}

export const library = (holder, host) => new LibraryPanel(holder, host);
