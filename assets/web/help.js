// help.js: the panel that says what the chosen method does and what the rule in force means. Text only; a link leads to
// arXiv or nowhere.
'use strict';
(() => {
  const { specviz } = window;
  const PAPERS = 'https://arxiv.org/abs/';

  function paper([words, address]) {
    if (!address || !address.startsWith(PAPERS)) return specviz.element('span', '', words);
    const link = specviz.element('a', '', words);
    Object.assign(link, { href: address, target: '_blank', rel: 'noopener noreferrer' });
    return link;
  }

  function rule({ title, badge, meaning, summary }) {
    const line = specviz.element('p', 'sv-help-rule');
    line.append(
      specviz.element('span', `sv-help-badge sv-help-${badge === 'exact' ? 'exact' : 'lossy'}`, badge), ' ',
      specviz.element('b', '', `${title}.`), ` ${summary} ${meaning}`,
    );
    return line;
  }

  function lines({ summary, caution, sources, lacks, rule: inForce, notes }) {
    const made = [summary, caution].filter(Boolean).map((words) => specviz.element('p', '', words));
    const from = specviz.element('p', 'sv-help-from');
    sources.forEach((source, place) => from.append(...(place ? [' · '] : []), paper(source)));
    const more = notes.map((words) => specviz.element('p', 'sv-help-note', words));
    return [
      ...(lacks ? [specviz.element('p', 'sv-help-lacks', lacks)] : []), ...made,
      ...(sources.length ? [from] : []), ...(inForce ? [rule(inForce)] : []), ...more,
    ];
  }

  // element: holds .sv-help; props.value: JSON of the help, anew whenever the method or the rule changes.
  specviz.mountHelp = (element, { props, watch }) => {
    const box = element.querySelector('.sv-help');
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
})();
