// token_texts.js: many texts, one of them shown: a list to search, a draft to choose, and the text's tokens marked by
// agreement. Pointing at a token, or walking there with the arrow keys, tells its facts. All of it arrives as words.
'use strict';
(() => {
  const { element } = window.specviz;
  const MOST_LISTED = 200;                            // names in the list at once; a search finds the others
  const MOVES = { ArrowLeft: -1, ArrowRight: 1 };
  let made = 0;

  const option = (words, value) => Object.assign(element('option', '', words), { value });

  function field(words, control) {
    const holder = element('label', 'sv-control');
    holder.append(element('span', '', words), control);
    return holder;
  }

  function key(entries) {
    const list = element('ul', 'sv-bars-key sv-agree-key');
    list.append(...entries.map(([sign, words]) => {
      const entry = element('li');
      entry.append(element('span', `sv-agree sv-agree-${sign}`, 'token'), element('span', '', words));
      return entry;
    }));
    return list;
  }

  // the chosen text, as words, from the chunk that holds it
  function reader({ chunks, per_chunk: perChunk, entries }) {
    const opened = { place: -1, chunk: null };
    return async (chosen) => {
      const place = Math.floor(chosen / perChunk);
      if (opened.place !== place) Object.assign(opened, { place, chunk: JSON.parse(await window.specviz.unpack(chunks[place])) });
      const { words, texts } = opened.chunk, text = texts[chosen - place * perChunk];
      const told = (column) => column.map((each) => words[each]);
      return {
        name: entries[chosen][0], prompt: words[text.prompt], tokens: told(text.tokens), facts: text.facts.map(told),
        drafts: text.drafts.map((draft) => ({ words: words[draft.words], steps: draft.steps, facts: draft.facts.map(told) })),
      };
    };
  }

  function chooser(entries) {
    const search = Object.assign(element('input'), { type: 'search', placeholder: 'any part of it' });
    const list = Object.assign(element('select', 'sv-texts-list'), { size: 6 }), more = element('p', 'sv-small');
    const lower = entries.map(([name, words]) => `${name} ${words}`.toLowerCase());
    const fill = () => {
      const wanted = search.value.trim().toLowerCase(), found = [];
      entries.forEach((entry, place) => { if (lower[place].includes(wanted)) found.push(place); });
      const shown = found.slice(0, MOST_LISTED);
      list.replaceChildren(...shown.map((place) => option(`${entries[place][0]} · ${entries[place][1]}`, place)));
      more.textContent = found.length > shown.length ? 'More texts fit: search for a part of the name.' : found.length ? '' : 'No text has this in its name.';
      list.selectedIndex = shown.length ? 0 : -1;
      if (shown.length) list.dispatchEvent(new Event('change'));
    };
    search.addEventListener('input', fill);
    return { search, list, more, fill };
  }

  // a line of tokens of which one is selected; `tell` hears of it
  function walk(line, tokens, tell) {
    let at = -1;
    const select = (place) => {
      if (!tokens[place] || place === at) return;
      tokens[at]?.classList.remove('sv-agree-at');
      at = place;
      tokens[at].classList.add('sv-agree-at');
      tell(at);
    };
    const pointed = ({ target }) => { const token = target.closest('.sv-agree'); if (token) select(tokens.indexOf(token)); };
    line.onclick = pointed;
    line.onpointerover = (event) => { if (event.pointerType === 'mouse') pointed(event); };
    line.onkeydown = (event) => {
      const next = event.key === 'Home' ? 0 : event.key === 'End' ? tokens.length - 1 : at + MOVES[event.key];
      if (!tokens[next]) return;
      event.preventDefault();
      select(next);
      tokens[next].scrollIntoView({ block: 'nearest' });
    };
    select(0);
  }

  window.specviz.tokenTexts = (block) => {
    const { entries, drafts, facts, draft_facts: draftFacts, key: signs, rest } = block;
    const box = element('div', 'sv-block sv-texts'), bar = element('div', 'sv-texts-bar'), body = element('div', 'sv-texts-body');
    const line = element('div', 'sv-texts-line'), panel = element('div', 'sv-texts-panel'), about = element('p', 'sv-texts-about');
    const { search, list, more, fill } = chooser(entries), choice = element('select'), read = reader(block);
    let text = null;
    panel.id = `sv-texts-${made += 1}`;
    choice.append(...drafts.map(option));
    line.tabIndex = 0;
    line.setAttribute('role', 'group');
    line.setAttribute('aria-label', 'the text, token by token: the arrow keys go along it');
    line.setAttribute('aria-describedby', panel.id);
    panel.setAttribute('role', 'status');

    function tell(place) {
      const rows = [...facts.map((title, row) => [title, text.facts[row][place]]),
        ...draftFacts.map((title, row) => [title, text.drafts[choice.value].facts[row][place]])];
      const made = element('dl');
      made.append(...rows.flatMap(([title, words]) => [element('dt', '', title), element('dd', '', words)]));
      panel.replaceChildren(made);
    }
    function show() {
      if (!text) return;
      const { words, steps } = text.drafts[choice.value];
      const tokens = text.tokens.map((words_, place) => element('span', `sv-agree sv-agree-${steps[place]}`, words_));
      about.textContent = words;
      line.replaceChildren(element('span', 'sv-texts-prompt', text.prompt), ...tokens);
      walk(line, tokens, tell);
    }
    async function choose() {
      const wanted = list.value;
      try { text = await read(Number(wanted)); } catch (error) {
        about.textContent = 'This text could not be unpacked: it takes a browser of 2023 or later.';
        return;
      }
      if (list.value === wanted) show();
    }
    list.addEventListener('change', choose);
    choice.addEventListener('change', show);
    bar.append(field('search', search), field('text', list), field('draft model', choice));
    body.append(line, panel);
    box.append(bar, more, about, body, key(signs), ...(rest ? [element('p', 'sv-small', rest)] : []));
    fill();
    return box;
  };
})();
