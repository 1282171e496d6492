"""Timing things side by side: rounds of alternating turns, what they took, and what may be said of it.

In a round every contender runs twice: in a random order, then in the same order backwards (A B B A). Its quicker turn
counts; how much the other one lags tells how busy the machine was. Of two equal contenders either is as likely to win a
round: so a sign test over rounds keeps its level under drift and busy spells. Standard library only.
"""

import math
import statistics
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random
from typing import Generic, Literal, TypeVar

from specviz.trace.metrics import FEWEST_ROUNDS

Contender = TypeVar("Contender", bound=Hashable)
Verdict = Literal["faster", "slower", "even", "unclear", "noisy", "few", "impossible"]

LEVEL = 0.04
"""At most so often are two equal contenders called different."""
FEWEST = FEWEST_ROUNDS
"""Rounds without which nothing is called faster."""
NEAR = 1.05
"""A ratio nearer to 1 is about as fast, however sure it is; one that is nearer to its limit is as high as that."""
ONE_RUN = 0.15
"""How much faster one side must be for a single run to say anything, and how far apart the two turns of one contender
may lie on a machine that is not busy."""
WIDE = 1.5
"""An interval whose ends lie further apart, as a ratio, cannot say "about as fast"."""
WORDS: Mapping[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "even": "about as fast",
    "unclear": "no clear difference",
    "noisy": "too noisy to tell: repeat when this machine is idle",
    "few": "too few to tell",
    "impossible": "no ratio: it would be above the tokens per target call; this machine was busy, or the prompts "
    "differ too much for one number",
}


@dataclass(frozen=True, slots=True)
class RoundTurn:
    """contender: its place. round: from 1; in round 0 all warm up. done, total: turns, those of round 0 among them."""

    contender: int
    round: int
    done: int
    total: int


def turns(num_contenders: int, num_rounds: int, lots: Random | None = None) -> Iterator[RoundTurn]:
    """Who runs next. lots: draws the orders; by default they differ from call to call."""
    lots, done, total = lots or Random(), 0, num_contenders * (1 + 2 * num_rounds)
    for number in range(num_rounds + 1):
        order = list(range(num_contenders))
        if number:
            lots.shuffle(order)
            order += order[::-1]
        for contender in order:
            yield RoundTurn(contender, number, done, total)
            done += 1


@dataclass(frozen=True, slots=True)
class SpeedComparison:
    """How many times as fast one contender is as another. ratios: one per round, or one per prompt. spread: how much
    more time the slower turn of the same contender took, as a share; the median over both and all rounds.

    least, most: what no true ratio is below and above. A step takes at least as long as a target call, so a method is
    never more times as fast as no draft than it writes tokens per target call.
    """

    ratios: tuple[float, ...]
    spread: float = 0.0
    least: float = 0.0
    most: float = math.inf

    def allows(self, ratio: float) -> bool:
        """Whether a ratio lies where a true one may, as far as rounds can tell."""
        return self.least / NEAR <= ratio <= self.most * NEAR

    @property
    def is_possible(self) -> bool:
        return self.allows(log_median(self.ratios))

    @property
    def ratio(self) -> float:
        """The median, within the limits: to be told only where `is_possible`."""
        return self.within(log_median(self.ratios))

    @property
    def between(self) -> tuple[float, float]:
        low, high = interval(self.ratios)
        return self.within(low), self.within(high)

    def within(self, ratio: float) -> float:
        """The ratio, or the limit that it is beyond."""
        return min(max(ratio, self.least), self.most)

    @property
    def verdict(self) -> Verdict:
        """Of two equal contenders "faster" and "slower" together come with a probability of at most LEVEL."""
        (low, high), ratio = self.between, self.ratio
        if not self.is_possible:
            return "impossible"
        if len(self.ratios) < FEWEST:
            return "few"
        if max(ratio, 1 / ratio) >= NEAR and (low > 1 or high < 1):
            return "faster" if ratio > 1 else "slower"
        if high <= WIDE * low and not is_far(ratio):
            return "even"
        return "noisy" if self.spread >= ONE_RUN else "unclear"

    @property
    def is_clear(self) -> bool:
        """Whether one of the two is faster."""
        return self.verdict in ("faster", "slower")

    @property
    def span(self) -> str:
        """The ratio and its interval, or why there is none."""
        if not self.is_possible:
            return WORDS["impossible"]
        low, high = self.between
        return f"{self.ratio:.2f}x ({low:.2f}-{high:.2f})"

    def __str__(self) -> str:
        """As a cell of a table; the verdict only where neither is faster."""
        is_told = self.is_clear or not self.is_possible
        return self.span if is_told else f"{self.span}, {WORDS[self.verdict].partition(':')[0]}"


