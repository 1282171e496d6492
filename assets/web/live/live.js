// live.js: the live page: a prompt, the settings, and the stage on which the engine's run appears step by step. Settings
// count from the next step on; a run ends up as a trace that specviz opens.
import { element, VERBATIM } from '../core/element.js';
import { copyText, saveText, unpack } from '../core/files.js';
import { Button, html } from '../core/html.js';
import { PACES as REPLAY } from '../core/hub.js';
import { mountStage, stageMarkup } from '../stage/stage.js';
import { render, useRef } from '../vendor/preact_htm.js';
import { Engine } from './engine.js';
import { Shown } from './shown.js';
import { asLines } from './trace.js';
import { wordsOf } from './words_of.js';
/** @import { LiveContent, RunState } from '../messages.d.ts' */
/** @import { Controls } from './run.js' */
/** @import { Told } from './worker.js' */

const PACES = { ...REPLAY, full: 0 };               // milliseconds between two steps
const FIRST = { k: 4, min_p: 0, seed: 5, max_new_tokens: 128, pace: 'normal' };
const MOST_PROMPT = 4000;                           // characters, of which the target reads about a thousand tokens
const SHARED = ['prompt', 'k', 'temperature', 'top_k', 'top_p', 'min_p', 'draft_model', 'seed', 'max_new_tokens'];
/** @type {Record<string, { least: number, most: number, whole: boolean }>} */
const NUMBERS = {
  temperature: { least: 0, most: 5, whole: false }, top_p: { least: .01, most: 1, whole: false }, min_p: { least: 0, most: 1, whole: false }, top_k: { least: 0, most: 4096, whole: true },
  seed: { least: 0, most: 4294967295, whole: true }, max_new_tokens: { least: 1, most: 512, whole: true },
};

/** @typedef {Controls & { prompt: string, seed: number, max_new_tokens: number, pace: string }} Values */

/** @param {RunState['name']} name @param {string} words @returns {RunState} */
const state = (name, words = name) => ({ name, message: null, ahead: 0, fraction: null, words, progress: null });

class Live {
  /** @type {Shown | null} */
  shown = null;
  /** @type {Record<string, any>[]} */
  events = [];
  /** @type {'idle' | 'loading' | 'running' | 'paused'} */
  doing = 'idle';
  steps = 0;                                        // how many a run begins with that still loads its models
  runs = 0; error = ''; ratio = 0; note = ''; said = '';
  /** @type {Map<string, string>} */
  refused = new Map();                              // what stands in a field and is not allowed: why, by its name

  /** @param {HTMLElement} holder @param {LiveContent} content @param {(id: string) => Promise<string>} bring */
  constructor(holder, content, bring) {
    this.words = content.words;
    this.engine = new Engine(content, bring, (told) => this.hear(told));
    this.box = element('div', 'sv-report sv-live-bar');
    const stage = element('div', 'sv-live-stage'), { settings: { temperature, top_k, top_p } } = this.words.template, [draft] = Object.keys(this.words.drafts);
    stage.append(stageMarkup());
    stage.querySelector('.sv-charts').remove();
    holder.append(this.box, stage);
    /** @type {Values} */
    this.first = { ...FIRST, prompt: this.words.prompts[0].text, draft_model: draft, temperature, top_k, top_p };
    this.numbers = { ...NUMBERS, k: { least: 0, most: this.words.headlines.length - 1, whole: true } };
    this.values = { ...this.first };
    this.draft = draft;                             // the one in force
    this.hub = mountStage(stage, { source: { start: (take) => { this.take = take; }, pull: async () => null } });
    this.lanes = /** @type {HTMLElement} */ (stage.querySelector('.sv-lanes-body'));
    stage.querySelector('[data-do="cancel"]').addEventListener('click', () => this.cancel());
    this.draw();
    for (const name of [this.words.template.target, draft]) this.engine.need(name).catch(() => {});    // likely to be wanted; where they do not come, Run says so
  }

