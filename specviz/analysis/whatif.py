"""The exact what-if: how many target calls the same text would have taken at every K, without running again.

Given the emitted text, speculative sampling accepts each token that it judges with probability a = min(1, q/p),
independently. So one text and one pass of both models give the distribution of its steps for every K. Takes arrays,
returns frozen results; needs numpy alone and knows no model and no trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral
from typing import TYPE_CHECKING

import numpy as np

from specviz.analysis.theory import step_ms

if TYPE_CHECKING:
    import pandas

    from specviz.analysis.costs import Costs

DEEPEST = 32
LOW = 0.05
HIGH = 0.95
NEAR_BEST = 0.98
MOST_K = 256
NEGLIGIBLE = 1e-20
"""Smaller probabilities in the tails of a distribution of calls are dropped; together they stay below 1e-13."""
BLOCK = 64  # starts taken at once, so that a long text needs little memory
FRAME_COLUMNS = (
    "k", "expected_target_calls", "tokens_per_call", "speedup", "calls_low", "calls_high",
)  # fmt: skip
Array = np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Chances:
    """The acceptance probabilities of a text of N tokens, by where a step begins."""

    accept: Array
    """[N, deepest] float64: entry [s, j] for the token j places behind s when a step begins at s; 0 beyond the text."""
    drafted: Array  # [N] int: the most tokens that a step beginning there can draft, whatever K

    def __len__(self) -> int:
        return len(self.accept)

    @property
    def deepest(self) -> int:
        return self.accept.shape[1]

    def depths(self, k: int) -> Array:
        """The number of tokens drafted at each start, at this K [N]."""
        if not 0 <= k <= self.deepest:
            raise ValueError(f"k must be from 0 to {self.deepest} (got {k})")
        return np.minimum(self.drafted, k)


def acceptance_chances(p: Sequence[float], q: Sequence[float]) -> Array:
    """The acceptance probability a = min(1, q/p) of each emitted token [N].

    Where p is 0, which only rounding can cause, it is 1 if q > 0 and else 0.
    """
    p = np.asarray(p, dtype=np.float64)
    q = np.asarray(q, dtype=np.float64)
    if p.shape != q.shape or p.ndim != 1:
        raise ValueError(
            f"p and q must be two rows of equal length (got shapes {p.shape} and {q.shape})"
        )
    if not ((p >= 0).all() and (q >= 0).all()):
        raise ValueError("p and q must be probabilities (got a negative number or not-a-number)")
    ratios = q / np.where(p > 0, p, 1.0)
    return np.where(p > 0, np.minimum(1.0, ratios), q > 0)


def chances_along_text(
    chances: Sequence[float], *, deepest: int = DEEPEST, most_tokens: int | None = None
) -> Chances:
    """The chances of a draft whose q depends on the text alone: entry [s, j] is the chance of token s + j.

    most_tokens: the length that the run was allowed, if the text ended before it.
    """
    chances = np.asarray(chances, dtype=np.float64)
    if chances.ndim != 1 or not len(chances) or not ((chances >= 0) & (chances <= 1)).all():
        raise ValueError("chances must be a row of at least one number from 0 to 1")
    padded = np.append(chances, np.zeros(deepest - 1))
    rows = np.lib.stride_tricks.sliding_window_view(padded, deepest)  # [N, deepest]
    return Chances(rows, draft_room(len(chances), most_tokens))


def draft_room(num_tokens: int, most_tokens: int | None = None) -> Array:
    """The most tokens that a step can draft at each start [N]; the last allowed token is always the target's."""
    allowed = num_tokens if most_tokens is None else most_tokens
    if allowed < num_tokens:
        raise ValueError(f"most_tokens must be >= {num_tokens} (got {allowed})")
    return allowed - 1 - np.arange(num_tokens)


def step_distributions(chances: Chances, k: int, starts: slice = slice(None)) -> Array:
    """The distribution of the length of a step, for each start: [N, k+1], column j for j + 1 emitted tokens.

    No step is longer than the text.
    """
    accept = _accept_within_step(chances, k, starts)
    distributions = _prefix_chances(accept)
    distributions[:, :-1] *= 1 - accept
    return distributions


