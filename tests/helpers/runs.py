"""Helpers for tests of runs over the models of conftest's `named_models`."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import torch

from specviz import trace
from specviz.request import Request
from specviz.session.run import Run, Status, open_run
from specviz.session.workbench import Workbench
from tests.helpers.tiny_models import tiny_tokenizer

PROMPT = "The fox said hello to the small dog, and the fox said"
REQUEST = Request(prompt=PROMPT, target="big", draft="near", max_new_tokens=24, seed=1)
NUM_IDS = len(tiny_tokenizer())


def begin(bench: Workbench, pace: str = "full", **changes: object) -> Run:
    """A run that may change to the other models of the library."""
    run = open_run(replace(REQUEST, **changes), bench=bench, pace=pace)
    for name in ("padded", "stranger", "no/such/folder"):
        run.controls.offer("target", name)
    for name in ("near", "far", "stranger"):
        run.controls.offer("draft", name)
    return run


def finish(run: Run) -> trace.Trace:
    """The run's trace when it has ended or is paused."""
    for _ in run.events():
        pass
    return run.trace


def made(bench: Workbench, **changes: object) -> trace.Trace:
    return finish(begin(bench, **changes))


def make_steps(run: Run, number: int) -> None:
    before = len(run.trace.steps)
    for _ in run.events(max_steps=number):
        pass
    assert (run.state, len(run.trace.steps)) == ("paused", before + number)


def timeless(recorded: trace.Trace) -> list[dict]:
    """The events without what may differ between two equal runs."""
    events = [trace.event_dict(event) for event in recorded.events()]
    for event, name in itertools.product(events, ("created", "environment", "at_ms", "timing")):
        event.pop(name, None)
    return events


def ids(recorded: trace.Trace) -> list[int]:
    return [token.id for token in recorded.tokens]


def whole_text(recorded: trace.Trace) -> list[int]:
    return [token.id for token in recorded.header.prompt.tokens] + ids(recorded)


def statuses(events) -> list[Status]:
    return [event for event in events if isinstance(event, Status)]


def is_free(bench: Workbench) -> bool:
    """Whether nobody holds or waits for anything."""
    return len(bench.engine) == len(bench.places) == 0


def probabilities(model, tokens: list[int], temperature: float = 1.0) -> np.ndarray:
    """Rows [len(tokens), V] in float64 by one forward without a cache."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0].double().numpy() / temperature
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def greedy(model, tokens: list[int], num_tokens: int) -> list[int]:
    """What the model alone writes next, token by token."""
    text = list(tokens)
    for _ in range(num_tokens):
        text.append(int(probabilities(model, text)[-1].argmax()))
    return text[len(tokens) :]


class Fails:
    """A forward hook that makes a model raise `error` at its forward number `at`."""

    def __init__(self, at: int, error: Exception) -> None:
        self._left, self._error = at, error

    def __call__(self, *args: object) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error
