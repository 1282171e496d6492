// clipboard.js: puts a text on the clipboard, also on a page that came without encryption; resolves to whether it did.
'use strict';
window.specviz.copy = async (text) => {
  const fill = (event) => {
    event.clipboardData.setData('text/plain', text);
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch (error) {
    document.addEventListener('copy', fill, { capture: true, once: true });
    const done = document.execCommand('copy');
    document.removeEventListener('copy', fill, { capture: true });
    return done;
  }
};