class Timings(Generic[Contender]):
    """What each turn took, by contender and round, in any unit where less is faster."""

    def __init__(self) -> None:
        self._times: dict[Contender, dict[int, list[float]]] = {}

    def add(self, contender: Contender, number: int, time: float) -> None:
        """number: of the round; what round 0 took does not count."""
        if number:
            self._times.setdefault(contender, {}).setdefault(number, []).append(time)

    def quicker(self, contender: Contender) -> dict[int, float]:
        """The quicker turn of each round."""
        return {number: min(times) for number, times in self._times[contender].items()}

    def median(self, contender: Contender) -> float:
        return statistics.median(self.quicker(contender).values())

    @property
    def spread(self) -> float:
        """How much more time the slower turn of the same contender took, as a share: the median of all rounds."""
        return statistics.median(max(times) / min(times) - 1 for times in self._rounds())

    def _rounds(self) -> Iterator[list[float]]:
        return (times for rounds in self._times.values() for times in rounds.values())

    def ratios(self, ours: Contender, others: Contender) -> dict[int, float]:
        """Per round, how many times as fast we are."""
        theirs = self.quicker(others)
        return {number: theirs[number] / time for number, time in self.quicker(ours).items()}

    def compare(
        self, ours: Contender, others: Contender, least: float = 0.0, most: float = math.inf
    ) -> SpeedComparison:
        return SpeedComparison(tuple(self.ratios(ours, others).values()), self.spread, least, most)

    def wins_and_losses(self, ours: Contender, others: Contender) -> tuple[int, int]:
        """In how many rounds we were ahead and behind in both turns of either, by ONE_RUN and by more than two turns of
        one contender ever lie apart; (0, 0) unless there are rounds of both kinds."""
        apart = max(1 + ONE_RUN, *(max(times) / min(times) for times in self._rounds()))
        pairs = [
            (times, self._times[others][number]) for number, times in self._times[ours].items()
        ]
        ahead = sum(min(theirs) / max(times) >= apart for times, theirs in pairs)
        behind = sum(min(times) / max(theirs) >= apart for times, theirs in pairs)
        return (ahead, behind) if ahead and behind else (0, 0)


def spell_ratio(ratio: float, most: float = math.inf, decimals: int = 1) -> str:
    """A ratio as people read it, which rounding never lifts above `most`."""
    words = f"{ratio:.{decimals}f}"
    if float(words) <= most:
        return words
    return f"{math.floor(most * 10**decimals) / 10**decimals:.{decimals}f}"


def is_far(ratio: float) -> bool:
    """Whether one side is ahead by ONE_RUN or more, whichever."""
    return ratio <= 0 or max(ratio, 1 / ratio) - 1 >= ONE_RUN


def log_median(ratios: Sequence[float]) -> float:
    """The median; between two middle ones it halves their distance on the logarithmic scale."""
    return math.exp(statistics.median(map(math.log, ratios)))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that misses the median of the law the values come from with a probability
    of at most LEVEL, as the binomial law gives it for any continuous law (David and Nagaraja, Order Statistics, 2003,
    section 7.1); of fewer than FEWEST values the smallest and the largest, which hold it less surely."""
    ordered, rank, number = sorted(values), 0, len(values)
    ways = list(accumulate(math.comb(number, left_out) for left_out in range(number + 1)))
    while 2 * (rank + 1) < number and 2 * ways[rank + 1] / 2**number <= LEVEL:
        rank += 1
    return ordered[rank], ordered[-1 - rank]
