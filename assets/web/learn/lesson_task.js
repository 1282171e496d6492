// lesson_task.js: the box of a lesson's task: what is asked, the answers or runs to press, how far it is, and what is
// said when it is done. Whether it was done before is what this browser remembers.
import { worded } from '../core/element.js';
import { html } from '../core/html.js';
import { recall, remember } from '../core/memory.js';
import { useLayoutEffect, useRef, useState } from '../vendor/preact_htm.js';
/** @import { LessonTask, TaskOption } from '../messages.d.ts' */
/** @import { Stage } from './lesson.js' */
/** @import { watchTasks } from './tasks.js' */

/** @typedef {() => ReturnType<typeof watchTasks> | null} Watched the tasks that are watched, if there is a stage */

const MARKS = { open: '○', done: '✓' };
const option = 'sv-button sv-lesson-option';

// Before a room: how many hands were raised for an answer, counted by whoever stands there; kept nowhere.
function Hands({ words }) {
  const [count, setCount] = useState(0);
  return html`<button type="button" class="sv-button sv-lesson-hands" aria-label="count a hand for: ${words}" title="Count a hand"
    onClick=${() => setCount(count + 1)}>${String(count)}</button>`;
}

// What was found out before stands there again. Of a guess: what is right, where something is, and what the person has said.
/** @param {LessonTask} task @param {string} name @param {boolean} isDone */
function found({ kind, options, reveal }, name, isDone) {
  if (!isDone) return { tried: [], own: -1, said: '', pressed: -1 };
  if (kind === 'guess') return { tried: [...options.keys()], own: recall(`${name} guess`, [-1, ...options.keys()]), said: reveal, pressed: -1 };
  const right = options.findIndex((each) => each.right);
  return { tried: [right], own: -1, said: options[right].why, pressed: -1 };
}

// finish(): the task is done. say(words): aloud.
/** @param {{ task: LessonTask, name: string, isDone: boolean, finish: () => void, say: (words: string) => void }} props */
function Answers({ task, name, isDone, finish, say }) {
  const [{ tried, own, said, pressed }, set] = useState(() => found(task, name, isDone)), isGuess = task.kind === 'guess', why = useRef();
  useLayoutEffect(() => { if (pressed >= 0) why.current.scrollIntoView({ block: 'nearest' }); }, [said]);
  function answer(place) {
    const { right, why: because } = task.options[place];
    if (isGuess) {
      remember(`${name} guess`, place);
      set({ ...found(task, name, true), own: place, pressed: place });
      return finish();
    }
    const words = `${right ? 'Yes.' : 'Not this one.'} ${because}`;
    set({ tried: [...tried, place], own, said: words, pressed: place });
    say(words);
    if (right) finish();
  }
  /** @param {TaskOption} each @param {number} place */
  const tone = (each, place) => (!tried.includes(place) ? '' : each.right ? ' sv-right' : isGuess ? '' : ' sv-wrong');
  return html`<div class="sv-lesson-options">${task.options.map((each, place) => html`<div class="sv-lesson-row">
      <button type="button" class="${option}${tone(each, place)}" aria-pressed=${String(place === pressed)} onClick=${() => answer(place)}>${each.words}
        ${isGuess && place === own && html`<span class="sv-lesson-own">your guess</span>`}</button>
      ${isGuess && html`<${Hands} words=${each.words} />`}</div>`)}</div><p class="sv-lesson-why" ref=${why}>${said}</p>`;
}

/** @param {{ runs: LessonTask['runs'], stage: Stage, watched: Watched }} props */
const Runs = ({ runs, stage, watched }) => html`<div class="sv-lesson-options">${runs.map((run) => html`
  <button type="button" class=${option} onClick=${() => stage.show(run, 'whole', () => watched()?.once(run.run))}>${run.title}</button>`)}</div>`;

/** @param {{ task: LessonTask, stage: Stage, watched: Watched }} props */
function Parts({ task, stage, watched, ...more }) {
  if (task.options.length) return html`<${Answers} task=${task} ...${more} />`;
  if (task.kind === 'see') return html`<${Runs} runs=${task.runs} stage=${stage} watched=${watched} />`;
  return task.kind === 'predict' && html`<button type="button" class="sv-button" onClick=${() => stage.game('predict')}>Open the game</button>`;
}

// name: what is kept. brief(words), say(words): in the lesson's head, and aloud.
/**
 * @param {{
 *   task: LessonTask, name: string, stage: Stage, watched: Watched, brief: (words: string) => void, say: (words: string) => void,
 * }} props
 */
export function Task({ task, name, brief, say, watched, ...more }) {
  const [{ isDone, round, isNews }, set] = useState({ isDone: recall(name, [false, true]), round: 0, isNews: false });
  const [count, setCount] = useState(''), box = useRef(), counted = isDone ? task.counts.at(-1) : count || task.counts[0];
  function finish() {
    remember(name, true);
    set({ isDone: true, round, isNews: true });
    say(`Done. ${task.praise}`);
    document.dispatchEvent(new Event('sv-lesson-done'));
  }
  function again() {
    setCount('');
    set({ isDone: false, round: round + 1, isNews: false });
  }
  useLayoutEffect(() => {
    watched()?.begin(task, (times) => {
      setCount(task.counts[times]);
      if (times >= task.times) finish();
    });
    return () => watched()?.end();
  }, [round]);
  useLayoutEffect(() => brief(isDone ? `${MARKS.done} Done` : `${MARKS.open} ${counted || 'Your task'}`), [isDone, counted]);
  useLayoutEffect(() => { if (isNews) for (const each of box.current.querySelectorAll('.sv-lesson-praise, .sv-lesson-why')) each.scrollIntoView({ block: 'nearest' }); }, [isNews]);
  return html`<section class="sv-lesson-task" data-done=${isDone ? '' : undefined} ref=${box}>
    <h4><span class="sv-lesson-mark" aria-hidden="true">${isDone ? MARKS.done : MARKS.open}</span><span>${isDone ? 'Done' : 'Your task'}</span>
      <span class="sv-lesson-count">${counted}</span></h4><p>${worded(task.words)}</p>
    <${Parts} key=${round} task=${task} name=${name} isDone=${isDone} finish=${finish} say=${say} watched=${watched} ...${more} />
    <p class="sv-lesson-praise" hidden=${!isDone}>${task.praise}</p>
    <button type="button" class="sv-button" hidden=${!isDone} onClick=${again}>Do it again</button></section>`;
}
