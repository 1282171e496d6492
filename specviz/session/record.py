"""What stands in every trace of a run beside its steps, and a whole run at once: no pace, no live change, no lock."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone

from specviz import __version__
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, Step, speculate
from specviz.decoding.rule import Rule
from specviz.models.library import Library
from specviz.models.memory import environment
from specviz.models.score import score
from specviz.request import Request
from specviz.rules.broken import drawn_under
from specviz.session.active_setup import Cast
from specviz.session.controls import Controls
from specviz.session.recorder import Recorder, Situation
from specviz.trace import file as trace


def header(cast: Cast, rendered: str, tokens: list[int]) -> trace.Header:
    """The header of a run that begins now. rendered, tokens: the prompt as the target reads it."""
    text = cast.target.text
    return trace.Header(
        version=trace.VERSION,
        specviz=__version__,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        request=cast.shown_request().to_dict(),
        environment=environment(cast.plan.target.device),
        prompt=trace.Prompt(rendered, tuple(trace.Token(token, *text.piece(token)) for token in tokens)),
    )


def scores(cast: Cast, recorded: trace.Trace) -> trace.Scores:
    """Both models' odds of every emitted token, read once over the finished text."""
    sampling, draft = cast.plan.sampling, None if cast.crew.method.foreign else cast.draft
    emitted = [token.id for token in recorded.tokens]
    tokens = [token.id for token in recorded.header.prompt.tokens] + emitted
    scored = score(cast.target, draft, tokens, len(emitted), sampling)
    columns = (tuple(map(trace.round9, column)) for column in (scored.p, scored.q, scored.overlap))
    return trace.Scores(None if draft is None else draft.name, asdict(sampling), *columns)


def cast_for(request: Request, library: Library) -> Cast:
    """The models and the drafter of a checked request, loaded. Raises SpecvizError."""
    cast = Cast(request, library)
    cast.take(Controls(request).values())
    return cast


def record(cast: Cast, *, rule: Rule | None = None, scored: bool = False) -> trace.Trace:
    """The finished run of the cast's request, its prompt read anew. The caller has the engine.

    rule: in place of the request's own, for one that no list offers; scored: with a `scores` event.
    """
    cast.renew()
    plan = cast.plan if rule is None else replace(cast.plan, rule=rule)
    recorded = trace.Trace([_headed(cast, plan)])
    recorded.append(trace.Models(0, cast.target.info, None if cast.draft is None else cast.draft.info))
    finish = _steps(recorded, cast, plan)
    if scored:
        recorded.append(scores(cast, recorded))
    recorded.append(trace.Footer(finish, None, None, {}))
    return recorded


def _headed(cast: Cast, plan: Plan) -> trace.Header:
    begun = header(cast, *cast.prompt())
    return replace(begun, request={**begun.request, "rule": plan.rule.name})


def _steps(recorded: trace.Trace, cast: Cast, plan: Plan) -> str:
    """Adds the steps; gives the reason for the end."""
    recorder, settings = Recorder(cast.target.text), cast.crew.settings(plan)
    steps = speculate(
        [token.id for token in recorded.header.prompt.tokens],
        lambda: plan,
        drawn_under(plan.rule, Seeded(cast.request.seed)),
        max_new_tokens=cast.request.max_new_tokens,
        eos_ids=frozenset(cast.target.text.eos_ids),
    )
    started = time.perf_counter()
    with closing(steps):
        while True:
            begun = time.perf_counter()
            step: Step = next(steps)
            at_ms = (begun - started) * 1e3
            recorded.append(recorder.record(step, Situation(settings, (), at_ms=at_ms, wait_ms=0.0, started=begun)))
            if step.finish:
                return step.finish
