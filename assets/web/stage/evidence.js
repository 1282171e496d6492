// evidence.js: how a step's draft was made: a token tree, lines of tokens, facts, a passage. Every place, mark and word
// arrives computed; a node can be pressed or walked to with the arrow keys, as in any tree.
import { VERBATIM, worded } from '../core/element.js';
import { html } from '../core/html.js';
import { labelOf, palette } from '../core/palette.js';
import { useLayoutEffect, useRef, useState } from '../vendor/preact_htm.js';
import { Token } from './token.js';
/** @import { FactsPart, LinesPart, MadeDraft, PassagePart, TreeNode, TreePart } from '../messages.d.ts' */

// A token with its mark, its status said for those who cannot see the mark.
/** @param {{ chip: LinesPart['lines'][0][1][0] }} props */
const Chip = ({ chip: [text, mark, note] }) => html`<li class="sv-chip${mark ? ` sv-is-${mark}` : ''}"><span class="sv-body"><${Token} text=${text} /></span>
  ${palette().statuses[mark] && html`<span class="sv-hidden">, ${labelOf(mark)}</span>`}${note && html`<span class="sv-chip-note">${note}</span>`}</li>`;

/** @param {LinesPart['lines'][0]} line */
const line = ([name, chips, more]) => html`<div class="sv-said-line">${name && html`<span class="sv-said-name">${name}</span>`}
  <ol class="sv-chips">${chips.map((chip) => html`<${Chip} chip=${chip} />`)}${more && html`<li class="sv-chip-note">${more}</li>`}</ol></div>`;

const flag = (isOn) => (isOn ? '' : undefined);
/** @param {{ part: LinesPart }} props */
const Lines = ({ part: { lines, aligned } }) => html`
  <div class="sv-said-lines" data-aligned=${flag(aligned)} data-named=${flag(lines.some(([name]) => name))}>${lines.map(line)}</div>`;

/** @param {{ part: FactsPart }} props */
const Facts = ({ part: { items } }) => html`<dl class="sv-facts">${items.map(([name, value]) => html`<dt>${name}</dt><dd ...${VERBATIM}>${value}</dd>`)}</dl>`;

/** @param {{ part: PassagePart }} props */
const Passage = ({ part: { text, mark } }) => html`<p ...${VERBATIM} class="sv-passage${mark ? ` sv-is-${mark}` : ''}"><span class="sv-body">${text}</span></p>`;

// ---- the tree ------------------------------------------------------------------------------------------------------
// A column per depth behind a narrow one for the text so far, a row per leaf below the heads.
/** @param {TreeNode} node */
const edge = ([, , status, depth, row, above]) => html`<span aria-hidden="true"
  class="sv-edge${status === 'accepted' ? ' sv-taken' : ''}${row === above ? ' sv-straight' : ''}"
  style=${{ gridColumn: String(depth + 1), gridRow: `${above + 2} / ${row + 3}` }} />`;

/** @param {{ node: TreeNode, whose: string, isOn: boolean, isReached: boolean }} props */
function Node({ node: [ref, text, status, depth, row, , score, place, size, probabilities], whose, isOn, isReached }) {
  const say = [text, labelOf(status), `depth ${depth}`, score && `${whose} ${score}`, probabilities && `the target gives it ${probabilities}`].filter(Boolean).join(', ');
  return html`<div class="sv-node sv-is-${status}${isOn ? ' sv-on' : ''}" role="treeitem" aria-level=${depth} aria-posinset=${place} aria-setsize=${size}
    aria-label=${say} title=${say} aria-selected=${String(isOn)} tabindex=${isReached ? 0 : -1} data-ref=${ref}
    style=${{ gridColumn: String(depth + 1), gridRow: String(row + 2) }}>
    <span class="sv-body"><${Token} text=${text} /></span>${score && html`<span class="sv-chip-note" ...${VERBATIM}>${score}</span>`}</div>`;
}

// Up and down along all nodes, left to the parent, right to the first child. levels: of all nodes; the place after `key`.
/** @param {number[]} levels @param {number} at @param {string} key */
export function walked(levels, at, key) {
  const parent = levels.slice(0, at).findLastIndex((level) => level < levels[at]);
  const ways = {
    ArrowDown: at + 1, ArrowUp: at - 1, ArrowLeft: parent, Home: 0, End: levels.length - 1,
    ArrowRight: levels[at + 1] > levels[at] ? at + 1 : at,
  };
  const next = ways[key];
  return levels[next] === undefined ? at : next;
}

const KEYS = ['ArrowDown', 'ArrowUp', 'ArrowRight', 'ArrowLeft', 'Home', 'End', 'Enter', ' '];

// One node is reached by Tab: the one that was walked to, else the pinned one, else the first.
/** @param {{ part: TreePart, chosen: string, press: (ref: string) => void }} props */
function Tree({ part: { heads, nodes, whose }, chosen, press }) {
  const [walkedTo, setWalkedTo] = useState(null), host = useRef(), refs = nodes.map(([ref]) => ref);
  const reached = refs.includes(walkedTo) ? walkedTo : refs.includes(chosen) ? chosen : refs[0];
  useLayoutEffect(() => { if (walkedTo !== null) host.current.querySelector('[tabindex="0"]').focus(); }, [walkedTo]);
  function onKeyDown(event) {
    const at = refs.indexOf(event.target.dataset.ref);
    if (at < 0 || event.ctrlKey || event.metaKey || event.altKey || !KEYS.includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key === 'Enter' || event.key === ' ') press(refs[at]);
    else setWalkedTo(refs[walked(nodes.map(([, , , depth]) => depth), at, event.key)]);
  }
  const onLeave = ({ relatedTarget }) => { if (!host.current.contains(relatedTarget)) setWalkedTo(null); };
  const onClick = ({ target }) => {
    const pressed = target.closest('.sv-node');
    if (pressed) press(pressed.dataset.ref);
  };
  return html`<div class="sv-tree-scroll"><div class="sv-tree" role="tree" aria-label="The drafted token tree" ref=${host}
    style=${{ '--sv-depth': String(heads.length) }} onClick=${onClick} onKeyDown=${onKeyDown} onfocusout=${onLeave}>
    ${heads.map((words, place) => html`<span class="sv-tree-head" aria-hidden="true" style=${{ gridColumn: String(place + 2), gridRow: '1' }}>${words}</span>`)}
    <span class="sv-origin" aria-hidden="true" />${nodes.map(edge)}
    ${nodes.map((node) => html`<${Node} node=${node} whose=${whose} isOn=${node[0] === chosen} isReached=${node[0] === reached} />`)}</div></div>`;
}

const KINDS = { tree: Tree, lines: Lines, facts: Facts, passage: Passage };

/** @param {{ part: MadeDraft['parts'][0] }} props */
const Part = ({ part, ...more }) => html`<section class="sv-part"><h2 class="sv-part-title">${part.title}</h2>
  ${'lead' in part && part.lead && html`<p class="sv-part-lead">${part.lead}</p>`}<${KINDS[part.kind]} part=${part} ...${more} />
  ${'note' in part && part.note && html`<p class="sv-part-note">${part.note}</p>`}</section>`;

// chosen: the pinned token. press(ref): a node was chosen.
/** @param {MadeDraft & { chosen: string, press: (ref: string) => void }} props */
export const Evidence = ({ lead, parts, ...more }) => html`<p class="sv-made-lead" hidden=${!lead.length}>${worded(lead)}</p>
  ${parts.filter(({ kind }) => KINDS[kind]).map((part) => html`<${Part} part=${part} ...${more} />`)}`;
