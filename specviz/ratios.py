"""When a ratio of two speeds says something: how far one run must be from 1, and a median with its interval.

Ratios are compared on a logarithmic scale, so that nothing depends on which side is named first. Standard library only.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

ONE_RUN = 0.15
"""How much faster one side must be for a single run to say anything."""
COVERAGE = 0.929
"""At least so likely is the true median inside its interval; a little under 93 %, which 8 values just miss."""


def is_far(ratio: float) -> bool:
    """Whether one side is ahead by ONE_RUN or more, whichever."""
    return ratio <= 0 or max(ratio, 1 / ratio) - 1 >= ONE_RUN


def middle(ratios: Sequence[float]) -> float:
    """The median; between two middle ones it halves their distance on the logarithmic scale."""
    return math.exp(statistics.median(map(math.log, ratios)))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that holds the median of the law the values come from, as the binomial law
    gives it for any continuous law (David and Nagaraja, Order Statistics, 2003, section 7.1); of fewer than five values
    the smallest and the largest, which hold it less surely."""
    ordered, rank = sorted(values), 0
    while 2 * (rank + 1) < len(ordered) and _coverage(len(ordered), rank + 1) >= COVERAGE:
        rank += 1
    return ordered[rank], ordered[-1 - rank]


def _coverage(number: int, left_out: int) -> float:
    """With so many values left out on either side."""
    tail = sum(math.comb(number, below) for below in range(left_out + 1))
    return 1 - 2 * tail / 2**number
