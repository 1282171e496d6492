// standing.js: whether the fields still say what made the run on the stage. Where they do not, the stage steps back and
// Run names what it would run with. Which fields count, and their words, come from Python.
import { store, stored } from './memory.js';
/** @import { FieldFacts, RunButton, StandingRun } from '../messages.d.ts' */

/** @typedef {Record<string, string | number | boolean | null>} Values what the fields say, by name */
const MADE = 'specviz-made', TOUCHED = 'specviz-touched';
const parse = (text) => { try { return JSON.parse(text); } catch (error) { return null; } };
const asText = (value) => JSON.stringify(value === undefined ? null : value);
/** @type {<V>(map: Record<string, V>, name: unknown) => V | undefined} */
const own = (map, name) => (Object.hasOwn(map, String(name)) ? map[String(name)] : undefined);   // a value may be called "constructor"
const lastPart = (text) => text.split('/').pop();
/** @type {RunButton} */
const PLAIN = { words: 'Run', missing: '', needs: [] };

export class Standing {
  /** @type {Values | null} */
  now = null;                                         // the fields as they are
  /** @type {Values | null} */
  made = null;                                        // as they were for the run on the stage; null: nobody knows
  /** @type {string | null} */
  run = null;
  /** @type {FieldFacts | null} */
  about = null;
  plain = PLAIN;                                      // what Run says while nothing is changed
  /** @type {{ run: string, made: Values } | null} */
  before = null;                                      // the run that stood before, and how it was made
  isLive = false;

  // the fields have these values
  /** @param {Values} now */
  fields(now) {
    this.now = now;
    if (this.isLive && this.made && this.about) for (const name of this.about.live) this.made[name] = now[name];
    this.draw();
  }

  // a person has changed a field, so that a page that is loaded anew keeps the fields as they are
  touch() { if (this.run && !this.isLive) store(TOUCHED, this.run, true); }

  // Another run is on the stage. Says whether its settings are to be put into the fields: of a live run they came from there.
  // isBack: the run after it was refused, and the fields keep what was asked of that.
  /** @param {string} run @param {boolean} isLive */
  begin(run, isLive, isBack = false) {
    const kept = parse(stored(MADE, true)), isKept = Boolean(kept && kept.run === run);
    const known = isBack && this.before?.run === run ? this.before.made : null;
    this.before = { run: this.run, made: this.made };
    Object.assign(this, { run, isLive, made: known, plain: PLAIN });
    if (isBack) { this.store(); this.touch(); }
    else if (isLive) this.keep();
    else if (isKept && stored(TOUCHED, true) === run) this.made = kept.made;
    this.draw();
    return !isLive && !isBack && !this.made;
  }

  // the run is over, and as far as the browser knows it was made with what the fields said meanwhile
  end() {
    this.isLive = false;
    this.store();
    this.draw();
  }

  // the fields now have the settings of the run on the stage
  keep() {
    this.made = this.now && { ...this.now };
    if (!this.isLive) store(TOUCHED, '', true);
    this.store();
    this.draw();
  }

  store() { if (this.made) store(MADE, asText({ run: this.run, made: this.made }), true); }

  // What Python tells of the run on the stage.
  /** @param {StandingRun} told */
  say({ about, made = {}, ...plain }) {
    Object.assign(this, { about, plain });
    if (this.made && !this.isLive) {
      Object.assign(this.made, made);
      this.store();
    }
    this.draw();
  }

  counting() { return (this.about && own(this.about.counting, this.made?.method)) || []; }

  changed() {
    if (this.isLive || !this.made || !this.now) return [];
    return this.counting().filter((name) => asText(this.made[name]) !== asText(this.now[name]));
  }

  // whether the run that the fields describe lacks what the run on the stage lacks
  /** @param {string[]} changed */
  lacks(changed) {
    const { needs } = this.plain;
    return needs.length > 0 && !needs.some((name) => changed.includes(name));
  }

  /** @param {string[]} changed */
  words(changed) {
    if (!this.isLive && this.lacks(changed)) return this.plain.words;
    if (changed.length > 1) return this.about.otherwise;
    const [name] = changed;
    if (!name) return this.isLive ? 'Run' : this.plain.words;
    const value = this.now[name], { values, titles, whole } = this.about;
    if (own(whole, name)) return `Run with ${whole[name]}`;
    const told = own({ true: 'on', false: 'off', '': 'unset', null: 'unset' }, value) || own(values, value) || lastPart(String(value));
    return `Run with ${own(titles, name) || name} ${told}`;
  }

  draw() {
    const button = document.querySelector('#run'), changed = this.changed(), words = this.words(changed), isChanged = changed.length > 0;
    document.documentElement.toggleAttribute('data-sv-changed', isChanged);
    document.documentElement.toggleAttribute('data-sv-lacks', Boolean(this.plain.missing));
    const text = button && [...button.childNodes].find((node) => node.nodeType === 3 && node.nodeValue.trim());
    if (text && text.nodeValue !== words) text.nodeValue = words;
    if (button) button.title = isChanged && !this.lacks(changed) ? words : this.plain.missing;
  }
}
