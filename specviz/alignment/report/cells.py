"""The cells of a report's tables: numbers as words with a key to sort by; unknown numbers are dashes and sort last."""

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
    "95 % interval": lambda found: spread(found.alpha_interval),
    "same first choice": lambda found: share(found.greedy_agreement),
}
COUNTS = {
    "prompts": lambda found: number(found.num_prompts),
    "tokens": lambda found: number(found.num_tokens),
}
"""The columns that tables of drafts and of their slices share."""


def is_known(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def share_words(value: float | None) -> str:
    return percent(value) if is_known(value) else NONE


def number(value: float | None, words: Callable[[float], str] = "{:,}".format) -> Cell:
    return blocks.TableCell(words(value), sort=value) if is_known(value) else blocks.TableCell(NONE)


def share(value: float | None) -> Cell:
    return number(value, percent)


def points(value: float) -> Cell:
    """A difference of shares."""
    return number(value, lambda known: f"{_format_points(known)} points")


def speedup(value: float | None) -> Cell:
    """A speedup; a value below 1 says "slower" and is toned."""
    if not is_known(value):
        return blocks.TableCell(UNKNOWN)
    if value < 1:
        return blocks.TableCell(f"{value:.2f}x, slower", sort=value, tone="rejected")
    return blocks.TableCell(f"{value:.2f}x", sort=value)


def best_k(best: tuple[int, int] | None) -> Cell:
    if best is None:
        return blocks.TableCell(UNKNOWN)
    low, high = best
    return blocks.TableCell(str(low) if low == high else f"{low} to {high}", sort=low)


def points_range(interval: Interval | None) -> Cell:
    """An interval of differences of shares."""
    if interval is None:
        return blocks.TableCell(NONE)
    low, high = interval
    return blocks.TableCell(f"{_format_points(low)} to {_format_points(high)}", sort=low)


def spread_words(interval: Interval | None) -> str:
    """An interval of shares in words."""
    if interval is None:
        return NONE
    low, high = interval
    return f"{percent(max(0.0, low))} to {percent(min(1.0, high))}"


def spread(interval: Interval | None) -> Cell:
    """An interval of shares, sorted by its lower end."""
    return blocks.TableCell(spread_words(interval), sort=None if interval is None else interval[0])


def _format_points(share: float) -> str:
    """A difference of shares in points of a percent, signed."""
    points = round(100 * share, 1) + 0.0  # -0.0 becomes +0.0
    return f"{points:+.1f}"


def milliseconds(value: Any) -> str:
    return f"{value:.2f}\u00a0ms" if isinstance(value, (int, float)) else NONE
