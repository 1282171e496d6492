// shelf.js: the library drawer: runs of this browser, recorded runs that come with specviz, opened files. A run joins
// when it is over; two that are ticked can be compared. Texts go through textContent.
import { element, button } from '../core/element.js';
import { keepRuns } from './keeping.js';

const DELETED = 'specviz-deleted', MOST_DELETED = 60;      // runs that a reload must not bring back
const PATIENCE = 5, PAUSE_MS = 1000;                       // a run that has left the stage takes a moment to end
const WORDS = {
  none: 'No runs yet. A run joins when it is over.',
  passing: 'This browser does not let the page keep anything (a private window?): your runs stay here until the page is closed.',
  full: 'This browser has no more room for runs: this one stays here until the page is closed. Delete others, or save its file under Share.',
  gone: 'This run was deleted in another window.',
  stuck: 'This browser does not let the page delete this run.',
  damaged: 'This run cannot be read any more in this browser: delete it.',
  silent: 'The server gives no answer: is it still running?',
  reading: 'Reading the file…',
  tick: 'Tick two runs to compare them.', one: 'Tick one more run to compare it.', two: 'Two runs are ticked.',
};

const later = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, milliseconds); });
const deleted = () => {
  try {
    const kept = JSON.parse(localStorage.getItem(DELETED));
    return Array.isArray(kept) ? kept : [];
  } catch (error) { return []; }
};
const markDeleted = (runs) => {
  try { localStorage.setItem(DELETED, JSON.stringify([...runs, ...deleted()].slice(0, MOST_DELETED))); } catch (error) { /* private mode */ }
};

// in the time of whoever looks; a run may be as old as it likes
const CLOCK = new Intl.DateTimeFormat('en-GB', { day: 'numeric', month: 'short', year: 'numeric', hour: '2-digit', minute: '2-digit', second: '2-digit' });
const dated = (date) => (Number.isNaN(Date.parse(date)) ? [] : [CLOCK.format(new Date(date))]);

function group(title, hint) {
  const node = element('section', 'sv-shelf-group'), list = element('ul');
  const note = element('p', 'sv-shelf-note', hint);
  node.append(element('h2', '', title), note, list);
  return { node, list, note };
}

