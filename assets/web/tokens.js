// tokens.js: a token's label with the signs for spaces and line breaks set back, so that the word stands out.
'use strict';
window.specviz.token = (className, text) => {
  const { element } = window.specviz;
  const made = element('span', className);
  const [, lead, word, trail] = /^(␣*)([\s\S]*?)(␣*)$/.exec(text);
  if (lead && word) made.append(element('span', 'sv-space', lead));
  made.append(element('span', 'sv-token-word', word || text));
  if (trail && word) made.append(element('span', 'sv-space', trail));
  return made;
};
