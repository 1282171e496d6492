"""Counts the events of a trace so far; all metrics are computed from these counts. Adding an event takes O(K).

Depth d is at index d - 1. Scratch nodes are not drafted tokens and are counted apart.
"""

import math
from collections import Counter
from collections.abc import Iterable
from itertools import islice, zip_longest
from typing import NamedTuple

from specviz.trace.events import KINDS, STATUSES, Event, Footer, Models, Scores, Step

PHASES = ("draft_ms", "verify_ms", "accept_ms", "record_ms", "wait_ms", "total_ms")
Z_95 = 1.959963984540054
KEPT = "kept"  # the verdicts on a reasoning step, as evidence in a trace names them
REFUSED = "refused"
HALVES = {"bfloat16": "bf16", "float16": "fp16"}
"""The number formats that round visibly: a trace's name -> a short name."""


class DepthRates(NamedTuple):
    """Acceptance at one depth. Rates have 95 % Wilson bounds; they are None for zero steps."""

    depth: int
    accepted: int  # steps that accepted a token this deep
    drafted: int  # steps that drafted so deep
    joint: float | None  # accepted / drafted
    joint_low: float | None
    joint_high: float | None
    judged: int  # steps that judged a token of this depth
    conditional: float | None  # accepted / judged
    conditional_low: float | None
    conditional_high: float | None


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % score interval for a proportion (Wilson 1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    share = successes / n
    z2 = Z_95 * Z_95
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half_width = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


class Counters:
    """Counts of the events so far; `add` takes each event of a trace once, in order."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_drafting_steps = 0
        self.num_trees = 0
        self.statuses: Counter[str] = Counter(dict.fromkeys(STATUSES, 0))
        self.kinds: Counter[str] = Counter(dict.fromkeys(KINDS, 0))
        self.num_truncated = 0
        self.num_graded = 0  # whole reasoning steps
        self.num_graded_accepted = 0
        self.may_draft = False  # whether a step's method proposes tokens, found or not
        self.num_lossy = 0
        self.num_foreign = 0  # steps of another engine, whose record does not tell the rule
        self.lossy_spans: list[list[int]] = []  # [first, last] of the steps under a lossy rule
        # The first of HALVES in which a target judged drafts under a lossless rule.
        self.rounds_in = ""
        self.calls: Counter[str] = Counter()
        self.read_again: Counter[str] = Counter()  # tokens that a model with a state read twice
        self.times_ms = dict.fromkeys(PHASES, 0.0)
        self.drafted_to: list[int] = []  # steps whose draft reached this depth
        self.judged_at: list[int] = []  # steps that judged a token of this depth
        self.accepted_to: list[int] = []  # steps that accepted this many
        self.overlap_sum = 0.0
        self.num_overlaps = 0
        # Name -> tokens emitted, target calls, milliseconds of work.
        self.targets: dict[str, list[float]] = {}
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
        self.read_again.update(step.read_again or {})
        for phase in PHASES:
            self.times_ms[phase] += getattr(step.timing, phase)
        self.kinds.update(token.kind for token in step.emitted)
        self._add_draft(step)
        for position in step.positions:
            if position.child is not None and position.overlap is not None:
                self.overlap_sum += position.overlap
                self.num_overlaps += 1
        self._add_promise(step)
        self._add_target(step)

    def _add_target(self, step: Step) -> None:
        settings = step.settings
        sums = self.targets.setdefault(settings.target, [0, 0, 0.0])
        sums[0] += len(step.emitted)
        sums[1] += step.calls["target"]
        sums[2] += step.timing.total_ms - step.timing.wait_ms
        if self._distribution not in (None, settings.distribution):
            self.distribution_changed = True
        self._distribution = settings.distribution

    def _add_promise(self, step: Step) -> None:
        verdict = grade_of(step)
        self.num_graded += verdict in (KEPT, REFUSED)
        self.num_graded_accepted += verdict == KEPT
        if step.settings.is_foreign:
            self.num_foreign += 1
            return
        if step.settings.lossless:
            if step.settings.drafts and not self.rounds_in:
                self.rounds_in = self._half
            return
        self.num_lossy += 1
        if self.lossy_spans and self.lossy_spans[-1][1] == self.num_steps - 2:
            self.lossy_spans[-1][1] += 1
        else:
            self.lossy_spans.append([self.num_steps - 1] * 2)

    def _add_draft(self, step: Step) -> None:
        self.statuses.update(token.status for token in step.draft)
        drafted = [token.depth for token in step.draft if token.status != "scratch"]
        accepted = [token.depth for token in step.draft if token.status == "accepted"]
        self.num_drafting_steps += len(drafted) > 0
        self.num_trees += step.is_tree
        _count(self.drafted_to, range(max(drafted, default=0)))
        _count(self.accepted_to, range(max(accepted, default=0)))
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
        """The time without the waiting that a slower pace adds."""
        return self.times_ms["total_ms"] - self.times_ms["wait_ms"]

    def by_depth(self) -> list[DepthRates]:
        """The rates of depth 1, 2, ... down to the deepest draft."""
        rows = []
        for depth, (accepted, drafted, judged) in enumerate(self.counts_by_depth(), start=1):
            joint = rate_of(accepted, drafted)
            conditional = rate_of(accepted, judged)
            rows.append(DepthRates(depth, accepted, drafted, *joint, judged, *conditional))
        return rows

    def counts_by_depth(self, deepest: int | None = None) -> list[tuple[int, int, int]]:
        """How many steps accepted, drafted and judged a token of depth 1, 2, ..., at most down to `deepest`."""
        counts = zip_longest(self.accepted_to, self.drafted_to, self.judged_at, fillvalue=0)
        return [*islice(counts, deepest)]


def grade_of(step: Step) -> str:
    """The verdict on a drafted reasoning step: KEPT, REFUSED, or "" where none was graded."""
    verdict = step.evidence.get("verdict")
    is_grade = verdict in (KEPT, REFUSED) and "threshold" in step.evidence
    return verdict if is_grade else ""


def _count(counts: list[int], indices: Iterable[int]) -> None:
    for index in indices:
        while len(counts) <= index:
            counts.append(0)
        counts[index] += 1


def rate_of(successes: int, n: int) -> tuple[float | None, float | None, float | None]:
    """The share and its 95 % bounds."""
    if not n:
        return None, None, None
    low, high = wilson(successes, n)
    return successes / n, low, high
