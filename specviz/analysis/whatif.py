"""The exact what-if: how many target calls the same text would have taken at every K, without running again.

Given the emitted text, speculative sampling keeps the token at place t with probability a = min(1, q/p) at its judging,
independently: so one text and one pass of both models give the law of its steps for every K. Arrays in, frozen results
out; numpy alone. Knows no model and no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import takewhile
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from specviz.analysis.theory import step_ms

if TYPE_CHECKING:
    import pandas

    from specviz.analysis.costs import Costs

DEEPEST = 32
LOW, HIGH = 0.05, 0.95
NEAR_BEST = 0.98
MOST_K = 256
NEGLIGIBLE = (
    1e-20  # mass dropped from a tail of the law of calls; all of it together stays below 1e-13
)
BLOCK = 64  # starts taken at once, so that a long text needs little memory
Array = np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Chances:
    """A text of N tokens. keep[s, j]: the chance that the token j places behind s is kept when a step begins at s (0
    beyond the text). drafted[s]: the most tokens that a step beginning there can draft, whatever K."""

    keep: Array  # [N, deepest] float64
    drafted: Array  # [N] int

    def __len__(self) -> int:
        return len(self.keep)

    @property
    def deepest(self) -> int:
        return self.keep.shape[1]

    def depths(self, k: int) -> Array:
        """Tokens drafted at each start, at this K. [N]"""
        if not 0 <= k <= self.deepest:
            raise ValueError(f"k must be from 0 to {self.deepest} (got {k})")
        return np.minimum(self.drafted, k)


def acceptance_chances(p: Sequence[float], q: Sequence[float]) -> Array:
    """a = min(1, q/p) per emitted token [N]; where p is 0, which only rounding can cause, 1 if q > 0 and else 0."""
    p, q = np.asarray(p, dtype=np.float64), np.asarray(q, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 1:
        raise ValueError(
            f"p and q must be two rows of equal length (got shapes {p.shape} and {q.shape})"
        )
    if not ((p >= 0).all() and (q >= 0).all()):
        raise ValueError("p and q must be probabilities (got a negative number or not-a-number)")
    return np.where(p > 0, np.minimum(1.0, q / np.where(p > 0, p, 1.0)), q > 0)


def chances_along_text(
    chances: Sequence[float], *, deepest: int = DEEPEST, most_tokens: int | None = None
) -> Chances:
    """For a draft whose q depends on the text alone: a[s, j] = a[s + j]. most_tokens: the length the run was allowed,
    if the text ended before it."""
    chances = np.asarray(chances, dtype=np.float64)
    if chances.ndim != 1 or not len(chances) or not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError("chances must be a row of at least one number from 0 to 1")
    rows = np.lib.stride_tricks.sliding_window_view(
        np.append(chances, np.zeros(deepest - 1)), deepest
    )
    return Chances(rows, draft_room(len(chances), most_tokens))


def draft_room(num_tokens: int, most_tokens: int | None = None) -> Array:
    """The most tokens that a step can draft at each start [N]: the last one of the allowed length is the target's."""
    allowed = num_tokens if most_tokens is None else most_tokens
    if allowed < num_tokens:
        raise ValueError(f"most_tokens must be >= {num_tokens} (got {allowed})")
    return allowed - 1 - np.arange(num_tokens)


def step_distributions(chances: Chances, k: int, starts: slice = slice(None)) -> Array:
    """The law of the length of a step, per start: [N, k+1], column j for j + 1 emitted tokens; none beyond the text."""
    kept = _accept_within_step(chances, k, starts)
    distributions = _prefix_chances(kept)
    distributions[:, :-1] *= 1 - kept
    return distributions


def _prefix_chances(kept: Array) -> Array:
    """The chance that the first 0, 1, ... k drafted tokens are all kept: [N, k+1]."""
    reached = np.ones((len(kept), kept.shape[1] + 1))
    np.cumprod(kept, axis=1, out=reached[:, 1:])
    return reached