  /** @param {Partial<Values>} changes */
  set(changes) {
    Object.assign(this.values, changes);
    for (const name of Object.keys(changes)) this.refused.delete(name);
    this.said = this.error = '';
    this.draw();
    if (this.doing === 'running' || this.doing === 'paused') this.control();
  }

  refuse(name, why) {
    this.refused.set(name, why);
    this.draw();
  }

  // What a link or a lesson asks for, as far as it is allowed here; the rest is as at first. note: what to look for
  /** @param {Record<string, string | number>} asked */
  fill(asked, note = '') {
    const names = Object.keys(this.first).filter((name) => Object.hasOwn(asked, name));
    const allowed = names.map((name) => [name, this.allowed(name, asked[name])]).filter(([, value]) => value !== undefined);
    this.note = note;
    /** @type {HTMLElement | null} */ (this.box.querySelector(':focus'))?.blur();       // what is half typed there gives way
    this.refused.clear();
    this.set(names.length ? { ...this.first, ...Object.fromEntries(allowed) } : {});
  }

  /** @param {string} name one of the values @param {string | number} value @returns {string | number | undefined} */
  allowed(name, value) {
    if (name === 'prompt') return String(value);
    if (name === 'pace') return Object.hasOwn(PACES, value) ? value : undefined;
    if (name === 'draft_model') return Object.hasOwn(this.words.drafts, value) ? value : undefined;
    const { least, most, whole } = this.numbers[name], number = Number(value);
    return String(value).trim() && number >= least && number <= most && (!whole || Number.isInteger(number)) ? number : undefined;
  }

  // The address of this page with what is asked; the same seed gives the same text.
  address() {
    const asked = new URLSearchParams(SHARED.map((name) => [name, String(this.values[name])]));
    return `${location.href.split('#')[0]}#live&${asked}`;
  }

  async share() {
    this.said = (await copyText(this.address())) ? 'copied' : 'not copied';
    this.draw();
  }

  // What counts from the next step on.
  inForce() {
    const { k, temperature, top_k, top_p, min_p, pace } = this.values;
    return { controls: { k, temperature, top_k, top_p, min_p, draft_model: this.draft }, pause: PACES[pace] };
  }

  // A draft that is not there yet is brought while the run goes on with the one before.
  async control() {
    const chosen = this.values.draft_model;
    this.engine.order({ do: 'control', ...this.inForce() });
    if (chosen === this.draft) return;
    try {
      await this.engine.need(chosen);
      if (chosen === this.values.draft_model) this.draft = chosen;
    } catch (error) {
      if (chosen === this.values.draft_model) this.values.draft_model = this.draft;
      this.be(this.doing, wordsOf(error));
    }
    this.engine.order({ do: 'control', ...this.inForce() });
    this.draw();
  }

  // The models that a run begins with; another draft may be chosen while one is brought.
  async models() {
    await this.engine.need(this.words.template.target);
    let brought = '';
    while (brought !== this.values.draft_model) {
      brought = this.values.draft_model;
      await this.engine.need(brought);
    }
    this.draft = brought;
  }

  /** @param {number} steps how many are made before it pauses */
  async run(steps) {
    const { prompt, seed, max_new_tokens } = this.values, id = `live-${this.runs += 1}`;
    if (prompt.length > MOST_PROMPT) this.refuse('prompt', `the prompt must have at most ${MOST_PROMPT} characters (got ${prompt.length})`);
    if (this.refused.size) return;
    this.engine.order({ do: 'leave' });
    this.shown = new Shown(this.words, id);
    this.events = [];
    this.steps = steps;
    this.be('loading');
    this.take({ ...this.shown.news(), state: state('loading', 'loading the models'), steps: [] });
    const isLeft = () => this.doing !== 'loading' || this.shown.run !== id;          // cancelled
    try {
      await this.models();
    } catch (error) {
      if (!isLeft()) this.hear({ error: wordsOf(error) });
      return;
    }
    if (isLeft()) return;
    this.engine.order({ do: 'run', id, asked: { prompt, seed, max_new_tokens }, steps: this.steps, ...this.inForce() });
    this.be(this.steps === Infinity ? 'running' : 'paused');
  }

