"""Estimated against observed acceptance of a run's drafted tokens. Loads no torch."""

import math
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


def calibration(steps: Iterable[Step]) -> list[CalibrationBin]:
    """How often tokens of a chain were accepted, by the acceptance that the drafter had estimated for them.

    Each estimate was made before its token was judged. Steps without estimates are left out, and so are empty bins.
    """
    judged: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for step in steps:
        for token, estimate in zip(step.draft, estimates_of(step), strict=False):
            if token.is_judged:
                judged[bin_of(estimate)].append((estimate, token.status == "accepted"))
    rows = []
    for place, tokens in enumerate(judged):
        if not tokens:
            continue
        accepted = sum(was_accepted for _, was_accepted in tokens)
        mean = math.fsum(estimate for estimate, _ in tokens) / len(tokens)
        between = wilson(accepted, len(tokens))
        low, high = place / BINS, (place + 1) / BINS
        rows.append(CalibrationBin(low, high, len(tokens), accepted, mean, between))
    return rows


def estimates_of(step: Step) -> Sequence[float]:
    """The estimated acceptance of each drafted token; none where the evidence does not hold one for each."""
    found = step.evidence.get("acceptance")
    if not isinstance(found, (list, tuple)) or len(found) != len(step.draft):
        return ()
    are_shares = all(type(share) in (int, float) and 0 <= share <= 1 for share in found)
    return found if are_shares else ()
