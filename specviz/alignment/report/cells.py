"""The cells of a report's tables: numbers as words with a key to sort by; unknown ones are dashes and sort last."""

import math
from collections.abc import Callable
from typing import Any

from specviz.alignment.summary import Interval
from specviz.views import blocks
from specviz.views.blocks import Cell
from specviz.views.words import percent

NONE = "–"
UNKNOWN = "not known"
INTERVAL_AND_MOST_LIKELY = {
    "95 % interval": lambda each: spread(each.alpha_interval),
    "same top token": lambda each: share(each.greedy_agreement),
}
COUNTS = {
    "prompts": lambda each: number(each.num_prompts),
    "tokens": lambda each: number(each.num_tokens),
}
"""Columns of drafts and of their slices."""


def is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def share_words(value: float | None) -> str:
    return percent(value) if is_known(value) else NONE


def number(value: float | None, words: Callable[[float], str] = "{:,}".format) -> Cell:
    return blocks.cell(words(value), sort=value) if is_known(value) else blocks.cell(NONE)


def share(value: float | None) -> Cell:
    return number(value, percent)


def points(value: float) -> Cell:
    """A difference of shares."""
    return number(value, lambda known: f"{_format_points(known)} points")


def speedup(value: float | None) -> Cell:
    """A value below 1 says "slower" and is toned."""
    if not is_known(value):
        return blocks.cell(UNKNOWN)
    is_slower = value < 1
    words = f"{value:.2f}x{', slower' if is_slower else ''}"
    return blocks.cell(words, sort=value, tone="rejected" if is_slower else "")


def best_k(best: tuple[int, int] | None) -> Cell:
    if best is None:
        return blocks.cell(UNKNOWN)
    return blocks.cell(
        str(best[0]) if best[0] == best[1] else f"{best[0]} to {best[1]}", sort=best[0]
    )


def points_range(interval: Interval | None) -> Cell:
    words = NONE if interval is None else " to ".join(map(_format_points, interval))
    return blocks.cell(words, sort=interval and interval[0])


def spread_words(interval: Interval | None) -> str:
    """An interval of shares in words."""
    return (
        NONE
        if interval is None
        else f"{percent(max(0.0, interval[0]))} to {percent(min(1.0, interval[1]))}"
    )


def spread(interval: Interval | None) -> Cell:
    return blocks.cell(spread_words(interval), sort=interval and interval[0])


def _format_points(share: float) -> str:
    """A difference of shares in points of a percent, signed; one that rounds to 0 is +0.0."""
    return f"{round(100 * share, 1) + 0.0:+.1f}"


def milliseconds(value: Any) -> str:
    return f"{value:.2f}\u00a0ms" if isinstance(value, (int, float)) else NONE
