// token_texts.js: many texts, one of them shown: a list to search, a draft to choose, and the text's tokens marked by
// agreement. Pointing at a token, or walking there with the arrow keys, tells its facts. All of it arrives as words.
import { element, button, spelled, verbatim } from '../core/element.js';
import { unpack } from '../core/files.js';
/** @import { PlaceInText, TextChunk, TextsBlock } from '../messages.d.ts' */
/** @import { BlockHost } from './blocks.js' */

const MOST_LISTED = 200;                            // names in the list at once; a search finds the others
const MOVES = { ArrowLeft: -1, ArrowRight: 1 };
let made = 0;

const plainly = (words) => words.toLowerCase().replace(/\s+/g, ' ');      // a no-break space is a space to who types
/** @param {string} words @param {number} value */
const option = (words, value) => Object.assign(element('option', '', words), { value });

function field(words, control) {
  const holder = element('label', 'sv-control');
  holder.append(element('span', '', words), control);
  return holder;
}

/** @param {TextsBlock['key']} entries */
function key(entries) {
  const list = element('ul', 'sv-bars-key sv-agree-key');
  list.append(...entries.map(([sign, words]) => {
    const entry = element('li');
    entry.append(verbatim('span', `sv-agree sv-agree-${sign}`, 'token'), element('span', '', words));
    return entry;
  }));
  return list;
}

/**
 * @typedef {object} ReadText a text in words; facts: fact by fact, one for each token
 * @property {string} prompt
 * @property {string[]} tokens
 * @property {string[][]} facts
 * @property {{ words: string, steps: string, facts: string[][] }[]} drafts
 */

// the chosen text, from the chunk that holds it
/** @param {TextsBlock} block @returns {(chosen: number) => Promise<ReadText>} */
function reader({ chunks, per_chunk: perChunk }) {
  /** @type {{ place: number, chunk: TextChunk | null }} */
  const opened = { place: -1, chunk: null };
  return async (chosen) => {
    const place = Math.floor(chosen / perChunk);
    if (opened.place !== place) Object.assign(opened, { place, chunk: JSON.parse(await unpack(chunks[place])) });
    const { words, texts } = opened.chunk, text = texts[chosen - place * perChunk];
    /** @param {number[]} column */
    const told = (column) => column.map((each) => words[each]);
    return {
      prompt: words[text.prompt], tokens: told(text.tokens), facts: text.facts.map(told),
      drafts: text.drafts.map((draft) => ({ words: words[draft.words], steps: draft.steps, facts: draft.facts.map(told) })),
    };
  };
}

/** @param {TextsBlock['entries']} entries */
function chooser(entries) {
  const search = Object.assign(element('input'), { type: 'search', placeholder: 'id, tag, words of the prompt' });
  const list = Object.assign(verbatim('select', 'sv-texts-list'), { size: 6 }), more = element('p', 'sv-small');
  const lower = entries.map(([name, words]) => plainly(`${name} ${words}`));
  const fill = () => {
    const wanted = plainly(search.value.trim()), found = [];
    entries.forEach((entry, place) => { if (lower[place].includes(wanted)) found.push(place); });
    const shown = found.slice(0, MOST_LISTED);
    list.replaceChildren(...shown.map((place) => option(`${entries[place][0]} · ${entries[place][1]}`, place)));
    const some = `Showing ${shown.length} of ${spelled(found.length)}; search to find others.`;
    more.textContent = found.length > shown.length ? some : found.length ? '' : 'No text has this in its id, its tags or the first words of its prompt.';
    list.selectedIndex = shown.length ? 0 : -1;
    list.dispatchEvent(new Event('change'));
  };
  // the text with this place among the entries, whatever is searched for
  /** @param {number} place */
  const open = (place) => {
    if (![...list.options].some(({ value }) => value === String(place))) {
      search.value = '';
      fill();
      if (place >= MOST_LISTED) list.append(option(`${entries[place][0]} · ${entries[place][1]}`, place));
    }
    list.value = String(place);
    list.dispatchEvent(new Event('change'));
  };
  search.addEventListener('input', fill);
  return { search, list, more, fill, open };
}

// a line of tokens of which one is selected, at first the one at `start`; `tell` hears of it. Gives `go`, by so many.
function walk(line, tokens, start, tell) {
  let at = -1;
  const select = (place) => {
    if (!tokens[place] || place === at) return false;
    tokens[at]?.classList.remove('sv-agree-at');
    at = place;
    tokens[at].classList.add('sv-agree-at');
    tell(at);
    return true;
  };
  const show = (place) => { if (select(place)) within(line, tokens[place]); };
  const pointed = ({ target }) => { const token = target.closest('.sv-agree'); if (token) select(tokens.indexOf(token)); };
  line.onclick = pointed;
  line.onpointerover = (event) => { if (event.pointerType === 'mouse') pointed(event); };
  line.onkeydown = (event) => {
    const next = event.key === 'Home' ? 0 : event.key === 'End' ? tokens.length - 1 : at + MOVES[event.key];
    if (!tokens[next]) return;
    event.preventDefault();
    show(next);
  };
  show(tokens[start] ? start : 0);
  return (by) => show(at + by);
}

