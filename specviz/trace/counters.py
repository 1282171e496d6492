"""Counters: counts of a trace so far, from which all metrics are computed; adding an event takes O(K).

Depth d is at index d - 1. Scratch nodes are not drafted tokens and are counted apart.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, zip_longest

from specviz.trace.events import KINDS, STATUSES, Event, Footer, Models, Scores, Step

PHASES = ("draft_ms", "verify_ms", "accept_ms", "record_ms", "wait_ms", "total_ms")
Z_95 = 1.959963984540054
KEPT, REFUSED = "kept", "refused"
HALVES = {
    "bfloat16": "bf16",
    "float16": "fp16",
}  # number formats that round visibly, as a trace calls them


@dataclass(frozen=True, slots=True)
class DepthRates:
    """Acceptance at one depth: the steps that kept a token this deep, over those that drafted so deep (joint) and over
    those that judged a token of this depth (conditional). low, high: 95 % Wilson bounds; None for zero steps."""

    depth: int
    accepted: int
    drafted: int
    joint: float | None
    joint_low: float | None
    joint_high: float | None
    judged: int
    conditional: float | None
    conditional_low: float | None
    conditional_high: float | None


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval for a proportion (Wilson 1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    z, share, z2 = Z_95, successes / n, Z_95 * Z_95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = z / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half), min(1.0, centre + half)


class Counters:
    """Counts of the events so far; `add` takes each event of a trace once, in order."""

    def __init__(self) -> None:
        self.num_steps = self.num_drafting_steps = self.num_trees = 0
        self.statuses: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        self.kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.num_truncated = 0
        self.num_graded = self.num_graded_accepted = 0  # whole reasoning steps
        self.may_draft = False  # whether a step's method proposes tokens, found or not
        self.num_lossy = 0
        self.lossy_spans: list[list[int]] = []  # [first, last] of the steps under a lossy rule
        self.rounds_in = (
            ""  # the first of HALVES that a target judged drafts in, under a lossless rule
        )
        self.calls: Counter[str] = Counter()
        self.times_ms = dict.fromkeys(PHASES, 0.0)
        self.drafted_to: list[int] = []  # steps whose draft reached this depth
        self.judged_at: list[int] = []  # steps that judged a token of this depth
        self.accepted_to: list[int] = []  # steps that kept this many
        self.overlap_sum, self.num_overlaps = 0.0, 0
        self.targets: dict[
            str, list[float]
        ] = {}  # name -> tokens emitted, target calls, ms of work
        self.scores: Scores | None = None
        self.footer: Footer | None = None
        self.distribution_changed = False  # the target or the sampling settings
        self._distribution: tuple | None = None
        self._half = ""  # the target's number format, if it is one of HALVES

    def add(self, event: Event) -> "Counters":
        if isinstance(event, Step):
            self._add_step(event)
        elif isinstance(event, Models):
            self._half = HALVES.get((event.target.dtype or "").partition(",")[0], "")
        elif isinstance(event, Scores):
            self.scores = event
        elif isinstance(event, Footer):
            self.footer = event
        return self

    def _add_step(self, step: Step) -> None:
        self.num_steps += 1
        self.num_truncated += step.truncated
        self.may_draft = self.may_draft or step.settings.drafts
        self.calls.update(step.calls)
        for phase in PHASES:
            self.times_ms[phase] += getattr(step.timing, phase)
        self.kinds.update(token.kind for token in step.emitted)
        self._add_draft(step)
        for position in step.positions:
            if position.child is not None and position.overlap is not None:
                self.overlap_sum += position.overlap
                self.num_overlaps += 1
        self._add_promise(step)
        settings = step.settings
        timing, sums = step.timing, self.targets.setdefault(settings.target, [0, 0, 0.0])
        for place, more in enumerate(
            (len(step.emitted), step.calls["target"], timing.total_ms - timing.wait_ms)
        ):
            sums[place] += more
        distribution = (settings.target, settings.temperature, settings.top_k, settings.top_p)
        self.distribution_changed = self.distribution_changed or self._distribution not in (
            None,
            distribution,
        )
        self._distribution = distribution

    def _add_promise(self, step: Step) -> None:
        verdict = grade_of(step)
        self.num_graded += verdict in (KEPT, REFUSED)
        self.num_graded_accepted += verdict == KEPT
        if step.settings.lossless:
            self.rounds_in = self.rounds_in or (self._half if step.settings.drafts else "")
            return
        self.num_lossy += 1
        if self.lossy_spans and self.lossy_spans[-1][1] == self.num_steps - 2:
            self.lossy_spans[-1][1] += 1
        else:
            self.lossy_spans.append([self.num_steps - 1] * 2)

    def _add_draft(self, step: Step) -> None:
        self.statuses.update(token.status for token in step.draft)
        reached = max((token.depth for token in step.draft if token.status != "scratch"), default=0)
        kept = max((token.depth for token in step.draft if token.status == "accepted"), default=0)
        self.num_drafting_steps += reached > 0
        self.num_trees += step.is_tree
        _count(self.drafted_to, range(reached))
        _count(self.accepted_to, range(kept))
        _count(self.judged_at, {token.depth - 1 for token in step.draft if token.is_judged})

    @property
    def is_lossy_in_part(self) -> bool:
        return 0 < self.num_lossy < self.num_steps

    @property
    def num_drafted(self) -> int:
        return self.num_judged + self.statuses["ignored"]

    @property
    def num_judged(self) -> int:
        return self.statuses["accepted"] + self.statuses["rejected"]

    @property
    def num_emitted(self) -> int:
        return sum(self.kinds.values())

    @property
    def working_ms(self) -> float:
        """Time without the waiting that a slower pace adds."""
        return self.times_ms["total_ms"] - self.times_ms["wait_ms"]

    def by_depth(self, deepest: int | None = None) -> list[DepthRates]:
        """The rates of depth 1, 2, ... down to the deepest draft, or to `deepest`."""
        columns = islice(
            zip_longest(self.accepted_to, self.drafted_to, self.judged_at, fillvalue=0), deepest
        )
        return [
            DepthRates(depth, kept, drafted, *_rate(kept, drafted), judged, *_rate(kept, judged))
            for depth, (kept, drafted, judged) in enumerate(columns, start=1)
        ]


def grade_of(step: Step) -> str:
    """The verdict on a drafted reasoning step: KEPT, REFUSED, or "" where none was graded."""
    verdict = step.evidence.get("verdict")
    return verdict if verdict in (KEPT, REFUSED) and "threshold" in step.evidence else ""


def _count(counts: list[int], indices: Iterable[int]) -> None:
    for index in indices:
        while len(counts) <= index:
            counts.append(0)
        counts[index] += 1


def _rate(successes: int, n: int) -> tuple[float | None, float | None, float | None]:
    return (successes / n, *wilson(successes, n)) if n else (None, None, None)
