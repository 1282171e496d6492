// text.js: the text as it grew. Marks say what befell each token; what was cut stands before what came instead.
import { element, framed } from '../core/element.js';
import { copyText } from '../core/files.js';
import { recall, remember } from '../core/memory.js';
import { pointing } from './pointing.js';

const STEPS_PER_BLOCK = 120;                        // one layout never covers more than this many steps
const MODES = ['cut', 'final'];
const LINE = 24;                                    // pixels: as good as at the end
const LASTING = 1800;                               // milliseconds that "copied" stands there
const LEAD = /^(\s*)([\s\S]*?)$/;

export const textView = (root, hub) => {
  const host = root.querySelector('.sv-text');
  const scroll = root.querySelector('.sv-text-scroll');
  const body = root.querySelector('.sv-text-body');
  const copied = host.querySelector('.sv-copied');
  let boxes = [];                                   // per step the nodes it made, so that the player can go back
  let block = null, blockSteps = 0;
  let marked = [], newest = [], spot = [];
  let isAtEnd = true, isPinSeen = false;
  const toEnd = framed(() => { scroll.scrollTop = scroll.scrollHeight; });

  function startBlock() {
    block = element('p', 'sv-block');
    blockSteps = 0;
    body.append(block);
  }

  function piece(step, [text, status, ref]) {
    const made = element(status === 'rejected' ? 'del' : 'span', `sv-piece sv-is-${status}`);
    const [, lead, rest] = LEAD.exec(text);
    // the space before a word carries no mark, so that each token has its own line
    if (lead && rest) made.append(lead);
    made.append(element('span', 'sv-body', rest || (text ? '␣'.repeat(text.length) : '')));
    made.dataset.step = step;
    made.dataset.ref = ref;
    return made;
  }

  function show(index) {
    const made = [];
    if (blockSteps >= STEPS_PER_BLOCK) startBlock();
    for (const part of hub.steps[index].pieces) {
      const node = piece(index, part);
      block.append(node);
      made.push(node);
      if (part[0].endsWith('\n')) startBlock();
    }
    blockSteps += 1;
    boxes.push(made);
    return made;
  }

  function drop() {
    for (const node of boxes.pop()) node.remove();
    while (body.lastElementChild && body.lastElementChild !== body.firstElementChild && !body.lastElementChild.childNodes.length) {
      body.lastElementChild.remove();
    }
    block = body.lastElementChild;
  }

  function animate(nodes) {
    for (const node of newest) node.classList.remove('sv-new');
    newest = hub.phases() === 'none' ? [] : nodes;
    host.dataset.phases = hub.phases();
    for (const node of newest) node.classList.add('sv-new');
  }

  function prompt() {
    body.replaceChildren();
    boxes = [];
    startBlock();
    if (!hub.head) return;
    if (hub.head.hidden) block.append(start(hub.head.hidden));
    block.append(element('span', 'sv-prompt', hub.head.prompt));
  }

  // The hidden start of a long prompt: how much it is, and on demand the whole of it.
  function start({ words, text }) {
    const made = element('button', 'sv-more-prompt', `… ${words}`);
    made.type = 'button';
    made.setAttribute('aria-label', `show ${words}`);
    made.addEventListener('click', () => {
      made.replaceWith(element('span', 'sv-prompt', text));
      scroll.scrollTop = 0;
      scroll.focus();
    });
    return made;
  }

  function mark() {
    for (const node of marked) node.classList.remove('sv-on');
    const place = hub.selected();
    marked = place && boxes[place.step] ? boxes[place.step].filter((node) => node.dataset.ref === place.ref) : [];
    for (const node of marked) node.classList.add('sv-on');
    for (const node of spot) node.classList.remove('sv-now');
    spot = boxes[hub.spot] || [];
    for (const node of spot) node.classList.add('sv-now');
  }

  function setMode(mode) {
    root.dataset.text = mode;
    for (const button of host.querySelectorAll('[data-mode]')) button.setAttribute('aria-pressed', String(button.dataset.mode === mode));
  }

  async function copy() {
    const done = await copyText(hub.steps.slice(0, hub.cursor).map((step) => step.written).join(''));
    copied.textContent = done ? 'copied' : 'the browser did not allow it';
    setTimeout(() => { copied.textContent = ''; }, LASTING);
  }

  host.querySelector('.sv-modes').addEventListener('click', (event) => {
    const { mode } = event.target.dataset;
    if (!mode) return;
    setMode(mode);
    remember('text', mode);
  });
  host.querySelector('[data-do="copy"]').addEventListener('click', copy);
  setMode(recall('text', MODES));
  // How far the chosen piece is out of sight: below it more than 0, above it less.
  function beyond() {
    const { top, bottom } = marked[0].getBoundingClientRect(), box = scroll.getBoundingClientRect();
    return top < box.top ? top - box.top - LINE : bottom > box.bottom ? bottom - box.bottom + LINE : 0;
  }

  const look = framed(() => { isPinSeen = Boolean(hub.pinned && marked[0] && !beyond()); });
  const keepPin = framed(() => { if (marked[0]) scroll.scrollTop += beyond(); });

  // the end is left for the chosen piece
  function leaveEnd() {
    isAtEnd = false;
    keepPin();
  }

  // another layout: a pinned piece that was in sight stays there
  window.addEventListener('resize', () => {
    if (isPinSeen && !hub.playing) leaveEnd();
  });
  scroll.addEventListener('scroll', () => {
    look();
    isAtEnd = scroll.scrollTop + scroll.clientHeight >= scroll.scrollHeight - LINE;
  }, { passive: true });
  new ResizeObserver(() => { if (isAtEnd) toEnd(); }).observe(body);

  hub.on('reset', prompt);
  hub.on('head', prompt);
  hub.on('cursor', ({ to }) => {
    let last = [];
    while (boxes.length > to) drop();
    while (boxes.length < to) last = show(boxes.length);
    animate(last);
    toEnd();
  });
  hub.on('select', (detail) => {
    mark();
    if (detail && detail.how === 'key' && marked[0]) marked[0].scrollIntoView({ block: 'nearest' });
    if (detail && detail.how === 'found') leaveEnd();
    look();
  });
  pointing(host, '.sv-piece', hub);
};
