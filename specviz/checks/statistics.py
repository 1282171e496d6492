"""Statistics that do not mislead: evidence over tokens, valid at any time, and exact counts at a fixed n.

Both compare with a known distribution. Both call a correct decoder wrong with a probability of at most alpha, and both
say how small a shift they would have seen. Nothing here knows a model or a rule.
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

ALPHA = 1e-6  # the probability that a check calls a correct decoder wrong, at most
SUSPICION = 1e-3  # the probability that it calls a correct decoder suspicious, at most
CHANCE = 0.9  # the probability that a shift of the stated size is seen
COARSE = 0.1  # a check that would miss a shift of ten points cannot call anything consistent
ROUNDS = 4
NUM_CELLS = 20  # the most likely tokens; all others make one more cell
MOST_DRAWS = 10**9
_UPWARD_STAKES = 0.1 * 2.0 ** np.arange(5)
STAKES = np.stack([_UPWARD_STAKES, -_UPWARD_STAKES], axis=1).ravel()  # [L] the lambdas of the bets
quantile = NormalDist().inv_cdf  # of the standard normal distribution


class CheckOutcome(NamedTuple):
    """What a check came to."""

    state: str  # exact, consistent, suspicious, differs or unsure
    words: str


@dataclass(frozen=True, slots=True)
class Cells:
    """Counts of the pooled outcomes of independent draws, and the probabilities that they should have."""

    distribution: tuple[float, ...]
    counts: tuple[int, ...]

    @property
    def n(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, slots=True, eq=False)
class Evidence:
    """Bets against "feature f holds for a token with probability P", one per feature and stake, and their mean E.

    A bet's value is the product of exp(lambda f) / (1 - P + P exp(lambda)). For a correct decoder its mean is 1,
    whatever came before. So E exceeds 1 / alpha with a probability of at most alpha, at any time (Ville 1939;
    Waudby-Smith and Ramdas 2023).
    """

    features: tuple[str, ...]  # F
    num_tokens: int
    observed: np.ndarray  # [F] tokens with the feature
    expected: np.ndarray  # [F] how many tokens should have it: the sum of P
    variance: np.ndarray  # [F] of the number that should have it
    paid: np.ndarray  # [F, L] what the bets have cost: the sum of log(1 - P + P exp(lambda))
    peak: float  # the highest log E so far
    peak_at: int = 0  # after how many tokens

    @classmethod
    def empty(cls, features: Sequence[str]) -> Evidence:
        zero = np.zeros(len(features))
        paid = np.zeros((len(features), len(STAKES)))
        return cls(tuple(features), 0, zero, zero, zero, paid, 0.0)

    def add(self, holds: np.ndarray, chances: np.ndarray) -> Evidence:
        """The evidence with further tokens, in order.

        holds [T, F]: which features each token has. chances [T, F]: the probability P of each, before it was seen.
        """
        chances = np.clip(np.asarray(chances, dtype=float), 0.0, 1.0)
        holds = np.asarray(holds, dtype=float)
        prices = bet_prices(chances)  # [T, F, L]
        gains = STAKES * holds[..., None] - prices  # [T, F, L] of each token
        so_far = gains.cumsum(0) + self._gains
        levels = _log_mean(so_far.reshape(len(so_far), -1))  # [T]
        peak = self.peak
        peak_at = self.peak_at
        if len(levels) and levels.max() > peak:
            peak = float(levels.max())
            peak_at = self.num_tokens + int(levels.argmax()) + 1
        return Evidence(
            self.features,
            self.num_tokens + len(holds),
            self.observed + holds.sum(0),
            self.expected + chances.sum(0),
            self.variance + (chances * (1 - chances)).sum(0),
            self.paid + prices.sum(0),
            peak,
            peak_at,
        )

    @property
    def _gains(self) -> np.ndarray:
        return STAKES * self.observed[:, None] - self.paid  # [F, L]

    @property
    def level(self) -> float:
        """The evidence now, as log E."""
        return float(_log_mean(self._gains.reshape(1, -1))[0])

    def differs(self, alpha: float = ALPHA) -> bool:
        return self.peak >= math.log(1 / alpha)

    @property
    def tokens_to_go(self) -> int:
        """How many more tokens it takes to "differs" if the evidence goes on growing as fast as it did.

        The best bet first had to make good what the others had staked. The peak must be above 0.
        """
        gained = self.peak + log_threshold(len(self.features), 1.0)
        missing = math.log(1 / ALPHA) - self.peak
        return round_up(missing / (gained / self.num_tokens))

    @property
    def shifts(self) -> tuple[float, ...]:
        """How far the share of each feature lies from the expected share."""
        shifts = (self.observed - self.expected) / max(1, self.num_tokens)
        return tuple(shifts.tolist())

    @property
    def z(self) -> tuple[float, ...]:
        """How far each feature lies from its expected number, in standard deviations; no verdict rests on it."""
        spread = np.sqrt(self.variance)
        spread[spread == 0] = 1.0
        z = (self.observed - self.expected) / spread
        return tuple(z.tolist())

    def smallest_shifts(self, alpha: float = ALPHA) -> tuple[float, ...]:
        """The smallest mean shift of each feature that these tokens would have shown with CHANCE, up and down.

        Where a shift one way would stay unseen, the room that the share has there counts. Infinite where neither way
        would have been seen.
        """
        if not self.num_tokens:
            return (math.inf,) * len(self.features)
        n = self.num_tokens
        stakes = np.abs(STAKES)
        expected = self.expected[:, None]
        need = log_threshold(len(self.features), alpha) + self.paid - STAKES * expected
        shifts = np.zeros_like(need)
        for _ in range(ROUNDS):  # the shift changes the spread that it must stand out from
            moved = np.sign(STAKES) * shifts
            variance = self.variance[:, None] + moved * (n - 2 * expected) - n * shifts**2
            spread = np.sqrt(np.maximum(variance, self.variance[:, None]))
            shifts = (need + quantile(CHANCE) * stakes * spread) / (stakes * n)
        rise = shifts[:, STAKES > 0].min(1)
        fall = shifts[:, STAKES < 0].min(1)
        visible = _visible_shift(rise, fall, self.expected / n)
        return tuple(visible.tolist())


def bet_prices(chances: np.ndarray) -> np.ndarray:
    """What each bet costs before a token is known: log(1 - P + P exp(lambda)) [..., L]."""
    return np.log1p(chances[..., None] * np.expm1(STAKES))


def round_up(number: float) -> int:
    """The next whole number with at most two digits other than zeros: they say enough."""
    whole = max(1, math.ceil(number))
    step = 10 ** max(0, len(str(whole)) - 2)
    return -(-whole // step) * step


def log_threshold(num_features: int, alpha: float = ALPHA) -> float:
    """The log value at which a single bet lifts the mean of all bets to 1 / alpha."""
    return math.log(num_features * len(STAKES) / alpha)


def tokens_needed(gain: np.ndarray, variance: np.ndarray, alpha: float = ALPHA) -> float:
    """How many tokens it takes until one bet reaches 1 / alpha with CHANCE; infinite where no bet gains.

    gain, variance: the mean gain of each bet per token, and its variance [F, L].
    """
    goal = log_threshold(len(gain), alpha)
    gaining = gain > 0
    mean = gain[gaining]
    spread = quantile(CHANCE) * np.sqrt(variance[gaining])
    # The solution sqrt(n) of n mean - spread sqrt(n) = goal.
    discriminant = spread**2 + 4 * mean * goal
    roots = (spread + np.sqrt(discriminant)) / (2 * mean)
    return float((roots**2).min(initial=math.inf))


def _log_mean(gains: np.ndarray) -> np.ndarray:
    """The logarithm of the mean of exp(gains) over the last axis."""
    top = gains.max(-1)
    shares = np.exp(gains - top[..., None])
    return top + np.log(shares.mean(-1))


def likeliest_outcomes(distribution: np.ndarray, most: int = NUM_CELLS) -> tuple[int, ...]:
    """The outcomes that get a cell of their own, the most likely first; none of probability 0."""
    order = np.argsort(-distribution, kind="stable")[:most]
    return tuple(int(outcome) for outcome in order if distribution[outcome] > 0)


def pool_shares(distribution: np.ndarray, outcomes: Sequence[int]) -> tuple[float, ...]:
    """The shares of these outcomes and, last, of all others."""
    shares = [float(distribution[outcome]) for outcome in outcomes]
    rest = float(np.delete(distribution, list(outcomes)).sum())
    return (*shares, rest)


def count_cells(
    distribution: np.ndarray, n: int, batch: int, draw: Callable[[range], Iterable[int]]
) -> Iterator[tuple[int, tuple[int, ...], Cells]]:
    """Counts the outcomes of n draws; draw(numbers) makes the draws of these numbers.

    Yields the number of draws so far, the outcomes that have a cell of their own, and the cells: before every batch,
    and at the end.
    """
    outcomes = likeliest_outcomes(distribution)
    shares = pool_shares(distribution, outcomes)
    counts = [0] * (len(outcomes) + 1)
    cell_of = {outcome: cell for cell, outcome in enumerate(outcomes)}
    for done in range(0, n, batch):
        yield done, outcomes, Cells(shares, tuple(counts))
        for outcome in draw(range(done, min(n, done + batch))):
            counts[cell_of.get(outcome, len(outcomes))] += 1
    yield n, outcomes, Cells(shares, tuple(counts))


def p_values(cells: Cells) -> tuple[float, ...]:
    """The two-sided exact binomial probability, for each cell, of a count as far out as this one."""
    counts = np.array(cells.counts)
    at_most, at_least = _tails(counts, counts, cells.n, np.array(cells.distribution))
    return tuple(np.minimum(1.0, 2 * np.minimum(at_most, at_least)).tolist())


def cells_differ(cells: Cells, alpha: float = ALPHA) -> bool:
    """Whether one cell alone, after Bonferroni, contradicts the distribution; n must be fixed before the first draw."""
    return min(p_values(cells)) <= alpha / len(cells.distribution)


def outcome_of_cells(cells: Cells, what: str = "") -> CheckOutcome:
    """What the counts say about the target's distribution; n must be fixed beforehand.

    what: words for the kind of draws that were counted.
    """
    n = f"n = {cells.n:,}{what}"
    seen = smallest_cell_shift(cells.distribution, cells.n)
    if cells_differ(cells):
        return CheckOutcome(
            "differs", f"differs, {n}: these counts do not fit the target's probabilities"
        )
    if cells_differ(cells, SUSPICION):
        needed = draws_needed(cells.distribution, [count / cells.n for count in cells.counts])
        enough = "more draws than fit here would decide"
        if needed:
            enough = f"about {round_up(needed):,} draws decide"
        rare = f"the target's probabilities give counts this far off in fewer than 1 of {1 / SUSPICION:,.0f} tries"
        return CheckOutcome("suspicious", f"suspicious, {n}: {rare}; {enough}")
    if seen > COARSE:
        return CheckOutcome(
            "unsure", f"cannot tell, {n}: too few to see a shift of {100 * COARSE:.0f} points"
        )
    words = (
        f"no difference found, {n}; one of {100 * seen:.1f} points in any share would have shown"
    )
    return CheckOutcome("consistent", words)


def smallest_cell_shift(distribution: Sequence[float], n: int, alpha: float = ALPHA) -> float:
    """The smallest shift in the share of any one cell, up or down, that n draws would have shown with CHANCE.

    Infinite if one of the cells could have moved either way unseen.
    """
    from scipy.special import betaincinv

    if not n:
        return math.inf
    share = np.array(distribution)
    low, high = _limits(share, n, alpha / len(distribution))
    rise = np.where(high <= n, betaincinv(high, n - high + 1, CHANCE) - share, math.inf)
    fall = np.where(low >= 0, betaincinv(n - low, low + 1, CHANCE) - (1 - share), math.inf)
    return float(_visible_shift(rise, fall, share).max())


def draws_needed(
    distribution: Sequence[float], wrong: Sequence[float], alpha: float = ALPHA
) -> int | None:
    """How many draws from `wrong` contradict `distribution` in one cell with CHANCE, within 5 %.

    None where more than MOST_DRAWS are needed.
    """
    level = alpha / len(distribution)
    expected = np.clip(distribution, 0, 1)
    actual = np.clip(wrong, 0, 1)
    differs = expected != actual
    expected = expected[differs]
    actual = actual[differs]
    # The first guess takes both binomial distributions as normal.
    expected_spread = quantile(1 - level / 2) * np.sqrt(expected * (1 - expected))
    actual_spread = quantile(CHANCE) * np.sqrt(actual * (1 - actual))
    guesses = np.maximum(1.0, ((expected_spread + actual_spread) / (actual - expected)) ** 2)
    best = guesses.argsort(kind="stable")[:3]
    if not len(best) or guesses[best[0]] > MOST_DRAWS:
        return None
    expected = expected[best]
    actual = actual[best]
    n = max(1, int(guesses[best[0]] / 2))
    while n <= MOST_DRAWS:
        low, high = _limits(expected, n, level)
        at_most, at_least = _tails(low, high, n, actual)
        if (at_most + at_least).max() >= CHANCE:
            return n
        n += max(1, n // 20)
    return None


def _visible_shift(rise: np.ndarray, fall: np.ndarray, share: np.ndarray) -> np.ndarray:
    """The smallest shift that is seen both ways, as far as the share has room to rise and to fall."""
    seen = np.maximum(np.minimum(rise, 1 - share), np.minimum(fall, share))
    return np.where((rise > 1 - share) & (fall > share), math.inf, seen)


@cache
def _binomial() -> Any:
    """The binomial distribution of scipy. Its import takes half a second: others have the engine meanwhile."""
    with aside():
        from scipy.stats import binom
    return binom


def _limits(distribution: np.ndarray, n: int, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Counts up to the first and from the second on contradict a share; -1 and n + 1 where there is none."""
    share = distribution.clip(0, 1)
    low = _binomial().ppf(level / 2, n, share) - 1
    high = _binomial().isf(level / 2, n, share) + 1
    return low, high


def _tails(
    low: np.ndarray, high: np.ndarray, n: int, distribution: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities of at most `low` and of at least `high` of n."""
    share = distribution.clip(0, 1)
    return _binomial().cdf(low, n, share), _binomial().sf(high - 1, n, share)
