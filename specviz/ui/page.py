"""The page: what stands where, and which event calls which handler."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from typing import Any

import gradio as gr
from gradio.components import Component

from specviz.drafters import METHODS
from specviz.models.pool import ModelPool
from specviz.request import RunSettings
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.ui import components
from specviz.ui.api import add_endpoints
from specviz.ui.choices import Offer, choose_rule, list_rules, rule_to_explain
from specviz.ui.events import NOW, QUIET, callback, data_of, text_or_none
from specviz.ui.explore import getting, lessons, library, share
from specviz.ui.explore.form import Form, Frame
from specviz.ui.explore.handlers import (
    Handlers,
    every_k_of,
    increments_since,
    opening_of,
    standing_of,
)
from specviz.ui.registry import RUN_LIMIT, Registry
from specviz.ui.reports.check import CheckSections
from specviz.ui.reports.compare import CompareSections
from specviz.ui.reports.games import Games
from specviz.ui.reports.race import RaceSection
from specviz.ui.reports.report import ReportPage
from specviz.ui.reports.section import Section
from specviz.ui.reports.trace_models import methods_for
from specviz.ui.reports.two_runs import TwoRunsSection
from specviz.ui.server import FreedMemory
from specviz.views.explore.help import method_help
from specviz.views.learn import plan

QUEUE_LIMIT = 256
MOST_LEFT = 32
"""Sessions whose browser has left that Gradio still knows, each with a copy of the page: 0.3 MB and what it showed."""
KEEP_UPLOADS = (600, 3600)
"""Seconds between two looks for files that were sent to be opened, and the age at which they are deleted."""

Parts = dict[str, Component]

_STREAM = {
    "concurrency_limit": RUN_LIMIT,
    "concurrency_id": "run",
    "trigger_mode": "multiple",
    **QUIET,
}
_LIVE = {"trigger_mode": "always_last", **QUIET}
_RAW = {"preprocess": False}
"""While the list of drafts changes with the target, Gradio's own check would refuse good names; handlers check them.
That check also takes a thread for every field, one after another, which is slow in a full room."""
_RUN = _STREAM | _RAW
_LIVE_NUMBERS = ("k", *RunSettings.ALL_SAMPLING, "pace")
_OF_PROMPT = {"chat", "chat_options", "stop"}
_OUT_OF_SIGHT = {*RunSettings.NAMES, *RunSettings.ALL_SAMPLING, *_OF_PROMPT} - {
    "draft",
    "temperature",
}
"""What decides a run and is no part of the simple view, beside the parameters of the first method."""
_BAR = {
    "all-controls": "All controls",
    "library-open": "Library",
    "share-open": "Share",
    "present": "Present",
    "theme": "Theme",
}


def build(
    offer: Offer,
    registry: Registry,
    bench: Workbench,
    *,
    shown: str = "",
    welcome: Trace | None = None,
) -> gr.Blocks:
    """The whole page. `shown`: the stage's first message; `welcome`: the recorded run that a first visit sees."""
    with gr.Blocks(
        title="specviz", analytics_enabled=False, fill_width=True, delete_cache=KEEP_UPLOADS
    ) as demo:
        _bar()
        fields, buttons = _setup(offer, bench.pool)
        asked = [increments_since(registry), opening_of(registry), every_k_of(registry, bench)]
        stage = components.stage([*asked, standing_of(registry, offer, bench)], shown)
        more, own = _drawer(offer, fields["target"])
        fields |= more
        handlers = Handlers(registry, bench, Form.of(fields), offer, welcome)
        add_endpoints(registry, bench, offer)
        wiring = _Wiring(handlers, fields, buttons, own, stage)
        wiring.wire_runs()
        wiring.wire_live()
        wiring.wire_prompt()
        wiring.wire_memory()
        frame = Frame(registry, offer, handlers.form, stage, wiring.fill)
        library.add(frame, handlers)
        share.add(frame)
        lessons.add(frame)
        pages = reports(registry, bench, offer)
        for name, report in pages.items():
            _add_report(name, report)
        _add_leaving(
            demo,
            [registry.leave, *(report.leave for report in pages.values()), FreedMemory().give_back],
        )
    _describe_once(demo)
    return demo.queue(max_size=QUEUE_LIMIT, api_open=False)