// scrolls the line alone, so that the token is in sight
function within(line, token) {
  const above = token.getBoundingClientRect().top - line.getBoundingClientRect().top;
  if (above < 0 || above > line.clientHeight - 2 * token.offsetHeight) line.scrollTop += above - line.clientHeight / 3;
}

// to the token before and to the next one, for a finger
function steps(go) {
  const bar = element('div', 'sv-texts-steps');
  bar.append(...[['previous token', '‹', -1], ['next token', '›', 1]].map(([words, sign, by]) => {
    const press = Object.assign(button('sv-button', sign, () => go(by)), { title: words });
    press.setAttribute('aria-label', words);
    return press;
  }));
  return bar;
}

// box: where it is drawn. Gives what is to be done when it goes.
/** @param {HTMLElement} box @param {TextsBlock} block @param {BlockHost} host */
export function tokenTexts(box, block, { root }) {
  const { entries, numbers, drafts, facts, draft_facts: draftFacts, key: signs, rest } = block;
  const bar = element('div', 'sv-texts-bar'), body = element('div', 'sv-texts-body');
  const line = verbatim('div', 'sv-texts-line'), panel = element('div', 'sv-texts-panel'), about = element('p', 'sv-texts-about');
  const side = element('div', 'sv-texts-side'), { search, list, more, fill, open } = chooser(entries);
  const choice = verbatim('select'), read = reader(block), looked = new Map();      // per text, the token looked at
  /** @type {ReadText | null} */
  let text = null;
  let shown = '';
  /** @type {(by: number) => void} */
  let go = () => {};
  panel.id = `sv-texts-${made += 1}`;
  choice.append(...drafts.map((words, place) => option(words, place)));
  line.tabIndex = 0;
  line.setAttribute('role', 'group');
  line.setAttribute('aria-label', 'the text, token by token: the arrow keys go along it');
  line.setAttribute('aria-describedby', panel.id);
  panel.setAttribute('role', 'status');

  function tell(place) {
    looked.set(shown, place);
    const rows = [...facts.map((title, row) => [title, text.facts[row][place]]),
      ...draftFacts.map((title, row) => [title, text.drafts[choice.value].facts[row][place]])];
    const made = element('dl');
    made.append(...rows.flatMap(([title, words]) => [element('dt', '', title), verbatim('dd', '', words)]));
    panel.replaceChildren(made);
  }
  function clear() {
    text = null;
    go = () => {};
    about.textContent = '';
    for (const each of [line, panel]) each.replaceChildren();
  }
  function show() {
    if (!text) return;
    const { words, steps } = text.drafts[choice.value];
    const tokens = text.tokens.map((words_, place) => element('span', `sv-agree sv-agree-${steps[place]}`, words_));
    about.textContent = words;
    line.replaceChildren(element('span', 'sv-texts-prompt', text.prompt), ...tokens);
    go = walk(line, tokens, looked.get(shown), tell);
  }
  async function choose() {
    const wanted = list.value;
    if (!wanted) { clear(); return; }
    let found = null;
    try { found = await read(Number(wanted)); } catch (error) {
      about.textContent = 'This text could not be unpacked: it takes a browser of 2023 or later.';
      return;
    }
    if (list.value !== wanted) return;
    [text, shown] = [found, wanted];
    show();
  }
  // from a table elsewhere on the page
  /** @param {CustomEvent<PlaceInText>} event */
  function opened({ detail }) {
    const place = numbers.indexOf(detail.text);
    if (place < 0 || !box.isConnected) return;
    for (let fold = box.closest('details'); fold; fold = fold.parentElement.closest('details')) fold.open = true;
    looked.set(String(place), detail.token);
    choice.value = String(detail.draft);
    open(place);
    body.scrollIntoView({ block: 'center' });
    line.focus({ preventScroll: true });
  }
  root.addEventListener('sv-open', opened);
  list.addEventListener('change', choose);
  choice.addEventListener('change', show);
  bar.append(field('search', search), field('text', list), field('draft model', choice));
  side.append(steps((by) => go(by)), panel);
  body.append(line, side);
  box.append(bar, more, about, body, key(signs), ...(rest ? [element('p', 'sv-small', rest)] : []));
  fill();
  return () => root.removeEventListener('sv-open', opened);
}
