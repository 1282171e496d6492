"""A whole run at once, without pace, live changes or locks; and the events of every trace beside its steps."""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone

from specviz import __version__, trace
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import IsStop, speculate
from specviz.decoding.rule import Rule
from specviz.models.memory import environment
from specviz.models.pool import ModelPool
from specviz.models.tokens import Watch
from specviz.request import Request
from specviz.rules.broken import tamper_if_broken
from specviz.session.active_setup import ActiveSetup
from specviz.session.recorder import Recorder
from specviz.session.scorer import Scorer


def header(active: ActiveSetup, rendered: str, tokens: list[int]) -> trace.Header:
    """The header of a run that begins now. rendered, tokens: the prompt as the target reads it."""
    piece = active.target.text.piece
    target = active.plan.target
    prompt_tokens = tuple(trace.Token(token, *piece(token)) for token in tokens)
    return trace.Header(
        version=trace.VERSION,
        specviz=__version__,
        created=datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        request=active.shown_request().to_dict(),
        environment=environment(target.device, target),
        prompt=trace.Prompt(rendered, prompt_tokens),
    )


def stop_watch(active: ActiveSetup, written: Iterable[int] = ()) -> IsStop:
    """A function that says whether a token completes one of the request's stop texts; each text needs a new one.

    written: the tokens of the text so far.
    """
    stops = [stop.encode() for stop in active.request.stop]
    if not stops:
        return lambda token: False
    watch = Watch(active.target.text, *stops)
    for token in written:
        watch.ends_with(token)
    return watch.ends_with


def stop_of(recorded: trace.Trace, request: Request) -> trace.Stop | None:
    """The stop text that stands first in the text of a run; None where there is none."""
    text = recorded.text
    places = [(text.find(stop), stop) for stop in request.stop if stop in text]
    if not places:
        return None
    place, stop = min(places)
    return {"text": stop, "at": place}


def activate(request: Request, pool: ModelPool) -> ActiveSetup:
    """Loads the models and the drafter of a checked request. Raises SpecvizError."""
    active = ActiveSetup(request, pool)
    active.take(request.settings)
    return active


def whole_run(
    active: ActiveSetup, *, rule: Rule | None = None, scored: bool = False
) -> trace.Trace:
    """Makes the run of the setup's request and reads its prompt again. The caller has the engine.

    rule: a rule instead of the request's own, for those that no list offers. scored: whether to add a `scores` event.
    """
    active.renew()
    request = active.request
    text = active.target.text
    plan = active.plan if rule is None else replace(active.plan, rule=rule)
    rendered, prompt = active.prompt()
    plain_header = header(active, rendered, prompt)
    shown_request = {**plain_header.request, "rule": plan.rule.name}
    first_events = [replace(plain_header, request=shown_request), active.models_event(0)]
    recorded = trace.Trace(first_events)
    steps = speculate(
        prompt,
        lambda: plan,
        tamper_if_broken(plan.rule, Seeded(request.seed)),
        max_new_tokens=request.max_new_tokens,
        eos_ids=text.eos_ids,
        is_stop=stop_watch(active),
    )
    scorer = Scorer(active, prompt) if scored else None
    with closing(steps):
        for step, event in Recorder(text).follow(steps, active.setup.settings(plan)):
            recorded.append(event)
            finish = step.finish
            if scorer is not None:
                scorer.add(step, event)
                if scorer.is_full:
                    scorer.read()
    if scorer is not None:
        recorded.append(scorer.scores(recorded))
    stop = stop_of(recorded, request) if finish == "stop" else None
    recorded.append(trace.Footer(finish, None, None, stop))
    return recorded
