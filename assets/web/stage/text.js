// text.js: the text as it grew. Marks say what befell each token; a rejected token stands before what came instead.
import { button, element, framed } from '../core/element.js';
import { copyText } from '../core/files.js';
import { recall, remember } from '../core/memory.js';
import { pointing } from './pointing.js';
/** @import { Hub } from '../core/hub.js' */
/** @import { HiddenText, ShownStep } from '../messages.d.ts' */

const STEPS_PER_BLOCK = 120;                        // one layout never covers more than this many steps
const MODES = ['rejected', 'final'];
const LINE = 24;                                    // pixels: as good as at the end
const LASTING = 1800;                               // milliseconds that "copied" stands there
/** @param {Element} line */
const isFence = (line) => [...line.querySelectorAll('.sv-piece:not(.sv-is-rejected)')].map((piece) => piece.textContent).join('').startsWith('```');
const LEAD = /^(\s*)([\s\S]*?)$/;

export class TextView {
  /** @param {HTMLElement} root @param {Hub} hub */
  constructor(root, hub) {
    this.root = root;
    this.hub = hub;
    this.host = this.root.querySelector('.sv-text');
    this.scroll = this.root.querySelector('.sv-text-scroll');
    this.body = this.root.querySelector('.sv-text-body');
    this.copied = this.host.querySelector('.sv-copied');
    /** @type {HTMLElement[][]} */
    this.boxes = [];                                   // per step the nodes it made, so that the player can go back
    /** @type {Element | null} */
    this.block = null;
    this.blockSteps = 0;
    /** @type {HTMLElement[]} */
    this.marked = [];
    /** @type {HTMLElement[]} */
    this.newest = [];
    /** @type {HTMLElement[]} */
    this.spot = [];
    this.isAtEnd = true;
    this.isPinSeen = false;
    this.toEnd = framed(() => { this.scroll.scrollTop = this.scroll.scrollHeight; });
    this.look = framed(() => { this.isPinSeen = Boolean(this.hub.pinned && this.marked[0] && !this.beyond()); });
    this.keepPin = framed(() => { if (this.marked[0]) this.scroll.scrollTop += this.beyond(); });
    this.host.querySelector('.sv-modes').addEventListener('click', (event) => {
      const { mode } = /** @type {HTMLElement} */ (event.target).dataset;
      if (!mode) return;
      this.setMode(mode);
      remember('text', mode);
    });
    this.host.querySelector('[data-do="copy"]').addEventListener('click', () => this.copy());
    this.setMode(recall('text', MODES));
    // another layout: a pinned piece that was in sight stays there
    window.addEventListener('resize', () => {
      if (this.isPinSeen && !this.hub.playing) this.leaveEnd();
    });
    this.scroll.addEventListener('scroll', () => {
      this.look();
      this.isAtEnd = this.scroll.scrollTop + this.scroll.clientHeight >= this.scroll.scrollHeight - LINE;
    }, { passive: true });
    new ResizeObserver(() => { if (this.isAtEnd) this.toEnd(); }).observe(this.body);
    this.hub.on('reset', () => this.prompt());
    this.hub.on('head', () => this.prompt());
    this.hub.on('cursor', ({ to }) => {
      let last = [];
      while (this.boxes.length > to) this.drop();
      while (this.boxes.length < to) last = this.show(this.boxes.length);
      this.animate(last);
      this.endAnswer();
      this.toEnd();
    });
    this.hub.on('info', () => this.endAnswer());
    this.hub.on('select', (detail) => {
      this.mark();
      if (detail && detail.how === 'key' && this.marked[0]) this.marked[0].scrollIntoView({ block: 'nearest' });
      if (detail && detail.how === 'found') this.leaveEnd();
      this.look();
    });
    pointing(this.host, '.sv-piece', this.hub);
  }

  // A line between two fences is code.
  startBlock() {
    const before = this.block, isCode = Boolean(before?.matches('.sv-code')) !== Boolean(before && isFence(before));
    this.block = element('p', `sv-block ${isCode ? 'sv-code' : ''}`);
    this.blockSteps = 0;
    this.body.append(this.block);
  }

  /** @param {number} step @param {ShownStep['pieces'][0]} piece */
  piece(step, [text, status, ref]) {
    const made = element(status === 'rejected' ? 'del' : 'span', `sv-piece sv-is-${status}`);
    const [, lead, rest] = LEAD.exec(text);
    // the space before a word carries no mark, so that each token has its own line
    if (lead && rest) made.append(lead);
    made.append(element('span', 'sv-body', rest || (text ? '␣'.repeat(text.length) : '')));
    made.dataset.step = String(step);
    made.dataset.ref = ref;
    return made;
  }

