// language.js: the page in the browser's language. A text is looked up by its English words, as a whole or sentence by
// sentence; what stands in no table stays English, and says so to a screen reader. What no translator may change is left
// (see element.js).
import { unpack } from './files.js';
import { literal } from './literal.js';
import { recall, remember } from './memory.js';

export const ENGLISH = 'en';
export const LANGUAGES = { de: 'Deutsch' };         // assets/words has a table of each
const ATTRIBUTES = ['aria-label', 'title', 'placeholder'];
const LEFT = '[translate=no], script, noscript, style, template, [role=listbox]';
const INLINE = 'a, b, code, em, i, strong';         // what belongs to a sentence also where it begins or ends it
const ELEMENT = '<>', NAME = /\{(\w+)\}/;
const SENTENCE_END = /([.?!]) /;
const MOST_REMEMBERED = 2000;

const isText = (node) => node.nodeType === Node.TEXT_NODE;
// a number is one word; a name or a token may be more
const inPlace = (name) => (name.startsWith('number') ? '([<>~+-]?\\d[^ ]*?)' : '(.+?)');

/** @param {[string, string]} entry */
function pattern([english, other]) {
  const parts = english.split(NAME), names = parts.filter((part, at) => at % 2);
  const source = parts.map((part, at) => (at % 2 ? inPlace(part) : literal(part))).join('');
  return { expression: new RegExp(`^${source}$`, 's'), names, other, size: english.replace(NAME, '').length };
}

function sentencesOf(text) {
  const parts = text.split(SENTENCE_END), sentences = [];
  for (let at = 0; at < parts.length; at += 2) sentences.push(parts[at] + (parts[at + 1] ?? ''));
  return sentences;
}

// A table of sentences. "{name}" in English is whatever stands there, and comes back where the other language has it;
// "{words...}" is looked up as well, and must be there. "<>" is an element inside the sentence.
export class Words {
  /** @type {Map<string, string>} */
  exact = new Map();
  /** @type {Map<string, string | null>} */
  matched = new Map();

  /** @param {Record<string, Record<string, string>>} rooms */
  constructor(rooms) {
    const entries = Object.values(rooms).flatMap(Object.entries);
    for (const [english, other] of entries) this.exact.set(english, other);
    this.other = new Set(this.exact.values());
    this.patterns = entries.filter(([english]) => NAME.test(english)).map(pattern).sort((one, other) => other.size - one.size);
  }

  // the text in the other language; null where the table lacks a sentence of it
  /** @param {string} english @returns {string | null} */
  of(english) {
    const known = this.exact.get(english);
    if (known !== undefined) return known;
    if (!this.matched.has(english)) {
      if (this.matched.size > MOST_REMEMBERED) this.matched.clear();
      this.matched.set(english, this.match(english) ?? this.bySentence(english));
    }
    return this.matched.get(english);
  }

  // the longest beginning that is there, and what follows it
  bySentence(english) {
    const sentences = sentencesOf(english);
    for (let at = sentences.length - 1; at > 0; at -= 1) {
      const [first, rest] = [sentences.slice(0, at), sentences.slice(at)].map((some) => this.of(some.join(' ')));
      if (first !== null && rest !== null) return `${first} ${rest}`;
    }
    return null;
  }

  match(english) {
    for (const { expression, names, other } of this.patterns) {
      const [, ...values] = expression.exec(english) ?? [];
      const said = values.map((value, at) => (names[at].startsWith('words') ? this.of(value) : value));
      if (said.length && !said.includes(null)) return other.replace(new RegExp(NAME, 'g'), (whole, name) => said[names.indexOf(name)]);
    }
    return null;
  }
}

// html.js gives a text among elements a plain element of its own; texts side by side are no sentence
const isPlain = (node) => node?.localName === 'span' && !node.attributes.length && node.childNodes.length === 1 && isText(node.firstChild);
const isPart = (node) => isPlain(node) && !isPlain(node.previousElementSibling) && !isPlain(node.nextElementSibling);

// the text of a sentence's part
function textOf(node) {
  if (isText(node)) return node;
  return isPart(node) ? node.firstChild : null;
}

// the element whose sentence a node belongs to
function ownerOf(node) {
  const element = isText(node) ? node.parentElement : node;
  return element && element.parentElement && textOf(element) ? element.parentElement : element;
}

class Speaker {
  /** @type {WeakMap<object, Record<string, { english: string, said: string }>>} what each place said in English */
  heard = new WeakMap();

  /** @param {Words} words */
  constructor(words) { this.words = words; }

  english(node, name, now) {
    const known = this.heard.get(node)?.[name];
    return known?.said === now ? known.english : now;
  }

  keep(node, name, english, said) { this.heard.set(node, { ...this.heard.get(node), [name]: { english, said } }); }

  /** @param {Text} node */
  textIn(node) { return this.english(node, 'data', node.data); }

