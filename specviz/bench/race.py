"""A race: two requests on the same prompts, each run twice per prompt (a round of `rounds`), with prefill counted.

The caller holds the engine while it asks for the next result; each result takes one run. Every number of a race comes
from a trace: the quicker of a side's two runs. Where greedy texts differ, the models are asked again.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor

from specviz.analysis.rounds import SpeedComparison, Timings, turns
from specviz.decoding.device import is_out_of_memory
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds, read
from specviz.request import Request
from specviz.session.active_setup import ActiveSetup
from specviz.session.whole_run import activate, whole_run
from specviz.session.workbench import Workbench
from specviz.trace import EmittedToken, Trace
from specviz.trace.counters import Counters
from specviz.trace.first_difference import first_difference
from specviz.trace.metrics import count, metrics

TIE = {"float32": 1e-3, "float64": 1e-6}
"""Two logits that are no further apart may change places when tokens are read together instead of one by one."""
TIE_OF_HALVES = 0.25
LEFT = 0
RIGHT = 1


@dataclass(frozen=True, slots=True)
class RaceSide:
    """One side of a race."""

    title: str  # how a person tells it from the other side
    request: Request


@dataclass(frozen=True, slots=True)
class Start:
    """A prompt of a race."""

    title: str
    prompt: str
    ids: tuple[int, ...] | None = None  # what the models read, where the text alone does not say it


@dataclass(frozen=True, eq=False)
class Heat:
    """The runs on one prompt, which are over: what is asked of them is counted once."""

    title: str
    left: Trace  # the quicker run of the left side
    right: Trace  # the quicker run of the right side
    slower_ms: tuple[float, float]  # the time of each side's slower run

    @cached_property
    def counters(self) -> tuple[Counters, Counters]:
        """The counts of the left run and of the right run."""
        return count(self.left), count(self.right)

    @cached_property
    def comparison(self) -> SpeedComparison | None:
        """The right side's tokens/s over the left side's; None where one of them is undefined."""
        left, right = (metrics(counters)["tokens_per_s"] for counters in self.counters)
        if not left or not right:
            return None
        least, most = _limits([self])
        return SpeedComparison((right / left,), 0.0, least, most)

    @cached_property
    def parting(self) -> int | None:
        """The place of the first token that differs; None where no token does."""
        return first_difference(self.left, self.right)


@dataclass(frozen=True, slots=True)
class PartingLogits:
    """One model's logits where the texts part."""

    role: str  # "target" | "draft"
    name: str
    logits: tuple[float, float]  # of both tokens
    probabilities: tuple[float, float]  # of both tokens, at temperature 1
    best: float  # its largest logit


@dataclass(frozen=True, slots=True)
class RaceDifference:
    """The place where the texts of a heat part."""

    heat: int  # its place in the race
    title: str
    place: int  # the number of tokens before it
    left: EmittedToken
    right: EmittedToken
    readings: tuple[PartingLogits, ...]
    is_tie: bool  # both tokens are the target's most likely ones, as far as its number format tells


@dataclass(frozen=True, eq=False)
class Race:
    """How far a race has come, and what it found."""

    done: int  # runs, the two that warm up among them
    total: int
    note: str = ""  # the run that comes next
    heats: tuple[Heat, ...] = ()
    is_shared: bool = False  # others wanted the engine meanwhile, so no ratio may be told
    difference: RaceDifference | None = None

    @cached_property
    def comparison(self) -> SpeedComparison | None:
        """The right side's speed over the left side's, by prompt; None where no time was measured."""
        timings = self._timings()
        if timings is None:
            return None
        least, most = _limits(self.heats)
        return timings.compare(RIGHT, LEFT, least, most)

    @property
    def wins_and_losses(self) -> tuple[int, int]:
        """The number of prompts on which the right side is surely faster, and slower; (0, 0) unless there are both."""
        timings = self._timings()
        return timings.wins_and_losses(RIGHT, LEFT) if timings else (0, 0)

    def _timings(self) -> Timings | None:
        """The milliseconds per token of every run; None where no heat was timed."""
        timed = [heat for heat in self.heats if heat.comparison is not None]
        if not timed:
            return None
        timings = Timings()
        for number, heat in enumerate(timed, 1):
            for side, counters in enumerate(heat.counters):
                num_tokens = counters.num_emitted
                timings.add(side, number, counters.working_ms / num_tokens)
                timings.add(side, number, heat.slower_ms[side] / num_tokens)
        return timings


def _limits(heats: Sequence[Heat]) -> tuple[float, float]:
    """The least and the most that the right side's speed over the left side's can be.

    Against a side without a draft, a side's speedup never exceeds its tokens per target call.
    """
    left = [heat.left for heat in heats]
    right = [heat.right for heat in heats]
    targets = set()
    for run in (*left, *right):
        targets |= {step.settings.target for step in run.steps}
    if len(targets) > 1:
        return 0.0, math.inf
    least = 0.0 if _drafts(right) else 1 / _tokens_per_call(heats, LEFT)
    most = math.inf if _drafts(left) else _tokens_per_call(heats, RIGHT)
    return least, most


def _drafts(runs: Sequence[Trace]) -> bool:
    return any(step.settings.drafts for run in runs for step in run.steps)


