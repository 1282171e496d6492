// duel.js: two stages that one player moves, frame by frame: by time as both runs were recorded, or token by token. The
// place where their texts part is marked on both. Every frame, width and word arrives computed.
import { element, button as makeButton, sentence, isStill } from '../core/element.js';
import { unpack } from '../core/files.js';
import { embeddedSource } from '../core/hub.js';
import { recall } from '../core/memory.js';
import { stageMarkup, mountStage } from '../stage/stage.js';

const isNarrow = () => window.matchMedia('(max-width: 1000px)').matches;
const FIELDS = 'input, select, textarea, [contenteditable]';
const SVG = 'http://www.w3.org/2000/svg';
const PLAY = 'M5 3v10l8-5z', PAUSE = 'M5 3v10M11 3v10';

const button = (className, text) => makeButton(`sv-button ${className}`, text);
const isLesson = () => document.documentElement.hasAttribute('data-sv-lesson');       // its text is about the parting

function icon() {
  const svg = document.createElementNS(SVG, 'svg'), path = document.createElementNS(SVG, 'path');
  svg.setAttribute('viewBox', '0 0 16 16');
  svg.setAttribute('aria-hidden', 'true');
  svg.append(path);
  return { svg, draw: (isPlaying) => path.setAttribute('d', isPlaying ? PAUSE : PLAY) };
}

// one side: what is said over its stage, how far it is, and the stage itself
function side({ title, said, widths, message }, part) {
  const node = element('section', 'sv-duel-side'), head = element('header', 'sv-duel-head');
  const track = element('div', 'sv-duel-track'), fill = element('span', 'sv-duel-fill');
  const words = element('p', 'sv-duel-said'), end = element('p', 'sv-duel-end'), holder = element('div', 'sv-duel-stage');
  node.setAttribute('aria-label', title);
  track.setAttribute('aria-hidden', 'true');
  track.append(fill);
  head.append(element('h3', 'sv-duel-title', title), words, track, end);
  node.append(head, holder);
  holder.append(stageMarkup());
  const hub = mountStage(holder, { source: embeddedSource(message), quiet: true });
  let plain = null;                                 // tokens shown plainly; null: all

  // tokens beyond the other side's are faint, so that both show the same number
  function mark() {
    const pieces = holder.querySelectorAll('.sv-text-body .sv-piece:not(.sv-is-rejected)');
    pieces.forEach((piece, place) => {
      const isAhead = plain !== null && place >= plain, isPart = place === part;
      piece.classList.toggle('sv-duel-ahead', isAhead);
      piece.classList.toggle('sv-duel-part', isPart);
      piece.title = isPart ? 'here the texts part' : isAhead ? 'written in the same step, ahead of the other side' : '';
    });
  }

  hub.on('cursor', mark);
  mark();
  return {
    node,
    show(steps, tokens, ending) {
      plain = tokens;
      if (hub.cursor === steps) mark(); else hub.seek(steps);
      words.textContent = said[steps];
      fill.style.width = `${widths[steps]}%`;
      end.textContent = steps === hub.steps.length ? ending : '';
      node.toggleAttribute('data-done', steps === hub.steps.length);
    },
  };
}

