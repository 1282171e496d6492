"""The measured speed behind "faster": a method against no draft in rounds, each alone on the engine."""

from collections.abc import Generator
from dataclasses import dataclass

from specviz.analysis.rounds import FEWEST, WORDS, Timings, turns
from specviz.bench.contenders import Contender, Job, Prompt, specviz_contender
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.memory import environment
from specviz.request import Request
from specviz.session.active_setup import ActiveSetup
from specviz.session.record import activate
from specviz.session.setup import gather
from specviz.session.workbench import Workbench, baseline_key

NUM_TOKENS, ROUNDS = 64, FEWEST
ALONE, ASKED = 0, 1


@dataclass(frozen=True, slots=True)
class Speed:
    """done, total: runs made. The rest stands when they are equal: medians of tokens/s, their ratio and its interval;
    instead: why the ratio says nothing, in words, empty where it does."""

    done: int
    total: int
    baseline_tokens_per_s: float = 0.0
    tokens_per_s: float = 0.0
    note: str = ""
    instead: str = ""
    speedup: float = 0.0
    between: tuple[float, float] = (0.0, 0.0)


def alone_and_asked(active: ActiveSetup) -> tuple[Contender, Contender]:
    """At the places ALONE and ASKED: the target without a draft, and what the request asks for."""
    k, alone = active.request.num_speculative_tokens, gather(METHODS["none"], {}, active.target, None)
    return specviz_contender(alone, k), specviz_contender(active.setup, k, rule=active.plan.rule.name)


def measure_in_rounds(request: Request, bench: Workbench) -> Generator[Speed, None, None]:
    """Runs the request's method and no draft in turn, one run per result, and remembers the baseline for later runs.
    The caller holds the engine while it asks for the next. Prefill counts on both sides. Raises SpecvizError."""
    active = activate(request.validate(), bench.library)
    _, tokens = active.prompt()
    num_tokens = min(NUM_TOKENS, active.plan.target.context_limit - len(tokens))
    if num_tokens < 1:
        raise SpecvizError(f"the prompt has {len(tokens)} tokens, which leaves no room to measure; shorten it")
    job = Job(Prompt("", "", tuple(tokens)), active.plan.sampling, request.seed, num_tokens)
    contenders = alone_and_asked(active)
    timings: Timings[int] = Timings()
    is_shared = False
    for turn in turns(len(contenders), ROUNDS):
        yield Speed(turn.done, turn.total)
        timings.add(turn.contender, turn.round, 1 / contenders[turn.contender](job).tokens_per_s)
        is_shared |= len(bench.engine) > 1
    baseline, speed = (1 / timings.median(each) for each in (ALONE, ASKED))
    found = timings.compare(ASKED, ALONE)
    bench.baselines[baseline_key(active.step_settings)] = {
        "tokens_per_s": round(baseline, 3),
        "num_tokens": job.num_tokens,
        "environment": environment(active.plan.target.device, active.plan.target),
    }
    low, high = found.between
    between = f"{found.ratio:.2g}×, between {low:.2g}× and {high:.2g}×"
    note = f"median of {ROUNDS} rounds of runs of {job.num_tokens} tokens, warmed up, each alone on the engine"
    instead = "" if found.is_clear else f"{WORDS[found.verdict]} ({between})"
    if not METHODS[request.method].drafts:
        instead = "this is the baseline (no draft)"
    elif is_shared:
        instead = "under load: others used the engine meanwhile, so no speedup is given"
    yield Speed(turn.total, turn.total, baseline, speed, f"{note}; {between}", instead, found.ratio, found.between)


def measure(request: Request, bench: Workbench) -> Speed:
    """`measure_in_rounds` to its end; others have their turn at the engine between two runs."""
    *_, speed = bench.in_turns(measure_in_rounds(request, bench))
    return speed