def _prefix_chances(accept: Array) -> Array:
    """The probability that the first 0, 1, ... k drafted tokens are all accepted: [N, k+1]."""
    reached = np.ones((len(accept), accept.shape[1] + 1))
    np.cumprod(accept, axis=1, out=reached[:, 1:])
    return reached


def _accept_within_step(chances: Chances, k: int, starts: slice = slice(None)) -> Array:
    """The acceptance probabilities [N, k], with 0 where the step ends in any case: after its draft, and at the end."""
    is_judged = np.arange(k) < _num_judged(chances, k)[starts, None]
    return chances.accept[starts, :k] * is_judged


def _num_judged(chances: Chances, k: int) -> Array:
    """The drafted tokens at each start that stand in the text [N]; the last token of the text is the target's."""
    return np.minimum(chances.depths(k), len(chances) - 1 - np.arange(len(chances)))


def start_chances(chances: Chances, ks: Sequence[int]) -> Array:
    """The probability that a step begins at each place: [len(ks), N]; its sum over places is the expected calls."""
    size = len(chances)
    deepest = max(ks)
    begins = np.zeros((len(ks), size + deepest + 1))
    begins[:, 0] = 1.0
    for first in range(0, size, BLOCK):
        block = slice(first, first + BLOCK)
        distributions = np.zeros((min(BLOCK, size - first), len(ks), deepest + 1))
        for row, k in enumerate(ks):
            distributions[:, row, : k + 1] = step_distributions(chances, k, block)
        for start, distribution in enumerate(distributions, first):
            begins[:, start + 1 : start + deepest + 2] += begins[:, start, None] * distribution
    return begins[:, :size]


def accepted_by_start(chances: Chances, k: int, begins: Array) -> Array:
    """The expected steps by their first token [k+1, N]: those that draft, then those that accept 1, 2, ... k or more.

    begins: the probability that a step begins at each place at this k [N], see `start_chances`.
    """
    accepted = _prefix_chances(_accept_within_step(chances, k)).T
    accepted[0] = chances.depths(k) > 0
    return begins * accepted


def acceptance_by_depth(chances: Chances) -> Array:
    """The share of steps, begun at every place alike, that accept 1, 2, ... tokens [deepest]: no selection effect.

    Each is a mean over the starts that have so much text behind them; nan where there is none.
    """
    reached = np.cumprod(chances.accept, axis=1)
    counts = np.maximum(0, len(chances) - np.arange(chances.deepest))
    return np.where(counts > 0, reached.sum(0) / np.maximum(counts, 1), np.nan)


def calls_distribution(chances: Chances, k: int) -> Array:
    """The exact distribution of the number of target calls: [N+1], entry c for c calls."""
    size = len(chances)
    distributions = step_distributions(chances, k)
    ends = np.zeros((size, k + 1))  # [t, d]: a step begun at t - k + d ends with token t
    for j in range(min(k + 1, size)):
        ends[j:, k - j] = distributions[: size - j, j]
    # [d, c]: the probability of fewest + c calls before a step at each of the newest k + 1 starts
    calls = np.zeros((k + 1, 1))
    calls[k, 0] = 1.0
    fewest = 0
    for first in range(0, size, BLOCK):
        calls = _advance(calls, ends[first : first + BLOCK])
        likely = np.flatnonzero(calls.max(0) > NEGLIGIBLE)
        calls = calls[:, likely[0] : likely[-1] + 1]
        fewest += int(likely[0])
    distribution = np.zeros(size + 1)
    distribution[fewest : fewest + calls.shape[1]] = calls[k]
    return distribution


def _advance(calls: Array, ends: Array) -> Array:
    """The table of calls after as many more starts as `ends` has rows."""
    num_rows, width = calls.shape
    table = np.zeros((num_rows + len(ends), width + len(ends)))
    table[:num_rows, :width] = calls
    for t, chances in enumerate(ends):
        table[num_rows + t, 1:] = chances @ table[t : t + num_rows, :-1]
    return table[-num_rows:]


def quantile(distribution: Array, share: float) -> int:
    """The smallest number whose cumulative probability reaches `share`."""
    return int(np.searchsorted(np.cumsum(distribution), share - 1e-12))


