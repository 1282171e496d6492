"""The page: what stands where, and which event calls which handler."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from specviz.drafters import METHODS
from specviz.models.library import Library
from specviz.request import RunSettings
from specviz.session.workbench import Workbench
from specviz.trace.file import Trace
from specviz.ui import components
from specviz.ui.choices import Offer, fitting_rule, rule_choices, rule_to_explain
from specviz.ui.explore import lessons
from specviz.ui.explore import library as shelf
from specviz.ui.explore import share as sharing
from specviz.ui.explore.frame import NOW, QUIET, Frame
from specviz.ui.explore.handlers import Form, Handlers, ReportHandlers, since
from specviz.ui.registry import Registry
from specviz.ui.reports.pages import reports
from specviz.ui.reports.trace_models import methods_for
from specviz.views.explore.help import method_help

RUN_LIMIT = 128
"""Streams at once. Each waits for its turn at the engine, which is fair; this only bounds threads."""
QUEUE_LIMIT = 256
API_LIMIT = 4
KEEP_UPLOADS = (600, 3600)
"""Seconds between two looks for files that were sent to be opened, and the age at which they are deleted."""

Parts = dict[str, Component]

_STREAM = {"concurrency_limit": RUN_LIMIT, "concurrency_id": "run", "trigger_mode": "multiple", **QUIET}
_LIVE = {"trigger_mode": "always_last", **QUIET}
_RAW = {"preprocess": False}
"""While the list of drafts changes with the target, Gradio's own check would refuse good names; handlers check them."""
_LIVE_NUMBERS = ("k", *RunSettings.SAMPLING, "pace")
_BAR = {"library-open": "Library", "share-open": "Share", "present": "Present", "theme": "Theme"}


def build(
    offer: Offer,
    files: Mapping[str, Path],
    registry: Registry,
    bench: Workbench,
    *,
    shown: str = "",
    welcome: Trace | None = None,
) -> gr.Blocks:
    """The whole page. `files`: the browser's half; `bench`: what runs share; `shown`: the stage's first message;
    `welcome`: the recorded run that a first visit sees."""
    with gr.Blocks(title="specviz", analytics_enabled=False, fill_width=True, delete_cache=KEEP_UPLOADS) as demo:
        _bar()
        fields, buttons = _setup(offer)
        stage = components.stage(files, since(registry), shown)
        more, own = _drawer(offer, bench.library)
        fields |= more
        handlers = Handlers(registry, bench, Form.of(fields), offer, welcome)
        gr.api(handlers.run_to_end, api_name="run", concurrency_limit=API_LIMIT)
        _wire_runs(handlers, fields, buttons, stage)
        _wire_live(handlers, fields, own, stage)
        _wire_rest(handlers, fields, buttons, own, stage)
        _wire_memory(handlers, fields, buttons, own, stage)
        demo.unload(handlers.leave)
        frame = Frame(registry, bench, offer, handlers.form, stage, _filling(handlers, fields, own))
        shelf.add(frame, handlers)
        sharing.add(frame)
        lessons.add(frame)
        for name, report in reports(registry, bench, offer).items():
            _add_report(name, ReportHandlers(report), demo)
    return demo.queue(max_size=QUEUE_LIMIT)


def _add_report(name: str, handlers: ReportHandlers, demo: gr.Blocks) -> None:
    part = components.report(name)
    part.look(handlers.look, None, part, **_STREAM)
    part.act(handlers.act, None, part, **_STREAM)
    part.halt(handlers.halt, None, None, **NOW)
    demo.unload(handlers.leave)


def _bar() -> None:
    """The top bar: the name, then what concerns files and looks. Its buttons do what the browser does alone."""
    with gr.Row(elem_id="bar"):
        gr.HTML('<h1 class="sv-name">specviz</h1>', apply_default_css=False, elem_id="name")
        components.pages_list()
        for name, words in _BAR.items():
            components.button(name, words)
    components.fold_line()


def _setup(offer: Offer) -> tuple[Parts, Parts]:
    """The row above the stage: the fields people change most, and the buttons."""
    first = offer.first
    with gr.Row(elem_id="setup"):
        fields: Parts = {"prompt": components.prompt_box(first.prompt)}
        picker = components.prompt_picker({kind: list(texts) for kind, texts in offer.prompts.items()})
        fields |= {
            "draft": components.model_choice("draft", "Draft model", offer.drafts, first.draft, offer.any_model),
            "k": components.k_slider(first.num_speculative_tokens),
            "temperature": components.temperature_slider(first.temperature),
            "pace": components.pace_choice(),
        }
        with gr.Row(elem_id="actions"):
            actions = {name: components.button(name, words) for name, words in components.ACTIONS.items()}
    return fields, actions | {"picker": picker}


def _drawer(offer: Offer, library: Library) -> tuple[Parts, Parts]:
    """What is needed less often, and one group of fields per method that has parameters of its own."""
    first = offer.first
    method = METHODS[first.method]
    rule = fitting_rule(method, first.rule)
    with gr.Column(elem_id="drawer"):
        fields: Parts = {
            "method": components.method_choice(methods_for(first.target, library, method.name), method.name)
        }
        fields["rule"] = components.rule_choice(rule_choices(method), rule, visible=method.drafts)
        words = method_help(method, rule_to_explain(method, rule), has_k=method.sets_k)
        own = {"help": components.method_panel(words), "wanted": gr.State(rule)}
        for each in (each for each in METHODS.values() if each.params):
            with gr.Column(visible=each is method, elem_classes="sv-own") as own[each.name]:
                fields |= {
                    f"{each.name}.{param.name}": components.parameter(each, param, offer) for param in each.params
                }
        fields["target"] = components.model_choice(
            "target", "Target model", offer.targets, first.target, offer.any_model
        )
        fields |= components.drawer_fields(first)
        own["rendered"] = components.rendered_prompt()
    return fields, own


