// sharing.js: the share drawer: a link and files.
'use strict';
window.specviz.panels.sharing = (element, host) => {};
