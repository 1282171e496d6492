"""A race: two requests on the same prompts, each really run, twice per prompt (a round of `rounds`), prefill counted.

The caller holds the engine while it asks for the next result; one run is made per result. Every number of a race is a
number of a trace, of the quicker of a side's two runs. Where greedy texts differ, the models are asked again.
"""

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

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
from specviz.trace.first_difference import first_difference
from specviz.trace.metrics import count, metrics

TIE = {"float32": 1e-3, "float64": 1e-6}
"""Two logits that are no further apart may change places when tokens are read together instead of one by one."""
TIE_OF_HALVES = 0.25
LEFT, RIGHT = 0, 1


@dataclass(frozen=True, slots=True)
class RaceSide:
    """title: how a person tells it from the other one."""

    title: str
    request: Request


@dataclass(frozen=True, slots=True)
class Start:
    """A prompt of a race. ids: what is fed, where the text alone does not say it."""

    title: str
    prompt: str
    ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Heat:
    """The runs of one prompt. left, right: each side's quicker run; slower_ms: what its other one took."""

    title: str
    left: Trace
    right: Trace
    slower_ms: tuple[float, float]

    @property
    def comparison(self) -> SpeedComparison | None:
        """The right side's tokens/s over the left one's; None where one of them is undefined."""
        slow, fast = (metrics(each)["tokens_per_s"] for each in (self.left, self.right))
        return SpeedComparison((fast / slow,), 0.0, *_limits([self])) if slow and fast else None

    @property
    def parting(self) -> int | None:
        return first_difference(self.left, self.right)


@dataclass(frozen=True, slots=True)
class PartingLogits:
    """One model's logits of both tokens where the texts part, their odds at temperature 1, and its best logit."""

    role: str  # "target" | "draft"
    name: str
    logits: tuple[float, float]
    probabilities: tuple[float, float]
    best: float


@dataclass(frozen=True, slots=True)
class RaceDifference:
    """Where the texts of a heat part. heat: which of the race's. place: tokens before it. is_tie: both tokens are the
    target's favourite there, as far as its number format can tell."""

    heat: int
    title: str
    place: int
    left: EmittedToken
    right: EmittedToken
    readings: tuple[PartingLogits, ...]
    is_tie: bool


@dataclass(frozen=True, slots=True, eq=False)
class Race:
    """done, total: runs made, two unrecorded ones to warm up among them. note: which one comes next. is_shared: whether
    others wanted the engine meanwhile, so that no ratio may be told."""

    done: int
    total: int
    note: str = ""
    heats: tuple[Heat, ...] = ()
    is_shared: bool = False
    difference: RaceDifference | None = None

    @property
    def comparison(self) -> SpeedComparison | None:
        """The right side's speed over the left one's, by prompt; None where no time was measured."""
        timings = self._timings()
        return timings.compare(RIGHT, LEFT, *_limits(self.heats)) if timings else None

    @property
    def wins_and_losses(self) -> tuple[int, int]:
        """On how many prompts the right side is beyond doubt faster, and slower; (0, 0) unless there are both."""
        timings = self._timings()
        return timings.wins_and_losses(RIGHT, LEFT) if timings else (0, 0)

    def _timings(self) -> Timings | None:
        """Milliseconds per token of every run."""
        timed = [heat for heat in self.heats if heat.comparison is not None]
        timings = Timings()
        for number, heat in enumerate(timed, 1):
            for side, run, slower_ms in zip(
                (LEFT, RIGHT), (heat.left, heat.right), heat.slower_ms, strict=True
            ):
                for ms in (_working_ms(run), slower_ms):
                    timings.add(side, number, ms / count(run).num_emitted)
        return timings if timed else None


def _limits(heats: Sequence[Heat]) -> tuple[float, float]:
    """What the right side's speed over the left one's is never below and above: where the other side has no draft, a
    side is no more times as fast than it writes tokens per target call."""
    left, right = [heat.left for heat in heats], [heat.right for heat in heats]
    if len({step.settings.target for run in (*left, *right) for step in run.steps}) > 1:
        return 0.0, math.inf
    least = 0.0 if _drafts(right) else 1 / _tokens_per_call(left)
    return least, math.inf if _drafts(left) else _tokens_per_call(right)


def _drafts(runs: Sequence[Trace]) -> bool:
    return any(step.settings.drafts for run in runs for step in run.steps)


