"""Statistics that do not mislead: evidence over all tokens that may be watched at any time, and exact cells at fixed n.

Both compare with a law that is known; both keep a correct decoder from being called wrong more often than alpha, and
both say how small a shift they would have seen. Nothing here knows a model or a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np

from specviz.decoding.turns import aside

ALPHA = 1e-6  # how often a correct decoder may be called wrong, per check
SUSPICION = 1e-3  # how often one may be called suspicious
CHANCE = 0.9  # how often a shift of the stated size is seen
COARSE = 0.1  # who would have missed a shift of ten points cannot call anything consistent
ROUNDS = 4
NUM_CELLS = 20  # the likeliest tokens; all others make one more cell
MOST_DRAWS = 10**9
STAKES = np.array(
    [sign * 0.1 * 2**i for i in range(5) for sign in (1, -1)]
)  # the lambdas of the bets
quantile = NormalDist().inv_cdf  # of the standard normal distribution


class CheckOutcome(NamedTuple):
    """What a check came to. state: exact, consistent, suspicious, differs or unsure."""

    state: str
    words: str


@dataclass(frozen=True, slots=True)
class Cells:
    """Counts of the pooled outcomes of independent draws, and the shares that the law gives them."""

    distribution: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Bets against "feature f holds for a token with chance P", one per feature and stake, and their mean E.

    A bet's value is the product of exp(lambda f) / (1 - P + P exp(lambda)): its mean is 1 under the law whatever came
    before, so E exceeds 1 / alpha with chance at most alpha, at any time (Ville 1939; Waudby-Smith and Ramdas 2023).
    """

    features: tuple[str, ...]  # F
    num_tokens: int
    observed: np.ndarray  # [F] tokens with the feature
    expected: np.ndarray  # [F] how many the law expects
    variance: np.ndarray  # [F] of that number, under the law
    paid: np.ndarray  # [F, L] sum of log(1 - P + P exp(lambda)): what the bets have cost
    peak: float  # the highest log E so far
    peak_at: int = 0  # after how many tokens

    @classmethod
    def empty(cls, features: Sequence[str]) -> Evidence:
        zero = np.zeros(len(features))
        return cls(
            tuple(features), 0, zero, zero, zero, np.zeros((len(features), len(STAKES))), 0.0
        )

    def add(self, holds: np.ndarray, chances: np.ndarray) -> Evidence:
        """With further tokens in order. holds [T, F]: which features each has; chances [T, F]: P before it was seen."""
        chances = np.clip(np.asarray(chances, dtype=float), 0.0, 1.0)
        holds = np.asarray(holds, dtype=float)
        prices = bet_prices(chances)  # [T, F, L]
        gains = (STAKES * holds[..., None] - prices).cumsum(0) + self._gains
        levels = _log_mean(gains.reshape(len(gains), -1))  # [T]
        highest = int(levels.argmax()) if len(levels) else 0
        is_higher = len(levels) > 0 and levels[highest] > self.peak
        return Evidence(
            self.features,
            self.num_tokens + len(holds),
            self.observed + holds.sum(0),
            self.expected + chances.sum(0),
            self.variance + (chances * (1 - chances)).sum(0),
            self.paid + prices.sum(0),
            float(levels[highest]) if is_higher else self.peak,
            self.num_tokens + highest + 1 if is_higher else self.peak_at,
        )

    @property
    def _gains(self) -> np.ndarray:
        return STAKES * self.observed[:, None] - self.paid  # [F, L]

    @property
    def level(self) -> float:
        """log E now."""
        return float(_log_mean(self._gains.reshape(1, -1))[0])

    def differs(self, alpha: float = ALPHA) -> bool:
        return self.peak >= math.log(1 / alpha)

    @property
    def tokens_to_go(self) -> int:
        """How many more tokens it takes to "differs" if the evidence goes on growing as fast as it did; the best of all
        bets first made good what the others had staked. The peak must be above 0."""
        rate = (self.peak + log_threshold(len(self.features), 1.0)) / self.num_tokens
        return round_up((math.log(1 / ALPHA) - self.peak) / rate)

    @property
    def shifts(self) -> tuple[float, ...]:
        """Per feature, how far its share lies from what the law expects."""
        return tuple(((self.observed - self.expected) / max(1, self.num_tokens)).tolist())

    @property
    def z(self) -> tuple[float, ...]:
        """Per feature the same in standard deviations, for orientation: no verdict rests on it."""
        spread = np.sqrt(self.variance)
        return tuple(((self.observed - self.expected) / np.where(spread > 0, spread, 1.0)).tolist())

    def smallest_shifts(self, alpha: float = ALPHA) -> tuple[float, ...]:
        """Per feature the smallest mean shift that these tokens would have shown with CHANCE, up or down; where one of
        the two was never seen, all the room that the share has there. Infinite where neither would have been seen."""
        if not self.num_tokens:
            return (math.inf,) * len(self.features)
        n, stakes, expected = self.num_tokens, np.abs(STAKES), self.expected[:, None]
        need = log_threshold(len(self.features), alpha) + self.paid - STAKES * expected
        shifts = np.zeros_like(need)
        for _ in range(ROUNDS):  # the shift changes the spread that it must stand out from
            moved = np.sign(STAKES) * shifts
            variance = self.variance[:, None] + moved * (n - 2 * expected) - n * shifts**2
            spread = np.sqrt(np.maximum(variance, self.variance[:, None]))
            shifts = (need + quantile(CHANCE) * stakes * spread) / (stakes * n)
        up, down = shifts[:, STAKES > 0].min(1), shifts[:, STAKES < 0].min(1)
        return tuple(_either_way(up, down, self.expected / n).tolist())