  // A run whose models still load does not begin. The models that have come stay.
  cancel() {
    /** @type {HTMLElement} */ (this.box.querySelector('.sv-primary')).focus();     // the button that was pressed goes
    this.take({ ...this.shown.news(), state: state('finished', this.words.endings.stopped), steps: [] });
    this.be('idle');
  }

  /** @param {Live['doing']} doing */
  be(doing, error = '') {
    this.doing = doing;
    this.error = error;
    this.draw();
  }

  go(steps) {
    if (this.doing === 'loading') {
      this.steps += steps;
      return undefined;
    }
    if (this.doing === 'idle') return this.run(steps);
    if (steps) this.hub.last();                     // what is made now is looked at, not what was looked back at
    this.engine.order({ do: 'go', steps });
    this.be(steps === Infinity ? 'running' : 'paused');
    return this.take({ ...this.shown.news(), state: this.now(), steps: [] });
  }

  now() { return state(/** @type {RunState['name']} */ (this.doing)); }

  /** @param {Told} told */
  hear(told) {
    if ('ratio' in told) {
      this.ratio = told.ratio;
      this.draw();
    } else if ('error' in told) {
      if (this.shown) this.take({ ...this.shown.news(), state: state('finished', this.words.endings.error), steps: [] });
      this.be('idle', told.error);
    } else if ('event' in told && told.id === this.shown.run) this.add(told);
  }

  /** @param {Extract<Told, { event: object }>} told */
  add({ event, isSingle }) {
    this.events.push(event);
    if (event.event === 'header') return this.draw();                    // the trace can be saved now
    const { prompt } = this.events[0];
    if (event.event === 'step') this.take({ ...this.shown.message(/** @type {any} */ (event), { head: this.shown.head(prompt.text) }), state: isSingle ? state('running') : this.now() });
    if (isSingle && event.event === 'step') this.take({ ...this.shown.news(), state: this.now(), steps: [] });
    if (event.event !== 'footer') return undefined;
    this.take({ ...this.shown.end(event.reason, prompt.text), state: state('finished') });
    return this.be('idle');
  }

  save() { saveText(`specviz-${this.shown.run}.jsonl`, asLines(this.events)); }

  draw() {
    const focused = /** @type {HTMLButtonElement} */ (document.activeElement);
    render(html`<${Bar} live=${this} />`, this.box);
    if (focused.disabled && this.box.contains(focused)) this.lanes.focus();        // a run that ends takes Continue away
  }
}

const Field = ({ words, children }) => html`<label class="sv-live-field"><span class="sv-live-name">${words}</span>${children}</label>`;

// A number counts once it is whole (Enter, or the field is left). Nothing is put into a field that a person types into, and
// what is not allowed stays there until it is mended: no run begins with another number than the one that is seen.
/** @param {{ live: Live, name: keyof Values, words: string }} props */
function Count({ live, name, words }) {
  const own = useRef(), { least, most, whole } = live.numbers[name], isTyped = live.refused.has(name) || (own.current && own.current === document.activeElement);
  const change = ({ target }) => {
    const value = live.allowed(name, target.value);
    if (value === undefined) live.refuse(name, `${words} must be a ${whole ? 'whole number' : 'number'} from ${least} to ${most} (got ${target.value || 'none'})`);
    else live.set({ [name]: value });
  };
  return html`<${Field} words=${words}><input type="number" ref=${own} value=${isTyped ? undefined : live.values[name]} min=${least} max=${most} step=${whole ? 1 : 'any'}
    aria-invalid=${String(live.refused.has(name))} onChange=${change} onBlur=${() => live.draw()} /></${Field}>`;
}