  /** @param {number} index */
  show(index) {
    const made = [];
    if (this.blockSteps >= STEPS_PER_BLOCK) this.startBlock();
    for (const part of this.hub.steps[index].pieces) {
      const node = this.piece(index, part);
      this.block.append(node);
      made.push(node);
      if (part[0].endsWith('\n')) this.startBlock();
    }
    this.blockSteps += 1;
    this.boxes.push(made);
    return made;
  }

  // From a stop text on nothing is part of the final text; of the token in which it begins, only what stands before it.
  endAnswer() {
    const answer = this.hub.end?.answer, first = answer && (this.boxes[answer.step] || [])[answer.place];
    if (!first) return;
    for (const [step, made] of this.boxes.slice(answer.step).entries()) {
      for (const node of made.slice(step ? 0 : answer.place)) node.classList.add('sv-past');
    }
    if (first.previousElementSibling && first.previousElementSibling.matches('.sv-answer')) return;
    const kept = element('span', 'sv-answer', answer.text);
    first.before(kept);
    this.boxes[answer.step].push(kept);
  }

  drop() {
    for (const node of this.boxes.pop()) node.remove();
    while (this.body.lastElementChild && this.body.lastElementChild !== this.body.firstElementChild && !this.body.lastElementChild.childNodes.length) {
      this.body.lastElementChild.remove();
    }
    this.block = this.body.lastElementChild;
  }

  animate(nodes) {
    for (const node of this.newest) node.classList.remove('sv-new');
    this.newest = this.hub.phases() === 'none' ? [] : nodes;
    this.host.dataset.phases = this.hub.phases();
    for (const node of this.newest) node.classList.add('sv-new');
  }

  prompt() {
    this.body.replaceChildren();
    this.boxes = [];
    this.block = null;
    this.startBlock();
    if (!this.hub.head) return;
    if (this.hub.head.hidden) this.block.append(this.start(this.hub.head.hidden));
    this.root.toggleAttribute('data-code', this.hub.head.is_code);
    this.block.append(...this.hub.head.prompt.map(([text, role]) => (role ? this.marks(text, role) : element('span', 'sv-prompt', text))));
  }

  // Marks of a chat template, folded: the role they name.
  /** @param {string} text @param {string} role */
  marks(text, role) {
    const made = element('span', 'sv-prompt sv-prompt-mark', role);
    made.title = text;
    return made;
  }

  // The hidden start of a long prompt: how much it is, and on demand the whole of it.
  /** @param {HiddenText} hidden */
  start({ words, text }) {
    const made = button('sv-more-prompt', `… ${words}`, () => {
      made.replaceWith(element('span', 'sv-prompt', text));
      this.scroll.scrollTop = 0;
      this.scroll.focus();
    });
    made.setAttribute('aria-label', `show ${words}`);
    return made;
  }

  mark() {
    for (const node of this.marked) node.classList.remove('sv-on');
    const place = this.hub.selected();
    this.marked = place && this.boxes[place.step] ? this.boxes[place.step].filter((node) => node.dataset.ref === place.ref) : [];
    for (const node of this.marked) node.classList.add('sv-on');
    for (const node of this.spot) node.classList.remove('sv-now');
    this.spot = this.boxes[this.hub.spot] || [];
    for (const node of this.spot) node.classList.add('sv-now');
  }

  setMode(mode) {
    this.root.dataset.text = mode;
    for (const each of this.host.querySelectorAll('[data-mode]')) each.setAttribute('aria-pressed', String(each.dataset.mode === mode));
  }

  async copy() {
    const text = this.hub.steps.slice(0, this.hub.cursor).map((step) => step.written).join('');
    const done = await copyText([...text].slice(0, this.hub.end?.answer?.length).join(''));
    this.copied.textContent = done ? 'copied' : 'the browser did not allow it';
    setTimeout(() => { this.copied.textContent = ''; }, LASTING);
  }

  // How far the chosen piece is out of sight: below it more than 0, above it less.
  beyond() {
    const { top, bottom } = this.marked[0].getBoundingClientRect(), box = this.scroll.getBoundingClientRect();
    return top < box.top ? top - box.top - LINE : bottom > box.bottom ? bottom - box.bottom + LINE : 0;
  }

  // the end is left for the chosen piece
  leaveEnd() {
    this.isAtEnd = false;
    this.keepPin();
  }
}
