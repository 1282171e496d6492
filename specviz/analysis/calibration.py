"""Estimated against observed acceptance of a run's drafted tokens. Loads no torch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from specviz.drafters.calibration import BINS, bin_of
from specviz.trace import Step
from specviz.trace.counters import wilson


@dataclass(frozen=True, slots=True)
class CalibrationBin:
    """The judged tokens with an estimated acceptance from `low` to `high`."""

    low: float
    high: float
    judged: int
    accepted: int
    estimate: float  # the mean
    between: tuple[float, float]  # of accepted / judged: Wilson's 95 % interval


class CalibrationTally:
    """Counts the judged tokens of a run's chains by the acceptance that the drafter had estimated for them.

    Each estimate was made before its token was judged. Steps without estimates are left out.
    """

    def __init__(self) -> None:
        self._judged = [0] * BINS
        self._accepted = [0] * BINS
        self._estimates = [0.0] * BINS  # sums

    def add(self, step: Step) -> None:
        for token, estimate in zip(step.draft, estimates_of(step), strict=False):
            if token.is_judged:
                place = bin_of(estimate)
                self._judged[place] += 1
                self._accepted[place] += token.status == "accepted"
                self._estimates[place] += estimate

    def rows(self) -> list[CalibrationBin]:
        """The bins that are not empty."""
        rows = []
        for place, judged in enumerate(self._judged):
            if judged:
                low, high = place / BINS, (place + 1) / BINS
                accepted = self._accepted[place]
                mean = self._estimates[place] / judged
                between = wilson(accepted, judged)
                rows.append(CalibrationBin(low, high, judged, accepted, mean, between))
        return rows


def calibration(steps: Iterable[Step]) -> list[CalibrationBin]:
    """Estimated against observed acceptance over these steps."""
    tally = CalibrationTally()
    for step in steps:
        tally.add(step)
    return tally.rows()


def estimates_of(step: Step) -> Sequence[float]:
    """The estimated acceptance of each drafted token; none where the evidence does not hold one for each."""
    found = step.evidence.get("acceptance")
    if not isinstance(found, (list, tuple)) or len(found) != len(step.draft):
        return ()
    are_shares = all(type(share) in (int, float) and 0 <= share <= 1 for share in found)
    return found if are_shares else ()
