// help.js: the panel that says what the chosen method does and what the rule in force means. Text only; a link leads to
// arXiv or nowhere.
import { element } from '../core/element.js';

const PAPERS = 'https://arxiv.org/abs/';

function paper([words, address]) {
  if (!address || !address.startsWith(PAPERS)) return element('span', '', words);
  const link = element('a', '', words);
  Object.assign(link, { href: address, target: '_blank', rel: 'noopener noreferrer' });
  return link;
}

function rule({ title, badge, meaning, summary }) {
  const line = element('p', 'sv-help-rule');
  line.append(
    element('span', `sv-help-badge sv-help-${badge === 'exact' ? 'exact' : 'lossy'}`, badge), ' ',
    element('b', '', `${title}.`), ` ${summary} ${meaning}`,
  );
  return line;
}

function lines({ summary, caution, sources, lacks, rule: inForce, notes }) {
  const made = [summary, caution].filter(Boolean).map((words) => element('p', '', words));
  const from = element('p', 'sv-help-from');
  sources.forEach((source, place) => from.append(...(place ? [' · '] : []), paper(source)));
  const more = notes.map((words) => element('p', 'sv-help-note', words));
  return [
    ...(lacks ? [element('p', 'sv-help-lacks', lacks)] : []), ...made,
    ...(sources.length ? [from] : []), ...(inForce ? [rule(inForce)] : []), ...more,
  ];
}

// holder: holds .sv-help; props.value: JSON of the help, anew whenever the method or the rule changes.
export const mountHelp = (holder, { props, watch }) => {
  const box = holder.querySelector('.sv-help');
  const show = () => {
    const help = props.value ? JSON.parse(props.value) : null;
    box.hidden = !help;
    if (!help) return;
    box.setAttribute('aria-label', `About the method: ${help.title}`);
    box.replaceChildren(...lines(help));
  };
  watch('value', show);
  show();
};