def _tokens_per_call(runs: Sequence[Trace]) -> float:
    counters = [count(run) for run in runs]
    calls = sum(each.calls["target"] for each in counters)
    return sum(each.num_emitted for each in counters) / calls if calls else math.inf


def run_race(
    left: RaceSide, right: RaceSide, starts: Sequence[Start], bench: Workbench
) -> Generator[Race, None, None]:
    """One run per result: each side once to warm up, then a round on every prompt: one side, twice the other, and the
    first again; who begins is drawn at random. Raises SpecvizError that names the side."""
    warm, heats, is_shared, runs = [], [], False, {}
    for turn in turns(2, len(starts)):
        side, start = (left, right)[turn.contender], starts[turn.round - 1 if turn.round else 0]
        lead = f"{start.title}:" if turn.round else "warming up"
        yield Race(turn.done, turn.total, f"{lead} {side.title}", tuple(heats), is_shared)
        is_disturbed = bench.watch()
        active, run = _run(side, start, bench)
        if not turn.round:
            warm.append(active)
            continue
        is_shared |= is_disturbed()
        runs.setdefault(turn.contender, []).append(run)
        if sum(map(len, runs.values())) == 4:
            (quick, slow), (fast, late) = (
                sorted(runs[side], key=_working_ms) for side in (LEFT, RIGHT)
            )
            heats.append(Heat(start.title, quick, fast, (_working_ms(slow), _working_ms(late))))
            runs = {}
    difference = _first_difference(heats, warm) if left.request.temperature == 0 else None
    yield Race(turn.total, turn.total, "", tuple(heats), is_shared, difference)


def _working_ms(trace: Trace) -> float:
    return count(trace).working_ms


def _run(side: RaceSide, start: Start, bench: Workbench) -> tuple[ActiveSetup, Trace]:
    """A run with models that have read no text yet. Raises SpecvizError that names the side."""
    try:
        active = activate(
            replace(side.request, prompt=start.prompt, prompt_ids=start.ids).validate(),
            bench.pool,
        )
        return active, whole_run(active)
    except SpecvizError as error:
        raise SpecvizError(f"{side.title}: {error}") from error
    except Exception as error:  # a stranger's model may fail in any way
        words = (
            "there is not enough memory on the device"
            if is_out_of_memory(error)
            else str(error)[:300]
        )
        raise SpecvizError(
            f"{side.title} could not be run: {type(error).__name__}: {words}"
        ) from error


def _first_difference(
    heats: Sequence[Heat], active_setups: Sequence[ActiveSetup]
) -> RaceDifference | None:
    """The first heat whose texts part, with what the models say there."""
    number = next((number for number, heat in enumerate(heats) if heat.parting is not None), None)
    if number is None:
        return None
    heat, place = heats[number], heats[number].parting
    one, other = heat.left.tokens[place], heat.right.tokens[place]
    before = [token.id for token in heat.left.tokens[:place]]
    text = TextIds([token.id for token in heat.left.header.prompt.tokens], [*before, one.id])
    readings = tuple(_readings(text, (one.id, other.id), active_setups))
    is_tie = readings[0].best - min(readings[0].logits) <= tie_tolerance(
        active_setups[0].target.info.dtype
    )
    return RaceDifference(number, heat.title, place, one, other, readings, is_tie)


def tie_tolerance(dtype: str | None) -> float:
    """How far apart two logits of this number format may be and still change places."""
    computes, _, held = (dtype or "").partition(", ")
    return TIE_OF_HALVES if held.startswith("weights") else TIE.get(computes, TIE_OF_HALVES)


def _readings(
    text: TextIds, tokens: tuple[int, int], active_setups: Sequence[ActiveSetup]
) -> Iterator[PartingLogits]:
    """Of the target, and of each draft model that shares its vocabulary and can read the text."""
    target = active_setups[0].target
    drafts = {
        draft.name: draft for active in active_setups if (draft := active.setup.comparable_draft)
    }
    *_, rows = read(target, list(drafts.values()), [text])
    yield _reading("target", target, rows.target[-1], tokens)
    for draft, own in zip(drafts.values(), rows.drafts, strict=True):
        if bool(own.readable[-1]):
            yield _reading("draft", draft, own.logits[-1], tokens)


def _reading(
    role: str, model: LoadedModel, logits: Tensor, tokens: tuple[int, int]
) -> PartingLogits:
    row = logits.cpu().double()  # [V]
    pairs = (tuple(float(each[token]) for token in tokens) for each in (row, row.softmax(-1)))
    return PartingLogits(role, model.name, *pairs, float(row.max()))