  // a text of this element, and the elements among it
  parts(element) {
    const parts = [...element.childNodes].filter((node) => isText(node) || node.nodeType === Node.ELEMENT_NODE).map((node) => ({ node, text: textOf(node) }));
    const isOutside = ({ node, text }) => (text ? !this.textIn(text).trim() : !node.matches(INLINE));
    while (parts.length && isOutside(parts[0])) parts.shift();
    while (parts.length && isOutside(parts.at(-1))) parts.pop();
    return parts;
  }

  sentence(element) {
    if (element.localName === 'textarea') return;
    if (element.matches('option:not([value])')) element.setAttribute('value', element.value);   // which is its English text
    const parts = this.parts(element);
    const english = parts.map(({ text }) => (text ? this.textIn(text) : ELEMENT)).join('');
    if (!parts.some(({ text }) => text && /\p{L}{2}/u.test(this.textIn(text)))) return element.removeAttribute('lang');
    const whole = english.replace(/[ \n\t]+/g, ' ').trim();
    const other = this.words.of(whole), texts = parts.map(({ text }) => text);
    if (other !== null) {
      element.removeAttribute('lang');
      this.sayBetween(texts, `${/^\s*/.exec(english)[0]}${other}${/\s*$/.exec(english)[0]}`.split(ELEMENT));
    } else if (!this.words.other.has(whole)) {      // else it is a copy of what was said
      element.lang = ENGLISH;
      for (const text of texts) if (text) this.say(text, this.textIn(text));
    }
  }

  /** @param {Text} text @param {string} now */
  say(text, now) {
    this.keep(text, 'data', this.textIn(text), now);
    if (text.data !== now) text.data = now;
  }

  // texts: those of a sentence, with null for each element; pieces: the words before, between and after the elements
  sayBetween(texts, pieces) {
    for (const text of texts) {
      if (!text) pieces.shift();
      else {
        this.say(text, pieces[0]);
        pieces[0] = '';                             // what is left of it stands already
      }
    }
  }

  attribute(element, name) {
    const now = element.getAttribute(name), english = now && this.english(element, name, now), other = english && this.words.of(english);
    if (!other) return;
    this.keep(element, name, english, other);
    if (now !== other) element.setAttribute(name, other);
  }

  // everything in this element
  within(element) {
    const admits = (each) => (each.matches(LEFT) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT);
    const walker = document.createTreeWalker(element, NodeFilter.SHOW_ELEMENT, admits);
    for (let each = walker.currentNode; each; each = walker.nextNode()) {
      for (const name of ATTRIBUTES) this.attribute(each, name);
      if (ownerOf(each) === each) this.sentence(each);
    }
  }

  /** @param {MutationRecord[]} changes */
  follow(changes) {
    const owners = new Set(), added = new Set();
    for (const { type, target, attributeName, addedNodes } of changes) {
      const owner = ownerOf(target);
      if (!owner || owner.closest(LEFT)) continue;
      if (type === 'attributes') this.attribute(target, attributeName);
      else owners.add(owner);
      for (const node of /** @type {Iterable<Element>} */ (addedNodes)) if (node.nodeType === Node.ELEMENT_NODE && !node.matches(LEFT)) added.add(node);
    }
    for (const owner of owners) this.sentence(owner);
    for (const node of added) if (node.isConnected) this.within(node);
  }
}

// From now on the page says everything in this language.
/** @param {Record<string, Record<string, string>>} rooms */
export function speak(rooms) {
  const speaker = new Speaker(new Words(rooms));
  speaker.within(document.body);
  const observer = new MutationObserver((changes) => {
    speaker.follow(changes);
    observer.takeRecords();                         // its own words
  });
  observer.observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ATTRIBUTES });
}

// The language that was chosen on this page, else the first of the browser's that is there.
/** @param {readonly string[]} languages @param {string} chosen */
export function languageOf(languages, chosen) {
  const known = [ENGLISH, ...Object.keys(LANGUAGES)], wanted = [chosen, ...languages].map((each) => each.split('-')[0].toLowerCase());
  return wanted.find((each) => known.includes(each)) ?? ENGLISH;
}

export const chosenLanguage = () => recall('language', ['', ENGLISH, ...Object.keys(LANGUAGES)]);

export function chooseLanguage(name) {
  remember('language', name);
  location.reload();                                // what was said in one language is not said again in another
}

// bring: resolves to the packed table of a language
/** @param {(name: string) => Promise<string> | string} bring */
export async function bringLanguage(bring) {
  const name = languageOf(navigator.languages, chosenLanguage()), { documentElement: root } = document;
  // Gradio says the browser's, also where the page has no table of it
  const keep = () => { if (root.lang !== name) root.lang = name; };
  new MutationObserver(keep).observe(root, { attributeFilter: ['lang'] });
  keep();
  if (name === ENGLISH) return;
  root.dataset.svSilent = '';
  try { speak(JSON.parse(await unpack(await bring(name)))); } finally { delete root.dataset.svSilent; }
}
