// lesson_task.js: the box of a lesson's task: what is asked, the answers or runs to press, how far it is, and what is
// said when it is done. Whether it was done before is what this browser remembers.
import { element, sentence } from '../core/element.js';
import { recall, remember } from '../core/memory.js';

const MARKS = { open: '○', done: '✓' };

// task: plain data. name: what is kept. stage: as of mountLesson. watched(): the tasks that are watched, if there is a
// stage; isOn(): whether the box still is the one on screen; brief(words), say(words): in the lesson's head, and aloud.
export const lessonTask = (task, { name, stage, watched, isOn, brief, say, button }) => {
  const box = element('section', 'sv-lesson-task'), mark = element('span', 'sv-lesson-mark');
  const heading = element('h4'), label = element('span'), count = element('span', 'sv-lesson-count');
  const praise = element('p', 'sv-lesson-praise', task.praise), again = button('Do it again', () => begin(true));
  heading.append(mark, label, count);
  mark.setAttribute('aria-hidden', 'true');

  function set(isDone) {
    box.toggleAttribute('data-done', isDone);
    mark.textContent = isDone ? MARKS.done : MARKS.open;
    label.textContent = isDone ? 'Done' : 'Your task';
    praise.hidden = again.hidden = !isDone;
    tell(isDone ? task.counts.at(-1) : task.counts[0]);
  }

  function tell(words) {
    count.textContent = words || '';
    brief(box.hasAttribute('data-done') ? `${MARKS.done} Done` : `${MARKS.open} ${words || 'Your task'}`);
  }

  function finished() {
    if (!isOn()) return;
    remember(name, true);
    set(true);
    praise.scrollIntoView({ block: 'nearest' });
    say(`Done. ${task.praise}`);
    document.dispatchEvent(new Event('sv-lesson-done'));
  }

  // Of a guess: what is right, where something is, and what the person has said.
  function compare(options, own) {
    options.querySelectorAll('.sv-lesson-own').forEach((each) => each.remove());
    options.querySelectorAll('.sv-lesson-option').forEach((made, place) => {
      made.classList.toggle('sv-right', task.options[place].right);
      if (place === own) made.append(element('span', 'sv-lesson-own', 'your guess'));
    });
  }

  function answered(place, pressed, options, said) {
    const option = task.options[place];
    options.querySelectorAll('[aria-pressed]').forEach((each) => each.setAttribute('aria-pressed', String(each === pressed)));
    if (task.kind === 'guess') {
      said.textContent = task.reveal;
      remember(`${name} guess`, place);
      compare(options, place);
      finished();
    } else {
      pressed.classList.add(option.right ? 'sv-right' : 'sv-wrong');
      said.textContent = `${option.right ? 'Yes.' : 'Not this one.'} ${option.why}`;
      say(said.textContent);
      if (option.right) finished();
    }
    said.scrollIntoView({ block: 'nearest' });
  }

  // before a room: how many hands were raised for an answer, counted by whoever stands there; kept nowhere
  function hands(words) {
    let count = 0;
    const made = button('0', () => {
      count += 1;
      made.textContent = String(count);
    }, 'sv-lesson-hands');
    made.setAttribute('aria-label', `count a hand for: ${words}`);
    made.title = 'Count a hand';
    return made;
  }

  // isDone: what was found out before stands there again
  function answers(isDone) {
    const options = element('div', 'sv-lesson-options'), said = element('p', 'sv-lesson-why');
    task.options.forEach((option, place) => {
      const row = element('div', 'sv-lesson-row'), made = button(option.words, () => answered(place, made, options, said), 'sv-lesson-option');
      made.setAttribute('aria-pressed', 'false');
      row.append(made, ...(task.kind === 'guess' ? [hands(option.words)] : []));
      options.append(row);
      if (!isDone || task.kind === 'guess' || !option.right || said.textContent) return;
      made.classList.add('sv-right');
      said.textContent = option.why;
    });
    if (isDone && task.kind === 'guess') {
      said.textContent = task.reveal;
      compare(options, recall(`${name} guess`, [-1, ...task.options.keys()]));
    }
    return [options, said];
  }

  function runs() {
    const options = element('div', 'sv-lesson-options');
    for (const run of task.runs) {
      const seen = () => watched()?.once(run.run);
      options.append(button(run.title, () => stage.show(run, 'whole', seen), 'sv-lesson-option'));
    }
    return [options];
  }

  function parts(isDone) {
    if (task.options.length) return answers(isDone);
    if (task.kind === 'see') return runs();
    return task.kind === 'predict' ? [button('Open the game', () => stage.game('predict'))] : [];
  }

  function begin(isNew) {
    const isDone = !isNew && recall(name, [false, true]), asked = element('p');
    set(isDone);
    sentence(asked, task.words);
    box.replaceChildren(heading, asked, ...parts(isDone), praise, again);
    watched()?.begin(task, (done) => {
      if (!box.hasAttribute('data-done')) tell(task.counts[done]);
      if (done >= task.times) finished();
    });
  }

  begin(false);
  return box;
};
