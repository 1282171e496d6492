// numbers.js: the sentence with K in it, the three numbers, the state of the run, and the table of all numbers.
import { element, sentence } from '../core/element.js';

const PATIENCE = 30000;                             // milliseconds until Measure may be pressed again
const LASTING = 1000;                               // milliseconds after which a wait between two steps is told

export const numbersView = (root, hub, { trigger }) => {
  const part = (name) => root.querySelector(`[data-number="${name}"]`);
  const lead = root.querySelector('.sv-sentence');
  const context = root.querySelector('.sv-context');
  const state = root.querySelector('.sv-state');
  const table = root.querySelector('.sv-table-body');
  const measure = root.querySelector('[data-do="measure"]');
  const loading = root.querySelector('.sv-loading');
  const bar = loading.querySelector('.sv-progress');
  const cancel = loading.querySelector('[data-do="cancel"]');
  let shownSentence = null, shownContext = null, told = null, telling = 0;

  function totals() {
    const step = hub.steps[hub.cursor - 1];
    part('calls').textContent = step && step.totals.tokens_per_call ? step.totals.tokens_per_call : '–';
    part('kept').textContent = step && step.totals.kept ? step.totals.kept : '–';
    if (!step) return;
    part('kept-words').textContent = step.totals.kept_words;
    if (step.sentence !== shownSentence) {
      shownSentence = step.sentence;
      sentence(lead, step.sentence);
    }
    if (step.context !== shownContext) {
      shownContext = step.context;
      context.replaceChildren(...step.context.map(chip));
    }
  }

  function chip([role, words]) {
    const made = element('span', `sv-chip sv-chip-${role}`, words);
    made.title = words;
    return made;
  }

  function speed() {
    const shown = hub.speed || { value: '', words: 'not measured yet', note: '', can_measure: false };
    part('speed').textContent = shown.value || '–';
    part('speed-words').textContent = shown.words;
    part('speed-words').title = shown.note;
    measure.hidden = !shown.can_measure || hub.isLive();
    if (shown.value || shown.note || hub.isLive()) idle();
  }

  function idle() {
    measure.disabled = false;
    measure.textContent = 'Measure';
  }

  // The state to tell. Several runs take turns at the engine: a short wait between two steps is no news.
  function toTell() {
    const isWaiting = hub.state && hub.state.name === 'queued' && !hub.end;
    if (isWaiting && told && told.name === 'running') {
      telling = telling || setTimeout(() => {
        told = hub.state;
        news();
      }, LASTING);
    } else {
      clearTimeout(telling);
      telling = 0;
      told = hub.state;
    }
    return told;
  }

  function news() {
    const now = toTell();
    const name = hub.state ? hub.state.name : '';
    const recorded = hub.head && hub.head.recorded;
    const ended = hub.end && !hub.playing ? hub.end.words : '';
    const words = ended || (now && !recorded ? now.words : '');
    state.replaceChildren(...(recorded ? [element('span', 'sv-badge', 'recorded run'), words && ' '] : []), words);
    state.dataset.name = recorded ? 'recorded' : hub.end ? hub.end.reason : now ? now.name : '';
    state.hidden = !state.textContent;
    root.dataset.state = name;
    root.toggleAttribute('data-busy', hub.isLive() && !hub.steps.length);
    root.querySelector('.sv-busy-words').textContent = hub.state && !hub.steps.length ? hub.state.words : '';
    load(name === 'loading' && !hub.end ? hub.state.progress : undefined);
  }

  // How far loading has come; null: nobody knows, undefined: nothing is loaded. It stands where the eye is.
  function load(progress) {
    loading.hidden = progress === undefined;
    root.toggleAttribute('data-loading', progress !== undefined);
    if (progress === undefined) {
      cancel.disabled = false;
      cancel.textContent = 'Cancel';
      return;
    }
    root.querySelector(hub.steps.length ? '.sv-state' : '.sv-busy-words').after(loading);
    bar.toggleAttribute('data-unknown', !progress);
    bar.firstElementChild.style.width = progress ? `${progress.width}%` : '';
    if (progress) bar.setAttribute('aria-valuenow', String(progress.width));
    else bar.removeAttribute('aria-valuenow');
    loading.querySelector('.sv-progress-words').textContent = progress ? progress.words : '';
  }

  function numbers() {
    if (!hub.head || !hub.numbers || !table.closest('details').open) return;
    table.replaceChildren(...hub.head.metrics.map(([label, formula, also], place) => {
      const row = element('tr'), name = element('th', '', label);
      name.scope = 'row';
      if (also) name.append(element('span', 'sv-also', also));
      row.append(name, element('td', '', hub.numbers[place]), element('td', 'sv-formula', formula));
      return row;
    }));
  }

  measure.addEventListener('click', () => {
    measure.disabled = true;
    measure.textContent = 'Measuring…';
    trigger('measure', { run: hub.run });
    setTimeout(idle, PATIENCE);
  });
  cancel.addEventListener('click', () => {
    cancel.disabled = true;
    cancel.textContent = 'Cancelling…';
    trigger('cancel', {});
  });
  table.closest('details').addEventListener('toggle', numbers);
  hub.on('reset', () => {
    shownSentence = shownContext = told = null;
    clearTimeout(telling);
    telling = 0;
    context.replaceChildren();
    idle();
    totals();
  });
  hub.on('cursor', totals);
  hub.on('info', () => { news(); speed(); numbers(); });
};
