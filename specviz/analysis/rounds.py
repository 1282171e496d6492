"""Times contenders side by side in rounds of alternating turns, and says what may be concluded.

In a round every contender runs twice: in a random order, then in the same order backwards (A B B A). The quicker turn
counts; how much the other one lags tells how busy the machine was. Two equal contenders are equally likely to win a
round, so a sign test over rounds keeps its level under drift and busy spells. Standard library only.
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
"""The probability that two equal contenders are called different, at most."""
FEWEST = FEWEST_ROUNDS
"""The fewest rounds after which one side may be called faster."""
NEAR = 1.05
"""A ratio nearer to 1 than this is "about as fast", however sure it is. A ratio may also exceed its limit by this."""
ONE_RUN = 0.15
"""How much faster one side must be for a single run to say anything. On a machine that is not busy, two turns of one
contender lie no further apart."""
WIDE = 1.5
"""The largest ratio between the ends of an interval that can say "about as fast"."""
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
    """The turn of one contender in one round."""

    contender: int  # its place
    round: int  # from 1; in round 0 all warm up
    done: int  # turns before this one, those of round 0 among them
    total: int


def turns(num_contenders: int, num_rounds: int, lots: Random | None = None) -> Iterator[RoundTurn]:
    """Yields whose turn comes next. lots: draws the orders; by default they differ from call to call."""
    lots = lots or Random()
    total = num_contenders * (1 + 2 * num_rounds)
    done = 0
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
    """How many times as fast one contender is as another.

    A step takes at least as long as a target call. So the speedup over no draft never exceeds the tokens per target
    call.
    """

    ratios: tuple[float, ...]  # one per round, or one per prompt
    spread: float = 0.0
    """How much more time the slower turn of the same contender took, as a share: the median over all rounds."""
    least: float = 0.0  # no true ratio is below
    most: float = math.inf  # no true ratio is above

    def allows(self, ratio: float) -> bool:
        """Whether a ratio lies where a true one may, as far as rounds can tell."""
        return self.least / NEAR <= ratio <= self.most * NEAR

    @property
    def is_possible(self) -> bool:
        return self.allows(log_median(self.ratios))

    @property
    def ratio(self) -> float:
        """The median, within the limits; it means nothing unless `is_possible`."""
        return self.within(log_median(self.ratios))

    @property
    def between(self) -> tuple[float, float]:
        low, high = interval(self.ratios)
        return self.within(low), self.within(high)

    def within(self, ratio: float) -> float:
        """The ratio, or the limit that it exceeds."""
        return min(max(ratio, self.least), self.most)

    @property
    def verdict(self) -> Verdict:
        """What the ratios say. Two equal contenders are called "faster" or "slower" with probability LEVEL at most."""
        low, high = self.between
        ratio = self.ratio
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
        """A cell of a table; it names the verdict only where neither is faster."""
        if self.is_clear or not self.is_possible:
            return self.span
        verdict = WORDS[self.verdict].partition(":")[0]
        return f"{self.span}, {verdict}"


class Timings(Generic[Contender]):
    """The times of all turns, by contender and round, in any unit where less is faster."""

    def __init__(self) -> None:
        self._times: dict[Contender, dict[int, list[float]]] = {}

    def add(self, contender: Contender, number: int, time: float) -> None:
        """Adds the time of a turn. number: the round; round 0 does not count."""
        if number:
            self._times.setdefault(contender, {}).setdefault(number, []).append(time)

    def quicker(self, contender: Contender) -> dict[int, float]:
        """The time of the quicker turn in each round."""
        return {number: min(times) for number, times in self._times[contender].items()}

    def median(self, contender: Contender) -> float:
        return statistics.median(self.quicker(contender).values())

    @property
    def spread(self) -> float:
        """How much more time the slower turn of the same contender took, as a share: the median of all rounds."""
        return statistics.median(max(times) / min(times) - 1 for times in self._rounds())

    def _rounds(self) -> Iterator[list[float]]:
        for rounds in self._times.values():
            yield from rounds.values()

    def ratios(self, ours: Contender, others: Contender) -> dict[int, float]:
        """How many times as fast we are, by round."""
        theirs = self.quicker(others)
        return {number: theirs[number] / time for number, time in self.quicker(ours).items()}

    def compare(
        self, ours: Contender, others: Contender, least: float = 0.0, most: float = math.inf
    ) -> SpeedComparison:
        return SpeedComparison(tuple(self.ratios(ours, others).values()), self.spread, least, most)

    def wins_and_losses(self, ours: Contender, others: Contender) -> tuple[int, int]:
        """The number of rounds in which we were ahead, and behind; (0, 0) unless there are both.

        All turns of a round must agree, by ONE_RUN and by more than two turns of one contender ever lie apart.
        """
        apart = 1 + ONE_RUN
        for times in self._rounds():
            apart = max(apart, max(times) / min(times))
        ahead = 0
        behind = 0
        for number, times in self._times[ours].items():
            theirs = self._times[others][number]
            ahead += min(theirs) / max(times) >= apart
            behind += min(times) / max(theirs) >= apart
        return (ahead, behind) if ahead and behind else (0, 0)


def spell_ratio(ratio: float, most: float = math.inf, decimals: int = 1) -> str:
    """A ratio as people read it; rounding never lifts it above `most`."""
    words = f"{ratio:.{decimals}f}"
    if float(words) <= most:
        return words
    return f"{math.floor(most * 10**decimals) / 10**decimals:.{decimals}f}"


def is_far(ratio: float) -> bool:
    """Whether one side is ahead by ONE_RUN or more, whichever."""
    return ratio <= 0 or max(ratio, 1 / ratio) - 1 >= ONE_RUN


def log_median(ratios: Sequence[float]) -> float:
    """The median of the ratios on the logarithmic scale."""
    return math.exp(statistics.median(map(math.log, ratios)))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of order statistics that misses the true median with a probability of at most LEVEL.

    The binomial distribution gives that probability for values from any continuous distribution (David and Nagaraja,
    Order Statistics, 2003, section 7.1). With fewer than FEWEST values it is the smallest and the largest, which hold
    the median less surely.
    """
    ordered = sorted(values)
    number = len(values)
    ways = list(accumulate(math.comb(number, left_out) for left_out in range(number + 1)))
    rank = 0
    while 2 * (rank + 1) < number and 2 * ways[rank + 1] / 2**number <= LEVEL:
        rank += 1
    return ordered[rank], ordered[-1 - rank]
