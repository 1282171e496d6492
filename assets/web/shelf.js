// shelf.js: the library drawer: runs of this browser, recorded runs, opened files.
'use strict';
window.specviz.panels.shelf = (element, host) => {};
