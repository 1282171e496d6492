// draft_game.js: you are the draft model: a line to type in, what became of the last turn, the score, and a stage that shows
// the text like that of any run. The words go to the server; everything shown comes from there.
import { VERBATIM, worded } from '../core/element.js';
import { unpack } from '../core/files.js';
import { html } from '../core/html.js';
import { embeddedSource } from '../core/hub.js';
import { drawn } from '../reports/blocks.js';
import { mountStage, stageMarkup } from '../stage/stage.js';
import { useEffect, useRef, useState } from '../vendor/preact_htm.js';
/** @import { DraftGameBlock, DraftGameStageBlock, JoinChoice, RunMessage } from '../messages.d.ts' */
/** @import { BlockHost, Kinds } from '../reports/blocks.js' */

const SECTION = 'be-the-draft';
let isTyping = false;                               // the last turn was typed: the line is ready for the next one

// The one choice where the text ends in a letter, with what would stand there.
/** @param {{ join: JoinChoice, typed: string, isJoined: boolean, setJoined: (isJoined: boolean) => void }} props */
const Join = ({ join: { words, label, letters }, typed, isJoined, setJoined }) => html`<div class="sv-turns-join"><p>${worded(words)}</p>
  <label class="sv-turns-tick"><input type="checkbox" checked=${isJoined} onChange=${({ target }) => setJoined(target.checked)} /><span>${label}</span>
    <span class="sv-word" ...${VERBATIM}>${typed.trim() && `${letters}${isJoined ? '' : ' '}${typed.trim()}`}</span></label></div>`;

/** @param {{ block: DraftGameBlock, act: BlockHost['act'] }} props */
function Line({ block, act }) {
  const [typed, setTyped] = useState(block.typed), [isJoined, setJoined] = useState(Boolean(block.join?.is_on)), [isSent, setSent] = useState(false);
  const input = useRef(), send = useRef(), problem = isSent ? '' : block.problem;
  useEffect(() => { if (isTyping) input.current.focus({ preventScroll: true }); }, []);
  function onSubmit(event) {
    event.preventDefault();
    if (send.current.disabled) return;
    isTyping = true;
    setSent(true);
    act(SECTION, 'turn', { ...block.setup, game: block.game, words: input.current.value, joined: isJoined ? 'yes' : 'no' });
  }
  const finish = () => act(SECTION, 'finish', { ...block.setup, game: block.game });
  return html`<form class="sv-turns-form" onSubmit=${onSubmit}>
    ${block.join && html`<${Join} join=${block.join} typed=${typed} isJoined=${isJoined} setJoined=${setJoined} />`}
    <label class="sv-control"><span>Your next words</span><input type="text" name="words" autocomplete="off" autocapitalize="none" enterkeyhint="send"
      spellcheck=${false} maxLength=${block.most + 1} placeholder="what comes next" value=${typed} onInput=${({ target }) => setTyped(target.value)}
      ref=${input} aria-invalid=${block.problem ? 'true' : undefined} aria-describedby=${block.problem ? 'sv-turns-problem' : undefined} /></label>
    <button type="submit" class="sv-button sv-primary" data-act="turn" ref=${send}>Hand them over</button>
    ${block.can_finish && html`<button type="button" class="sv-button" data-act="finish" onClick=${finish}>Finish here</button>`}
    <p class="sv-turns-problem" id="sv-turns-problem" role="alert">${problem}</p></form>`;
}

/** @param {{ block: DraftGameBlock, host: BlockHost }} props */
export function DraftGame({ block, host }) {
  if (block.end) isTyping = false;
  return html`<div class="sv-block sv-turns">${block.prompt && html`<p class="sv-turns-prompt" ...${VERBATIM}>${block.prompt}</p>`}
    <div class="sv-turns-said" role="status">${block.said.map((words) => html`<p>${worded(words)}</p>`)}${block.end && html`<p class="sv-turns-end">${block.end}</p>`}</div>
    ${!block.end && html`<${Line} block=${block} act=${host.act} />`}
    ${block.tiles.length > 0 && html`<dl class="sv-turns-tiles">${block.tiles.map(([number, words]) => html`<div><dt>${words}</dt><dd ...${VERBATIM}>${number}</dd></div>`)}</dl>`}</div>`;
}

// A stage of its own, at the step that was just made.
/** @param {HTMLElement} holder @param {DraftGameStageBlock} block */
async function layStage(holder, { feed, focus: [step, ref] }) {
  /** @type {RunMessage} */
  const message = JSON.parse(await unpack(feed));
  holder.append(stageMarkup());
  const hub = mountStage(holder, { source: embeddedSource(message), quiet: true });
  hub.pin(step, ref, 'auto');
}

/** @type {Kinds['draft-game-stage']} */
const Stage = drawn('sv-draft-game-stage', (holder, block) => { layStage(holder, block); });

/** @param {{ block: DraftGameStageBlock }} props */
export const DraftGameStage = ({ block }) => html`<div class="sv-block sv-turns"><${Stage} block=${block} />
  <p class="sv-turns-save"><a href="specviz/trace/${block.game}" download="">Save this text as a trace</a></p></div>`;
