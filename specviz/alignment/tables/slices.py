"""Slices of the tokens (tags, classes, buckets of depth and of context), and intervals over prompts.

Depth counts the text's own tokens before a place; context counts the prompt's tokens too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from specviz.alignment.summary import Interval
from specviz.alignment.types import AnalysedText, Array

DEPTH_STARTS = (0, *(2**power for power in range(4, 25)))
SETTLED = DEPTH_STARTS[1]
"""Where the first tokens of a text end, which are easier or harder than the rest in any context."""
CONTEXT_STARTS = (0, *sorted(start << power for start in (32, 48) for power in range(20)))
LEVEL = 0.95


def bucket_name(starts: Sequence[int], bucket: int) -> str:
    """The first and the last number of a bucket, such as "128-191"; the last bucket has no end."""
    is_last = bucket + 1 == len(starts)
    end = "" if is_last else starts[bucket + 1] - 1
    return f"{starts[bucket]}-{end}"


def bucket_start(name: str) -> int:
    """The first number of a bucket, which also orders buckets."""
    return int(name.partition("-")[0])


class Membership(NamedTuple):
    """The S slices that a text of N tokens has tokens in."""

    kinds: Array  # [S]
    values: Array  # [S]
    inside: Array  # 1.0 for tokens in the slice, else 0.0 [S, N]


def find_slices(text: AnalysedText) -> Membership:
    """The slices of a text: all, each tag, each class, each bucket of depth and each bucket of context.

    "settled" is the context without the text's first SETTLED tokens.
    """
    classes = text.tokens["class"]
    depths = text.tokens["place"]
    contexts = text.tokens["context"]
    everywhere = np.ones(len(depths))
    found = [("all", "all", everywhere)]
    for tag in dict.fromkeys(text.written.row.tags):
        found.append(("tag", tag, everywhere))
    for name in np.unique(classes):
        found.append(("class", name, classes == name))
    settled_contexts = np.where(depths < SETTLED, -1, contexts)
    for kind, starts, numbers in (
        ("depth", DEPTH_STARTS, depths),
        ("context", CONTEXT_STARTS, contexts),
        ("settled", CONTEXT_STARTS, settled_contexts),
    ):
        buckets = np.searchsorted(starts, numbers, side="right") - 1  # -1 for places left out
        for bucket in np.unique(buckets[buckets >= 0]).tolist():
            found.append((kind, bucket_name(starts, bucket), buckets == bucket))
    kinds, values, inside = zip(*found, strict=True)
    return Membership(
        np.array(kinds, dtype=object), np.array(values, dtype=object), np.array(inside, dtype=float)
    )


def without_each(values: Array) -> Array:
    """The sums that remain when each value is left out in turn [n]; empty for a single value."""
    values = np.asarray(values, dtype=np.float64)
    return values.sum() - values if len(values) > 1 else values[:0]


def interval(without: Array) -> Interval | None:
    """A 95 % interval by Student's t over the jackknife; None below two prompts.

    without: the number with each prompt left out in turn [n] (Efron and Tibshirani 1993, chapter 11).
    An interval by resampling would miss the true number far too often when prompts are few.
    """
    size = len(without)
    if size < 2:
        return None
    middle = without.mean()
    standard_error = np.sqrt((size - 1) * np.mean((without - middle) ** 2))
    half_width = stdtrit(size - 1, (1 + LEVEL) / 2) * standard_error
    return float(middle - half_width), float(middle + half_width)


def interval_of_mean(values: Array) -> Interval | None:
    """The `interval` of the mean of one number per prompt [n]."""
    return interval(without_each(values) / max(1, len(values) - 1))


def ratio_residuals(over: Array, under: Array) -> Array:
    """What each prompt adds to the error of the ratio of two sums over the n prompts [n, ...].

    over: [n, ...]. under: [n]. Linearised; see `standard_error`.
    """
    ratio = over.sum(0) / max(under.sum(), 1e-9)
    expected = np.multiply.outer(under, ratio)
    return (over - expected) / max(under.mean(), 1e-9)


def standard_error(residuals: Array) -> Array:
    """The standard error of a mean of one number per prompt, or of a ratio from its residuals. residuals: [n, ...]."""
    return residuals.std(0, ddof=1) / np.sqrt(len(residuals))


def gain_numbers(gain: Array) -> dict[str, float]:
    """The mean of one gain per prompt [n] with its interval, as the numbers of a finding."""
    low, high = interval_of_mean(gain)
    return {"explained": float(gain.mean()), "low": float(low), "high": float(high)}


def gain_interval_words(gain: Array) -> str:
    """The interval of a mean gain in points, over texts."""
    low, high = interval_of_mean(gain)
    return f"95 % interval {100 * low:.1f} to {100 * high:.1f}, {len(gain)} texts"


def interval_of_sum(total: Array, squares: Array, size: int) -> tuple[Array, Array]:
    """The ends of the `interval` of sums over `size` >= 2 prompts.

    total: the sums. squares: the sums of the squared values.
    """
    spread = np.maximum(squares - total * total / size, 0.0) * size / (size - 1)
    half_width = stdtrit(size - 1, (1 + LEVEL) / 2) * np.sqrt(spread)
    return total - half_width, total + half_width


class Excess(NamedTuple):
    """How much more of the lost overlap falls on a slice than its share of the tokens."""

    share: float  # of the tokens
    loss_share: float  # of the lost overlap
    interval: Interval | None  # of loss_share - share


def excess_of_loss(own: PerPrompt, whole: PerPrompt) -> Excess | None:
    """The excess of a slice within the whole; None where nothing is lost."""
    tokens = np.zeros(len(whole))
    lost = np.zeros(len(whole))
    at = np.searchsorted(whole.prompts, own.prompts)
    tokens[at] = own.num_tokens
    lost[at] = own.num_tokens - own.overlap
    all_tokens = whole.num_tokens.astype(np.float64)
    all_lost = all_tokens - whole.overlap
    if all_lost.sum() <= 0:
        return None
    rest = without_each(all_lost)
    loss_shares = np.divide(without_each(lost), rest, out=np.zeros_like(rest), where=rest > 0)
    shares = without_each(tokens) / without_each(all_tokens)
    return Excess(
        float(tokens.sum() / all_tokens.sum()),
        float(lost.sum() / all_lost.sum()),
        interval(loss_shares - shares),
    )


def excludes_zero(around: Interval, middle: float, num_prompts: int, num_asked: int) -> bool:
    """Whether the interval leaves out 0, also as one of `num_asked` intervals that are read together.

    Bonferroni: each half grows as Student's t does for the smaller tail.
    """
    tail = (1 - LEVEL) / 2
    growth = stdtrit(num_prompts - 1, tail / num_asked) / stdtrit(num_prompts - 1, tail)
    low, high = around
    is_above = middle + growth * (low - middle) > 0
    is_below = middle + growth * (high - middle) < 0
    return bool(is_above or is_below)


@dataclass(frozen=True, slots=True, eq=False)
class PerPrompt:
    """The sums of one draft in one slice by prompt, over the n prompts with readable tokens there."""

    prompts: Array  # numbers, ascending [n]
    num_tokens: Array  # readable tokens [n]
    overlap: Array  # summed over these tokens [n]

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def alphas(self) -> Array:
        """Alpha of each prompt [n]."""
        return self.overlap / self.num_tokens

    @property
    def alphas_without(self) -> Array:
        """Alpha with each prompt left out in turn [n]; empty for one prompt."""
        return without_each(self.overlap) / without_each(self.num_tokens)

    def among(self, other: PerPrompt) -> tuple[PerPrompt, PerPrompt]:
        """Reduces both to the prompts that they share."""
        _, own_places, other_places = np.intersect1d(
            self.prompts, other.prompts, assume_unique=True, return_indices=True
        )
        return self._select(own_places), other._select(other_places)

    def _select(self, places: Array) -> PerPrompt:
        return PerPrompt(self.prompts[places], self.num_tokens[places], self.overlap[places])


class DraftSlice(NamedTuple):
    """The name of a slice under one draft."""

    draft: str
    kind: str
    value: str


Parts = Mapping[DraftSlice, PerPrompt]


_RECORD = np.dtype([("prompt", "i4"), ("part", "i4"), ("num_tokens", "f4"), ("overlap", "f4")])


def records(prompts: Array, part_numbers: Array, num_tokens: Array, overlap: Array) -> Array:
    """Rows of sums, small enough to store for every prompt; without rows of part 0 or of no token."""
    rows = np.zeros(len(part_numbers), dtype=_RECORD)
    rows["prompt"] = prompts
    rows["part"] = part_numbers
    rows["num_tokens"] = num_tokens
    rows["overlap"] = overlap
    return rows[(rows["part"] > 0) & (rows["num_tokens"] > 0)]


def by_part(added: Sequence[Array], numbers: Mapping[DraftSlice, int]) -> Parts:
    """The records of each part that has some, prompts in order. numbers: of the parts, from 1."""
    rows = np.concatenate([np.zeros(0, dtype=_RECORD), *added])
    rows = rows[np.lexsort((rows["prompt"], rows["part"]))]
    pieces = np.split(rows, np.searchsorted(rows["part"], np.arange(2, len(numbers) + 1)))
    parts = {}
    for part, piece in zip(numbers, pieces, strict=False):  # no part: one empty piece
        if len(piece):
            parts[part] = PerPrompt(
                np.ascontiguousarray(piece["prompt"]),
                np.ascontiguousarray(piece["num_tokens"]),
                np.ascontiguousarray(piece["overlap"]),
            )
    return parts


def alpha_intervals(parts: Parts) -> dict[DraftSlice, Interval | None]:
    """The interval of alpha in each part, limited to 0 and 1."""
    intervals = {}
    for part, own in parts.items():
        around = interval(own.alphas_without)
        if around is not None:
            around = (max(0.0, around[0]), min(1.0, around[1]))
        intervals[part] = around
    return intervals
