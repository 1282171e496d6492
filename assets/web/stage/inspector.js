// inspector.js: one token explained: a sentence, both models' odds in one bar per token, and the dart.
// Widths and words arrive computed; "throw again" only places a random point on the bar that is already there.
import { element, sentence, spelled } from '../core/element.js';
import { labelOf } from '../core/palette.js';
import { evidence } from './evidence.js';
import { tokenLabel } from './token.js';

const ROLES = { drafted: 'drafted', emitted: 'emitted', both: 'drafted, kept' };
const MANY = 100;
const ROW_TURN = 30, WIDE_TURN = 55;                // percent; left of a row's bar there is room, right of it a heading

export const inspectorView = (root, hub) => {
  const host = root.querySelector('.sv-inspector');
  const parts = {};
  for (const node of host.querySelectorAll('[data-part]')) parts[node.dataset.part] = node;
  const options = { log: false, raw: false };
  const story = evidence(parts.made, (ref) => hub.pin(hub.selected().step, ref));
  let darts = { count: 0, kept: 0 };                // thrown at the token that is shown
  let shown = null, ofDraft = false;                // ofDraft: how the draft was made is shown, not the token's odds

  const bar = (className, from, width) => {
    const made = element('span', `sv-bar ${className}`);
    made.style.left = `${from}%`;
    made.style.width = `${width}%`;
    return made;
  };
  const point = (className, at) => {
    const made = element('span', className);
    made.style.left = `${at}%`;
    return made;
  };

  // The drafted tokens at one place, in the order in which they are judged.
  function siblings(look, place) {
    parts.siblings.hidden = !look.siblings;
    parts.siblings.tBodies[0].replaceChildren(...(look.siblings || []).map(([ref, text, status, ...odds]) => {
      const made = element('tr', ref === place.ref ? 'sv-this' : ''), name = element('th'), button = element('button', 'sv-sibling');
      name.scope = 'row';
      button.type = 'button';
      button.append(tokenLabel('', text));
      button.addEventListener('click', () => hub.pin(place.step, ref));
      name.append(button);
      made.append(name, ...odds.map((words) => element('td', '', words)), element('td', `sv-fate sv-is-${status}`, labelOf(status)));
      return made;
    }));
  }

  function bars(look, place) {
    const rows = look.rows, made = [];
    if (options.log || look.view === 'threshold') {
      if (rows.q && rows.q_dot[place] !== null) made.push(point('sv-dot sv-dot-q', rows.q_dot[place]));
      if (rows.p_dot[place] !== null) made.push(point('sv-dot sv-dot-p', rows.p_dot[place]));
      return made;
    }
    if (look.view === 'draw') {
      made.push(bar(look.status === 'resampled' ? 'sv-owed' : 'sv-law', 0, rows.law[place]));
    } else {
      if (rows.both[place] > 0) made.push(bar('sv-both', 0, rows.both[place]));
      if (rows.owed[place] > 0) made.push(bar('sv-owed', rows.both[place], rows.owed[place]));
      if (rows.cut[place] > 0) made.push(bar('sv-cut', rows.both[place], rows.cut[place]));
    }
    if (options.raw && rows.p_raw) {
      if (rows.p_raw[place] !== null) made.push(bar('sv-raw sv-raw-p', 0, rows.p_raw[place]));
      if (rows.q_raw && rows.q_raw[place] !== null && look.view === 'overlay') made.push(bar('sv-raw sv-raw-q', 0, rows.q_raw[place]));
    }
    return made;
  }

  function row(look, place) {
    const rows = look.rows, role = rows.role[place];
    const made = element('div', `sv-odds-row${role ? ` sv-role-${role}` : ''} sv-is-${look.status}`);
    made.setAttribute('role', 'row');
    const name = element('span', 'sv-odds-name');
    name.setAttribute('role', 'rowheader');
    name.append(role === 'others' ? element('span', 'sv-token-word', rows.text[place]) : tokenLabel('sv-odds-token', rows.text[place]));
    const words = role === 'emitted' && look.status !== 'bonus' && look.status !== 'plain' ? 'replacement' : ROLES[role];
    if (words) name.append(element('span', 'sv-odds-role', words));
    const track = element('span', 'sv-track');
    track.append(...bars(look, place));
    if (place === 0 && look.dart && look.view === 'overlay' && !options.log) track.append(dart(look.dart, !look.zoom, ROW_TURN));
    made.append(name, track, number(rows.p[place], 'p'));
    if (rows.q) made.append(number(rows.q[place], 'q'));
    return made;
  }

  function number(words, law) {
    const made = element('span', `sv-odds-number sv-odds-${law}`, words);
    made.setAttribute('role', 'cell');
    return made;
  }

  // turn: from where on its words stand left of it
  function dart({ x, u }, hasWords = true, turn = WIDE_TURN) {
    const made = point('sv-dart', x);
    if (hasWords) {
      const words = element('span', 'sv-dart-words', `dart at ${u}`);
      words.append(element('span', 'sv-dart-more', ' of the bar'));
      made.append(words);
    }
    made.classList.toggle('sv-dart-left', x > turn);
    return made;
  }

  function axis(look) {
    const ticks = options.log || look.view === 'threshold' ? hub.head.log_ticks : look.axis;
    parts.axis.replaceChildren(...ticks.map(([at, words]) => {
      const made = point('sv-axis-tick', at);
      made.append(element('span', 'sv-axis-words', words));
      return made;
    }));
  }

  function odds(look) {
    parts.odds.hidden = !look.rows;
    if (!look.rows) return;
    parts.odds.dataset.laws = look.rows.q ? '2' : '1';
    parts.odds.style.setProperty('--sv-rows', String(look.rows.text.length));
    parts.heading.textContent = look.heading || 'target';
    axis(look);
    parts.rows.replaceChildren(...look.rows.text.map((_, place) => row(look, place)));
  }

  // The drafted bar over the whole width: for rules with no other picture, and where it is too small to be read.
  function enlarged(look) {
    const shape = look.view === 'threshold' ? look.dart : options.log ? null : look.zoom;
    parts.enlarged.hidden = !shape;
    if (!shape) return;
    parts.enlarged.replaceChildren(bar('sv-both', 0, shape.fill), bar('sv-cut', shape.fill, shape.bar - shape.fill), dart(shape));
    if (shape.words) parts.enlarged.append(element('span', 'sv-enlarged-words', shape.words));
  }

  function foot(look) {
    parts.foot.hidden = !look.foot;
    if (!look.foot) return;
    const [width, agree, owed] = look.foot;
    parts.agree.style.width = `${width}%`;
    parts['agree-words'].textContent = `both agree ${agree}`;
    parts['owed-words'].textContent = `owed ${owed}`;
  }

  function tools(look) {
    const canThrow = look.view === 'overlay' && !options.log;
    for (const name of ['again', 'many']) parts[name].hidden = !canThrow;
    parts.log.hidden = !look.rows || look.view === 'threshold';
    parts.raw.hidden = !(look.rows && look.rows.p_raw) || options.log;
    parts.log.setAttribute('aria-pressed', String(options.log));
    parts.raw.setAttribute('aria-pressed', String(options.raw));
    parts.thrown.textContent = '';
    darts = { count: 0, kept: 0 };
    parts.numbers.replaceChildren();
    (look.numbers || []).forEach((value, place) => {
      if (!value) return;
      const [name, formula] = hub.head.look_numbers[place];
      parts.numbers.append(element('dt', '', name), element('dd', '', value), element('dd', 'sv-formula', formula));
    });
    parts['numbers-box'].hidden = !look.numbers;
  }

  function draw() {
    const place = hub.selected(), look = hub.look();
    host.classList.toggle('sv-nothing', !look);
    if (!look) {
      shown = null;
      return;
    }
    how(place);
    if (look === shown) return;
    shown = look;
    render(place, look);
  }

  // How the step's draft was made, where there is something to tell of it.
  function how(place) {
    const told = hub.steps[place.step].made || null;
    parts.views.hidden = !told;
    parts['of-token'].setAttribute('aria-pressed', String(!ofDraft));
    parts['of-draft'].setAttribute('aria-pressed', String(ofDraft));
    host.dataset.shows = told && ofDraft ? 'draft' : 'token';
    story.draw(ofDraft ? told : null);
    if (told && ofDraft) story.mark(place.ref);
  }

  function turn(toDraft) {
    ofDraft = toDraft;
    if (hub.selected()) how(hub.selected());
  }

  function render(place, look) {
    parts.status.textContent = labelOf(look.status);
    parts.status.className = `sv-pill sv-is-${look.status}`;
    parts.where.textContent = `step ${spelled(place.step + 1)}`;
    sentence(parts.title, look.title);
    sentence(parts.note, look.note || []);
    parts.note.hidden = !(look.note && look.note.length);
    host.dataset.view = look.view;
    parts.key.hidden = look.view !== 'overlay' || options.log;
    parts['raw-key'].hidden = !options.raw;
    siblings(look, place);
    parts['log-key'].hidden = !(look.rows && (options.log || look.view === 'threshold'));
    odds(look);
    enlarged(look);
    foot(look);
    tools(look);
  }

  // A random point on the drafted bar: inside the solid part it would be kept, else cut. Single throws add up.
  function throwDarts(count) {
    const { bar: width, fill } = shown.zoom || shown.dart;
    const track = shown.zoom ? parts.enlarged : parts.rows.querySelector('.sv-track');
    let { count: before, kept } = darts;
    if (count > 1 || before >= MANY) {
      [before, kept] = [0, 0];
      for (const old of track.querySelectorAll('.sv-throw')) old.remove();
    }
    for (let thrown = 0; thrown < count; thrown += 1) {
      const at = Math.random() * width, isIn = at < fill;
      kept += isIn;
      const mark = point(`sv-throw ${isIn ? 'sv-throw-in' : 'sv-throw-out'}`, at);
      mark.style.top = `${20 + 60 * Math.random()}%`;     // spread, so that a hundred can be seen
      track.append(mark);
    }
    darts = { count: before + count, kept };
    parts.thrown.textContent = darts.count === 1 ? (kept ? 'would be kept' : 'would be cut') : `kept ${kept} of ${darts.count}`;
  }

  function option(name) {
    options[name] = !options[name];
    if (shown) render(hub.selected(), shown);
  }

  parts.again.addEventListener('click', () => throwDarts(1));
  parts.many.addEventListener('click', () => throwDarts(MANY));
  parts['of-token'].addEventListener('click', () => turn(false));
  parts['of-draft'].addEventListener('click', () => turn(true));
  parts.log.addEventListener('click', () => option('log'));
  parts.raw.addEventListener('click', () => option('raw'));
  parts.before.addEventListener('click', () => hub.moveToken(-1));
  parts.after.addEventListener('click', () => hub.moveToken(1));
  parts.close.addEventListener('click', () => root.removeAttribute('data-sheet'));
  root.querySelector('.sv-shade').addEventListener('click', () => root.removeAttribute('data-sheet'));
  hub.on('reset', () => { shown = null; root.removeAttribute('data-sheet'); draw(); });
  hub.on('select', (detail) => {
    draw();
    if (detail && (detail.how === 'pointer' || detail.how === 'key')) root.dataset.sheet = 'open';
    if (detail && detail.how === 'release') root.removeAttribute('data-sheet');
  });
};
