// numbers.js: the sentence with K in it, the three numbers, the state of the run, and the table of all numbers.
import { element, sentence, verbatim } from '../core/element.js';
/** @import { Hub, Trigger } from '../core/hub.js' */
/** @import { ProgressBar, RunState, ShownStep, SpeedWords } from '../messages.d.ts' */

const PATIENCE = 30000;                             // milliseconds until Measure may be pressed again where nothing comes back
/** @type {SpeedWords} */
const UNMEASURED = { value: '', words: 'not measured yet', note: '', can_measure: false, progress: null };
const MODELS = ['target', 'draft'];                  // whose names stand on chips
const LASTING = 1000;                               // milliseconds after which a wait between two steps is told

export class Numbers {
  /** @param {HTMLElement} root @param {Hub} hub @param {{ trigger: Trigger }} host */
  constructor(root, hub, { trigger }) {
    this.root = root;
    this.hub = hub;
    this.trigger = trigger;
    this.lead = this.root.querySelector('.sv-sentence');
    this.context = this.root.querySelector('.sv-context');
    this.state = this.root.querySelector('.sv-state');
    this.table = this.root.querySelector('.sv-table-body');
    this.measure = /** @type {HTMLButtonElement} */ (this.root.querySelector('[data-do="measure"]'));
    this.measuring = this.root.querySelector('.sv-measuring');
    this.loading = this.root.querySelector('.sv-loading');
    this.bar = this.loading.querySelector('.sv-progress');
    this.cancel = /** @type {HTMLButtonElement} */ (this.loading.querySelector('[data-do="cancel"]'));
    this.shownSentence = null;
    this.shownContext = null;
    /** @type {RunState | null} */
    this.told = null;
    this.telling = 0;
    this.measure.addEventListener('click', () => {
      this.measure.disabled = true;
      this.measure.textContent = 'Measuring…';
      this.trigger('measure', { run: this.hub.run });
      setTimeout(() => this.idle(), PATIENCE);
    });
    this.measuring.querySelector('[data-do="unmeasure"]').addEventListener('click', () => this.trigger('unmeasure', {}));
    this.cancel.addEventListener('click', () => {
      this.cancel.disabled = true;
      this.cancel.textContent = 'Cancelling…';
      this.trigger?.('cancel', {});                 // without a server, whoever made the stage hears the button
    });
    this.table.closest('details').addEventListener('toggle', () => this.numbers());
    this.hub.on('reset', () => {
      this.shownSentence = this.shownContext = this.told = null;
      clearTimeout(this.telling);
      this.telling = 0;
      this.lead.replaceChildren();
      this.context.replaceChildren();
      this.idle();
      this.totals();
    });
    this.hub.on('cursor', () => this.totals());
    this.hub.on('imagine', () => { this.totals(); this.speed(); });
    this.hub.on('info', () => { this.news(); this.speed(); this.numbers(); });
  }

  part(name) { return this.root.querySelector(`[data-number="${name}"]`); }

  totals() {
    const step = this.hub.imagined || this.hub.steps[this.hub.cursor - 1];
    this.part('calls').textContent = step && step.totals.tokens_per_call ? step.totals.tokens_per_call : '–';
    this.part('accepted').textContent = step && step.totals.accepted ? step.totals.accepted : '–';
    if (!step) return;
    this.part('accepted-words').textContent = step.totals.accepted_words;
    if (step.sentence !== this.shownSentence) {
      this.shownSentence = step.sentence;
      sentence(this.lead, step.sentence);
    }
    if (step.context !== this.shownContext) {
      this.shownContext = step.context;
      this.context.replaceChildren(...step.context.map(this.chip));
    }
  }

  /** @param {ShownStep['context'][0]} part */
  chip([role, words]) {
    const made = element('span', `sv-chip sv-chip-${role}`);
    if (MODELS.includes(role)) made.append(element('span', '', role), ' ', verbatim('span', '', words));
    else made.textContent = words;
    made.title = words;
    return made;
  }

