// lesson.js: a lesson beside the stage.
'use strict';
window.specviz.panels.lesson = (element, host) => {};