def _tokens_per_call(heats: Sequence[Heat], side: int) -> float:
    num_tokens = 0
    calls = 0
    for heat in heats:
        counters = heat.counters[side]
        num_tokens += counters.num_emitted
        calls += counters.calls["target"]
    return num_tokens / calls if calls else math.inf


def run_race(
    left: RaceSide, right: RaceSide, starts: Sequence[Start], bench: Workbench
) -> Generator[Race, None, None]:
    """Makes one run per result: each side once to warm up, then a round on every prompt.

    In a round one side runs, then twice the other, then the first again; who begins is drawn at random. Raises
    SpecvizError that names the side.
    """
    active_setups = []
    heats = []
    is_shared = False
    runs: list[list[Trace]] = [[], []]  # of the current round, by side
    for turn in turns(2, len(starts)):
        side = (left, right)[turn.contender]
        start = starts[max(0, turn.round - 1)]
        lead = f"{start.title}:" if turn.round else "warming up"
        yield Race(turn.done, turn.total, f"{lead} {side.title}", tuple(heats), is_shared)
        is_disturbed = bench.watch()
        active, run = _run(side, start, bench)
        if not turn.round:
            active_setups.append(active)
            continue
        is_shared |= is_disturbed()
        runs[turn.contender].append(run)
        if len(runs[LEFT]) == len(runs[RIGHT]) == 2:
            heats.append(_heat(start.title, runs[LEFT], runs[RIGHT]))
            runs = [[], []]
    difference = None
    if left.request.temperature == 0:
        difference = _first_difference(heats, active_setups)
    yield Race(turn.total, turn.total, "", tuple(heats), is_shared, difference)


def _heat(title: str, left: list[Trace], right: list[Trace]) -> Heat:
    quick_left, slow_left = sorted(left, key=_working_ms)
    quick_right, slow_right = sorted(right, key=_working_ms)
    slower_ms = (_working_ms(slow_left), _working_ms(slow_right))
    return Heat(title, quick_left, quick_right, slower_ms)


def _working_ms(trace: Trace) -> float:
    return count(trace).working_ms


def _run(side: RaceSide, start: Start, bench: Workbench) -> tuple[ActiveSetup, Trace]:
    """Makes a run with models that have read no text yet. Raises SpecvizError that names the side."""
    try:
        request = replace(side.request, prompt=start.prompt, prompt_ids=start.ids)
        active = activate(request.validate(), bench.pool)
        return active, whole_run(active)
    except SpecvizError as error:
        raise SpecvizError(f"{side.title}: {error}") from error
    except Exception as error:  # a stranger's model may fail in any way
        words = str(error)[:300]
        if is_out_of_memory(error):
            words = "there is not enough memory on the device"
        raise SpecvizError(
            f"{side.title} could not be run: {type(error).__name__}: {words}"
        ) from error


def _first_difference(
    heats: Sequence[Heat], active_setups: Sequence[ActiveSetup]
) -> RaceDifference | None:
    """The first heat in which the texts part, with what the models say there; None where none part."""
    for number, heat in enumerate(heats):
        place = heat.parting
        if place is None:
            continue
        left = heat.left.tokens[place]
        right = heat.right.tokens[place]
        prompt = [token.id for token in heat.left.header.prompt.tokens]
        before = [token.id for token in heat.left.tokens[:place]]
        text = TextIds(prompt, [*before, left.id])
        readings = tuple(_readings(text, (left.id, right.id), active_setups))
        gap = readings[0].best - min(readings[0].logits)
        is_tie = gap <= tie_tolerance(active_setups[0].target.info.dtype)
        return RaceDifference(number, heat.title, place, left, right, readings, is_tie)
    return None


def tie_tolerance(dtype: str | None) -> float:
    """How far apart two logits of this number format may be and still change places."""
    computes, _, stored = (dtype or "").partition(", ")
    if stored.startswith("weights"):
        return TIE_OF_HALVES
    return TIE.get(computes, TIE_OF_HALVES)


def _readings(
    text: TextIds, tokens: tuple[int, int], active_setups: Sequence[ActiveSetup]
) -> Iterator[PartingLogits]:
    """Yields the logits of the target, and of each draft model that shares its vocabulary and can read the text."""
    target = active_setups[0].target
    drafts: dict[str, LoadedModel] = {}
    for active in active_setups:
        draft = active.setup.comparable_draft
        if draft is not None:
            drafts[draft.name] = draft
    *_, rows = read(target, list(drafts.values()), [text])
    yield _reading("target", target, rows.target[-1], tokens)
    for draft, draft_rows in zip(drafts.values(), rows.drafts, strict=True):
        if bool(draft_rows.readable[-1]):
            yield _reading("draft", draft, draft_rows.logits[-1], tokens)


def _reading(
    role: str, model: LoadedModel, logits: Tensor, tokens: tuple[int, int]
) -> PartingLogits:
    row = logits.cpu().double()  # [V]
    probabilities = row.softmax(-1)
    left, right = tokens
    return PartingLogits(
        role,
        model.name,
        logits=(float(row[left]), float(row[right])),
        probabilities=(float(probabilities[left]), float(probabilities[right])),
        best=float(row.max()),
    )