  speed() {
    const shown = (!this.hub.imagined && this.hub.speed) || UNMEASURED;
    this.part('speed').textContent = shown.value || '–';
    this.part('speed-words').textContent = shown.words;
    this.part('speed-words').title = shown.note;
    this.measure.hidden = !shown.can_measure || this.hub.isLive();
    if (shown.value || shown.note || shown.progress || this.hub.isLive()) this.idle();
    this.far(shown.progress);
  }

  // How far a measurement has come; null: none goes on.
  /** @param {ProgressBar | null} progress */
  far(progress) {
    this.measuring.hidden = !progress;
    if (progress) this.fillBar(this.measuring, progress);
  }

  /** @param {HTMLElement} holder @param {ProgressBar | null} progress */
  fillBar(holder, progress) {
    const bar = holder.querySelector('.sv-progress');
    const width = progress ? `${progress.width}%` : '';
    /** @type {HTMLElement} */ (bar.firstElementChild).style.width = width;
    /** @type {HTMLElement} */ (bar).style.setProperty('--sv-width', width);
    if (progress) bar.setAttribute('aria-valuenow', String(progress.width));
    else bar.removeAttribute('aria-valuenow');
    holder.querySelector('.sv-progress-words').textContent = progress ? progress.words : '';
  }

  idle() {
    this.measure.disabled = false;
    this.measure.textContent = 'Measure';
  }

  // The state to tell. Several runs take turns at the engine: a short wait between two steps is no news.
  toTell() {
    const isWaiting = this.hub.state && this.hub.state.name === 'queued' && !this.hub.end;
    if (isWaiting && this.told && this.told.name === 'running') {
      this.telling = this.telling || setTimeout(() => {
        this.told = this.hub.state;
        this.news();
      }, LASTING);
    } else {
      clearTimeout(this.telling);
      this.telling = 0;
      this.told = this.hub.state;
    }
    return this.told;
  }

  news() {
    const now = this.toTell();
    const name = this.hub.state ? this.hub.state.name : '';
    const recorded = this.hub.head && this.hub.head.recorded;
    const ended = this.hub.end && !this.hub.playing ? this.hub.end.words : '';
    const words = ended || (now && !recorded ? now.words : '');
    this.state.replaceChildren(...(recorded ? [element('span', 'sv-badge', 'recorded run'), words && ' '] : []), words);
    this.state.dataset.name = recorded ? 'recorded' : this.hub.end ? this.hub.end.reason : now ? now.name : '';
    this.state.hidden = !this.state.textContent;
    this.root.dataset.state = name;
    this.root.toggleAttribute('data-busy', this.hub.isLive() && !this.hub.steps.length);
    this.root.querySelector('.sv-busy-words').textContent = this.hub.state && !this.hub.steps.length ? this.hub.state.words : '';
    this.load(name === 'loading' && !this.hub.end ? this.hub.state.progress : undefined);
  }

  // How far loading has come; null: nobody knows, undefined: nothing is loaded. It stands where the eye is.
  /** @param {ProgressBar | null | undefined} progress */
  load(progress) {
    this.loading.hidden = progress === undefined;
    this.root.toggleAttribute('data-loading', progress !== undefined);
    if (progress === undefined) {
      this.cancel.disabled = false;
      this.cancel.textContent = 'Cancel';
      return;
    }
    this.root.querySelector(this.hub.steps.length ? '.sv-state' : '.sv-busy-words').after(this.loading);
    this.bar.toggleAttribute('data-unknown', !progress);
    this.fillBar(this.loading, progress);
  }

  numbers() {
    if (!this.hub.head || !this.hub.numbers || !this.table.closest('details').open) return;
    this.table.replaceChildren(...this.hub.head.metrics.map(([label, formula, also], place) => {
      const row = element('tr'), name = element('th', '', label);
      name.scope = 'row';
      if (also) name.append(verbatim('span', 'sv-also', also));
      row.append(name, verbatim('td', '', this.hub.numbers[place]), verbatim('td', 'sv-formula', formula));
      return row;
    }));
  }
}