def _accept_within_step(chances: Chances, k: int, starts: slice = slice(None)) -> Array:
    """keep [N, k] with 0 where the step ends in any case: behind what it drafted, and at the last token."""
    return chances.keep[starts, :k] * (np.arange(k) < _num_judged(chances, k)[starts, None])


def _num_judged(chances: Chances, k: int) -> Array:
    """Drafted tokens at each start that stand in the text [N]: its last token is the target's."""
    return np.minimum(chances.depths(k), len(chances) - 1 - np.arange(len(chances)))


def start_chances(chances: Chances, ks: Sequence[int]) -> Array:
    """The probability that a step begins at each place: [len(ks), N]. Its sum over places: the expected calls."""
    size, deepest = len(chances), max(ks)
    begins = np.zeros((len(ks), size + deepest + 1))
    begins[:, 0] = 1.0
    for first in range(0, size, BLOCK):
        distributions = np.zeros((min(BLOCK, size - first), len(ks), deepest + 1))
        for row, k in enumerate(ks):
            distributions[:, row, : k + 1] = step_distributions(
                chances, k, slice(first, first + BLOCK)
            )
        for start, distribution in enumerate(distributions, first):
            begins[:, start + 1 : start + deepest + 2] += begins[:, start, None] * distribution
    return begins[:, :size]


def acceptance_by_depth(chances: Chances) -> Array:
    """Of steps begun at every place alike, the share that keeps 1, 2, ... tokens: no selection effect. [deepest] A mean
    over the starts that have so much text behind them; nan where there is none."""
    size = len(chances)
    kept = np.cumprod(chances.keep, axis=1)
    counts = np.maximum(0, size - np.arange(chances.deepest))
    return np.where(counts > 0, kept.sum(0) / np.maximum(counts, 1), np.nan)


def calls_distribution(chances: Chances, k: int) -> Array:
    """The exact law of the number of target calls: [N+1], entry c for c calls."""
    size, distributions, fewest = len(chances), step_distributions(chances, k), 0
    ends = np.zeros((size, k + 1))  # [t, d]: a step begun at t - k + d ends with token t
    for j in range(min(k + 1, size)):
        ends[j:, k - j] = distributions[: size - j, j]
    ring = np.zeros(
        (k + 1, 1)
    )  # [., c]: fewest + c calls made when a step begins at each of the newest k + 1 starts
    ring[k, 0] = 1.0
    for first in range(0, size, BLOCK):
        ring = _advance(ring, ends[first : first + BLOCK])
        likely = np.flatnonzero(ring.max(0) > NEGLIGIBLE)
        ring, fewest = ring[:, likely[0] : likely[-1] + 1], fewest + int(likely[0])
    distribution = np.zeros(size + 1)
    distribution[fewest : fewest + ring.shape[1]] = ring[k]
    return distribution


def _advance(ring: Array, ends: Array) -> Array:
    """The ring, as many starts on as `ends` has rows."""
    num_rows, width = ring.shape
    table = np.zeros((num_rows + len(ends), width + len(ends)))
    table[:num_rows, :width] = ring
    for t, chances in enumerate(ends):
        table[num_rows + t, 1:] = chances @ table[t : t + num_rows, :-1]
    return table[-num_rows:]


def quantile(distribution: Array, share: float) -> int:
    """The smallest number whose cumulative probability reaches `share`."""
    return int(np.searchsorted(np.cumsum(distribution), share - 1e-12))