def sensitivity(chances: Chances, k: int) -> Array:
    """The derivative dE[calls] / da[s, j], exact: [N, k]. Negative where accepting the token saves calls."""
    size = len(chances)
    accept = _accept_within_step(chances, k)
    judged = _num_judged(chances, k)
    reached = _prefix_chances(accept)[:, :-1]
    # The calls still to make when the token is accepted, less those when it is rejected.
    differs = np.zeros((size, k))
    calls = np.zeros(size + 1)
    for s in range(size - 1, -1, -1):
        further = calls[s + judged[s] + 1]
        for j in range(judged[s] - 1, -1, -1):
            differs[s, j] = further - calls[s + j + 1]
            further = accept[s, j] * further + (1 - accept[s, j]) * calls[s + j + 1]
        calls[s] = 1 + further
    return start_chances(chances, [k])[0][:, None] * reached * differs


def saved_along_text(chances: Chances, k: int) -> Array:
    """The target calls that one sure acceptance at each place would save, each drafted place by itself: [N]."""
    return _by_place(sensitivity(chances, k) * (chances.accept[:, :k] - 1))


def lost_along_text(chances: Chances, k: int) -> Array:
    """The tokens that a rejection at each place is expected to lose: those that its step could still have added. [N]

    Holds for a draft whose q depends on the text alone. The lost tokens and the text together are all that the steps
    could have emitted.
    """
    accept = _accept_within_step(chances, k)
    begins = start_chances(chances, [k])[0][:, None]  # [N, 1]
    reached = _prefix_chances(accept)[:, :-1]  # [N, k]
    still_to_come = np.maximum(_num_judged(chances, k)[:, None] - np.arange(k), 0)
    return _by_place(begins * reached * (1 - accept) * still_to_come)


def fates_along_text(chances: Chances, k: int) -> tuple[Array, Array]:
    """The probability of each token to be drafted and judged, and to be drafted and accepted: [N] each."""
    begins = start_chances(chances, [k])[0][:, None]  # [N, 1]
    is_judged = np.arange(k) < _num_judged(chances, k)[:, None]  # [N, k]
    reached = begins * _prefix_chances(chances.accept[:, :k] * is_judged)
    return _by_place(reached[:, :-1] * is_judged), _by_place(reached[:, 1:])


def _by_place(by_start: Array) -> Array:
    """Sums values [N, k] over the starts from which each place is drafted: [N]."""
    size, k = by_start.shape
    total = np.zeros(size)
    for j in range(min(k, size)):
        total[j:] += by_start[: size - j, j]
    return total


@dataclass(frozen=True, slots=True)
class Cut:
    """The steps into which a text falls at one K."""

    lengths: tuple[int, ...]  # tokens of each step
    kinds: tuple[str, ...]  # of the token that ended it


def draw_flags(
    chances: Chances, u: Sequence[float], verdicts: Sequence[bool | None] | None = None
) -> Array:
    """One draw of accepted or not, shared by every K: bool [N, deepest].

    verdicts[t]: what a run really found at place t, None where it judged nothing; there u[t] decides.
    """
    u = np.asarray(u, dtype=np.float64)
    if u.shape != (len(chances),):
        raise ValueError(f"u must hold one number per token, {len(chances)} (got shape {u.shape})")
    places = np.arange(len(chances))[:, None] + np.arange(chances.deepest)
    places = np.minimum(places, len(chances) - 1)
    accepted = u[places] < chances.accept
    if verdicts is None:
        return accepted
    found = np.array(verdicts, dtype=np.float64)[places]  # not-a-number for None
    return np.where(np.isnan(found), accepted, found == 1)


def split_into_steps(chances: Chances, accepted: Array, k: int) -> Cut:
    """The steps that these flags [N, deepest] give at this K."""
    size = len(chances)
    depths = chances.depths(k)
    start = 0
    lengths = []
    kinds = []
    while start < size:
        depth = int(depths[start])
        rejected = np.flatnonzero(~accepted[start, :depth])
        if len(rejected):
            length = int(rejected[0]) + 1
            kind = "resampled"
        else:
            length = depth + 1
            kind = "bonus" if depth else "plain"
        if start + length > size:  # the text ended inside the step
            length = size - start
            kind = "accepted"
        lengths.append(length)
        kinds.append(kind)
        start += length
    return Cut(tuple(lengths), tuple(kinds))


