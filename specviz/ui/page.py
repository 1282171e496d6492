"""The page: what stands where, and which event calls which handler."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import replace
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
from specviz.ui.explore import getting, lessons, library, page_code, share
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
from specviz.ui.reports.examples import EXAMPLES
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
"""Sessions that Gradio still knows after their browser has left. Each holds a copy of the page: 0.3 MB and what it
showed."""
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
"""Events without Gradio's own check of values. It would refuse good names while the list of drafts changes with the
target; handlers check them. It also takes a thread for every field, one after another: slow in a full room."""
_RUN = _STREAM | _RAW
_LIVE_NUMBERS = ("k", *RunSettings.ALL_SAMPLING, "pace")
_OF_PROMPT = {"chat", "chat_options", "stop"}
_OUT_OF_SIGHT = {*RunSettings.NAMES, *RunSettings.ALL_SAMPLING, *_OF_PROMPT} - {
    "draft",
    "temperature",
}
"""Fields that decide a run and that the simple view hides, beside the parameters of the first method."""
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
        _bar(lambda: (demo.server_name, demo.server_port))
        fields, buttons = _setup(offer, bench.pool)
        calls = [
            increments_since(registry),
            opening_of(registry, offer, bench),
            every_k_of(registry, bench),
            standing_of(registry, offer, bench),
        ]
        stage = components.stage(calls, shown)
        fetched = getting.add(offer)
        drawer_fields, parts = _drawer(offer)
        fields |= drawer_fields
        form = Form.of(fields)
        handlers = Handlers(registry, bench, form, offer, welcome)
        add_endpoints(registry, bench, offer)
        wiring = _Wiring(handlers, fields, buttons, parts, stage)
        wiring.wire_runs()
        wiring.wire_live()
        wiring.wire_prompt()
        wiring.wire_memory()
        if fetched:
            wiring.wire_getting(*fetched)
        frame = Frame(registry, offer, form, stage, wiring.fill)
        library.add(frame, handlers)
        share.add(frame)
        with gr.Column(elem_id="guide"):
            components.panel("guide-panel", events=[])
        lessons.add(frame, bench.pool.pass_ms)
        pages = reports(registry, bench, offer)
        for name, report in pages.items():
            _add_report(name, report)
        leave_reports = [report.leave for report in pages.values()]
        _add_leaving(demo, [registry.leave, *leave_reports, FreedMemory().give_back])
    _describe_once(demo)
    return demo.queue(max_size=QUEUE_LIMIT, api_open=False)


def _describe_once(demo: gr.Blocks) -> None:
    """Stores each component's description. Else Gradio makes it for each browser that comes: 14 ms of work."""
    for part in demo.blocks.values():
        names = ["get_config"] if part.skip_api else ["get_config", "api_info"]
        for name in names:
            description = getattr(part, name)()
            setattr(part, name, partial(copy, description))


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, ReportPage]:
    """The pages of sections by name."""
    compared = [
        RaceSection(bench, offer, registry).section(),
        TwoRunsSection(registry).section(),
        *CompareSections(bench, offer).sections(),
    ]
    pages = {
        "compare": [replace(each, example=EXAMPLES.get(each.name)) for each in compared],
        "check": CheckSections(bench, offer).sections(),
        "learn": [
            Section(plan.NAME, lambda look: plan.NAME, lambda look: plan.plan()),
            *Games(bench, offer, registry).sections(),
        ],
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
    """Wires what follows when a browser leaves: each function gets its session. Gradio keeps only the newest ones."""
    left: deque[str] = deque()

    async def leave(request: gr.Request) -> None:
        # on the event loop, as all that touches Gradio's own sessions
        for function in leaving:
            function(request.session_hash)
        left.append(request.session_hash)
        while len(left) > MOST_LEFT:
            session = left.popleft()
            demo.state_holder.session_data.pop(session, None)
            demo.state_holder.time_last_used.pop(session, None)
        # Gradio keeps 2,000 sessions' messages, and all their events
        events = demo._queue.pending_event_ids_session
        messages = demo._queue.pending_messages_per_session
        for session in events.keys() - messages.keys():
            del events[session]

    demo.unload(leave)


def _bar(place: page_code.Place) -> None:
    """Makes the top bar: the name, then what concerns files and looks. The browser alone does what its buttons do."""
    with gr.Row(elem_id="bar"):
        gr.HTML(
            '<h1 class="sv-name" translate="no">specviz</h1>',
            apply_default_css=False,
            elem_id="name",
        )
        components.pages_list()
        for name, words in _BAR.items():
            components.button(name, words)
        page_code.add(place)
    components.fold_line()


def _setup(offer: Offer, pool: ModelPool) -> tuple[Parts, Parts]:
    """Makes the row above the stage. Returns the fields that people change most, and the buttons."""
    first = offer.first
    with gr.Row(elem_id="setup"):
        fields: Parts = {"prompt": components.prompt_box(first.prompt, answers=first.chat)}
        buttons: Parts = {}
        kinds = offer.kinds_for(answers=first.chat)
        buttons["picker"] = components.prompt_picker(kinds)
        methods = methods_for(first.target, pool, first.method)
        fields["method"] = components.method_list(methods, first.method)
        fields |= components.setup_fields(offer)
        buttons["showcase"] = components.showcase()
        with gr.Row(elem_id="actions"):
            for name, words in components.ACTIONS.items():
                buttons[name] = components.button(name, words)
    return fields, buttons


def _drawer(offer: Offer) -> tuple[Parts, Parts]:
    """Makes the drawer: what is needed less often, and a group of fields for each method that has parameters.

    Returns the fields, and the parts that are no fields: the help, the rule that was chosen last, the groups by method,
    the prompt as the target reads it.
    """
    first = offer.first
    method = METHODS[first.method]
    rule = choose_rule(method, first.rule)
    with gr.Column(elem_id="drawer"):
        rules = components.rule_list(list_rules(method), rule, visible=method.drafts)
        fields: Parts = {"rule": rules}
        words = method_help(method, rule_to_explain(method, rule), has_k=method.sets_k)
        parts: Parts = {"help": components.method_panel(words), "last_rule": gr.State(rule)}
        for known in METHODS.values():
            if known.params:
                with gr.Column(visible=known is method, elem_classes="sv-own") as group:
                    for param in known.params:
                        field = components.parameter(known, param, offer)
                        fields[f"{known.name}.{param.name}"] = field
                parts[known.name] = group
        fields |= components.drawer_fields(first)
        parts["rendered"] = components.rendered_prompt()
    return fields, parts


class _Wiring:
    """The wiring of the page: which event calls which handler.

    When method or rule change, what follows is chained: `fit` shows the fields that count, `explain` the help. A
    field's own change never triggers it: of several fields that change at once, each would be seen half changed.
    """

    def __init__(
        self, handlers: Handlers, fields: Parts, buttons: Parts, parts: Parts, stage: gr.HTML
    ) -> None:
        self._handlers = handlers
        self._fields = fields
        self._buttons = buttons
        self._parts = parts
        self._stage = stage
        self._everything = list(fields.values())
        self._picker = buttons["picker"]
        draft, method, rule, target = (fields[name] for name in RunSettings.NAMES)
        governors = [fields[name] for name in handlers.form.governors()]
        groups = [parts[name] for name in METHODS if name in parts]
        self._fit = _call(
            handlers.fit_method,
            [method, parts["last_rule"], draft, target, *governors],
            [draft, fields["k"], rule, *groups, method],
        )
        self._explain = _call(
            handlers.explain,
            [method, rule, target, *governors],
            parts["help"],
        )
        # a method that cannot use the chosen rule only hides it
        self._keep_rule = _call(text_or_none, rule, parts["last_rule"])
        dependents = [fields[name] for name in handlers.form.dependents()]
        self._show_dependents = _call(handlers.form.show_dependents, governors, dependents)

    def wire_runs(self) -> None:
        """Wires what begins, goes on with, pauses and ends a run, and what measures its speed."""
        handlers = self._handlers
        buttons = self._buttons
        stage = self._stage
        buttons["run"].click(handlers.run, self._everything, stage, **_RUN)
        self._fields["prompt"].submit(handlers.run, self._everything, stage, **_RUN)
        buttons["step"].click(handlers.step, self._everything, stage, **_RUN)
        buttons["resume"].click(handlers.resume, None, stage, **_STREAM)
        buttons["pause"].click(handlers.pause, None, None, **NOW)
        filled = self.fill(stage.really, handlers.otherwise)
        filled.success(handlers.run, self._everything, stage, **_RUN)
        stage.cancel(handlers.cancel, None, None, **NOW)
        buttons["stop"].click(handlers.stop, None, stage, **NOW)
        stage.measure(handlers.measure, None, stage, **_STREAM)
        stage.unmeasure(handlers.stop_measuring, None, None, **NOW)

    def wire_live(self) -> None:
        """Wires changes that reach the run in progress. Lists are queued because only a queued event can warn."""
        handlers = self._handlers
        fields = self._fields
        last_rule = self._parts["last_rule"]
        for name in _LIVE_NUMBERS:
            change = handlers.live(name)
            field = fields[name]
            field.input(change, field, None, queue=False, **_RAW, **_LIVE)
        for name in RunSettings.NAMES:
            change = handlers.live_choice(name)
            field = fields[name]
            inputs = [field, last_rule] if name == "method" else field
            changed = field.input(change, inputs, field, concurrency_limit=None, **_RAW, **_LIVE)
            if name == "method":
                changed.then(**self._fit).then(**self._explain)
            if name == "rule":
                changed.then(**self._keep_rule).then(**self._explain)
        choices = [*(fields[name] for name in RunSettings.NAMES), last_rule]
        refused = self._stage.refused(handlers.list_settings, None, choices, **NOW)
        refused.then(**self._fit).then(**self._explain)
        for name in handlers.form.governors():
            shown = fields[name].input(**self._show_dependents)
            shown.then(**self._fit).then(**self._explain)
        self._wire_target()

    def _wire_target(self) -> None:
        """Wires what another target model changes in the other fields."""
        handlers = self._handlers
        fields = self._fields
        target = fields["target"]
        draft = fields["draft"]
        method = fields["method"]
        chat = fields["chat"]
        prompt = fields["prompt"]
        fit_target = _call(handlers.fit_target, [target, draft, method], [draft, method])
        target.change(**fit_target).then(**self._explain)
        target.input(**_call(handlers.fit_chat, [target, prompt], [chat, prompt]))
        target.change(**_call(handlers.fit_prompts, target, [prompt, self._picker]))
        if models := [fields[name] for name in handlers.form.model_params()]:
            target.change(**_call(handlers.fit_models, [target, *models], models))

    def fill(
        self, event: Any, function: Callable[..., Any], *, opens: bool = True, stands: bool = False
    ) -> Any:
        """Wires an event that gives all fields their values, then, in order, all that follows from these values.

        opens: where a value differs that the simple view does not show, all controls are shown. stands: the values are
        those of the run on the stage. Returns the event's first part, for what follows only where the fields were
        filled.
        """
        first = event(function, None, self._everything, **NOW)
        filled = first.then(**self._keep_rule).then(**self._fit).then(**self._explain)
        filled = filled.then(**self._show_dependents)
        prefix = f"{self._fields['method'].value}."
        hidden = [
            field
            for name, field in self._fields.items()
            if name in _OUT_OF_SIGHT or name.startswith(prefix)
        ]
        shown = json.dumps([field.value for field in hidden]) if opens else "[]"
        filled.then(None, hidden, None, js=f"(...values) => specvizPage.restored({shown}, values)")
        if stands:
            filled.then(None, self._everything, None, js=self._tell_browser("stands"))
        return first

    def _tell_browser(self, function: str) -> str:
        """The JavaScript that tells all values by name to one of the browser's functions."""
        names = json.dumps(list(self._fields))
        return f"(...values) => specvizPage.{function}({names}, values)"

    def wire_prompt(self) -> None:
        """Wires the ready prompts, and the prompt as the target reads it."""
        handlers = self._handlers
        prompt = self._fields["prompt"]
        target = self._fields["target"]
        chat = self._fields["chat"]
        options = self._fields["chat_options"]
        self._picker.choose(
            handlers.choose_prompt, target, [prompt, chat], concurrency_limit=None, **QUIET
        )
        changes = [prompt.blur, target.change, chat.change, options.blur]
        shown = [self._parts["rendered"], options]
        gr.on(changes, handlers.render_prompt, [prompt, target, chat, options], shown, **_LIVE)
        method = self._fields["method"]
        case = self._buttons["showcase"]
        changes = [method.change, target.change, prompt.blur]
        gr.on(changes, handlers.offer_showcase, [method, target, prompt], case, **_LIVE)
        filled = self.fill(case.show, handlers.as_showcase)
        filled.success(handlers.run, self._everything, self._stage, **_RUN)

    def wire_getting(self, fetched: getting.Getting, card: gr.HTML) -> None:
        """Wires the card of a model that can be fetched: its download, and its first run once it is here. The list of
        target models gains it."""
        changed = [card, self._fields["target"]]
        card.get(fetched.fetch, None, changed, concurrency_limit=None, **QUIET)
        card.stop(fetched.stop, None, None, **NOW)
        filled = self.fill(card.run, partial(fetched.fill, self._handlers.form))
        filled.success(self._handlers.run, self._everything, self._stage, **_RUN)

    def wire_memory(self) -> None:
        """Wires what the browser stores, the fields and the id of its run. The handlers check what it sends back."""
        handlers = self._handlers
        stage = self._stage
        prompt = self._fields["prompt"]
        used = [
            self._buttons["run"].click,
            self._buttons["step"].click,
            prompt.submit,
            prompt.blur,
            *(field.input for field in self._everything),
        ]
        changed = [field.change for field in self._everything]
        for events, function in ((used, "remember"), (changed, "changed")):
            script = self._tell_browser(function)
            gr.on(events, None, self._everything, None, js=script, trigger_mode="multiple")
        self.fill(stage.restore, handlers.restore, opens=False)
        self.fill(stage.made, handlers.as_made, opens=False, stands=True)
        first = self.fill(stage.first, handlers.as_at_first, opens=False)
        first.success(handlers.run, self._everything, stage, **_RUN)
        stage.arrive(handlers.arrive, None, stage, **_STREAM)


def _call(function: Callable[..., Any], inputs: Any, outputs: Any) -> dict[str, Any]:
    """The arguments of an event that runs at once."""
    return {"fn": function, "inputs": inputs, "outputs": outputs, **_RAW, **NOW}
