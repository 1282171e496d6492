"""Measures whether a method is faster: against no draft, in rounds, each run alone on the engine."""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from specviz.analysis.costs import Costs
from specviz.analysis.rounds import FEWEST, SpeedComparison, Timings, Verdict, turns
from specviz.analysis.theory import step_ms
from specviz.bench.contenders import (
    BenchPrompt,
    BenchTask,
    Contender,
    TimedGeneration,
    specviz_contender,
    tokens_per_call,
)
from specviz.drafters import METHODS, facts_of
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.session.active_setup import ActiveSetup
from specviz.session.setup import gather
from specviz.session.whole_run import activate
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.trace.metrics import metrics

NUM_TOKENS = 64
ROUNDS = FEWEST
ALONE = 0  # the place of the target without a draft, among the contenders
ASKED = 1  # the place of what the request asks for


@dataclass(frozen=True, slots=True)
class Speed:
    """What one measurement found."""

    baseline_tokens_per_s: float  # the median without a draft
    tokens_per_s: float  # the median as asked
    tokens_per_call: float  # of the runs as asked
    num_tokens: int
    found: SpeedComparison  # the speed as asked over the speed without a draft
    drafts: bool = True  # whether the method drafts at all
    is_shared: bool = False  # whether the server did other work meanwhile

    @property
    def doubt(self) -> Verdict | Literal["baseline", "shared", ""]:
        """The reason why neither of the two may be called faster; empty where one may."""
        if not self.drafts:
            return "baseline"
        if self.is_shared:
            return "shared"
        if not self.found.allows(self.tokens_per_s / self.baseline_tokens_per_s):
            return "impossible"
        return "" if self.found.is_clear else self.found.verdict


@dataclass(frozen=True, slots=True)
class Measuring:
    """How far a measurement has come."""

    done: int = 0  # turns
    total: int = 0  # turns; 0 while it waits
    round: int = 0  # the round that comes next; 0 to warm up
    rounds: int = ROUNDS
    speed: Speed | None = None  # once all turns are made


def alone_and_asked(active: ActiveSetup) -> tuple[Contender, Contender]:
    """The contenders: the target without a draft, and what the request asks for."""
    k = active.request.num_speculative_tokens
    plain = gather(METHODS["none"], {}, active.target, None)
    alone = specviz_contender(plain, k)
    asked = specviz_contender(active.setup, k, rule=active.plan.rule.name)
    return alone, asked


def measure_in_rounds(
    request: Request, bench: Workbench, most_tokens: int = NUM_TOKENS
) -> Generator[Measuring, None, None]:
    """Runs the request's method and no draft in turn, one run per result; prefill counts on both sides.

    The caller holds the engine while it asks for the next result. Raises SpecvizError.
    """
    active = activate(request.validate(), bench.pool)
    _, tokens = active.prompt()
    num_tokens = min(most_tokens, active.plan.target.context_limit - len(tokens))
    if num_tokens < 1:
        raise SpecvizError(
            f"the prompt has {len(tokens)} tokens, which leaves no room to measure; shorten it"
        )
    prompt = BenchPrompt("", "", tuple(tokens))
    job = BenchTask(prompt, active.plan.sampling, request.seed, num_tokens)
    contenders = alone_and_asked(active)
    asked_samples: list[TimedGeneration] = []
    timings: Timings[int] = Timings()
    is_shared = False
    for turn in turns(len(contenders), ROUNDS):
        yield Measuring(turn.done, turn.total, turn.round, ROUNDS)
        is_disturbed = bench.watch()
        sample = contenders[turn.contender](job)
        timings.add(turn.contender, turn.round, 1 / sample.tokens_per_s)
        if turn.contender == ASKED:
            asked_samples.append(sample)
        is_shared |= is_disturbed()
    per_call = tokens_per_call(asked_samples)
    drafts = METHODS[request.method].drafts
    speed = speed_of(timings, per_call, num_tokens, drafts=drafts, is_shared=is_shared)
    yield Measuring(turn.total, turn.total, turn.round, ROUNDS, speed)


def estimate_seconds(recorded: Trace, costs: Costs) -> float | None:
    """How long measuring the speed of this run's settings takes, by the measured costs of its models.

    Reading the prompt is left out. None where the costs do not tell.
    """
    used = recorded.steps[-1].settings
    per_call = metrics(recorded)["tokens_per_target_call"]
    if not per_call or costs.doubt or not facts_of(used.method).cost_is_known:
        return None
    step = step_ms(costs, used.k)
    ms_per_token = step_ms(costs, 0) + step / per_call
    runs = 1 + 2 * ROUNDS  # of each contender
    return None if math.isnan(step) else runs * NUM_TOKENS * ms_per_token / 1000


def speed_of(
    timings: Timings[int], per_call: float, num_tokens: int, *, drafts: bool, is_shared: bool
) -> Speed:
    """The speed that the timings show.

    timings: seconds per token of every turn. per_call: tokens per target call of the runs with the method; no ratio
    can be larger.
    """
    alone = 1 / timings.median(ALONE)
    asked = 1 / timings.median(ASKED)
    found = timings.compare(ASKED, ALONE, most=per_call)
    return Speed(alone, asked, per_call, num_tokens, found, drafts, is_shared)
