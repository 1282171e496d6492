// token.js: a token's label with the signs for spaces and line breaks set back, so that the word stands out.
import { element, VERBATIM, verbatim } from '../core/element.js';
import { html } from '../core/html.js';

// [class, text] of each part
export function parts(text) {
  const [, lead, word, trail] = /^(␣*)([\s\S]*?)(␣*)$/.exec(text);
  return [['sv-space', word && lead], ['sv-token-word', word || text], ['sv-space', word && trail]].filter(([, each]) => each);
}

export const Token = ({ className, text }) => html`<span class=${className} ...${VERBATIM}>${parts(text).map(([kind, words]) => html`<span class=${kind}>${words}</span>`)}</span>`;

// the same for a view that makes thousands of them
export function tokenLabel(className, text) {
  const made = verbatim('span', className);
  made.append(...parts(text).map(([kind, words]) => element('span', kind, words)));
  return made;
}
