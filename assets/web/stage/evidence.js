// evidence.js: how a step's draft was made: a token tree, lines of tokens, facts, a passage. Every place, mark and word
// arrives computed; a node can be pressed or walked to with the arrow keys, as in any tree.
import { element, sentence } from '../core/element.js';
import { palette, labelOf } from '../core/palette.js';
import { tokenLabel } from './token.js';

// A token with its mark, its status said for those who cannot see the mark.
function chip([text, mark, note]) {
  const made = element('li', `sv-chip${mark ? ` sv-is-${mark}` : ''}`), body = element('span', 'sv-body');
  body.append(tokenLabel('', text));
  made.append(body);
  if (palette().statuses[mark]) made.append(element('span', 'sv-hidden', `, ${labelOf(mark)}`));
  if (note) made.append(element('span', 'sv-chip-note', note));
  return made;
}

function line([name, chips, more]) {
  const made = element('div', 'sv-said-line'), list = element('ol', 'sv-chips');
  if (name) made.append(element('span', 'sv-said-name', name));
  list.append(...chips.map(chip));
  if (more) list.append(element('li', 'sv-chip-note', more));
  made.append(list);
  return made;
}

function lines(part) {
  const made = element('div', 'sv-said-lines');
  made.toggleAttribute('data-aligned', part.aligned);
  made.toggleAttribute('data-named', part.lines.some(([name]) => name));
  made.append(...part.lines.map(line));
  return [made];
}

function facts(part) {
  const made = element('dl', 'sv-facts');
  for (const [name, value] of part.items) made.append(element('dt', '', name), element('dd', '', value));
  return [made];
}

function passage(part) {
  const made = element('p', `sv-passage${part.mark ? ` sv-is-${part.mark}` : ''}`);
  made.append(element('span', 'sv-body', part.text));
  return [made];
}

// ---- the tree ----------------------------------------------------------------------------------------------------
// A column per depth behind a narrow one for the text so far, a row per leaf below the heads.
function edge([, , status, depth, row, above]) {
  const made = element('span', `sv-edge${status === 'accepted' ? ' sv-taken' : ''}${row === above ? ' sv-straight' : ''}`);
  made.setAttribute('aria-hidden', 'true');
  made.style.gridColumn = String(depth + 1);
  made.style.gridRow = `${above + 2} / ${row + 3}`;
  return made;
}

function node([ref, text, status, depth, row, , score, place, size, odds], whose) {
  const words = [text, labelOf(status), `depth ${depth}`];
  if (score) words.push(`${whose} ${score}`);
  if (odds) words.push(`the target gives it ${odds}`);
  const say = words.join(', '), made = element('div', `sv-node sv-is-${status}`), body = element('span', 'sv-body');
  made.setAttribute('role', 'treeitem');
  made.setAttribute('aria-level', String(depth));
  made.setAttribute('aria-posinset', String(place));
  made.setAttribute('aria-setsize', String(size));
  made.setAttribute('aria-label', say);
  made.title = say;
  made.tabIndex = -1;
  made.dataset.ref = ref;
  made.style.gridColumn = String(depth + 1);
  made.style.gridRow = String(row + 2);
  body.append(tokenLabel('', text));
  made.append(body);
  if (score) made.append(element('span', 'sv-chip-note', score));
  return made;
}

function head(words, place) {
  const made = element('span', 'sv-tree-head', words);
  made.setAttribute('aria-hidden', 'true');
  made.style.gridColumn = String(place + 2);
  made.style.gridRow = '1';
  return made;
}

function origin() {
  const made = element('span', 'sv-origin');
  made.setAttribute('aria-hidden', 'true');
  return made;
}

function tree(part, press) {
  const scroll = element('div', 'sv-tree-scroll'), made = element('div', 'sv-tree');
  made.setAttribute('role', 'tree');
  made.setAttribute('aria-label', 'The drafted token tree');
  made.style.setProperty('--sv-depth', String(part.heads.length));
  made.append(...part.heads.map(head), origin(), ...part.nodes.map(edge), ...part.nodes.map((props) => node(props, part.whose)));
  made.addEventListener('click', (event) => {
    const pressed = event.target.closest('.sv-node');
    if (pressed) press(pressed.dataset.ref);
  });
  made.addEventListener('keydown', (event) => walk(event, made, press));
  scroll.append(made);
  return [scroll];
}

const levelOf = (made) => Number(made.getAttribute('aria-level'));

// Up and down along all nodes, left to the parent, right to the first child.
function walk(event, host, press) {
  const nodes = [...host.querySelectorAll('.sv-node')], now = nodes.indexOf(event.target);
  if (now < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  const after = nodes[now + 1];
  const ways = {
    ArrowDown: () => after,
    ArrowUp: () => nodes[now - 1],
    ArrowRight: () => (after && levelOf(after) > levelOf(nodes[now]) ? after : null),
    ArrowLeft: () => nodes.slice(0, now).reverse().find((other) => levelOf(other) < levelOf(nodes[now])),
    Home: () => nodes[0],
    End: () => nodes[nodes.length - 1],
  };
  const isPress = event.key === 'Enter' || event.key === ' ';
  if (!ways[event.key] && !isPress) return;
  event.preventDefault();
  event.stopPropagation();
  if (isPress) return press(event.target.dataset.ref);
  const next = ways[event.key]();
  if (next) reach(host, next);
}

function reach(host, next) {
  for (const made of host.querySelectorAll('.sv-node')) made.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

const KINDS = { tree, lines, facts, passage };

// host: where it is drawn. press(ref): a node was chosen.
export const evidence = (host, press) => {
  let shown = null;

  function draw(made) {
    if (made === shown) return;
    shown = made;
    const parts = made ? made.parts.filter((part) => KINDS[part.kind]) : [];
    const lead = element('p', 'sv-made-lead');
    if (made) sentence(lead, made.lead);
    lead.hidden = !made || !made.lead.length;
    host.replaceChildren(lead, ...parts.map((part) => {
      const box = element('section', 'sv-part');
      box.append(element('h2', 'sv-part-title', part.title));
      if (part.lead) box.append(element('p', 'sv-part-lead', part.lead));
      box.append(...KINDS[part.kind](part, press));
      if (part.note) box.append(element('p', 'sv-part-note', part.note));
      return box;
    }));
  }

  // The pinned token's node; the first one is reached by Tab where none of them is pinned.
  function mark(ref) {
    const nodes = [...host.querySelectorAll('.sv-node')];
    const on = nodes.find((made) => made.dataset.ref === ref);
    for (const made of nodes) {
      made.classList.toggle('sv-on', made === on);
      made.setAttribute('aria-selected', String(made === on));
      if (!host.contains(document.activeElement)) made.tabIndex = -1;
    }
    if (nodes.length && !nodes.some((made) => made.tabIndex === 0)) (on || nodes[0]).tabIndex = 0;
  }

  return { draw, mark };
};