def sensitivity(chances: Chances, k: int) -> Array:
    """dE[calls] / da[s, j], exact: [N, k]. Negative where keeping the token saves calls."""
    size, kept = len(chances), _accept_within_step(chances, k)
    depths = _num_judged(chances, k)
    reached = _prefix_chances(kept)[:, :-1]
    differs = np.zeros(
        (size, k)
    )  # calls still to make when the token is kept, less those when it is not
    calls = np.zeros(size + 1)
    for s in range(size - 1, -1, -1):
        further = calls[s + depths[s] + 1]
        for j in range(depths[s] - 1, -1, -1):
            differs[s, j] = further - calls[s + j + 1]
            further = kept[s, j] * further + (1 - kept[s, j]) * calls[s + j + 1]
        calls[s] = 1 + further
    return start_chances(chances, [k])[0][:, None] * reached * differs


def saved_along_text(chances: Chances, k: int) -> Array:
    """Target calls that keeping the token at each place for sure would save, each drafted place by itself: [N]."""
    return _by_place(sensitivity(chances, k) * (chances.keep[:, :k] - 1))


def lost_along_text(chances: Chances, k: int) -> Array:
    """Tokens that a rejection at each place is expected to lose, those that its step could still have added: [N]. For
    a draft whose q depends on the text alone. Their sum and the text are all that the steps could have emitted."""
    kept = _accept_within_step(chances, k)
    still = np.maximum(_num_judged(chances, k)[:, None] - np.arange(k), 0)
    return _by_place(
        start_chances(chances, [k])[0][:, None] * _prefix_chances(kept)[:, :-1] * (1 - kept) * still
    )


def fates_along_text(chances: Chances, k: int) -> tuple[Array, Array]:
    """The chance of each token to be drafted and judged, and to be drafted and accepted: [N] each."""
    begins, within = (
        start_chances(chances, [k])[0][:, None],
        np.arange(k) < _num_judged(chances, k)[:, None],
    )
    reached = begins * _prefix_chances(chances.keep[:, :k] * within)
    return _by_place(reached[:, :-1] * within), _by_place(reached[:, 1:])


def _by_place(by_start: Array) -> Array:
    """Sums over the starts from which each place is drafted: [N] of [N, k]."""
    size, k = by_start.shape
    total = np.zeros(size)
    for j in range(min(k, size)):
        total[j:] += by_start[: size - j, j]
    return total


@dataclass(frozen=True, slots=True)
class Cut:
    """The text cut into steps: tokens per step, and the kind of the token that ended each."""

    lengths: tuple[int, ...]
    kinds: tuple[str, ...]


def draw_flags(
    chances: Chances, u: Sequence[float], verdicts: Sequence[bool | None] | None = None
) -> Array:
    """One draw of kept or not, shared by every K: bool [N, deepest]. verdicts[t]: what a run really found at place t,
    None where it judged nothing; elsewhere u[t] decides."""
    u = np.asarray(u, dtype=np.float64)
    if u.shape != (len(chances),):
        raise ValueError(f"u must hold one number per token, {len(chances)} (got shape {u.shape})")
    places = np.minimum(
        np.arange(len(chances))[:, None] + np.arange(chances.deepest), len(chances) - 1
    )
    kept = u[places] < chances.keep
    if verdicts is None:
        return kept
    found = np.array(verdicts, dtype=np.float64)[places]  # not-a-number for None
    return np.where(np.isnan(found), kept, found == 1)


def split_into_steps(chances: Chances, kept: Array, k: int) -> Cut:
    """The steps that these flags [N, deepest] give at this K."""
    size, depths, start = len(chances), chances.depths(k), 0
    lengths, kinds = [], []
    while start < size:
        failed = np.flatnonzero(~kept[start, : depths[start]])
        length = int(failed[0] if len(failed) else depths[start]) + 1
        kind = "resampled" if len(failed) else "bonus" if depths[start] else "plain"
        if start + length > size:  # the text ended inside the step
            length, kind = size - start, "accepted"
        lengths.append(length)
        kinds.append(kind)
        start += length
    return Cut(tuple(lengths), tuple(kinds))


