// kept_runs.js: the runs that this browser keeps: what is said of each, and apart from it the packed trace. Where the
// browser may not keep anything, or has no room, they stay for as long as the page is open. Draws nothing.
/** @import { LibraryLimits, RunEntry } from '../messages.d.ts' */

/** @typedef {RunEntry & { key: string, run: string, size: number, at: number }} Entry at: when it was stored, in milliseconds since 1970 */

const NAME = 'specviz-library', STORES = ['entries', 'packed'];
const PATIENCE_MS = 3000;                           // some browsers never say whether they open it

const result = (request) => new Promise((resolve, reject) => {
  request.onsuccess = () => resolve(request.result);
  request.onerror = () => reject(request.error);
});

const ended = (transaction) => new Promise((resolve, reject) => {
  transaction.oncomplete = resolve;
  transaction.onabort = () => reject(transaction.error);
});

// resolves to the open database, or null where it is refused, damaged or does not open in time
async function opened() {
  const request = indexedDB.open(NAME, 1);
  request.onupgradeneeded = () => STORES.forEach((name) => request.result.createObjectStore(name));
  const opening = result(request);
  const base = await Promise.race([opening, new Promise((done) => { setTimeout(done, PATIENCE_MS, null); })]);
  if (base && STORES.every((name) => base.objectStoreNames.contains(name))) return base;
  opening.then((late) => late.close(), () => { /* refused after all */ });
  return null;
}

// what was stored is anybody's: texts that are texts, numbers that are numbers
/** @param {unknown} value */
const text = (value) => (typeof value === 'string' ? value.slice(0, 500) : '');
/** @param {unknown} value */
const number = (value) => (typeof value === 'number' && Number.isFinite(value) ? value : 0);
/** @param {string} key @param {any} value @returns {Entry} */
const read = (key, value) => {
  const { title, words, facts, date, run, size, at } = value && typeof value === 'object' ? value : {};
  return {
    key, title: text(title) || 'A run', words: text(words), facts: text(facts), date: text(date), run: text(run), size: number(size), at: number(at),
  };
};

// resolves to the keeper; `isLasting`: whether what it keeps outlives the page
export const keepRuns = async () => {
  let base = null;
  try { base = await opened(); } catch (error) { /* private mode */ }
  if (base) base.onclose = () => { base = null; };    // the person has cleared what sites have kept
  /** @type {Map<string, { entry: Entry, packed: string }>} */
  const held = new Map();                             // by key, what the browser does not keep

  async function within(mode, work) {
    const transaction = base.transaction(STORES, mode);
    const [answer] = await Promise.all([work(...STORES.map((name) => transaction.objectStore(name))), ended(transaction)]);
    return answer;
  }

  async function stored() {
    if (!base) return [];
    try {
      const [keys, values] = await within('readonly', (entries) => Promise.all([result(entries.getAllKeys()), result(entries.getAll())]));
      return keys.map((key, place) => read(text(key), values[place]));
    } catch (error) {                                 // it cannot be read any more
      base = null;
      return [];
    }
  }

  const keeper = {
    get isLasting() { return Boolean(base); },

    // newest first
    async list() {
      const here = [...held.values()].map(({ entry }) => entry);
      return [...here, ...await stored()].sort((one, other) => other.at - one.at);
    },

    // resolves to whether it outlives the page
    /** @param {Entry} entry @param {string} packed */
    async put(entry, packed) {
      const { key, ...rest } = entry;
      try {
        await within('readwrite', (entries, files) => Promise.all([result(entries.put(rest, key)), result(files.put(packed, key))]));
        return true;
      } catch (error) {
        held.set(key, { entry, packed });
        return false;
      }
    },

    /** @param {string} key @returns {Promise<string | null>} */
    async packed(key) {
      if (held.has(key)) return held.get(key).packed;
      let found = null;
      try { found = base && await within('readonly', (entries, files) => result(files.get(key))); } catch (error) { /* damaged */ }
      return typeof found === 'string' ? found : null;
    },

    // resolves to whether it is gone
    /** @param {string} key */
    async remove(key) {
      if (held.delete(key) || !base) return true;
      try {
        await within('readwrite', (entries, files) => Promise.all([result(entries.delete(key)), result(files.delete(key))]));
        return true;
      } catch (error) { return false; }
    },

    // lets the oldest go until the rest fits; resolves to whether any had to
    /** @param {Pick<LibraryLimits, 'most_runs' | 'most_bytes'>} limits */
    async trim({ most_runs: mostRuns, most_bytes: mostBytes }) {
      let bytes = 0, hasLetGo = false;
      for (const [place, { key, size }] of (await keeper.list()).entries()) {
        bytes += size;
        if (place === 0 || (place < mostRuns && bytes <= mostBytes)) continue;
        await keeper.remove(key);
        hasLetGo = true;
      }
      return hasLetGo;
    },
  };
  return keeper;
};
