"""What stands in every trace of a run beside its steps, and a whole run at once: no pace, no live change, no lock."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from datetime import datetime, timezone

from specviz import __version__, trace
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import IsStop, speculate
from specviz.decoding.rule import Rule
from specviz.models.memory import environment
from specviz.models.pool import ModelPool
from specviz.models.score import score
from specviz.models.tokens import Watch
from specviz.request import Request
from specviz.rules.broken import tamper_if_broken
from specviz.session.active_setup import ActiveSetup
from specviz.session.recorder import Recorder


def header(active: ActiveSetup, rendered: str, tokens: list[int]) -> trace.Header:
    """The header of a run that begins now. rendered, tokens: the prompt as the target reads it."""
    text = active.target.text
    return trace.Header(
        version=trace.VERSION,
        specviz=__version__,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        request=active.shown_request().to_dict(),
        environment=environment(active.plan.target.device, active.plan.target),
        prompt=trace.Prompt(
            rendered, tuple(trace.Token(token, *text.piece(token)) for token in tokens)
        ),
    )


def scores(active: ActiveSetup, recorded: trace.Trace) -> trace.Scores:
    """Both models' odds of every emitted token, read once over the finished text."""
    sampling, draft = active.plan.sampling, active.setup.comparable_draft
    emitted = [token.id for token in recorded.tokens]
    tokens = [token.id for token in recorded.header.prompt.tokens] + emitted
    scored = score(active.target, draft, tokens, len(emitted), sampling)
    columns = (tuple(map(trace.round9, column)) for column in (scored.p, scored.q, scored.overlap))
    distribution = {name: value for name, value in asdict(sampling).items() if value is not None}
    return trace.Scores(None if draft is None else draft.name, distribution, *columns)


def stop_watch(active: ActiveSetup, made: Iterable[int] = ()) -> IsStop:
    """Whether a token completes one of the request's stop texts; a new watch for every text.

    made: its tokens so far.
    """
    stops = [stop.encode() for stop in active.request.stop]
    if not stops:
        return lambda token: False
    watch = Watch(active.target.text, *stops)
    for token in made:
        watch.ends_with(token)
    return watch.ends_with


def stop_of(recorded: trace.Trace, request: Request) -> trace.Stop | None:
    """The stop text that stands first in the text of a run; None where there is none."""
    text = recorded.text
    found = [(place, stop) for stop in request.stop if (place := text.find(stop)) >= 0]
    return {"text": min(found)[1], "at": min(found)[0]} if found else None


def activate(request: Request, pool: ModelPool) -> ActiveSetup:
    """The models and the drafter of a checked request, loaded. Raises SpecvizError."""
    active = ActiveSetup(request, pool)
    active.take(request.settings)
    return active


def whole_run(
    active: ActiveSetup, *, rule: Rule | None = None, scored: bool = False
) -> trace.Trace:
    """The finished run of the active's request, its prompt read anew. The caller has the engine.

    rule: in place of the request's own, for one that no list offers; scored: with a `scores` event.
    """
    active.renew()
    plan = active.plan if rule is None else replace(active.plan, rule=rule)
    begun = header(active, *active.prompt())
    recorded = trace.Trace(
        [replace(begun, request={**begun.request, "rule": plan.rule.name}), active.models_event(0)]
    )
    steps = speculate(
        [token.id for token in begun.prompt.tokens],
        lambda: plan,
        tamper_if_broken(plan.rule, Seeded(active.request.seed)),
        max_new_tokens=active.request.max_new_tokens,
        eos_ids=active.target.text.eos_ids,
        is_stop=stop_watch(active),
    )
    with closing(steps):
        for step, event in Recorder(active.target.text).follow(steps, active.setup.settings(plan)):
            recorded.append(event)
            finish = step.finish
    if scored:
        recorded.append(scores(active, recorded))
    recorded.append(
        trace.Footer(
            finish, None, None, stop_of(recorded, active.request) if finish == "stop" else None
        )
    )
    return recorded
