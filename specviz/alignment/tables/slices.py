"""Parts of the tokens: tags, classes, buckets of depth and of context, and intervals over prompts.

Depth counts the text's own tokens before a place, context those of the prompt too. numpy, and scipy for Student's t.
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
SETTLED = DEPTH_STARTS[
    1
]  # the first tokens of a text are easier or harder than the rest, whatever their context
CONTEXT_STARTS = (
    0,
    *(start for power in range(5, 25) for start in (2**power, 3 * 2 ** (power - 1))),
)
LEVEL = 0.95


def bucket_name(starts: Sequence[int], bucket: int) -> str:
    """ "128-191" """
    return (
        f"{starts[bucket]}-{starts[bucket + 1] - 1}"
        if bucket + 1 < len(starts)
        else f"{starts[bucket]}-"
    )


def bucket_start(name: str) -> int:
    """The first number of a bucket, which also orders buckets."""
    return int(name.partition("-")[0])


class Membership(NamedTuple):
    """The slices that a text has tokens in: kinds and values by slice [S], inside [S, N] 1.0 for their tokens."""

    kinds: Array
    values: Array
    inside: Array


def find_slices(text: AnalysedText) -> Membership:
    """One slice for all, one per tag, class, bucket of depth and bucket of context; and "settled", of context without
    the text's first SETTLED tokens."""
    classes, depths, contexts = (text.tokens[name] for name in ("class", "place", "context"))
    everywhere = np.ones(len(depths))
    found = [
        ("all", "all", everywhere),
        *(("tag", tag, everywhere) for tag in dict.fromkeys(text.written.row.tags)),
    ]
    found += [("class", name, classes == name) for name in np.unique(classes)]
    for kind, starts, numbers in (
        ("depth", DEPTH_STARTS, depths),
        ("context", CONTEXT_STARTS, contexts),
        ("settled", CONTEXT_STARTS, np.where(depths < SETTLED, -1, contexts)),
    ):
        buckets = np.searchsorted(starts, numbers, side="right") - 1  # -1 for places left out
        found += [
            (kind, bucket_name(starts, b), buckets == b)
            for b in np.unique(buckets[buckets >= 0]).tolist()
        ]
    kinds, values, inside = zip(*found, strict=True)
    return Membership(
        np.array(kinds, dtype=object), np.array(values, dtype=object), np.array(inside, dtype=float)
    )


def without_each(values: Array) -> Array:
    """The sum of all values but each in turn [n]; empty for a single one."""
    values = np.asarray(values, dtype=np.float64)
    return values.sum() - values if len(values) > 1 else values[:0]


def interval(without: Array) -> Interval | None:
    """95 % by Student's t over the jackknife; None below two prompts. without: the number with each prompt left out in
    turn [n] (Efron and Tibshirani 1993, chapter 11). Resampling few prompts would miss it far too often."""
    size = len(without)
    if size < 2:
        return None
    middle = without.mean()
    arm = stdtrit(size - 1, (1 + LEVEL) / 2) * np.sqrt(
        (size - 1) * np.mean((without - middle) ** 2)
    )
    return float(middle - arm), float(middle + arm)


def interval_of_mean(values: Array) -> Interval | None:
    """The same of the mean of one number per prompt [n]."""
    return interval(without_each(values) / max(1, len(values) - 1))


def interval_of_sum(total: Array, squares: Array, size: int) -> tuple[Array, Array]:
    """The ends of the same interval for sums over `size` >= 2 prompts, from the sums and those of the squares."""
    spread = np.maximum(squares - total * total / size, 0.0) * size / (size - 1)
    arm = stdtrit(size - 1, (1 + LEVEL) / 2) * np.sqrt(spread)
    return total - arm, total + arm