def _describe_once(demo: gr.Blocks) -> None:
    """Gradio has every component describe itself anew for each browser that comes, 14 ms of work. None changes."""
    for part in demo.blocks.values():
        for name in ("get_config",) if part.skip_api else ("get_config", "api_info"):
            setattr(part, name, partial(copy, getattr(part, name)()))


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, ReportPage]:
    """The pages of sections by name."""
    race, two_runs = (
        RaceSection(bench, offer, registry).section(),
        TwoRunsSection(registry).section(),
    )
    plan_of_lessons = Section(plan.NAME, lambda look: plan.NAME, lambda look: plan.plan())
    pages = {
        "compare": [race, two_runs, *CompareSections(bench, offer).sections()],
        "check": CheckSections(bench, offer).sections(),
        "learn": [plan_of_lessons, *Games(bench, offer, registry).sections()],
    }
    return {name: ReportPage(sections, registry, bench) for name, sections in pages.items()}


def _add_report(name: str, report: ReportPage) -> None:
    @callback
    def look(request: gr.Request, event: gr.EventData) -> Iterator[str]:
        yield from report.look(request.session_hash, data_of(event))

    @callback
    def act(request: gr.Request, event: gr.EventData) -> Iterator[str]:
        yield from report.act(request.session_hash, data_of(event))

    def halt(request: gr.Request) -> None:
        report.halt(request.session_hash)

    part = components.report(name)
    part.look(look, None, part, **_STREAM)
    part.act(act, None, part, **_STREAM)
    part.halt(halt, None, None, **NOW)


def _add_leaving(demo: gr.Blocks, leaving: Sequence[Callable[[str], None]]) -> None:
    """What follows when a browser leaves: each of these with its session. Gradio then forgets all but the newest."""
    left: deque[str] = deque()

    async def leave(
        request: gr.Request,
    ) -> None:  # on the event loop, as all that touches Gradio's own sessions
        for each in leaving:
            each(request.session_hash)
        left.append(request.session_hash)
        for session in [left.popleft() for _ in range(len(left) - MOST_LEFT)]:
            demo.state_holder.session_data.pop(session, None)
            demo.state_holder.time_last_used.pop(session, None)
        events, messages = (
            demo._queue.pending_event_ids_session,
            demo._queue.pending_messages_per_session,
        )
        for session in (
            events.keys() - messages.keys()
        ):  # Gradio keeps 2,000 sessions' messages, and all their events
            del events[session]

    demo.unload(leave)


def _bar() -> None:
    """The top bar: the name, then what concerns files and looks. Its buttons do what the browser does alone."""
    with gr.Row(elem_id="bar"):
        gr.HTML(
            '<h1 class="sv-name" translate="no">specviz</h1>',
            apply_default_css=False,
            elem_id="name",
        )
        components.pages_list()
        for name, words in _BAR.items():
            components.button(name, words)
    components.fold_line()


def _setup(offer: Offer, pool: ModelPool) -> tuple[Parts, Parts]:
    """The row above the stage: the fields people change most, and the buttons."""
    first = offer.first
    with gr.Row(elem_id="setup"):
        fields: Parts = {"prompt": components.prompt_box(first.prompt, answers=first.chat)}
        picker = components.prompt_picker(offer.kinds_for(answers=first.chat))
        fields["method"] = components.method_list(
            methods_for(first.target, pool, first.method), first.method
        )
        fields |= components.setup_fields(offer)
        with gr.Row(elem_id="actions"):
            actions = {
                name: components.button(name, words) for name, words in components.ACTIONS.items()
            }
    return fields, actions | {"picker": picker}


