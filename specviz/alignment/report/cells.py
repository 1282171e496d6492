"""Cells of a report's tables: numbers as words with a key to sort by. What is not a number is a dash and sorts last."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from specviz.views import blocks
from specviz.views.blocks import Cell
from specviz.views.explore.sentences import percent

if TYPE_CHECKING:
    from specviz.alignment.summary import Interval

NONE = "–"
UNKNOWN = "not known"


def is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def share_words(value: float | None) -> str:
    return percent(value) if is_known(value) else NONE


def share(value: float | None) -> Cell:
    return blocks.cell(share_words(value), sort=value if is_known(value) else None)


def number(value: float | None, form: str = "{:,}") -> Cell:
    known = is_known(value)
    return blocks.cell(form.format(value) if known else NONE, sort=value if known else None)


def speedup(value: float | None) -> Cell:
    """Said as plainly below 1 as above it."""
    if not is_known(value):
        return blocks.cell(UNKNOWN)
    is_slower = value < 1
    words = f"{value:.2f}x{', slower' if is_slower else ''}"
    return blocks.cell(words, sort=value, tone="rejected" if is_slower else "")


def best_k(best: tuple[int, int] | None) -> Cell:
    if best is None:
        return blocks.cell(UNKNOWN)
    return blocks.cell(str(best[0]) if best[0] == best[1] else f"{best[0]} to {best[1]}", sort=best[0])


def points(value: float) -> Cell:
    """A difference of shares."""
    if not is_known(value):
        return blocks.cell(NONE)
    return blocks.cell(f"{_signed(value)} points", sort=value)


def points_range(interval: Interval | None) -> Cell:
    if interval is None:
        return blocks.cell(NONE)
    return blocks.cell(f"{_signed(interval[0])} to {_signed(interval[1])}", sort=interval[0])


def spread_words(interval: Interval | None) -> str:
    """An interval of shares in words."""
    return NONE if interval is None else f"{percent(max(0.0, interval[0]))} to {percent(min(1.0, interval[1]))}"


def spread(interval: Interval | None) -> Cell:
    return blocks.cell(spread_words(interval), sort=None if interval is None else interval[0])


def _signed(share: float) -> str:
    """In points of a percent; what rounds to nothing has no minus."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def milliseconds(value: Any) -> str:
    return f"{value:.2f}\u00a0ms" if isinstance(value, (int, float)) else NONE