def _wire_runs(handlers: Handlers, fields: Parts, buttons: Parts, stage: gr.HTML) -> None:
    everything = list(fields.values())
    buttons["run"].click(handlers.run, everything, stage, **_STREAM)
    fields["prompt"].submit(handlers.run, everything, stage, **_STREAM)
    buttons["step"].click(handlers.step, everything, stage, **_STREAM)
    buttons["resume"].click(handlers.resume, None, stage, **_STREAM)
    buttons["pause"].click(handlers.pause, None, None, **NOW)
    stage.cancel(handlers.cancel, None, None, **NOW)
    buttons["stop"].click(handlers.stop, None, stage, **NOW)
    stage.measure(handlers.measure, None, stage, concurrency_limit=API_LIMIT, **QUIET)


def _wire_live(handlers: Handlers, fields: Parts, own: Parts, stage: gr.HTML) -> None:
    """Changes that reach the run in progress; lists are queued because only a queued event can warn."""
    for name in _LIVE_NUMBERS:
        fields[name].input(handlers.live(name), fields[name], None, queue=False, **_LIVE)
    fit, explain = _fitting(handlers, fields, own)
    for name in RunSettings.NAMES:
        changed, listed = handlers.live_choice(name), fields[name]
        given = [listed, own["wanted"]] if name == "method" else listed
        done = listed.input(changed, given, listed, concurrency_limit=None, **_RAW, **_LIVE)
        if name == "method":
            done.then(**fit).then(**explain)
        if name == "rule":
            done.then(**_choosing(handlers, fields, own)).then(**explain)
    choices = [*(fields[name] for name in RunSettings.NAMES), own["wanted"]]
    stage.refused(handlers.in_force, None, choices, **NOW).then(**fit).then(**explain)
    for name in handlers.form.governing():
        fields[name].input(**_counting(handlers, fields))
    target, draft, method = fields["target"], fields["draft"], fields["method"]
    suited = [draft, method]
    target.change(handlers.fit_target, [target, draft, method], suited, **_RAW, **NOW).then(**explain)
    if models := [fields[name] for name in handlers.form.models()]:
        target.change(handlers.fit_models, [target, *models], models, **_RAW, **NOW)


def _fitting(handlers: Handlers, fields: Parts, own: Parts) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two things that follow when method or rule have another value: which fields are there, and the help.

    They follow in order, never by themselves: several fields that change at once would each be seen half changed.
    """
    method, rule, target = chosen = [fields["method"], fields["rule"], fields["target"]]
    fitted = [fields["draft"], fields["k"], rule, *(own[name] for name in METHODS if name in own), method]
    inputs = [method, own["wanted"], fields["draft"], target]
    fit = {"fn": handlers.fit_method, "inputs": inputs, "outputs": fitted, **_RAW, **NOW}
    return fit, {"fn": handlers.explain, "inputs": chosen, "outputs": own["help"], **_RAW, **NOW}


def _choosing(handlers: Handlers, fields: Parts, own: Parts) -> dict[str, Any]:
    """What keeps the rule that was chosen last: a method that cannot use it hides it for as long as it is chosen."""
    return {"fn": handlers.chosen_rule, "inputs": fields["rule"], "outputs": own["wanted"], **_RAW, **NOW}


def _counting(handlers: Handlers, fields: Parts) -> dict[str, Any]:
    """What shows the parameters that count under the values of others."""
    names = handlers.form.governing(), handlers.form.dependent()
    inputs, outputs = ([fields[name] for name in each] for each in names)
    return {"fn": handlers.fit_params, "inputs": inputs, "outputs": outputs, **_RAW, **NOW}


def _filling(handlers: Handlers, fields: Parts, own: Parts) -> Callable[[Any, Callable[..., Any]], None]:
    """What wires an event that gives all fields their values, and then, in order, all that follows from these."""

    def fill(event: Any, asked: Callable[..., Any]) -> None:
        fit, explain = _fitting(handlers, fields, own)
        filled = event(asked, None, list(fields.values()), **NOW).then(**_choosing(handlers, fields, own))
        filled = filled.then(**fit).then(**explain).then(**_counting(handlers, fields))
        filled.then(None, None, None, js="() => specvizPage.restored()")

    return fill


def _wire_memory(handlers: Handlers, fields: Parts, buttons: Parts, own: Parts, stage: gr.HTML) -> None:
    """The browser keeps the fields and the id of its run; what comes back from it goes through the handlers' checks."""
    used = [buttons["run"].click, buttons["step"].click, fields["prompt"].submit, fields["prompt"].blur]
    used += [field.input for field in fields.values()]
    remember = f"(...values) => specvizPage.remember({json.dumps(list(fields))}, values)"
    gr.on(used, None, list(fields.values()), None, js=remember, trigger_mode="multiple")
    _filling(handlers, fields, own)(stage.restore, handlers.restore)
    stage.arrive(handlers.arrive, None, stage, **_STREAM)


def _wire_rest(handlers: Handlers, fields: Parts, buttons: Parts, own: Parts, stage: gr.HTML) -> None:
    chosen = [fields["prompt"], fields["chat"]]
    buttons["picker"].choose(handlers.choose_prompt, fields["target"], chosen, concurrency_limit=None, **QUIET)
    read = [fields["prompt"], fields["target"], fields["chat"]]
    changes = [fields["prompt"].blur, fields["target"].change, fields["chat"].change]
    gr.on(changes, handlers.render_prompt, read, own["rendered"], **_LIVE)
