// legend.js: what the marks mean and how often each has come so far. A pressed entry dims all tokens of other kinds.
import { button, element, spelled, verbatim } from '../core/element.js';
/** @import { Hub } from '../core/hub.js' */

export class Legend {
  /** @param {HTMLElement} root @param {Hub} hub */
  constructor(root, hub) {
    this.root = root;
    this.hub = hub;
    this.host = this.root.querySelector('.sv-legend');
    this.chosen = new Set();
    /** @type {Map<string, HTMLElement>} */
    this.counts = new Map();
    this.host.addEventListener('click', (event) => {
      /** @type {HTMLElement} */
      const button = /** @type {Element} */ (event.target).closest('.sv-legend-entry');
      if (button) this.choose(button);
    });
    this.hub.on('head', () => { this.entries(); this.count(); });
    this.hub.on('cursor', () => this.count());
    document.addEventListener('sv-controls', () => this.still());
  }

  entries() {
    this.counts = new Map();
    this.host.replaceChildren(...(this.hub.head ? this.hub.head.legend : []).map(([status, short, long]) => {
      const made = element('li'), press = button('sv-legend-entry'), sample = element('span', `sv-sample sv-is-${status}`);
      sample.append(verbatim('span', 'sv-body', 'abc'));
      sample.setAttribute('aria-hidden', 'true');
      const count = verbatim('span', 'sv-count', '0');
      this.counts.set(status, count);
      press.title = long;
      press.dataset.status = status;
      press.setAttribute('aria-pressed', String(this.chosen.has(status)));
      press.append(sample, element('span', 'sv-legend-name', short), count);
      made.append(press);
      return made;
    }));
    this.still();
  }

  // In the simple view the marks are explained, and nothing is chosen among them.
  still() {
    const isSimple = document.documentElement.hasAttribute('data-sv-simple');
    for (const press of /** @type {NodeListOf<HTMLButtonElement>} */ (this.host.querySelectorAll('.sv-legend-entry'))) {
      if (isSimple && press.getAttribute('aria-pressed') === 'true') this.choose(press);
      press.disabled = isSimple;
    }
  }

  // The style sheet dims by the root's attribute: choosing costs the same however long the run is.
  choose(button) {
    const { status } = button.dataset;
    if (!this.chosen.delete(status)) this.chosen.add(status);
    button.setAttribute('aria-pressed', String(this.chosen.has(status)));
    this.root.toggleAttribute('data-only', this.chosen.size > 0);
    this.root.setAttribute('data-kinds', [...this.chosen].join(' '));
  }

  count() {
    const step = this.hub.steps[this.hub.cursor - 1];
    this.counts.forEach((node, status) => { node.textContent = step ? spelled(step.totals.counts[status]) : '0'; });
  }
}
