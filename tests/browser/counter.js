// counter.js: what is in sight on a page, as {controls, words, types}. A field of several inputs is one control; the
// tokens of the run on the stage are its content, and neither controls nor words of the page.
() => {
  const CONTENT = '.sv-text-body, .sv-lanes-sheet, .sv-odds-rows, .sv-beat-text';
  const INPUTS = 'textarea, select, input:not([type=radio])';
  const PRESSED = `button, a[href], summary, fieldset:has([type=radio]), [role=slider], ${INPUTS}`;
  const inSight = (node) => {
    const { left, right, top, bottom, width, height } = node.getBoundingClientRect();
    const isDrawn = node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && width > 2 && height > 2;
    return isDrawn && !node.closest('[inert], .sv-hidden') && right > 0 && bottom > 0 && left < innerWidth && top < innerHeight;
  };
  const field = (node) => node.closest('#setup .block, #drawer .block') || node;
  const nameOf = (node) => Object.values(node.dataset)[0] || node.id || node.textContent.trim() || node.className;
  const typeOf = (node) => parseFloat(getComputedStyle(node).fontSize);

  const pressed = [...document.querySelectorAll(PRESSED)].filter((node) => inSight(node) && !node.disabled && !node.closest(CONTENT));
  const words = [], types = new Set(pressed.filter((node) => node.matches(INPUTS) && node.type !== 'range').map(typeOf));
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = walker.nextNode(); text; text = walker.nextNode()) {
    const node = text.parentElement;
    if (!text.textContent.trim() || node.closest('script, style, option, noscript') || !inSight(node) || !typeOf(node)) continue;
    types.add(typeOf(node));
    if (!node.closest(CONTENT)) words.push(...(text.textContent.match(/\S*\p{L}\S*/gu) || []));
  }
  return { controls: [...new Set(pressed.map(field))].map(nameOf), words, types: [...types].sort((one, other) => one - other) };
}
