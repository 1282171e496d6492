// save.js: a text as a file of the person's own, without a server.
'use strict';
window.specviz.saveText = (file, text) => {
  const link = window.specviz.element('a');
  link.href = URL.createObjectURL(new Blob([text], { type: 'application/json' }));
  link.download = file;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href));
};