def bet_prices(chances: np.ndarray) -> np.ndarray:
    """log(1 - P + P exp(lambda)) [..., L]: what each bet costs before a token is known."""
    return np.log1p(chances[..., None] * np.expm1(STAKES))


def round_up(number: float) -> int:
    """Up to two digits, which say enough."""
    whole = max(1, math.ceil(number))
    step = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


def log_threshold(num_features: int, alpha: float = ALPHA) -> float:
    """The log value at which a single bet lifts the mean of all to 1 / alpha."""
    return math.log(num_features * len(STAKES) / alpha)


def tokens_needed(gain: np.ndarray, variance: np.ndarray, alpha: float = ALPHA) -> float:
    """How many tokens it takes until one bet of these mean gains and variances per token [F, L] reaches 1 / alpha with
    CHANCE; infinite where no bet gains."""
    z, goal = quantile(CHANCE), log_threshold(len(gain), alpha)
    gaining = gain > 0
    mean, spread = gain[gaining], z * np.sqrt(variance[gaining])
    roots = (spread + np.sqrt(spread**2 + 4 * mean * goal)) / (
        2 * mean
    )  # n mean - spread sqrt(n) = goal
    return float((roots**2).min(initial=math.inf))


def _log_mean(gains: np.ndarray) -> np.ndarray:
    """log of the mean of exp(gains) over the last axis."""
    top = gains.max(-1)
    return top + np.log(np.exp(gains - top[..., None]).mean(-1))


def likeliest_outcomes(distribution: np.ndarray, most: int = NUM_CELLS) -> tuple[int, ...]:
    """The outcomes that get a cell of their own: the likeliest first, none without a chance."""
    order = np.argsort(-distribution, kind="stable")[:most]
    return tuple(int(outcome) for outcome in order if distribution[outcome] > 0)


def pool_shares(distribution: np.ndarray, outcomes: Sequence[int]) -> tuple[float, ...]:
    """The shares of these outcomes and, last, of all others."""
    return (
        *(float(distribution[outcome]) for outcome in outcomes),
        float(np.delete(distribution, list(outcomes)).sum()),
    )


def count_cells(
    distribution: np.ndarray, n: int, batch: int, draw: Callable[[range], Iterable[int]]
) -> Iterator[tuple[int, tuple[int, ...], Cells]]:
    """Counts the outcomes of n draws; draw(numbers) makes those with these numbers. Yields the number of draws so far,
    the outcomes that have a cell of their own, and the cells: before every batch, and at the end."""
    outcomes = likeliest_outcomes(distribution)
    shares, counts = pool_shares(distribution, outcomes), [0] * (len(outcomes) + 1)
    cell_of = {outcome: cell for cell, outcome in enumerate(outcomes)}
    for done in range(0, n, batch):
        yield done, outcomes, Cells(shares, tuple(counts))
        for outcome in draw(range(done, min(n, done + batch))):
            counts[cell_of.get(outcome, len(outcomes))] += 1
    yield n, outcomes, Cells(shares, tuple(counts))


def p_values(cells: Cells) -> tuple[float, ...]:
    """Per cell the two-sided exact binomial probability of a count as far out as this one."""
    tails = np.minimum(
        *_tails(
            np.array(cells.counts), np.array(cells.counts), cells.n, np.array(cells.distribution)
        )
    )
    return tuple(np.minimum(1.0, 2 * tails).tolist())