@dataclass(frozen=True, slots=True)
class OutcomeAtK:
    """What one K would have cost. calls_low and calls_high: 5 % and 95 % of the law of the number of target calls."""

    k: int
    expected_target_calls: float
    calls_low: int
    calls_high: int
    tokens_per_call: float  # tokens over expected calls
    speedup: float  # nan without costs


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Every K on one text. exact: whether the text is known to be the target's own at constant settings; note says
    what the numbers rest on. best: the range of K around the fastest whose speedup is within 2 % of it."""

    num_tokens: int
    exact: bool
    note: str
    outcomes: tuple[OutcomeAtK, ...]
    by_depth: tuple[float, ...]
    best: tuple[int, int] | None

    def at(self, k: int) -> OutcomeAtK | None:
        return next((outcome for outcome in self.outcomes if outcome.k == k), None)

    def frame(self) -> pandas.DataFrame:
        """One row per K; attrs: exact, note, num_tokens, best."""
        import pandas

        columns = [
            "k",
            "expected_target_calls",
            "tokens_per_call",
            "speedup",
            "calls_low",
            "calls_high",
        ]
        made = pandas.DataFrame(map(asdict, self.outcomes), columns=columns)
        made.attrs = {
            "exact": self.exact,
            "note": self.note,
            "num_tokens": self.num_tokens,
            "best": self.best,
        }
        return made


def check_ks(ks: Sequence[int]) -> None:
    if not len(ks) or len(set(ks)) != len(ks):
        raise ValueError(f"ks must be different numbers, at least one (got {list(ks)})")
    if not all(isinstance(k, Integral) and 1 <= k <= MOST_K for k in ks):
        raise ValueError(f"ks must be whole numbers from 1 to {MOST_K} (got {list(ks)})")


def every_k(
    chances: Chances,
    ks: Sequence[int],
    costs: Costs | None = None,
    *,
    exact: bool = False,
    note: str = "",
) -> WhatIf:
    """The what-if for each K of `ks`, with speedups where costs are given that carry advice."""
    check_ks(ks)
    if costs is not None and costs.doubt:
        costs, note = None, f"{note} No speedup is given. {costs.doubt}".strip()
    begins = start_chances(chances, ks)
    outcomes = tuple(_outcome(chances, k, row, costs) for k, row in zip(ks, begins, strict=True))
    by_depth = tuple(float(share) for share in acceptance_by_depth(chances)[: len(chances)])
    best = best_range({outcome.k: outcome.speedup for outcome in outcomes})
    return WhatIf(len(chances), exact, note, outcomes, by_depth, best)


def _outcome(chances: Chances, k: int, begins: Array, costs: Costs | None) -> OutcomeAtK:
    calls, distribution = float(begins.sum()), calls_distribution(chances, k)
    return OutcomeAtK(
        k=int(k),
        expected_target_calls=calls,
        calls_low=quantile(distribution, LOW),
        calls_high=quantile(distribution, HIGH),
        tokens_per_call=len(chances) / calls,
        speedup=float("nan") if costs is None else _speedup(begins, chances.depths(k), costs),
    )


def _speedup(begins: Array, depths: Array, costs: Costs) -> float:
    """Predicted time of as many steps without a draft, over that of these steps."""
    times = np.array([step_ms(costs, depth) for depth in range(int(depths.max()) + 1)])
    return float(len(begins) * times[0] / (begins @ times[depths]))


def best_range(speedups: Mapping[int, float]) -> tuple[int, int] | None:
    """From the speedup of each K, in order: the range around the fastest that is within 2 % of it. K of unknown
    speedup (nan) do not count; None where none is known."""
    known = [(k, speedup) for k, speedup in speedups.items() if speedup == speedup]
    if not known:
        return None
    fastest = max(range(len(known)), key=lambda place: known[place][1])
    enough = NEAR_BEST * known[fastest][1]
    below, above = (
        list(takewhile(lambda one: one[1] >= enough, side))
        for side in (known[fastest::-1], known[fastest:])
    )
    return below[-1][0], above[-1][0]
