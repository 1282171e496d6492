// messages.js: what Python sends, as tests/web/messages.py has written it, and a stage that gets it.
import { readFileSync } from 'node:fs';
import { all, fire, later, parsed } from './dom.js';
import { mountStage } from '../../assets/web/stage/stage.js';
/** @import { StageServer } from '../../assets/web/core/hub.js' */

export const { SPECVIZ_MESSAGES: folder } = process.env;
if (!folder) throw new Error('python -m tests.web.messages FOLDER; SPECVIZ_MESSAGES=FOLDER node --test tests/web (pytest does both)');
export const sent = JSON.parse(readFileSync(`${folder}/messages.json`, 'utf8'));

const words = Object.assign(document.createElement('script'), { id: 'sv-palette', textContent: JSON.stringify(sent.palette) });
document.body.append(words);

export const RUNNING = { name: 'running', message: '', ahead: 0, words: 'running' };
export const run = (name, more) => ({ ...structuredClone(sent.runs[name]), ...more });
export const live = (name, more) => {
  const message = run(name, { state: { ...RUNNING, name: 'finished', words: '' }, ...more });
  return { ...message, head: { ...message.head, recorded: false } };
};

// the increment that a stream would have sent for these steps
export function part(message, from, until, more = {}) {
  const { head, end, ...rest } = structuredClone(message);
  return { ...rest, ...(from ? {} : { head }), from, steps: rest.steps.slice(from, until), total: until, state: RUNNING, ...more };
}

// what the browser keeps, as the views find it; gives what it then holds
export function keeping(kept = {}) {
  globalThis.localStorage = /** @type {any} */ ({ getItem: () => JSON.stringify(kept), setItem: (_, text) => { kept = JSON.parse(text); } });
  return () => kept;
}

// A stage of a page without a server.
export function alone(message) {
  const root = parsed(sent.markup);
  keeping();
  document.body.append(root);
  return { root, hub: mountStage(root, { source: { start: (take) => take(structuredClone(message)), pull: async () => null } }) };
}

// A stage of its own with everything Python sent of `shown`. told: what it has told the server, pulls: what it asked for.
export async function staged(shown) {
  const holder = parsed(sent.markup), told = [], pulls = [], find = (selector) => all(holder, selector);
  keeping();
  document.body.append(holder);
  /** @type {StageServer} */
  const server = { since: async (request) => { pulls.push(request); return null; }, opening: async () => null, every_k: async () => null };
  const hub = mountStage(holder, { props: { value: '' }, watch() {}, server, trigger: (...what) => told.push(what) });
  const push = async (message) => {
    hub.take(structuredClone(message));
    await later();
  };
  const made = {
    hub, told, pulls, find, push, root: find('.sv-stage')[0],
    text: (selector) => find(selector)[0].textContent,
    isThere: (selector) => !find(selector)[0].closest('[hidden]'),
    press: (selector) => fire(find(selector)[0], 'click'),
    key: (key, at = '.sv-lanes-body') => fire(find(at)[0], 'keydown', { key }),
    // all rows of a short run, which is followed at its end else
    async toTop() {
      find('.sv-lanes-body')[0].scrollTop = 0;
      await fire(find('.sv-lanes-body')[0], 'scroll');
    },
  };
  if (shown) await push(shown);
  return made;
}
