// page_code.js: the QR code of the page's address, or of the live page beside it, in the corner of a presented page; pressed, it fills the screen.
import { answerOf } from '../core/answer.js';
import { VERBATIM } from '../core/element.js';
import { html } from '../core/html.js';
import { render, useState } from '../vendor/preact_htm.js';
/** @import { Host } from '../core/hub.js' */
/** @import { PageCode } from '../messages.d.ts' */

const root = document.documentElement;

/** @param {{ codes: PageCode[] }} props */
function Code({ codes }) {
  const [chosen, choose] = useState(codes[0]), { address, picture } = chosen;
  /** @type {{ current: HTMLDialogElement | null }} */
  const dialog = { current: null };
  const turnTo = (code) => (event) => {
    event.stopPropagation();                         // a press beside the buttons closes the dialog
    choose(code);
  };
  const ownKeys = (event) => { if (event.key === 'Escape') event.stopPropagation(); };      // it closes the code, not Present
  return html`<button type="button" class="sv-page-code-open" aria-label="QR code of this page" title="QR code of this page" onClick=${() => dialog.current.showModal()}>
      <img src=${picture} alt="" /></button>
    <dialog class="sv-page-code" aria-label="QR code of this page" ref=${dialog} onKeyDown=${ownKeys} onClick=${() => dialog.current.close()}>
      <img src=${picture} alt="QR code of ${address}" /><p ...${VERBATIM}>${address}</p>
      <div class="sv-page-code-choice">${codes.map((code) => html`<button type="button" aria-pressed=${String(code === chosen)} onClick=${turnTo(code)}>${code.words}</button>`)}</div>
      <button type="button" class="sv-page-code-close" aria-label="Close the code">×</button></dialog>`;
}

// It is asked for when the page is first presented. There is none where the address leads to this machine alone.
/** @param {HTMLElement} element @param {Host & { server: { codes: (wanted: { address: string }) => Promise<PageCode[] | null> } }} host */
export function pageCode(element, { server }) {
  const presented = new MutationObserver(async () => {
    presented.disconnect();
    const codes = await answerOf(server.codes({ address: location.origin + location.pathname }));
    if (codes?.length) render(html`<${Code} codes=${codes} />`, element.querySelector('.sv-panel'));
  });
  presented.observe(root, { attributeFilter: ['data-sv-present'] });
}
