// standing.js: whether the fields still say what made the run on the stage. Where they do not, the stage steps back and
// Run names what it would run with. Which fields count, and their words, come from Python.
import { store, stored } from './memory.js';

const MADE = 'specviz-made', TOUCHED = 'specviz-touched';
const parse = (text) => { try { return JSON.parse(text); } catch (error) { return null; } };
const asText = (value) => JSON.stringify(value === undefined ? null : value);
const lastPart = (text) => text.split('/').pop();

export class Standing {
  now = null;                                         // the fields as they are
  made = null;                                        // as they were for the run on the stage; null: nobody knows
  run = null;
  about = null;
  plain = { words: 'Run', missing: '' };              // what Run says while nothing is changed
  isLive = false;

  // the fields have these values
  fields(now) {
    this.now = now;
    if (this.isLive && this.made && this.about) for (const name of this.about.live) this.made[name] = now[name];
    this.draw();
  }

  // a person has changed a field, so that a page that is loaded anew keeps the fields as they are
  touch() { if (this.run && !this.isLive) store(TOUCHED, this.run, true); }

  // Another run is on the stage. Says whether its settings are to be put into the fields: of a live run they came from there.
  begin(run, isLive) {
    const kept = parse(stored(MADE, true)), isKept = Boolean(kept && kept.run === run);
    Object.assign(this, { run, isLive, made: null, plain: { words: 'Run', missing: '' } });
    if (isLive) this.keep();
    else if (isKept && stored(TOUCHED, true) === run) this.made = kept.made;
    this.draw();
    return !isLive && !this.made;
  }

  // the run is over, and what the fields said while it was made is what it was made with
  end() {
    this.isLive = false;
    if (this.made) store(MADE, asText({ run: this.run, made: this.made }), true);
    this.draw();
  }

  // the fields now have the settings of the run on the stage
  keep() {
    this.made = this.now && { ...this.now };
    if (!this.isLive) store(TOUCHED, '', true);
    if (this.made) store(MADE, asText({ run: this.run, made: this.made }), true);
    this.draw();
  }

  // what Python tells of the run on the stage; about: see its about_fields
  say({ about, ...plain }) {
    Object.assign(this, { about, plain });
    this.draw();
  }

  counting() { return this.about?.counting[this.made?.method] || []; }

  changed() {
    if (this.isLive || !this.made || !this.now) return [];
    return this.counting().filter((name) => asText(this.made[name]) !== asText(this.now[name]));
  }

  words() {
    const changed = this.changed();
    if (changed.length > 1) return this.about.otherwise;
    const [name] = changed;
    if (!name) return this.isLive ? 'Run' : this.plain.words;
    if (this.about.whole[name]) return `Run with ${this.about.whole[name]}`;
    const value = this.now[name], { values, titles } = this.about;
    const told = { true: 'on', false: 'off', '': 'unset', null: 'unset' }[value] || values[value] || lastPart(String(value));
    return `Run with ${titles[name] || name} ${told}`;
  }

  draw() {
    const button = document.querySelector('#run'), words = this.words(), isChanged = this.changed().length > 0;
    document.documentElement.toggleAttribute('data-sv-changed', isChanged);
    const text = button && [...button.childNodes].find((node) => node.nodeType === 3 && node.nodeValue.trim());
    if (text && text.nodeValue !== words) text.nodeValue = words;
    if (button) button.title = isChanged ? words : this.plain.missing;
  }
}
