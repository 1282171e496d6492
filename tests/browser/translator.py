"""A stand-in for a browser's own translator: every text goes into elements of its own, and every word is changed."""

from __future__ import annotations

MARK = "◊"
"""What no token of the tests' models holds."""
TRANSLATOR = """() => {
  const left = 'script, style, textarea, input, font, svg, [translate=no]';
  const translate = (text) => {
    if (!text.data.trim() || !text.parentElement || text.parentElement.closest(left)) return;
    const outer = document.createElement('font'), inner = document.createElement('font');
    inner.append(text.data.replace(/\\S+/g, (word) => word + '◊'));
    outer.append(inner);
    text.replaceWith(outer);
  };
  const within = (node) => {
    if (node.nodeType === Node.TEXT_NODE) return translate(node);
    const walker = document.createTreeWalker(node, NodeFilter.SHOW_TEXT), found = [];
    while (walker.nextNode()) found.push(walker.currentNode);
    found.forEach(translate);
  };
  new MutationObserver((changes) => {
    for (const { addedNodes, target, type } of changes) {
      (type === 'characterData' ? [target] : addedNodes).forEach(within);
    }
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
  within(document.body);
}"""
"""Run on a page, it goes on with all that the page shows later."""

READ = """(selector) => [...document.querySelectorAll(selector)].map((node) => node.textContent)"""


def translated(page) -> None:
    page.evaluate(TRANSLATOR)


def texts(page, selector: str) -> list[str]:
    """What stands on the page, as it was translated."""
    return page.evaluate(READ, selector)


def without_marks(told: list[str]) -> list[str]:
    """The words as they were before they were translated."""
    return [text.replace(MARK, "") for text in told]