@dataclass(frozen=True, slots=True)
class OutcomeAtK:
    """What one K would have cost."""

    k: int
    expected_target_calls: float
    calls_low: int  # the number of target calls is at most this with 5 % probability
    calls_high: int  # with 95 %
    tokens_per_call: float  # tokens over expected calls
    speedup: float  # nan without costs


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Every K on one text."""

    num_tokens: int
    exact: bool  # whether the text is known to be the target's own at constant settings
    note: str  # what the numbers rest on
    outcomes: tuple[OutcomeAtK, ...]
    by_depth: tuple[float, ...]  # see acceptance_by_depth
    best: tuple[int, int] | None  # the range of K around the fastest: speedups within 2 % of it

    def at(self, k: int) -> OutcomeAtK | None:
        return next((outcome for outcome in self.outcomes if outcome.k == k), None)

    def frame(self) -> pandas.DataFrame:
        """A data frame of one row per K; attrs: exact, note, num_tokens, best."""
        import pandas

        rows = [asdict(outcome) for outcome in self.outcomes]
        frame = pandas.DataFrame(rows, columns=FRAME_COLUMNS)
        frame.attrs = {
            "exact": self.exact,
            "note": self.note,
            "num_tokens": self.num_tokens,
            "best": self.best,
        }
        return frame


def is_k(value: object) -> bool:
    """Whether this is a whole number from 1 to MOST_K."""
    return isinstance(value, Integral) and not isinstance(value, bool) and 1 <= value <= MOST_K


def check_ks(ks: Sequence[int]) -> None:
    if not len(ks) or len(set(ks)) != len(ks):
        raise ValueError(f"ks must be different numbers, at least one (got {list(ks)})")
    if not all(map(is_k, ks)):
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
        note = f"{note} No speedup is given. {costs.doubt}".strip()
        costs = None
    begins = start_chances(chances, ks)
    outcomes = [_outcome(chances, k, row, costs) for k, row in zip(ks, begins, strict=True)]
    by_depth = acceptance_by_depth(chances)[: len(chances)].tolist()
    best = best_range({outcome.k: outcome.speedup for outcome in outcomes})
    return WhatIf(len(chances), exact, note, tuple(outcomes), tuple(by_depth), best)


def _outcome(chances: Chances, k: int, begins: Array, costs: Costs | None) -> OutcomeAtK:
    calls = float(begins.sum())
    distribution = calls_distribution(chances, k)
    speedup = float("nan")
    if costs is not None:
        speedup = _speedup(begins, chances.depths(k), costs)
    return OutcomeAtK(
        k=int(k),
        expected_target_calls=calls,
        calls_low=quantile(distribution, LOW),
        calls_high=quantile(distribution, HIGH),
        tokens_per_call=len(chances) / calls,
        speedup=speedup,
    )


def _speedup(begins: Array, depths: Array, costs: Costs) -> float:
    """The predicted time without a draft over the predicted time of these steps."""
    times = np.array([step_ms(costs, depth) for depth in range(int(depths.max()) + 1)])
    return float(len(begins) * times[0] / (begins @ times[depths]))


def best_range(speedups: Mapping[int, float]) -> tuple[int, int] | None:
    """The range of K around the fastest in which speedups are within 2 % of it.

    speedups: by K, in order. Unknown speedups (nan) do not count; None where none is known.
    """
    ks = [k for k, speedup in speedups.items() if not np.isnan(speedup)]
    if not ks:
        return None
    fastest = max(ks, key=speedups.__getitem__)
    is_near = [speedups[k] >= NEAR_BEST * speedups[fastest] for k in ks]
    low = high = ks.index(fastest)
    while low > 0 and is_near[low - 1]:
        low -= 1
    while high + 1 < len(ks) and is_near[high + 1]:
        high += 1
    return ks[low], ks[high]