// the player: its place is a frame of the mode that is chosen
function player(modes, by, sides, parted) {
  const node = element('div', 'sv-duel-player'), choices = element('span', 'sv-duel-modes'), live = element('p', 'sv-hidden');
  const toggle = button('sv-duel-toggle', ''), { svg, draw } = icon(), clock = element('span', 'sv-duel-clock');
  const scrub = Object.assign(element('input', 'sv-duel-scrub'), { type: 'range', min: 0, step: 1 });
  const pace = element('select', 'sv-duel-pace');
  let mode = null, at = 0, isPlaying = false, due = 0, timer = 0;
  choices.setAttribute('role', 'group');
  choices.setAttribute('aria-label', 'How the two runs move');
  scrub.setAttribute('aria-label', 'place in both runs');
  pace.setAttribute('aria-label', 'speed of the replay');
  live.setAttribute('aria-live', 'polite');
  toggle.append(svg);
  node.append(toggle, clock, scrub, pace, choices, live);

  const last = () => mode.frames.length - 1;

  function show(frame) {
    at = frame;
    const [words, steps, tokens] = mode.frames[frame];
    clock.textContent = words;
    scrub.value = String(frame);
    scrub.setAttribute('aria-valuetext', words);
    sides.forEach((each, place) => each.show(steps[place], tokens, mode.ends[place]));
  }

  function set(isNow) {
    isPlaying = isNow;
    cancelAnimationFrame(timer);
    draw(isPlaying);
    toggle.setAttribute('aria-label', isPlaying ? 'pause both' : 'replay both');
  }

  function rest() {
    set(false);
    live.textContent = at === mode.rest && at < last() ? parted : mode.ends.join('; ');
  }

  function tick(now) {
    if (!isPlaying) return;
    const wait = Number(pace.value);
    let next = at;
    if (!due) due = now + wait;
    while (due <= now && next < last()) {
      due += wait;
      next += 1;
      if (next === mode.rest) break;
    }
    const isMoved = next !== at;
    if (isMoved) show(next);
    if (isMoved && (at === last() || at === mode.rest)) rest();
    else timer = requestAnimationFrame(tick);
  }

  function press() {
    if (isPlaying) return set(false);
    if (isStill()) {
      show(last());
      return rest();
    }
    if (at === last()) show(0);
    due = 0;
    set(true);
    timer = requestAnimationFrame(tick);
  }

  function turn(to) {
    set(false);
    mode = to;
    scrub.max = String(last());
    pace.replaceChildren(...mode.paces.map(([words, wait, isChosen]) => (
      Object.assign(element('option', '', words), { value: String(wait), selected: isChosen }))));
    for (const each of choices.children) each.setAttribute('aria-pressed', String(each.dataset.mode === mode.name));
    show(isLesson() && mode.rest > 0 ? mode.rest : last());
  }

  for (const each of modes) {
    const choice = button('sv-mode', each.label);
    choice.dataset.mode = each.name;
    choice.addEventListener('click', () => turn(each));
    choices.append(choice);
  }
  choices.hidden = modes.length < 2;
  toggle.addEventListener('click', press);
  scrub.addEventListener('input', () => { set(false); show(Number(scrub.value)); });
  pace.addEventListener('change', () => { due = 0; });
  turn(modes.find(({ name }) => name === by) || modes[0]);
  return { node, press, stop: () => set(false) };
}

// Space belongs to both at once, wherever it is pressed on one of the stages.
function keys(made, press) {
  made.addEventListener('keydown', (event) => {
    const { target } = event;
    if (event.key !== ' ' || event.ctrlKey || event.metaKey || event.altKey || target.closest(FIELDS)) return;
    if (target.closest('button, summary, a') && !target.closest('.sv-cell')) return;
    if (!recall('keys', [true, false])) return;
    event.preventDefault();
    event.stopPropagation();
    press();
  }, true);
}

function build(made, { sides, modes, part, parted }, by) {
  const words = element('p', 'sv-duel-parted'), row = element('div', 'sv-duel-sides');
  sentence(words, parted);
  const both = sides.map((each) => side(each, part));
  row.append(...both.map(({ node }) => node));
  const moved = player(modes, by, both, parted.join(''));
  made.replaceChildren(moved.node, words, row);
  keys(made, moved.press);
  if (isLesson()) requestAnimationFrame(() => (isNarrow() ? words : made).scrollIntoView({ block: 'start' }));
  return moved.stop;
}

export const duel = ({ data, by, titles }) => {
  const made = element('div', 'sv-block sv-duel');
  let stop = () => {}, isGone = false;
  made.setAttribute('role', 'group');
  made.setAttribute('aria-label', titles.join(' beside '));
  made.append(element('p', 'sv-words', 'Two stages are being laid out …'));
  const lost = () => made.replaceChildren(element('p', 'sv-words', 'The two runs could not be unpacked: it takes a browser of 2023 or later.'));
  unpack(data).then((text) => { if (!isGone) stop = build(made, JSON.parse(text), by); }, lost);
  made.release = () => {
    isGone = true;
    stop();
  };
  return made;
};
