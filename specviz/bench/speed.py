"""The measured speed behind "faster": a method against no draft in rounds, each alone on the engine."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from specviz.analysis.rounds import FEWEST, SpeedComparison, Timings, Verdict, turns
from specviz.bench.contenders import (
    BenchPrompt,
    BenchTask,
    Contender,
    TimedGeneration,
    specviz_contender,
    tokens_per_call,
)
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.session.active_setup import ActiveSetup
from specviz.session.setup import gather
from specviz.session.whole_run import activate
from specviz.session.workbench import Workbench

NUM_TOKENS, ROUNDS = 64, FEWEST
ALONE, ASKED = 0, 1


@dataclass(frozen=True, slots=True)
class Speed:
    """What one measurement found. Medians of tokens/s, without a draft and as asked; found: the second over the first.
    tokens_per_call: of the runs as asked. is_shared: whether the server did other work meanwhile."""

    baseline_tokens_per_s: float
    tokens_per_s: float
    tokens_per_call: float
    num_tokens: int
    found: SpeedComparison
    drafts: bool = True
    is_shared: bool = False

    @property
    def doubt(self) -> Verdict | Literal["baseline", "shared", ""]:
        """Why neither of the two may be called faster; empty where one may."""
        if not self.drafts:
            return "baseline"
        if self.is_shared:
            return "shared"
        if not self.found.allows(self.tokens_per_s / self.baseline_tokens_per_s):
            return "impossible"
        return "" if self.found.is_clear else self.found.verdict


@dataclass(frozen=True, slots=True)
class Measuring:
    """How far a measurement has come. done, total: turns, none while it waits; round: the one that comes next, of how
    many, 0 to warm up; speed: what was found, once all turns are made."""

    done: int = 0
    total: int = 0
    round: int = 0
    rounds: int = ROUNDS
    speed: Speed | None = None


def alone_and_asked(active: ActiveSetup) -> tuple[Contender, Contender]:
    """At the places ALONE and ASKED: the target without a draft, and what the request asks for."""
    k, alone = (
        active.request.num_speculative_tokens,
        gather(METHODS["none"], {}, active.target, None),
    )
    return specviz_contender(alone, k), specviz_contender(
        active.setup, k, rule=active.plan.rule.name
    )


def measure_in_rounds(
    request: Request, bench: Workbench, most_tokens: int = NUM_TOKENS
) -> Generator[Measuring, None, None]:
    """Runs the request's method and no draft in turn, one run per result. The caller holds the engine while it asks for
    the next. Prefill counts on both sides. Raises SpecvizError."""
    active = activate(request.validate(), bench.pool)
    _, tokens = active.prompt()
    num_tokens = min(most_tokens, active.plan.target.context_limit - len(tokens))
    if num_tokens < 1:
        raise SpecvizError(
            f"the prompt has {len(tokens)} tokens, which leaves no room to measure; shorten it"
        )
    job = BenchTask(
        BenchPrompt("", "", tuple(tokens)), active.plan.sampling, request.seed, num_tokens
    )
    contenders = alone_and_asked(active)
    samples: tuple[list[TimedGeneration], list[TimedGeneration]] = [], []
    timings: Timings[int] = Timings()
    is_shared = False
    for turn in turns(len(contenders), ROUNDS):
        yield Measuring(turn.done, turn.total, turn.round, ROUNDS)
        is_disturbed = bench.watch()
        sample = contenders[turn.contender](job)
        timings.add(turn.contender, turn.round, 1 / sample.tokens_per_s)
        samples[turn.contender].append(sample)
        is_shared |= is_disturbed()
    drafts = METHODS[request.method].drafts
    speed = speed_of(
        timings, tokens_per_call(samples[ASKED]), num_tokens, drafts=drafts, is_shared=is_shared
    )
    yield Measuring(turn.total, turn.total, turn.round, ROUNDS, speed)


def speed_of(
    timings: Timings[int], per_call: float, num_tokens: int, *, drafts: bool, is_shared: bool
) -> Speed:
    """timings: seconds per token of every turn. per_call: tokens per target call of the runs with the method, more than
    which no ratio can be."""
    alone, asked = (1 / timings.median(each) for each in (ALONE, ASKED))
    found = timings.compare(ASKED, ALONE, most=per_call)
    return Speed(alone, asked, per_call, num_tokens, found, drafts, is_shared)
