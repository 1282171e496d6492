// opening.js: one step of a run, beat by beat, over the stage. It waits for a person; every number and sentence is
// Python's. A screen reader hears each beat's sentence; nothing moves for whoever wants no motion.
import { button, element } from '../core/element.js';

const SWIPE = 40;                                          // pixels
const GUESSES = [['accepted', true], ['rejected', false]];

function chip([text, status, words]) {
  const made = element('span', `sv-beat-chip sv-sample sv-is-${status}`);
  made.append(element('span', 'sv-body', text));
  if (words) made.append(element('span', 'sv-beat-share', words));
  return made;
}

function textLine({ before, written }, { name, chips = [], sweep }) {
  const line = element('p', 'sv-beat-text');
  line.classList.toggle('sv-beat-sweep', Boolean(sweep));
  const last = written.map((text) => chip([text, name === 'slow' ? 'plain' : 'prompt', '']));
  line.append(element('span', 'sv-prompt', before), ...last, ...chips.map(chip));
  return line;
}

// The bar is what the draft gave the token, its solid part what accepts it; the draw is there once it has fallen.
function barOf({ token, fill, x, u, target, draft }, hasFallen) {
  const made = element('div', 'sv-beat-odds');
  const track = element('div', 'sv-beat-bar'), solid = element('span', 'sv-beat-solid');
  made.append(element('p', 'sv-beat-shares', [token, draft && `draft ${draft}`, `target ${target}`].filter(Boolean).join(' · ')));
  if (fill === undefined) return made;
  solid.style.width = `${fill}%`;
  track.append(solid);
  if (hasFallen) {
    const draw = element('span', 'sv-beat-draw');
    draw.style.left = `${x}%`;
    draw.append(element('span', 'sv-beat-draw-words', u));
    track.append(draw);
  }
  made.append(track);
  return made;
}

function sharesOf(shares) {
  const list = element('ul', 'sv-beat-law');
  for (const [text, width, words, isDrawn] of shares) {
    const row = element('li', isDrawn ? 'sv-beat-drawn' : ''), bar = element('span', 'sv-beat-hatched');
    bar.style.width = `${width}%`;
    const track = element('span', 'sv-beat-track');
    track.append(bar);
    row.append(element('span', 'sv-beat-token', text), track, element('span', 'sv-beat-words', words));
    list.append(row);
  }
  return list;
}

function numbersOf(numbers) {
  const list = element('dl', 'sv-beat-numbers');
  for (const [value, words] of numbers) {
    const tile = element('div', '');
    tile.append(element('dd', '', value), element('dt', '', words));
    list.append(tile);
  }
  return list;
}

// What the beat shows besides its tokens: [what stands there, what is said of the draw].
function centre({ bar, shares, numbers }, hasFallen, guess) {
  if (shares) return [sharesOf(shares), ''];
  if (numbers) return [numbersOf(numbers), ''];
  if (!bar) return [null, ''];
  if (!hasFallen) return [barOf(bar, false), ''];
  const verdict = `${bar.u === undefined ? '' : `The random draw falls at ${bar.u}: `}${bar.accepted ? 'accepted' : 'rejected'}.`;
  const told = guess === null ? '' : guess === bar.accepted ? ' You guessed right.' : ' You guessed wrong.';
  return [barOf(bar, true), `${verdict}${told}`];
}

function ending({ again, run, why }) {
  const row = element('div', 'sv-beat-ending');
  row.append(button('sv-button sv-beat-main', 'Run it yourself', run), button('sv-button', 'Again', again), button('sv-button', 'Why is it exact?', why));
  return row;
}

// host: the stage's element; ask({run, step}) -> the props of one step's opening, or null; leave(where): "run" or "why"
// when a person goes on from the last beat, else "".
export function mountOpening(host, { ask, leave }) {
  const box = host.querySelector('.sv-opening');
  let told = null, beat = 0, hasFallen = false, guess = null, start = null;

  const isGuess = () => told.beats[beat].name === 'judge' && told.beats[beat].bar?.x !== undefined && !hasFallen;

  function show() {
    const now = told.beats[beat], isLast = beat === told.beats.length - 1;
    const [middle, said] = centre(now, hasFallen || now.name !== 'judge', guess);
    const marks = element('div', 'sv-beat-marks');
    marks.append(...told.beats.map((each, place) => {
      const mark = button('sv-beat-mark', '', () => go(place));
      mark.setAttribute('aria-label', `beat ${place + 1} of ${told.beats.length}`);
      if (place === beat) mark.setAttribute('aria-current', 'step');
      return mark;
    }));
    const guesses = element('div', 'sv-beat-guess');
    if (isGuess()) guesses.append(element('span', '', 'Your guess: '), ...GUESSES.map(([words, value]) => button('sv-button', words, () => fall(value))));
    const back = button('sv-button', 'Back', () => move(-1)), next = button('sv-button sv-beat-main sv-beat-next', isGuess() ? 'Let it fall' : 'Next', () => move(1));
    back.disabled = beat === 0;
    const controls = element('div', 'sv-beat-controls');
    controls.append(back, marks, isLast ? ending({ again: () => go(0), run: () => close('run'), why: () => close('why') }) : next);
    const sentence = element('p', 'sv-beat-sentence', now.sentence);
    sentence.setAttribute('role', 'status');
    const middleBox = element('div', 'sv-beat-middle');
    if (middle) middleBox.append(middle);
    if (said) middleBox.append(element('p', 'sv-beat-said', said));
    middleBox.append(guesses);
    box.replaceChildren(
      head(), element('p', 'sv-beat-question', told.question), textLine(told, now), middleBox, sentence, controls,
    );
    box.dataset.beat = now.name;
    box.querySelector(isLast ? '.sv-beat-main' : '.sv-beat-next').focus({ preventScroll: true });
  }

  function head() {
    const row = element('header', 'sv-beat-head');
    row.append(element('span', 'sv-beat-where', `Step ${told.step}, beat by beat`), button('sv-button', 'Skip', () => close('')));
    return row;
  }

  function go(place) {
    beat = place;
    hasFallen = false;
    guess = null;
    show();
  }

  function fall(value) {
    hasFallen = true;
    guess = value;
    show();
  }

  function move(by) {
    if (by > 0 && isGuess()) return fall(null);
    if (told.beats[beat + by]) go(beat + by);
  }

  function close(where) {
    box.hidden = true;
    host.toggleAttribute('data-opening', false);
    leave(where);
  }

  box.addEventListener('keydown', (event) => {
    const does = { ArrowRight: () => move(1), ArrowLeft: () => move(-1), Escape: () => close('') }[event.key];
    event.stopPropagation();                                // these keys are not the stage's while this is open
    if (!does) return;
    event.preventDefault();
    does();
  });
  box.addEventListener('pointerdown', (event) => { start = event.clientX; });
  box.addEventListener('pointerup', (event) => {
    const moved = start === null ? 0 : event.clientX - start;
    start = null;
    if (moved < -SWIPE) move(1);
    if (moved > SWIPE) move(-1);
  });

  return {
    async open(wanted) {
      told = await ask(wanted);
      if (!told) return;
      box.hidden = false;
      host.toggleAttribute('data-opening', true);
      go(0);
    },
  };
}
