// unpack.js: a text that came compressed: gzip, written in the letters of base64. Resolves to the text.
'use strict';
window.specviz.unpack = (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'))).text();
};
