"""The measured speed behind "faster": a method against no draft, alternating, warmed up, alone on the engine."""

from __future__ import annotations

import statistics

from .bench import Job, Prompt, specviz_contender
from .cast import Cast
from .controls import Controls
from .errors import SpecvizError
from .machine import environment
from .request import Request
from .session import Workbench, baseline_key

NUM_TOKENS, REPEATS = 64, 3


def measure(request: Request, bench: Workbench) -> dict[str, object]:
    """Runs the request's method and no draft in turn, and remembers the baseline for later runs.

    Returns baseline_tokens_per_s, tokens_per_s, speedup (their ratio) and a note saying how. Prefill counts on both
    sides. Holds the engine until it is done, about a second on the bundled pair. Raises SpecvizError.
    """
    cast = Cast(request.checked(), bench.library)
    cast.take(Controls(request).values())
    _, tokens = cast.prompt()
    num_tokens = min(NUM_TOKENS, cast.plan.target.context_limit - len(tokens))
    if num_tokens < 1:
        raise SpecvizError(f"the prompt leaves no room to measure: it has {len(tokens)} tokens; shorten it")
    job = Job(Prompt("", "", tuple(tokens)), cast.plan.sampling, request.seed, num_tokens)
    contenders = [
        specviz_contender("none", cast.target, None, request.k),
        specviz_contender(request.method, cast.target, cast.draft, request.k, cast.settings.params),
    ]
    ticket = bench.engine.join()
    try:
        ticket.ready.wait()
        rounds = [[contender(job).tokens_per_s for contender in contenders] for _ in range(REPEATS + 1)][1:]
    finally:
        bench.engine.leave(ticket)
    baseline, speed = (statistics.median(rates) for rates in zip(*rounds, strict=True))
    bench.baselines[baseline_key(cast.settings)] = {
        "tokens_per_s": round(baseline, 3),
        "num_tokens": num_tokens,
        "environment": environment(cast.plan.target.device),
    }
    return {
        "baseline_tokens_per_s": baseline,
        "tokens_per_s": speed,
        "speedup": speed / baseline,
        "note": f"median of {REPEATS} alternated runs of {num_tokens} tokens, warmed up, alone on the engine",
    }
