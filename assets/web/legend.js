// legend.js: what the marks mean and how often each has come so far.
'use strict';
(() => {
  const { element } = window.specviz;

  window.specviz.views.legend = (root, hub) => {
    const host = root.querySelector('.sv-legend');
    let counts = new Map();

    function entries() {
      counts = new Map();
      host.replaceChildren(...(hub.head ? hub.head.legend : []).map(([status, short, long]) => {
        const made = element('li', 'sv-legend-entry'), sample = element('span', `sv-sample sv-is-${status}`);
        sample.append(element('span', 'sv-body', 'abc'));
        const count = element('span', 'sv-count', '0');
        counts.set(status, count);
        made.title = long;
        made.append(sample, element('span', 'sv-legend-name', short), count);
        return made;
      }));
    }

    function count() {
      const step = hub.steps[hub.cursor - 1];
      counts.forEach((node, status) => { node.textContent = step ? String(step.totals.counts[status]) : '0'; });
    }

    hub.on('head', () => { entries(); count(); });
    hub.on('cursor', count);
  };
})();
