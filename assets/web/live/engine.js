// engine.js: the page's hold on the engine in its worker. It brings the weights that a run needs, and passes on orders and
// events. The engine's code, the weights and the tokenizer are texts of the page, or of files beside it.
import { unpack } from '../core/files.js';
/** @import { Begin, Control, Go, Leave, Load, Run, Told } from './worker.js' */
/** @import { LiveContent } from '../messages.d.ts' */

export class Engine {
  /** @type {Map<string, Promise<void>>} */
  #loads = new Map();
  /** @type {Map<string, (error?: string) => void>} */
  #answers = new Map();                             // by the model that is being loaded
  /** @type {Promise<void> | null} */
  #started = null;
  #broken = '';                                     // why the worker does not work

  // bring: resolves to the text under an id. tell: gets what the worker tells of a run.
  /** @param {LiveContent} content @param {(id: string) => Promise<string>} bring @param {(told: Told) => void} tell */
  constructor(content, bring, tell) {
    this.content = content;
    this.bring = bring;
    this.tell = tell;
  }

  async #begin() {
    const code = JSON.parse(await unpack(await this.bring('sv-live-engine')));
    this.worker = new Worker(URL.createObjectURL(new Blob([code], { type: 'text/javascript' })));
    this.worker.addEventListener('message', ({ data }) => this.#hear(data));
    this.worker.addEventListener('error', ({ message }) => this.#fail(message || 'the engine did not start: this page may start no worker'));
    const { tokenizer, words: { template } } = this.content;
    this.order({ do: 'begin', tokenizer, template });
  }

  #start() {
    this.#started = this.#started || this.#begin();
    this.#started.catch(() => { this.#started = null; });
    return this.#started;
  }

  /** @param {string} message */
  #fail(message) {
    this.#broken = message;
    for (const answer of this.#answers.values()) answer(message);
    this.tell({ error: message });
  }

  /** @param {Told} told */
  #hear(told) {
    if ('loaded' in told) this.#answers.get(told.loaded)(told.error);
    else this.tell(told);
  }

  // Resolves once the model is there. Each is brought once, and again where that failed.
  /** @param {string} name @returns {Promise<void>} */
  need(name) {
    if (!this.#loads.has(name)) {
      const loading = this.#load(name);
      this.#loads.set(name, loading);
      loading.catch(() => this.#loads.delete(name));
    }
    return this.#loads.get(name);
  }

  async #load(name) {
    const [text] = await Promise.all([this.bring(`sv-weights-${name}`), this.#start()]);
    this.order({ do: 'load', name, config: this.content.configs[name], files: text.split('\n') });
    const error = this.#broken || await new Promise((answer) => { this.#answers.set(name, answer); });
    this.#answers.delete(name);
    if (error) throw new Error(error);
  }

  /** @param {Begin | Load | Control | Run | Leave | Go} order */
  order(order) { this.worker?.postMessage(order); }
}
