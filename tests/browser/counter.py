"""What a person has before them on a page: controls, words, sizes of type, and how far things jumped."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SEEN = Path(__file__).with_name("counter.js").read_text(encoding="utf-8")
_SEEN = _SEEN[_SEEN.index("() =>") :]

WATCH_SHIFTS = """window.shifted = [];
const nameOf = ({ node }) => node && (node.className || node.id || node.nodeName);
new PerformanceObserver((list) => {
  const late = list.getEntries().filter(({ hadRecentInput }) => !hadRecentInput);
  window.shifted.push(...late.map(({ value, sources }) => [value, sources.map(nameOf).join(' ')]));
}).observe({ type: 'layout-shift', buffered: true });"""


@dataclass(frozen=True, slots=True)
class Seen:
    """controls: a field of several inputs counts once, tokens that can be pressed are the run's content; words: those
    of the page, not the run's tokens; types: sizes in pixels."""

    controls: list[str]
    words: list[str]
    types: list[float]


def seen(page: Any) -> Seen:
    """What is in sight now, in the window as it is scrolled."""
    return Seen(**page.evaluate(_SEEN))


def shifts(page: Any) -> list[tuple[float, str]]:
    """How far things jumped, and which, since WATCH_SHIFTS ran; what a press brings within half a second is none."""
    return [tuple(each) for each in page.evaluate("window.shifted")]