def cells_differ(cells: Cells, alpha: float = ALPHA) -> bool:
    """Whether one cell alone, after Bonferroni, contradicts the law. n must have been fixed before the first draw."""
    return min(p_values(cells)) <= alpha / len(cells.distribution)


def outcome_of_cells(cells: Cells, what: str = "") -> CheckOutcome:
    """What counts whose n was fixed beforehand say of the target's law; what: the kind of draws that were counted."""
    n, seen = f"n = {cells.n:,}{what}", smallest_cell_shift(cells.distribution, cells.n)
    if cells_differ(cells):
        return CheckOutcome(
            "differs", f"differs, {n}: these counts do not fit the target's probabilities"
        )
    if cells_differ(cells, SUSPICION):
        needed = draws_needed(cells.distribution, [count / cells.n for count in cells.counts])
        enough = (
            f"about {round_up(needed):,} draws decide"
            if needed
            else "more draws than fit here would decide"
        )
        rare = f"the target's probabilities give counts this far off in fewer than 1 of {1 / SUSPICION:,.0f} tries"
        return CheckOutcome("suspicious", f"suspicious, {n}: {rare}; {enough}")
    if seen > COARSE:
        return CheckOutcome(
            "unsure", f"cannot tell, {n}: too few to see a shift of {100 * COARSE:.0f} points"
        )
    words = f"consistent, {n}, would have seen a shift of {100 * seen:.1f} points in any one share"
    return CheckOutcome("consistent", words)


def smallest_cell_shift(distribution: Sequence[float], n: int, alpha: float = ALPHA) -> float:
    """The smallest shift in the share of any one cell, up or down, that n draws would have shown with CHANCE; infinite
    if one of the cells could have moved either way unseen."""
    from scipy.special import betaincinv

    if not n:
        return math.inf
    share, (low, high) = (
        np.array(distribution),
        _limits(np.array(distribution), n, alpha / len(distribution)),
    )
    rise = np.where(high <= n, betaincinv(high, n - high + 1, CHANCE) - share, math.inf)
    fall = np.where(low >= 0, betaincinv(n - low, low + 1, CHANCE) - (1 - share), math.inf)
    return float(_either_way(rise, fall, share).max())


def draws_needed(
    distribution: Sequence[float], wrong: Sequence[float], alpha: float = ALPHA
) -> int | None:
    """How many draws from `wrong` contradict `law` in one cell with CHANCE, within 5 %; None: over MOST_DRAWS."""
    level, distribution, wrong = (
        alpha / len(distribution),
        np.clip(distribution, 0, 1),
        np.clip(wrong, 0, 1),
    )
    reach = quantile(1 - level / 2) * np.sqrt(distribution * (1 - distribution)) + quantile(
        CHANCE
    ) * np.sqrt(wrong * (1 - wrong))
    differs = distribution != wrong
    guesses = np.maximum(
        1.0, (reach[differs] / (wrong - distribution)[differs]) ** 2
    )  # by the normal law
    best = guesses.argsort(kind="stable")[:3]
    if not len(best) or guesses[best[0]] > MOST_DRAWS:
        return None
    distribution, wrong = distribution[differs][best], wrong[differs][best]
    n = max(1, int(guesses[best[0]] / 2))
    while (
        n <= MOST_DRAWS and sum(_tails(*_limits(distribution, n, level), n, wrong)).max() < CHANCE
    ):
        n += max(1, n // 20)
    return n if n <= MOST_DRAWS else None


def _either_way(rise: np.ndarray, fall: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The shift from which on every one that a share has room for, above and below it, is seen."""
    seen = np.maximum(np.minimum(rise, 1 - share), np.minimum(fall, share))
    return np.where((rise > 1 - share) & (fall > share), math.inf, seen)


@cache
def _binomial() -> Any:
    """scipy's binomial law. Its import takes half a second: others have the engine meanwhile."""
    with aside():
        from scipy.stats import binom
    return binom


def _limits(distribution: np.ndarray, n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts up to the first and from the second on contradict a share; -1 and n + 1 where there is none."""
    binom, distribution = _binomial(), distribution.clip(0, 1)
    return binom.ppf(level / 2, n, distribution) - 1, binom.isf(level / 2, n, distribution) + 1


def _tails(
    low: np.ndarray, high: np.ndarray, n: int, distribution: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities of at most `low` and of at least `high` of n."""
    binom, distribution = _binomial(), distribution.clip(0, 1)
    return binom.cdf(low, n, distribution), binom.sf(high - 1, n, distribution)
