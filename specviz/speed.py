"""The measured speed behind "faster": a method against no draft, alternating, warmed up, each alone on the engine."""

from __future__ import annotations

import statistics
from collections.abc import Generator
from dataclasses import dataclass

from .bench import Contender, Job, Prompt, specviz_contender
from .cast import Cast
from .controls import Controls
from .crew import gather
from .drafters import METHODS
from .errors import SpecvizError
from .machine import environment
from .request import Request
from .session import Workbench, baseline_key

NUM_TOKENS, REPEATS = 64, 5


@dataclass(frozen=True, slots=True)
class Speed:
    """done, total: runs made. The rest stands when they are equal: medians of tokens/s, and their ratio.

    instead: why that ratio says nothing, in words; empty where it does. ratios: the smallest and the largest one of a
    run to the run without a draft before it.
    """

    done: int
    total: int
    baseline_tokens_per_s: float = 0.0
    tokens_per_s: float = 0.0
    note: str = ""
    instead: str = ""
    ratios: tuple[float, float] = (0.0, 0.0)

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.baseline_tokens_per_s


def measuring(request: Request, bench: Workbench) -> Generator[Speed, None, None]:
    """Runs the request's method and no draft in turn, one run per result, and remembers the baseline for later runs.

    The caller holds the engine while it asks for the next result. Prefill counts on both sides. Raises SpecvizError.
    """
    cast = Cast(request.checked(), bench.library)
    cast.take(Controls(request).values())
    job, contenders = _job(cast, request), _contenders(cast, request)
    total = (REPEATS + 1) * len(contenders)
    rates: list[list[float]] = [[] for _ in contenders]
    is_shared = False
    for done in range(total):
        yield Speed(done, total)
        rates[done % len(contenders)].append(contenders[done % len(contenders)](job).tokens_per_s)
        is_shared |= len(bench.engine) > 1
    alone, own = (measured[1:] for measured in rates)  # the first round warms up
    baseline, speed = statistics.median(alone), statistics.median(own)
    ratios = [mine / others for mine, others in zip(own, alone, strict=True)]
    between = min(ratios), max(ratios)
    bench.baselines[baseline_key(cast.settings)] = {
        "tokens_per_s": round(baseline, 3),
        "num_tokens": job.num_tokens,
        "environment": environment(cast.plan.target.device),
    }
    note = f"median of {REPEATS} alternated runs of {job.num_tokens} tokens, warmed up, each alone on the engine"
    yield Speed(total, total, baseline, speed, note, _instead(request, between, is_shared), between)


def _instead(request: Request, between: tuple[float, float], is_shared: bool) -> str:
    """What is said in place of a ratio that says nothing."""
    low, high = between
    if request.method == "none":
        return "nothing to compare: without a draft this is the measure itself"
    if is_shared:
        return "under load: others used the engine meanwhile, so no speedup"
    return "" if low > 1 or high < 1 else f"no clear difference: {low:.2g}× to {high:.2g}×"


def measure(request: Request, bench: Workbench) -> Speed:
    """`measuring` to its end; others have their turn at the engine between two runs."""
    *_, speed = bench.in_turns(measuring(request, bench))
    return speed


def _job(cast: Cast, request: Request) -> Job:
    _, tokens = cast.prompt()
    num_tokens = min(NUM_TOKENS, cast.plan.target.context_limit - len(tokens))
    if num_tokens < 1:
        raise SpecvizError(f"the prompt leaves no room to measure: it has {len(tokens)} tokens; shorten it")
    return Job(Prompt("", "", tuple(tokens)), cast.plan.sampling, request.seed, num_tokens)


def _contenders(cast: Cast, request: Request) -> list[Contender]:
    """No draft, and what was asked for."""
    alone = gather(METHODS["none"], {}, cast.target, None)
    return [specviz_contender(alone, request.k), specviz_contender(cast.crew, request.k, rule=cast.plan.rule.name)]
