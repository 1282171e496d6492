// legend.js: what the marks mean and how often each has come so far. A pressed entry dims all tokens of other kinds.
import { element, spelled } from '../core/element.js';

export const legendView = (root, hub) => {
  const host = root.querySelector('.sv-legend');
  const chosen = new Set();
  let counts = new Map();

  function entries() {
    counts = new Map();
    host.replaceChildren(...(hub.head ? hub.head.legend : []).map(([status, short, long]) => {
      const made = element('li'), button = element('button', 'sv-legend-entry'), sample = element('span', `sv-sample sv-is-${status}`);
      sample.append(element('span', 'sv-body', 'abc'));
      sample.setAttribute('aria-hidden', 'true');
      const count = element('span', 'sv-count', '0');
      counts.set(status, count);
      button.type = 'button';
      button.title = long;
      button.dataset.status = status;
      button.setAttribute('aria-pressed', String(chosen.has(status)));
      button.append(sample, element('span', 'sv-legend-name', short), count);
      made.append(button);
      return made;
    }));
  }

  // The style sheet dims by the root's attribute: choosing costs the same however long the run is.
  function choose(button) {
    const { status } = button.dataset;
    if (!chosen.delete(status)) chosen.add(status);
    button.setAttribute('aria-pressed', String(chosen.has(status)));
    root.toggleAttribute('data-only', chosen.size > 0);
    root.setAttribute('data-kinds', [...chosen].join(' '));
  }

  function count() {
    const step = hub.steps[hub.cursor - 1];
    counts.forEach((node, status) => { node.textContent = step ? spelled(step.totals.counts[status]) : '0'; });
  }

  host.addEventListener('click', (event) => {
    const button = event.target.closest('.sv-legend-entry');
    if (button) choose(button);
  });

  hub.on('head', () => { entries(); count(); });
  hub.on('cursor', count);
};