def _drawer(offer: Offer, target: Component) -> tuple[Parts, Parts]:
    """What is needed less often, and one group of fields per method that has parameters of its own. target: the list
    of target models, which a model that was fetched joins."""
    first = offer.first
    method = METHODS[first.method]
    rule = choose_rule(method, first.rule)
    with gr.Column(elem_id="drawer"):
        fields: Parts = {
            "rule": components.rule_list(list_rules(method), rule, visible=method.drafts)
        }
        words = method_help(method, rule_to_explain(method, rule), has_k=method.sets_k)
        own = {"help": components.method_panel(words), "wanted": gr.State(rule)}
        for each in (each for each in METHODS.values() if each.params):
            with gr.Column(visible=each is method, elem_classes="sv-own") as own[each.name]:
                fields |= {
                    f"{each.name}.{param.name}": components.parameter(each, param, offer)
                    for param in each.params
                }
        getting.add(offer, target)
        fields |= components.drawer_fields(first)
        own["rendered"] = components.rendered_prompt()
    return fields, own


class _Wiring:
    """Which event calls which handler.

    What follows when method or rule change (`fit`: the fields that are there, `explain`: the help) is chained, never
    triggered by a field's own change: several fields that change at once would each be seen half changed.
    """

    def __init__(
        self, handlers: Handlers, fields: Parts, buttons: Parts, own: Parts, stage: gr.HTML
    ) -> None:
        self._handlers, self._fields, self._buttons, self._own, self._stage = (
            handlers,
            fields,
            buttons,
            own,
            stage,
        )
        self._everything, self._picker = list(fields.values()), buttons["picker"]
        draft, method, rule, target = (fields[name] for name in RunSettings.NAMES)
        governors = [fields[name] for name in handlers.form.governors()]
        inputs = [method, own["wanted"], draft, target, *governors]
        outputs = [
            draft,
            fields["k"],
            rule,
            *(own[name] for name in METHODS if name in own),
            method,
        ]
        self._fit = _call(handlers.fit_method, inputs, outputs)
        self._explain = _call(handlers.explain, [method, rule, target, *governors], own["help"])
        self._keep_rule = _call(
            text_or_none, rule, own["wanted"]
        )  # a method that cannot use it only hides it
        outputs = [fields[name] for name in handlers.form.dependents()]
        self._show_dependents = _call(handlers.form.show_dependents, governors, outputs)

    def wire_runs(self) -> None:
        handlers, buttons, prompt, stage = (
            self._handlers,
            self._buttons,
            self._fields["prompt"],
            self._stage,
        )
        buttons["run"].click(handlers.run, self._everything, stage, **_RUN)
        prompt.submit(handlers.run, self._everything, stage, **_RUN)
        buttons["step"].click(handlers.step, self._everything, stage, **_RUN)
        buttons["resume"].click(handlers.resume, None, stage, **_STREAM)
        buttons["pause"].click(handlers.pause, None, None, **NOW)
        self.fill(stage.really, handlers.with_k).success(
            handlers.run, self._everything, stage, **_RUN
        )
        stage.cancel(handlers.cancel, None, None, **NOW)
        buttons["stop"].click(handlers.stop, None, stage, **NOW)
        stage.measure(handlers.measure, None, stage, **_STREAM)
        stage.unmeasure(handlers.stop_measuring, None, None, **NOW)

    def wire_live(self) -> None:
        """Changes that reach the run in progress; lists are queued because only a queued event can warn."""
        handlers, fields, wanted = self._handlers, self._fields, self._own["wanted"]
        for name in _LIVE_NUMBERS:
            fields[name].input(
                handlers.live(name), fields[name], None, queue=False, **_RAW, **_LIVE
            )
        for name in RunSettings.NAMES:
            change, field = handlers.live_choice(name), fields[name]
            inputs = [field, wanted] if name == "method" else field
            done = field.input(change, inputs, field, concurrency_limit=None, **_RAW, **_LIVE)
            if name == "method":
                done.then(**self._fit).then(**self._explain)
            if name == "rule":
                done.then(**self._keep_rule).then(**self._explain)
        choices = [*(fields[name] for name in RunSettings.NAMES), wanted]
        self._stage.refused(handlers.list_settings, None, choices, **NOW).then(**self._fit).then(
            **self._explain
        )
        for name in handlers.form.governors():
            fields[name].input(**self._show_dependents).then(**self._fit).then(**self._explain)
        target, draft, method = fields["target"], fields["draft"], fields["method"]
        target.change(**_call(handlers.fit_target, [target, draft, method], [draft, method])).then(
            **self._explain
        )
        chat, prompt, picker = fields["chat"], fields["prompt"], self._picker
        target.input(**_call(handlers.fit_chat, [target, prompt], [chat, prompt]))
        target.change(**_call(handlers.fit_prompts, target, [prompt, picker]))
        if models := [fields[name] for name in handlers.form.model_params()]:
            target.change(**_call(handlers.fit_models, [target, *models], models))

    def fill(
        self, event: Any, function: Callable[..., Any], *, opens: bool = True, stands: bool = False
    ) -> Any:
        """Wire an event that gives all fields their values, and then, in order, all that follows from these. opens:
        where a value differs that the simple view does not show, all controls are shown. stands: the values are those
        of the run on the stage. Returns its first part, for what is to follow only where the fields were filled."""
        first = event(function, None, self._everything, **NOW)
        filled = first.then(**self._keep_rule).then(**self._fit).then(**self._explain)
        filled = filled.then(**self._show_dependents)
        own = f"{self._fields['method'].value}."
        hidden = [
            field
            for name, field in self._fields.items()
            if name in _OUT_OF_SIGHT or name.startswith(own)
        ]
        shown = json.dumps([field.value for field in hidden]) if opens else "[]"
        filled.then(None, hidden, None, js=f"(...values) => specvizPage.restored({shown}, values)")
        if stands:
            filled.then(None, self._everything, None, js=self._told("stands"))
        return first

    def _told(self, function: str) -> str:
        """A call that tells the browser all values by name."""
        return f"(...values) => specvizPage.{function}({json.dumps(list(self._fields))}, values)"

    def wire_prompt(self) -> None:
        """The ready prompts, and what the target reads of a conversation."""
        handlers, names = self._handlers, ("prompt", "target", "chat", "chat_options")
        prompt, target, chat, options = (self._fields[name] for name in names)
        self._picker.choose(
            handlers.choose_prompt, target, [prompt, chat], concurrency_limit=None, **QUIET
        )
        changes = [prompt.blur, target.change, chat.change, options.blur]
        shown = [self._own["rendered"], options]
        gr.on(changes, handlers.render_prompt, [prompt, target, chat, options], shown, **_LIVE)

    def wire_memory(self) -> None:
        """The browser keeps the fields and the id of its run; the handlers check what it sends back."""
        prompt, buttons = self._fields["prompt"], self._buttons
        used = [buttons["run"].click, buttons["step"].click, prompt.submit, prompt.blur]
        used += [field.input for field in self._everything]
        gr.on(
            used, None, self._everything, None, js=self._told("remember"), trigger_mode="multiple"
        )
        changes = [field.change for field in self._everything]
        gr.on(
            changes, None, self._everything, None, js=self._told("changed"), trigger_mode="multiple"
        )
        self.fill(self._stage.restore, self._handlers.restore, opens=False)
        self.fill(self._stage.made, self._handlers.as_made, opens=False, stands=True)
        first = self.fill(self._stage.first, self._handlers.as_at_first, opens=False)
        first.success(self._handlers.run, self._everything, self._stage, **_RUN)
        self._stage.arrive(self._handlers.arrive, None, self._stage, **_STREAM)


def _call(function: Callable[..., Any], inputs: Any, outputs: Any) -> dict[str, Any]:
    """The arguments of an event that runs at once."""
    return {"fn": function, "inputs": inputs, "outputs": outputs, **_RAW, **NOW}