/** @param {{ live: Live, name: keyof Values, words: string, options: [string, string][], isComing?: boolean }} props */
const Choice = ({ live, name, words, options, isComing }) => html`<${Field} words=${words}>${isComing && html`<span class="sv-live-coming" role="status">loading</span>`}<select value=${live.values[name]} onChange=${({ target }) => live.set({ [name]: target.value })}>
  ${options.map(([value, said]) => html`<option value=${value} selected=${value === live.values[name]}>${said}</option>`)}</select></${Field}>`;

// The prompt and its chips, the settings, the buttons.
/** @param {{ live: Live }} props */
function Bar({ live }) {
  const { values, doing, words, ratio, note, said } = live, isIdle = doing === 'idle', isRunning = doing === 'running', isLoading = doing === 'loading';
  const [refused = ''] = live.refused.values(), error = refused || live.error, isComing = !isIdle && !isLoading && values.draft_model !== live.draft;
  return html`<textarea rows="2" aria-label="Prompt" spellcheck=${false} value=${values.prompt} onInput=${({ target }) => live.set({ prompt: target.value })} ...${VERBATIM} />
    <div class="sv-live-prompts" role="group" aria-label="Ready prompts">${words.prompts.map(({ title, text }) => html`
      <${Button} className="sv-mode" words=${title} aria-pressed=${String(text === values.prompt)} onClick=${() => live.set({ prompt: text })} />`)}</div>
    <div class="sv-live-drive"><${Button} className="sv-primary" words=${isIdle || isLoading ? 'Run' : 'Run again'} onClick=${() => live.run(Infinity)} />
      <${Button} words=${isRunning ? 'Pause' : 'Continue'} disabled=${isIdle || isLoading} onClick=${() => live.go(isRunning ? 0 : Infinity)} />
      <${Button} words="Step" title="one step, then pause" onClick=${() => live.go(1)} />
      <${Field} words="K, tokens drafted per step"><span class="sv-live-k"><input type="range" min="0" max=${live.numbers.k.most} value=${values.k}
        onInput=${({ target }) => live.set({ k: Number(target.value) })} /><b aria-hidden="true" ...${VERBATIM}>${values.k}</b></span></${Field}><p class="sv-live-error" role="alert" hidden=${!error}>${error}</p></div>
    <div class="sv-live-settings"><${Choice} live=${live} name="draft_model" words="Draft" isComing=${isComing} options=${Object.entries(words.drafts).map(([name, said]) => [name, `${said}: ${name}`])} />
      <${Count} live=${live} name="temperature" words="Temperature" />
      <${Choice} live=${live} name="pace" words="Pace" options=${Object.keys(PACES).map((pace) => [pace, pace])} />
      <details class="sv-live-more"><summary>More</summary><div><${Count} live=${live} name="seed" words="Seed" /><${Count} live=${live} name="max_new_tokens" words="New tokens" />
        <${Count} live=${live} name="top_k" words="Top-k (0: all)" /><${Count} live=${live} name="top_p" words="Top-p (1: all)" /><${Count} live=${live} name="min_p" words="Min-p (0: all)" />
        <${Button} words="Copy link" title="this page with this prompt and these settings" onClick=${() => live.share()} /><span class="sv-live-said" role="status">${said}</span>
        <${Button} words="Save trace" title="this run as a file that specviz opens" disabled=${!live.events.length} onClick=${() => live.save()} /></div></details></div>
    <p class="sv-live-note" hidden=${!note}>${note}</p>
    <p class="sv-live-why" data-waiting=${ratio ? undefined : ''}>${words.passes.replace('{ratio}', String(ratio))}</p>`;
}

// bring: resolves to the text under an id of the page or of a file beside it. Gives null, and says why, where that fails.
/** @param {HTMLElement} holder @param {(id: string) => Promise<string>} bring @returns {Promise<Live | null>} */
export async function mountLive(holder, bring) {
  try {
    return new Live(holder, JSON.parse(await unpack(await bring('sv-live'))), bring);
  } catch (error) {
    holder.replaceChildren(element('p', 'sv-report sv-live-error', wordsOf(error)));
    return null;
  }
}
