// next.js: the buttons under a run that is over and rests. Which they are, their words and what each does come from Python.
import { worded } from '../core/element.js';
import { html } from '../core/html.js';
import { savePicture } from '../share/picture_file.js';
import { render } from '../vendor/preact_htm.js';
/** @import { Hub, Trigger } from '../core/hub.js' */
/** @import { NextStep } from '../messages.d.ts' */

/** @param {{ steps: NextStep[], press: (step: NextStep) => void }} props */
export const Chips = ({ steps, press }) => steps.map((step) => html`<button type="button" class="sv-button sv-next-step" data-does=${step.does} title=${step.note}
  aria-description=${step.note} onClick=${() => press(step)}><span class="sv-next-words">${worded(step.words)}</span></button>`);

export class Next {
  // trigger: the server's, to make another run; without a server there is none
  /** @param {HTMLElement} root @param {Hub} hub @param {{ trigger?: Trigger }} host */
  constructor(root, hub, { trigger }) {
    this.hub = hub;
    this.trigger = trigger;
    this.box = root.querySelector('.sv-next');
    this.box.toggleAttribute('data-runs', Boolean(trigger));
    this.hub.on('reset', () => this.draw());
    this.hub.on('info', () => this.draw());
  }

  steps() {
    const { end, playing, steps, total } = this.hub;
    if (!end || playing || this.hub.isLive() || steps.length < total) return [];
    return end.next.filter(({ does }) => this.trigger || does !== 'run');
  }

  draw() { render(html`<${Chips} steps=${this.steps()} press=${(step) => this.press(step)} />`, this.box); }

  /** @param {NextStep} step */
  press({ does, at, asks, shows }) {
    if (does === 'run') return this.trigger('really', asks);
    if (does === 'picture') return savePicture(this.hub, shows);
    if (this.hub.imagined) this.hub.imagine(null);
    return this.hub.pin(at.step, at.ref, 'key');
  }
}
