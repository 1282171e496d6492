"""The heaviest work that visitors can ask of a page: of each endpoint, and of each button of the pages of sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import gradio as gr

from specviz.bench.speed import measure_in_rounds
from specviz.decoding.turns import Asker, Pieces
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.session import run as session
from specviz.session.workbench import workbench
from specviz.trace import Trace
from specviz.ui import api
from specviz.ui.choices import make_offer
from specviz.ui.explore.handlers import every_k_of
from specviz.ui.page import reports
from specviz.ui.reports.report import ReportPage
from specviz.ui.reports.trace_models import request_of
from specviz.ui.startup import Page, make_page
from specviz.views.compare.race import chosen_values

WORDS = "Once upon a time there was a small dog who went to the market to buy a red ball. "
LONG = WORDS * 24
"""Nearly 500 tokens, which with what follows is as much as the bundled models read."""
NO_ENGINE = {"models", "compare_tokenizers", "doctor"}
VALUES = {
    "race": {"tokens": "256", "prompts": "2"},
    "end_to_end": {"tokens": "400"},
    "one_step": {"n": "20000"},
    "many-prompts": {"tokens": "128"},
    "be-the-draft": {"words": "the dog went home and"},
}
"""What is typed into a section's fields before its buttons are pressed."""


@dataclass(frozen=True, slots=True)
class Work:
    """One thing that can be asked for. `begin` gives its answers, made as they are drawn."""

    name: str
    begin: Callable[[], Iterator[Any]]


def bundled_page(target: str | None = None) -> Page:
    """A page over the bundled pair, or another target of the catalogue with its own; nothing is served."""
    return make_page(make_offer(target), workbench().pool)


def endpoints(page: Page) -> dict[str, Callable[..., Any]]:
    """By name, as programs call them."""
    events = page.demo.fns.values()
    return {each.api_name: each.fn for each in events if each.fn and each.api_visibility == "public"}


def heaviest_calls(page: Page) -> Iterator[Work]:
    """Of every endpoint with every method that it takes, at the limits of its arguments."""
    known = endpoints(page)
    prompts = [f"{LONG}{number}" for number in range(32)]
    asked: list[tuple[str, str, dict[str, Any]]] = []
    for method in METHODS:
        asked.append((f"run {method}", "run", {"prompt": LONG, "method": method, "k": 16, "max_new_tokens": 32}))
        asked.append((f"prove {method}", "prove", {"method": method, "tokens": 500, "k": 8}))
    asked.append(("run, long", "run", {"prompt": WORDS, "max_new_tokens": 480}))
    asked.append(("prove, greedy", "prove", {"tokens": 500, "temperature": 0}))
    asked.append(("align", "align", {"prompts": prompts, "max_new_tokens": 128, "k": 16}))
    asked += [(name, name, {}) for name in NO_ENGINE]
    judged = [(f"what_if {method}", method) for method in ("draft_model", "eagle", "early_exit")]
    assert {name for _, name, _ in asked} | {"what_if"} == set(known), "an endpoint is not among them"
    for title, name, arguments in asked:
        yield Work(title, partial(_answers, known[name], arguments))
    for title, method in judged:
        yield Work(title, partial(_judge, known, method))


def _answers(endpoint: Callable[..., Any], arguments: dict[str, Any]) -> Iterator[Any]:
    answer = endpoint(**arguments)
    yield from answer if isinstance(answer, Iterator) else (answer,)


def _judge(known: dict[str, Callable[..., Any]], method: str) -> Iterator[Any]:
    made = known["run"](WORDS, method=method, max_new_tokens=300)
    yield known["what_if"](made["run"], max_k=16)


def finished_run(page: Page, num_tokens: int = 300) -> Trace:
    run = session.open_run(replace(page.first, max_new_tokens=num_tokens), bench=page.bench)
    for _ in run.events():
        pass
    return run.trace


def every_button(page: Page) -> Iterator[Work]:
    """Of all pages, pressed while a long run is looked at; and the pages themselves, whose sections begin by
    themselves."""
    view = page.registry.keep(finished_run(page))
    place = {"run": view.id, "step": 3, "ref": "0"}
    offered = make_offer(page.first.target)
    measuring = measure_in_rounds(request_of(view.trace), page.bench)
    yield Work("explore: measure", lambda: page.bench.in_turns(measuring))
    told = every_k_of(page.registry, page.bench)
    early = endpoints(page)["run"](WORDS, method="early_exit", max_new_tokens=300)["run"]
    yield Work("explore: every K", lambda: (told(data) for data in ({"run": early},)))
    for name, report in reports(page.registry, page.bench, offered).items():
        yield Work(f"look at {name}", partial(report.look, name, {"place": place}))
        for section in report._sections.values():
            for act in section.acts:
                pressed = partial(_press, report, name, section.name, act, place)
                yield Work(f"{name}: {section.name}, {act}", pressed)


def _press(report: ReportPage, name: str, section: str, act: str, place: dict[str, Any]) -> Iterator[str]:
    """A button, with the values that its section's fields have at first but for those of VALUES."""
    session = report._sessions.open(name)
    if section not in session.shown:
        next(report.look(name, {"place": place}))
    values = {key: str(value) for key, value in chosen_values(session.shown[section]).items()}
    asked = {"section": section, "do": act, "values": values | VALUES.get(section, {}), "place": place}
    yield from report.act(name, asked)


def do_until(is_over: Callable[[], bool], page: Page, work: Work) -> Pieces:
    """The pieces in which the engine did this work, until its end or until this is over: then whoever asked has
    left."""
    page.bench.engine.pieces = Pieces()
    calls = patch.object(api, "asker_of_call", lambda caller: Asker("", is_over))
    with calls, closing(work.begin()) as answers, suppress(SpecvizError, gr.Error):  # a button may find nothing to do
        for _ in answers:
            if is_over():
                break
    return page.bench.engine.pieces
