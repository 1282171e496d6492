// lanes.js: one row per step, one cell per drafted token: the fill is the chance to be kept or the stopping test, the line is the dart.
// Only rows near the visible part exist, so a thousand steps cost as much as ten.
import { element, spelled, framed } from '../core/element.js';
import { pointing } from './pointing.js';
import { tokenLabel } from './token.js';

const ROW = 40, CHANGE = 24, BEYOND = 6;            // pixels of a row, of a change between rows; rows kept outside
const GLYPHS_FROM = 5;                              // on a narrow page cells beyond these are glyphs

export const lanesView = (root, hub) => {
  const host = root.querySelector('.sv-lanes-body');
  const sheet = root.querySelector('.sv-lanes-sheet');
  let tops = [0];                                   // tops[i]: where row i begins, its change line included
  let rows = new Map();
  let columns = 1;
  let newest = -1, toNewest = false, stays = false;  // stays: the newest row is in sight and shall stay there
  let isUnseen = false;                             // what is to be revealed waits for a stage that has a height
  const redraw = framed(() => draw());

  const changed = (index) => hub.steps[index].changes.length > 0;
  const heightOf = (index) => ROW + (changed(index) ? CHANGE : 0);

  function measure(until) {
    while (tops.length <= until) tops.push(tops[tops.length - 1] + heightOf(tops.length - 1));
    sheet.style.height = `${tops[until]}px`;
  }

  // All rows in sight share their columns, as many as the widest of them needs.
  function widen(from, until) {
    let wanted = 1;
    for (const index of rows.keys()) {
      if (index < from || index > until) continue;
      const { cells, more, refused } = hub.steps[index], own = cells.length + 1 + (more ? 1 : 0) + (refused ? 1 : 0);
      if (own > wanted) wanted = own;
    }
    if (wanted === columns) return;
    columns = wanted;
    root.style.setProperty('--sv-columns', String(columns));
    root.toggleAttribute('data-many', columns > GLYPHS_FROM + 1);
  }

  function cell(index, props, place) {
    const made = element('button', `sv-cell sv-is-${props.status}${props.behind_end ? ' sv-behind-end' : ''}`);
    made.type = 'button';
    made.tabIndex = -1;
    made.dataset.step = index;
    made.dataset.ref = props.ref;
    made.setAttribute('aria-label', `step ${index + 1}: ${props.say}`);
    made.style.setProperty('--sv-place', String(place));
    if (props.fill !== undefined) {
      const fill = element('span', 'sv-fill');
      fill.style.width = `${props.fill}%`;
      made.append(fill);
    }
    if (props.tick !== undefined) {                 // some rules throw no dart
      const tick = element('span', 'sv-tick');
      tick.style.left = `${props.tick}%`;
      made.append(tick);
    }
    made.append(tokenLabel('sv-cell-text', props.text));
    if (props.label) made.append(element('span', 'sv-chance', props.label));
    return made;
  }

  // What was drafted and refused as a whole.
  function refusal({ text: [count, words], say }) {
    const made = element('span', 'sv-refused sv-is-rejected'), body = element('span', 'sv-body', count);
    made.setAttribute('role', 'img');
    made.setAttribute('aria-label', say);
    made.title = say;
    body.append(element('span', 'sv-more-words', words));
    made.append(body);
    return made;
  }

  // How many more there are; the words only where there is room.
  function others([count, words]) {
    const made = element('span', 'sv-more', count);
    if (words) made.append(element('span', 'sv-more-words', words));
    return made;
  }

  function row(index) {
    const step = hub.steps[index], made = element('div', 'sv-row');
    made.style.top = `${tops[index]}px`;
    made.style.setProperty('--sv-count', String(step.cells.length));
    if (changed(index)) {
      const line = element('div', 'sv-change');
      step.changes.forEach((words) => line.append(element('span', 'sv-change-words', words)));
      made.append(line);
    }
    const lane = element('div', 'sv-lane');
    lane.append(element('span', 'sv-step-number', spelled(index + 1)));
    step.cells.forEach((props, place) => lane.append(cell(index, props, place)));
    if (step.more) lane.append(others(step.more_words));
    if (step.refused) lane.append(refusal(step.refused));
    if (step.last) {
      const last = cell(index, step.last, step.cells.length);
      last.classList.add('sv-last');
      lane.append(last);
    } else if (step.cut_off) {
      lane.append(element('span', 'sv-more', 'end of text'));
    }
    if (index === newest) made.dataset.phases = hub.phases();
    made.append(lane);
    return made;
  }

  // The rows that the visible part needs, by binary search over their tops.
  function rowAt(y) {
    let low = 0, high = hub.cursor;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[middle + 1] <= y) low = middle + 1; else high = middle;
    }
    return low;
  }

  function draw() {
    if (toNewest) host.scrollTop = tops[hub.cursor];
    toNewest = false;
    const height = host.clientHeight || ROW * 5;
    const first = rowAt(host.scrollTop), last = rowAt(host.scrollTop + height - 1);
    const from = first - BEYOND, until = last + BEYOND;
    for (const [index, made] of rows) {
      if (index < from || index > until || index >= hub.cursor) {
        made.remove();
        rows.delete(index);
      }
    }
    for (let index = from < 0 ? 0 : from; index <= until && index < hub.cursor; index += 1) {
      if (rows.has(index)) continue;
      const made = row(index);
      rows.set(index, made);
      sheet.append(made);
    }
    widen(first, last);
    const now = hub.steps[hub.cursor - 1];
    root.toggleAttribute('data-whole', Boolean(now && now.whole));
    root.toggleAttribute('data-dartless', Boolean(now && now.dartless) && !sheet.querySelector('.sv-tick'));
    mark();
  }

  function settle() {
    const before = rows.get(newest);
    if (before) delete before.dataset.phases;
  }

  function mark() {
    const place = hub.selected();
    for (const made of sheet.querySelectorAll('.sv-on')) {
      made.classList.remove('sv-on');
      made.tabIndex = -1;
      made.removeAttribute('aria-current');
    }
    for (const made of sheet.querySelectorAll('.sv-now')) made.classList.remove('sv-now');
    if (rows.has(hub.spot)) rows.get(hub.spot).classList.add('sv-now');
    const lane = place && rows.get(place.step);
    const on = lane && [...lane.querySelectorAll('.sv-cell')].find((made) => made.dataset.ref === place.ref);
    if (!on) return null;
    on.classList.add('sv-on');
    on.tabIndex = 0;
    on.setAttribute('aria-current', 'true');
    return on;
  }

  function reveal(index) {
    const top = tops[index], bottom = tops[index + 1];
    if (top < host.scrollTop) host.scrollTop = top;
    else if (bottom > host.scrollTop + host.clientHeight) host.scrollTop = bottom - host.clientHeight;
  }

  hub.on('reset', () => {
    rows.forEach((made) => made.remove());
    rows = new Map();
    tops = [0];
    columns = 1;
    newest = -1;
    sheet.style.height = '0px';
  });
  hub.on('cursor', ({ to }) => {
    settle();
    newest = to - 1;
    const stale = rows.get(newest);
    if (stale) {
      stale.remove();
      rows.delete(newest);
    }
    measure(to);
    toNewest = stays = true;
    redraw();
  });
  hub.on('select', (detail) => {
    const place = hub.selected();
    const how = detail && detail.how, wasHere = root.contains(document.activeElement);
    if (place && (how === 'key' || how === 'pointer' || how === 'found')) {
      toNewest = stays = false;
      isUnseen = !host.clientHeight;
      reveal(place.step);
      draw();
    }
    const on = mark();
    if (on && how === 'key' && wasHere) on.focus({ preventScroll: true });
  });
  host.addEventListener('scroll', () => {
    stays = host.scrollTop + host.clientHeight >= tops[hub.cursor] - 1;
    redraw();
  }, { passive: true });
  const resized = () => {
    toNewest = toNewest || stays;
    const chosen = isUnseen ? hub.selected() : hub.pinned;
    isUnseen = isUnseen && !host.clientHeight;
    if (!toNewest && chosen && chosen.step < hub.cursor) reveal(chosen.step);
    redraw();
  };
  new ResizeObserver(resized).observe(host);
  window.addEventListener('resize', resized);
  pointing(sheet, '.sv-cell', hub);
};
