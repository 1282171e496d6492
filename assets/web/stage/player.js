// player.js: the buttons that move through the steps, and one stacked bar per step with the running rate above it.
// Replaying costs no request: all steps already lie in the page.
import { spelled, framed } from '../core/element.js';

const SVG = 'http://www.w3.org/2000/svg';
const WIDE = 14, NARROW = 5, HEIGHT = 46;           // pixels per bar; fewer when there are many steps
const PARTS = ['accepted', 'rejected', 'ignored', 'refused'];

export const playerView = (root, hub) => {
  const strip = root.querySelector('.sv-bars');
  const svg = strip.querySelector('svg');
  const layer = svg.querySelector('.sv-bars-layer');
  const rate = svg.querySelector('.sv-rate');
  const cursor = svg.querySelector('.sv-bars-cursor');
  const chosen = svg.querySelector('.sv-bars-chosen');
  const place = root.querySelector('.sv-place');
  const button = (name) => root.querySelector(`[data-do="${name}"]`);
  let groups = new Map(), deepest = 1, width = WIDE, first = 0, isStale = false;
  const redraw = framed(() => layout());

  const draft = (step) => PARTS.reduce((sum, part) => sum + step.bar[part], 0);

  function shape(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const key of Object.keys(attributes)) made.setAttribute(key, attributes[key]);
    return made;
  }

  function group(index) {
    const step = hub.steps[index], made = shape('g', { class: 'sv-step-bar' });
    let y = HEIGHT;
    for (const part of PARTS) {
      const height = (step.bar[part] / deepest) * HEIGHT;
      if (!height) continue;
      y -= height;
      made.append(shape('rect', { class: `sv-bar-${part}`, x: 1, width: width - 2, y, height: height - 1 < 1 ? 1 : height - 1 }));
    }
    made.setAttribute('transform', `translate(${index * width} 0)`);
    made.dataset.step = index;
    return made;
  }

  // As many bars as fit, around the player's place.
  function layout() {
    const force = isStale;
    isStale = false;
    const space = strip.clientWidth || 400, count = hub.steps.length;
    const wide = count * WIDE <= space ? WIDE : count * NARROW >= space ? NARROW : Math.floor(space / count);
    const fit = Math.floor(space / wide);
    let start = first;
    if (count <= fit) start = 0;
    else if (hub.cursor - 1 < first || hub.cursor > first + fit) start = hub.cursor - Math.floor(fit / 2);
    if (start + fit > count) start = count - fit;
    if (start < 0) start = 0;
    const isNew = force || wide !== width;
    width = wide;
    first = start;
    groups.forEach((made, index) => {
      if (!isNew && index >= first && index < first + fit) return;
      made.remove();
      groups.delete(index);
    });
    const shift = `translate(${-first * width} 0)`;
    for (const node of [layer, rate]) if (node.getAttribute('transform') !== shift) node.setAttribute('transform', shift);
    for (let index = first; index < count && index < first + fit; index += 1) {
      if (groups.has(index)) continue;
      const made = group(index);
      groups.set(index, made);
      layer.append(made);
    }
    if (svg.getAttribute('width') !== String(space)) svg.setAttribute('width', String(space));
    line();
    shade();
  }

  function shade() {
    groups.forEach((made, index) => {
      const isAhead = index >= hub.cursor;
      if (made.classList.contains('sv-ahead') !== isAhead) made.classList.toggle('sv-ahead', isAhead);
    });
    cursor.setAttribute('transform', `translate(${(hub.cursor - 1 - first) * width} 0)`);
    cursor.setAttribute('width', String(width));
    cursor.style.visibility = hub.cursor ? 'visible' : 'hidden';
    choose();
  }

  function choose() {
    const selected = hub.selected();
    chosen.style.visibility = selected ? 'visible' : 'hidden';
    if (!selected) return;
    chosen.setAttribute('transform', `translate(${(selected.step - first) * width} 0)`);
    chosen.setAttribute('width', String(width));
  }

  function line() {
    const points = [];
    for (const index of [...groups.keys()].sort((one, other) => one - other)) {
      const share = hub.steps[index].totals.kept_share;
      if (share !== null) points.push(`${(index + 0.5) * width},${HEIGHT - (share / 100) * HEIGHT}`);
    }
    rate.setAttribute('points', points.join(' '));
  }

  function position() {
    const shown = hub.cursor, total = hub.steps.length;
    place.textContent = total ? `step ${spelled(shown)} of ${spelled(total)}` : '';
    strip.setAttribute('aria-valuenow', String(shown));
    strip.setAttribute('aria-valuemax', String(total));
    strip.setAttribute('aria-valuetext', shown ? hub.steps[shown - 1].say : 'no step yet');
    const step = hub.steps[shown - 1];
    root.querySelector('.sv-rate-words').textContent = step && step.totals.kept ? `${step.totals.kept} kept so far` : '';
    buttons();
  }

  function buttons() {
    const none = !hub.steps.length;
    for (const name of ['first', 'back']) button(name).disabled = none || hub.cursor <= 1;
    for (const name of ['forward', 'last']) button(name).disabled = none || hub.cursor >= hub.steps.length;
    button('toggle').disabled = none;
    button('toggle').setAttribute('aria-label', hub.playing ? 'pause the replay' : 'replay');
    root.toggleAttribute('data-playing', hub.playing);
  }

  function stepAt(event) {
    const box = strip.getBoundingClientRect();
    const index = first + Math.floor((event.clientX - box.left) / width);
    return index >= 0 && index < hub.steps.length ? index : -1;
  }

  for (const name of ['first', 'back', 'toggle', 'forward', 'last']) {
    button(name).addEventListener('click', () => hub[name]());
  }
  const pace = root.querySelector('.sv-pace');
  pace.addEventListener('change', () => hub.setPace(pace.value));
  strip.addEventListener('click', (event) => {
    const index = stepAt(event);
    if (index < 0) return;
    hub.seek(index + 1);
    hub.pinStep(index);
  });
  strip.addEventListener('pointermove', (event) => {
    const step = hub.steps[stepAt(event)];
    strip.title = step ? step.say : '';
    if (event.pointerType !== 'touch') hub.hoverStep(stepAt(event));
  });
  strip.addEventListener('pointerleave', () => hub.hover(null));
  hub.on('reset', () => {
    groups.forEach((made) => made.remove());
    groups = new Map();
    deepest = 1;
    first = 0;
    rate.setAttribute('points', '');
    shade();
    position();
  });
  hub.on('grow', ({ from }) => {
    const before = deepest;
    for (const step of hub.steps.slice(from)) if (draft(step) > deepest) deepest = draft(step);
    isStale = isStale || deepest !== before;
    redraw();
  });
  hub.on('cursor', () => { position(); redraw(); });
  hub.on('info', position);
  hub.on('select', choose);
  new ResizeObserver(redraw).observe(strip);
};