def excess_of_loss(own: PerPrompt, whole: PerPrompt) -> tuple[float, float, Interval | None] | None:
    """The share of a part in the whole's tokens, in its lost overlap, and the interval of what the second is above the
    first; None where nothing is lost."""
    tokens, lost = np.zeros((2, len(whole)))
    at = np.searchsorted(whole.prompts, own.prompts)
    tokens[at], lost[at] = own.num_tokens, own.num_tokens - own.overlap
    every = whole.num_tokens.astype(np.float64)
    all_lost = every - whole.overlap
    if all_lost.sum() <= 0:
        return None
    of_loss = without_each(lost) / np.maximum(without_each(all_lost), 1e-300)
    of_tokens = without_each(tokens) / without_each(every)
    return (
        float(tokens.sum() / every.sum()),
        float(lost.sum() / all_lost.sum()),
        interval(of_loss - of_tokens),
    )


def excludes_zero(found: Interval, middle: float, num_prompts: int, num_asked: int) -> bool:
    """Whether the interval still leaves out 0 when it is one of `num_asked` (Bonferroni): its arms grow as Student's t
    does."""
    tail = (1 - LEVEL) / 2
    growth = stdtrit(num_prompts - 1, tail / num_asked) / stdtrit(num_prompts - 1, tail)
    low, high = (middle + growth * (end - middle) for end in found)
    return bool(low > 0 or high < 0)


@dataclass(frozen=True, slots=True, eq=False)
class PerPrompt:
    """One draft in one slice: the prompts that have readable tokens there, how many, and their sums of overlap [n]."""

    prompts: Array
    num_tokens: Array
    overlap: Array

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def alphas(self) -> Array:
        """Alpha of each prompt [n]."""
        return self.overlap / self.num_tokens

    @property
    def alphas_without(self) -> Array:
        """Alpha of all tokens but those of each prompt in turn [n]; empty for one prompt."""
        return without_each(self.overlap) / without_each(self.num_tokens)

    def among(self, other: PerPrompt) -> tuple[PerPrompt, PerPrompt]:
        """Both, cut to the prompts that they share."""
        _, *places = np.intersect1d(
            self.prompts, other.prompts, assume_unique=True, return_indices=True
        )
        ours, theirs = (
            PerPrompt(own.prompts[at], own.num_tokens[at], own.overlap[at])
            for own, at in zip((self, other), places, strict=True)
        )
        return ours, theirs


class DraftSlice(NamedTuple):
    """Which draft, and which slice."""

    draft: str
    kind: str
    value: str


Parts = Mapping[DraftSlice, PerPrompt]


_RECORD = np.dtype([("prompt", "i4"), ("part", "i4"), ("num_tokens", "f4"), ("overlap", "f4")])


def records(prompts: Array, part_numbers: Array, num_tokens: Array, overlap: Array) -> Array:
    """Rows of sums, small enough to be kept for every prompt; without those of part 0 or of no token."""
    found = np.zeros(len(part_numbers), dtype=_RECORD)
    for name, values in zip(
        _RECORD.names, (prompts, part_numbers, num_tokens, overlap), strict=True
    ):
        found[name] = values
    return found[(found["part"] > 0) & (found["num_tokens"] > 0)]


def by_part(added: Sequence[Array], numbers: Mapping[DraftSlice, int]) -> Parts:
    """The records of each part, prompts in order. numbers: of the parts, from 1."""
    rows = np.concatenate([np.zeros(0, dtype=_RECORD), *added])
    rows = rows[np.lexsort((rows["prompt"], rows["part"]))]
    pieces = np.split(rows, np.searchsorted(rows["part"], np.arange(2, len(numbers) + 1)))
    return {
        part: PerPrompt(
            *(np.ascontiguousarray(piece[name]) for name in ("prompt", "num_tokens", "overlap"))
        )
        for part, piece in zip(
            numbers, pieces, strict=False
        )  # without a part there is one empty piece
        if len(piece)
    }


def alpha_intervals(parts: Parts) -> dict[DraftSlice, Interval | None]:
    """Cut to 0 and 1."""
    found = {key: interval(part.alphas_without) for key, part in parts.items()}
    return {
        key: around and (max(0.0, around[0]), min(1.0, around[1])) for key, around in found.items()
    }
