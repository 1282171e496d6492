// tokens.js: a token's label with the signs for spaces and line breaks set back, so that the word stands out.
import { element } from '../core/element.js';

export const tokenLabel = (className, text) => {
  const made = element('span', className);
  const [, lead, word, trail] = /^(␣*)([\s\S]*?)(␣*)$/.exec(text);
  if (lead && word) made.append(element('span', 'sv-space', lead));
  made.append(element('span', 'sv-token-word', word || text));
  if (trail && word) made.append(element('span', 'sv-space', trail));
  return made;
};