export const shelf = async (holder, { props, trigger, server, page }) => {
  const limits = JSON.parse(props.value), root = holder.querySelector('.sv-panel');
  const own = group('Runs of this browser', ''), recorded = group('Recorded runs that come with specviz', '');
  const said = element('div', 'sv-shelf-said'), words = element('p'), foot = element('div', 'sv-shelf-foot');
  const hint = element('p', 'sv-shelf-note', WORDS.tick), compare = button('sv-shelf-press sv-shelf-compare', 'Compare these two', compareTwo);
  const ids = new Map();                              // run -> key, of all runs of this page that the drawer knows
  const asked = new Set();                            // runs that are joining or have joined
  let runs = null, entries = [], shipped = null, ticked = [], watched = null;

  said.setAttribute('role', 'status');
  said.append(words);
  foot.append(hint, compare);
  root.classList.add('sv-shelf');
  root.append(element('p', 'sv-shelf-note', 'A saved run (.jsonl or .jsonl.gz), also one that you drop on this page.'), said, own.node, recorded.node, foot);

  // null where the server does not answer
  async function ask(name, data) {
    try { return await server[name](data); } catch (error) { return null; }
  }

  const channel = 'BroadcastChannel' in window ? new BroadcastChannel('specviz-library') : null;
  const changed = async () => {
    channel?.postMessage('');
    await renew();
  };

  const isOpen = () => document.documentElement.hasAttribute('data-sv-library');

  // what is said while the drawer is closed is announced at the button that opens it
  function say(text, ...more) {
    document.documentElement.toggleAttribute('data-sv-news', !isOpen());
    words.textContent = text;
    said.replaceChildren(words, ...more);
  }

  // ---- drawing ---------------------------------------------------------------------------------------------------
  const onStage = () => ids.get(page.hub()?.run) || page.hub()?.run;       // a recorded run has one name everywhere

  function line(id, entry, buttons) {
    const node = element('li', 'sv-shelf-entry'), about = element('div', 'sv-shelf-about');
    const tick = element('label', 'sv-shelf-tick'), box = Object.assign(element('input'), { type: 'checkbox', checked: ticked.includes(id) });
    box.disabled = ticked.length === 2 && !box.checked;
    box.setAttribute('aria-label', `Compare: ${entry.title}`);
    box.dataset.id = id;
    box.addEventListener('change', () => setTicked(box.checked ? [...ticked, id] : ticked.filter((other) => other !== id)));
    tick.append(box);
    about.append(element('h3', '', entry.title), element('p', 'sv-shelf-words', entry.words), element('p', 'sv-shelf-facts', [entry.facts, ...dated(entry.date)].join(' · ')));
    const row = element('div', 'sv-shelf-row');
    row.append(...buttons);
    about.append(row);
    if (id === onStage()) {
      node.setAttribute('aria-current', 'true');
      row.append(element('p', 'sv-shelf-facts', 'on the stage now'));
    }
    node.dataset.id = id;
    node.append(tick, about);
    return node;
  }

  function named(press_, title) {
    press_.setAttribute('aria-label', `${press_.textContent}: ${title}`);
    return press_;
  }

  function draw() {
    own.list.replaceChildren(...entries.map((entry) => line(entry.key, entry, [
      named(button('sv-shelf-press', 'Open', () => open(entry)), entry.title),
      named(button('sv-shelf-press', 'Delete', () => remove(entry)), entry.title),
    ])));
    own.note.textContent = [runs && !runs.isLasting && WORDS.passing, runs && !entries.length && WORDS.none].filter(Boolean).join(' ');
    recorded.list.replaceChildren(...(shipped || []).map((entry) => line(`shipped:${entry.name}`, entry, [
      named(button('sv-shelf-press', 'Open', () => openShipped(entry.name)), entry.title),
    ])));
    hint.textContent = [WORDS.tick, WORDS.one, WORDS.two][ticked.length];
    compare.disabled = ticked.length < 2;
  }

  function setTicked(list) {
    ticked = list;
    for (const box of root.querySelectorAll('.sv-shelf-tick input')) {
      box.checked = ticked.includes(box.dataset.id);
      box.disabled = ticked.length === 2 && !box.checked;
    }
    hint.textContent = [WORDS.tick, WORDS.one, WORDS.two][ticked.length];
    compare.disabled = ticked.length < 2;
  }

  async function renew() {
    entries = await runs.list();
    for (const { run, key } of entries) if (run) ids.set(run, key);
    const known = [...entries.map(({ key }) => key), ...(shipped || []).map(({ name }) => `shipped:${name}`)];
    ticked = ticked.filter((id) => known.includes(id));
    draw();
  }

  // ---- joining ---------------------------------------------------------------------------------------------------
  // a run that is over joins, also one that another run has driven from the stage
  function note() {
    const { run, state } = page.hub();
    if (watched !== run) {
      if (watched) join(watched, PATIENCE);
      watched = run;
      draw();
    }
    if (run && (!state || state.name === 'finished')) join(run, 1);
  }

  async function join(run, patience) {
    if (asked.has(run) || deleted().includes(run)) return;
    asked.add(run);
    for (let left = patience; left > 0; left -= 1) {
      if (left < patience) await later(PAUSE_MS);
      const kept = await ask('kept', { run, has: entries.map(({ key }) => key) });
      if (kept) return keep(run, kept);
    }
    asked.delete(run);
  }

  // without `packed` it is one that the browser has
  async function keep(run, { packed, refusal, ...entry }) {
    if (refusal) return say(refusal);
    ids.set(run, entry.key);
    if (!packed) return draw();
    const isLasting = await runs.put({ ...entry, run, at: Date.now() }, packed);
    if (runs.isLasting && !isLasting) say(WORDS.full);
    if (await runs.trim(limits)) say(limits.let_go);
    await changed();
  }

  // ---- what the buttons do ---------------------------------------------------------------------------------------
  function showStage() {
    page.go('explore');
    page.close();
  }

  async function open(entry) {
    if (entry.key === onStage()) return showStage();
    const packed = await runs.packed(entry.key);
    if (!packed) return missing(entry.key);
    trigger('show', { packed });
    showStage();
  }

  function openShipped(name) {
    trigger('show', { shipped: name });
    showStage();
  }

  async function missing(key) {
    await renew();
    say(entries.some((entry) => entry.key === key) ? WORDS.damaged : WORDS.gone);
  }

  async function remove(entry) {
    const packed = await runs.packed(entry.key);
    const copies = [...ids].filter(([, key]) => key === entry.key).map(([run]) => run);
    markDeleted([...copies, entry.run].filter(Boolean));
    if (!await runs.remove(entry.key)) return say(WORDS.stuck);
    const undo = button('sv-shelf-press', 'Undo', async () => {
      await runs.put(entry, packed);
      say(`${entry.title} is back.`);
      await changed();
    });
    say(`Deleted: ${entry.title}`, ...(packed ? [undo] : []));
    await changed();
    undo.focus();
  }

  // what the server calls a run; one that it has forgotten is sent to it again
  async function idOf(id) {
    if (id.startsWith('shipped:')) return id;
    const known = [...ids].filter(([, key]) => key === id).map(([run]) => run);
    for (const run of known) if (await ask('known', { run })) return run;
    const packed = await runs.packed(id);
    if (!packed) return missing(id);
    const answer = await ask('bring', { packed }) || { refusal: WORDS.silent };
    if (!answer.run) return say(answer.refusal);
    ids.set(answer.run, id);
    asked.add(answer.run);
    return answer.run;
  }

  async function compareTwo() {
    const [left, right] = [await idOf(ticked[0]), await idOf(ticked[1])];
    if (left && right) page.actIn('compare', 'two-runs', 'show', { left, right });
  }

  // ---- a file that is dropped on the page is opened as one that is chosen ------------------------------------------
  let reading = null;                                 // the run on the stage while a file is read, or null
  function setReading(isOn) {
    reading = isOn ? page.run() || '' : null;
    document.documentElement.toggleAttribute('data-sv-reading', isOn);
    if (isOn) said.replaceChildren(words);
    if (isOn || words.textContent === WORDS.reading) words.textContent = isOn ? WORDS.reading : '';
  }

  const hasFile = (event) => event.dataTransfer && [...event.dataTransfer.types].includes('Files');
  document.addEventListener('change', ({ target }) => {
    if (target.matches('#library input[type=file]')) setReading(target.files.length === 1 && target.files[0].size <= limits.most_opened);
  });
  document.addEventListener('sv-refused', () => setReading(false));
  page.onRun(({ run }) => {
    if (reading === null || run === reading) return;
    setReading(false);
    showStage();
  });
  const setDropping = (isOn) => document.documentElement.toggleAttribute('data-sv-dropping', isOn);
  document.addEventListener('dragover', (event) => {
    if (!hasFile(event)) return;
    event.preventDefault();
    setDropping(true);
  });
  document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) setDropping(false); });
  document.addEventListener('drop', (event) => {
    setDropping(false);
    const input = document.querySelector('#library input[type=file]');
    if (!hasFile(event) || !input) return;
    event.preventDefault();
    input.value = '';                                 // the same file again is a change as well
    input.files = event.dataTransfer.files;
    input.dispatchEvent(new Event('change', { bubbles: true }));
  });

  // ---- the beginning ---------------------------------------------------------------------------------------------
  async function list() {
    if (isOpen()) document.documentElement.removeAttribute('data-sv-news');
    if (shipped || !isOpen()) return;
    const answer = await ask('listed', {});
    if (!answer) return say(WORDS.silent);
    shipped = answer;
    draw();
  }

  function attach() {
    const hub = page.hub();
    if (!hub) return setTimeout(attach, PAUSE_MS);
    hub.on('info', note);
    note();
  }

  new MutationObserver(list).observe(document.documentElement, { attributeFilter: ['data-sv-library'] });
  runs = await keepRuns();
  if (channel) channel.onmessage = () => renew();
  await renew();
  await list();
  attach();
};
