// unreadable.js: what a reader of the page cannot read: texts that lie over each other, and texts that are cut off. Gives
// a list of sentences. What a scrolled box hides, and what lies behind an opaque box, is not there for a reader.
() => {
  const LEAST = 1, GLYPH = .1;              // pixels that count; the part of a line above and below its letters
  const style = new Map(), found = [];
  const styleOf = (node) => style.get(node) || style.set(node, getComputedStyle(node)).get(node);
  const name = (node) => `${node.tagName.toLowerCase()}.${[...node.classList].join('.')}`;

  const hides = (value) => value === 'hidden' || value === 'clip';
  // the box inside a node's border
  const inside = (node) => {
    const { left, top } = node.getBoundingClientRect();
    return { left: left + node.clientLeft, top: top + node.clientTop,
      right: left + node.clientLeft + node.clientWidth, bottom: top + node.clientTop + node.clientHeight };
  };
  const shared = (a, b) => ({
    left: Math.max(a.left, b.left), right: Math.min(a.right, b.right), top: Math.max(a.top, b.top), bottom: Math.min(a.bottom, b.bottom),
  });
  const isEmpty = (box) => box.right - box.left < LEAST || box.bottom - box.top < LEAST;

  const isOpaque = (node) => {
    const { backgroundColor, backgroundImage } = styleOf(node), [, alpha] = /rgba?\(.*[,/] ?([\d.]+)\)$/.exec(backgroundColor) || [];
    return backgroundImage === 'none' && backgroundColor !== 'transparent' && (!/^rgba|\//.test(backgroundColor) || Number(alpha) > .8);
  };
  // whether a reader sees this node at a point: nothing opaque lies over it
  const isSeen = (node, x, y) => {
    for (const above of document.elementsFromPoint(x, y)) {
      if (above === node || above.contains(node)) return true;
      if (node.contains(above)) return true;
      if (isOpaque(above)) return false;
    }
    return false;
  };

  // one line of a text, as far as boxes around it let it be seen; says where it is cut off
  function seen(text, rect) {
    const node = text.parentElement, margin = GLYPH * rect.height;
    let box = { left: rect.left, right: rect.right, top: rect.top + margin, bottom: rect.bottom - margin };
    let [cutsX, cutsY] = [true, true];               // until a box that scrolls, or says itself that there is more
    for (let around = node; around && around !== document.documentElement; around = around.parentElement) {
      const { overflowX, overflowY, textOverflow, position, display } = styleOf(around);
      if (display === 'inline' || display === 'contents') continue;
      if (textOverflow === 'ellipsis') cutsX = false;
      const edge = inside(around), isBody = around === document.body;
      const [clipsX, clipsY] = [overflowX !== 'visible' && !isBody, overflowY !== 'visible' && !isBody];
      if (clipsX && !hides(overflowX)) cutsX = false;
      if (clipsY && !hides(overflowY)) cutsY = false;
      const before = box, isLost = (clipsX && before.left < edge.left - around.scrollLeft - LEAST) || (clipsY && before.top < edge.top - around.scrollTop - LEAST);
      if (clipsX) box = { ...box, left: Math.max(box.left, edge.left), right: Math.min(box.right, edge.right) };
      if (clipsY) box = { ...box, top: Math.max(box.top, edge.top), bottom: Math.min(box.bottom, edge.bottom) };
      const isCut = isLost || (cutsX && clipsX && (before.left < edge.left - LEAST || before.right > edge.right + LEAST))
        || (cutsY && clipsY && (before.top < edge.top - LEAST || before.bottom > edge.bottom + LEAST));
      if (isCut) found.push(`“${text.data.trim()}” is cut off by ${name(around)}`);
      if (isEmpty(box)) return null;
      if (position === 'fixed') break;
    }
    const view = { left: 0, top: 0, right: innerWidth, bottom: innerHeight }, inView = shared(box, view);
    const isOutside = (cutsX && (box.left < -LEAST || box.right > innerWidth + LEAST))
      || (cutsY && document.documentElement.scrollHeight <= innerHeight + 1 && box.bottom > innerHeight + LEAST);
    if (isOutside) found.push(`“${text.data.trim()}” is cut off by the window`);
    return isEmpty(inView) ? null : { ...inView, text, node };
  }

  const lines = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = /** @type {Text} */ (walker.currentNode), node = text.parentElement;
    if (!text.data.trim() || node.closest('script, style, template, .sv-hidden, option') || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const range = document.createRange();
    range.selectNodeContents(text);
    for (const rect of range.getClientRects()) {
      const line = rect.width >= LEAST && rect.height >= LEAST && seen(text, rect);
      if (line && isSeen(node, (line.left + line.right) / 2, (line.top + line.bottom) / 2)) lines.push(line);
    }
  }
  for (const [place, one] of lines.entries()) {
    for (const other of lines.slice(place + 1)) {
      if (one.node === other.node) continue;
      const both = shared(one, other);
      if (isEmpty(both)) continue;
      const [x, y] = [(both.left + both.right) / 2, (both.top + both.bottom) / 2];
      if (isSeen(one.node, x, y) && isSeen(other.node, x, y)) found.push(`“${one.text.data.trim()}” lies over “${other.text.data.trim()}”`);
    }
  }
  return [...new Set(found)];
}
