"""Factories for the parts of the page. Each returns plain Gradio components; none of them knows a handler.

No template holds data: what the stage and the prompt list show arrives as a JSON string and goes through textContent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component

from specviz.drafters import METHODS
from specviz.drafters.method import Method
from specviz.drafters.params import Choice, FloatParam, IntParam, ModelParam, Param
from specviz.request import MAX_TEMPERATURE, Request
from specviz.session.controls import PACES
from specviz.settings import settings
from specviz.ui.choices import FIRST_SEED, Listed, Offer, fitting_models, model_choices, usual_models

ACTIONS = {
    "back": "‹ Step",
    "run": "Run",
    "pause": "Pause",
    "resume": "Resume",
    "forward": "Step ›",
    "step": "Step",
    "stop": "Stop",
    "more": "More",
}
PAGES = {"explore": "Explore", "compare": "Compare", "check": "Check", "learn": "Learn"}
SCRIPT = "specviz.js"
HEAD = f'<script src="/specviz/web/{SCRIPT}"></script>'
SCRIPT_ORDER = ("hub.js", "stage.js")
"""The hub runs first and the stage last; the views between them only register themselves."""

MOST_NEW_TOKENS = 2048
DECIMAL_STEPS = (1.0, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001)
MANY_STEPS = 20
"""A slider for a decimal number has the first of these steps that leaves it as many places."""
SEED_INFO = (
    f"One seed, one text. {FIRST_SEED} was chosen so that the first example shows every mark in its first steps."
)

_STAGE_JS = """specvizPage.stage(element, {props, watch, trigger, server});
// events the page listens to: 'measure' 'refused' 'cancel' 'arrive' 'restore'"""
_REPORT_JS = """specvizPage.report('{name}', element, {{props, watch, trigger}});
// events the page listens to: 'act' 'halt' 'look'"""
_PANEL_JS = """specvizPage.panel('{name}', element, {{props, watch, trigger, server}});
// events the page listens to: {events}"""
REPORT_HTML = (
    '<div class="sv-report"><div class="sv-report-body"></div>'
    '<p class="sv-live sv-hidden" aria-live="polite"></p></div>'
)
_HELP_JS = "window.specviz.mountHelp(element, {props, watch});"
_HELP_HTML = '<section class="sv-help"></section>'
_PICKER_JS = """specvizPage.picker(element, {props, trigger});
// events the page listens to: 'choose'"""
_PICKER_HTML = '<label class="sv-field"><span>Examples</span><select aria-label="Ready prompts"></select></label>'


def script(files: Mapping[str, Path]) -> str:
    """The browser's half as one script, its files in the order in which they must run. One, because several that a
    page's code puts into its head run in any order in Firefox."""
    first, last = SCRIPT_ORDER
    between = sorted(name for name in files if name.endswith(".js") and name not in SCRIPT_ORDER)
    names = [name for name in (first, *between, last) if name in files]
    return "\n;\n".join(files[name].read_text("utf-8") for name in names)


def styles(files: Mapping[str, Path]) -> str:
    """All style sheets for the page's head, inline: nothing is ever shown unstyled."""
    sheets = (files[name].read_text(encoding="utf-8") for name in sorted(files) if name.endswith(".css"))
    return "".join(f"<style>{sheet}</style>" for sheet in sheets)


def stage(files: Mapping[str, Path], since: Callable[..., object], value: str) -> gr.HTML:
    """The one output of a run: Explore's own views, fed with JSON increments."""
    return gr.HTML(
        value,
        html_template=files["stage.html"].read_text(encoding="utf-8"),
        js_on_load=_STAGE_JS,
        head=HEAD,
        server_functions=[since],
        apply_default_css=False,
        elem_id="stage",
    )


def pages_list() -> gr.HTML:
    """The pages of the app, one of which is shown."""
    entries = (f'<button type="button" data-page="{name}">{title}</button>' for name, title in PAGES.items())
    return gr.HTML(
        html_template=f'<nav class="sv-pages" aria-label="Pages">{"".join(entries)}</nav>',
        js_on_load="specvizPage.pages(element);",
        head=HEAD,
        apply_default_css=False,
        elem_id="pages",
    )


def report(name: str) -> gr.HTML:
    """A page of sections, sent as JSON: what is done on it comes back as `act`, `halt` and `look`."""
    return gr.HTML(
        "",
        html_template=REPORT_HTML,
        js_on_load=_REPORT_JS.format(name=name),
        head=HEAD,
        apply_default_css=False,
        elem_id=name,
    )


def panel(
    name: str,
    *,
    events: Sequence[str],
    value: str = "",
    calls: Sequence[Callable[..., object]] = (),
) -> gr.HTML:
    """A panel beside the stage, made by the browser's file that registers under `name`.

    events: what it tells the page; calls: what it asks the server, by the functions' own names.
    """
    listened = " ".join(f"'{event}'" for event in events)
    return gr.HTML(
        value,
        html_template=f'<div class="sv-panel" data-panel="{name}"></div>',
        js_on_load=_PANEL_JS.format(name=name, events=listened),
        head=HEAD,
        server_functions=list(calls),
        apply_default_css=False,
        elem_id=name,
    )


def prompt_picker(titles: Mapping[str, Sequence[str]]) -> gr.HTML:
    """A native list of ready prompts, `titles` by kind; choosing one triggers `choose` with {"kind", "title"}."""
    return gr.HTML(
        json.dumps(titles),
        html_template=_PICKER_HTML,
        js_on_load=_PICKER_JS,
        head=HEAD,
        apply_default_css=False,
        elem_id="picker",
    )


def fold_line() -> gr.HTML:
    """On a phone, the one line that stands for the setup row and opens it."""
    return gr.HTML(
        html_template='<button class="sv-setup-line" aria-expanded="false"><span>Setup</span></button>',
        js_on_load="specvizPage.fold(element);",
        head=HEAD,
        apply_default_css=False,
        elem_id="fold",
    )


def prompt_box(value: str) -> gr.Textbox:
    return gr.Textbox(value, label="Prompt", lines=1, max_lines=8, elem_id="prompt", placeholder="Write a beginning")


def model_choice(role: str, label: str, choices: Sequence[Listed], value: str | None, any_model: bool) -> gr.Dropdown:
    """A list of model names; with `any_model` a path or another name may be typed."""
    return gr.Dropdown(
        list(choices), value=value, label=label, elem_id=role, filterable=any_model, allow_custom_value=any_model
    )


def method_choice(choices: Sequence[Listed], value: str) -> gr.Dropdown:
    """One list; the style sheet writes a heading above the first of those that are not met first."""
    num_first = sum(METHODS[name].is_common for _, name in choices)
    label, heading = "Method", f"sv-first-{num_first}"
    return gr.Dropdown(
        list(choices), value=value, label=label, elem_id="method", elem_classes=heading, filterable=False
    )


def rule_choice(choices: Sequence[Listed], value: str, *, visible: bool) -> gr.Dropdown:
    return gr.Dropdown(list(choices), value=value, label="Rule", elem_id="rule", filterable=False, visible=visible)


def method_panel(props: Mapping[str, Any]) -> gr.HTML:
    """What the chosen method does and what the rule in force means."""
    return gr.HTML(
        json.dumps(props),
        html_template=_HELP_HTML,
        js_on_load=_HELP_JS,
        head=HEAD,
        apply_default_css=False,
        elem_id="help",
    )


def k_slider(value: int) -> gr.Slider:
    return gr.Slider(1, 16, value, step=1, precision=0, label="K", elem_id="k", buttons=[])


def temperature_slider(value: float) -> gr.Slider:
    return gr.Slider(0, MAX_TEMPERATURE, value, step=0.05, label="Temperature", elem_id="temperature", buttons=[])


def pace_choice() -> gr.Radio:
    return gr.Radio(list(PACES), value="reading", label="Pace", elem_id="pace")


def button(name: str, words: str) -> gr.Button:
    return gr.Button(words, elem_id=name, size="sm", variant="primary" if name == "run" else "secondary")


def parameter(method: Method, param: Param, offer: Offer) -> Component:
    """The control of one parameter, by its kind and as the method describes it."""
    words = {"label": param.title[:1].upper() + param.title[1:], "info": param.help}
    control = _CONTROLS[type(param)](param, offer, **words, elem_id=f"param-{method.name}-{param.name}")
    control.visible = param.counts({each.name: each.default for each in method.params})
    return control


def _whole(param: IntParam, offer: Offer, **words: str) -> gr.Slider:
    return gr.Slider(param.low, param.high, param.default, step=1, precision=0, buttons=[], **words)


def _decimal(param: FloatParam, offer: Offer, **words: str) -> gr.Slider:
    step = next((step for step in DECIMAL_STEPS if step * MANY_STEPS <= param.high - param.low), DECIMAL_STEPS[-1])
    return gr.Slider(param.low, param.high, param.default, step=step, buttons=[], **words)


def _choice(param: Choice, offer: Offer, **words: str) -> gr.Dropdown:
    choices = [(shown, name) for name, shown in param.options.items()]
    return gr.Dropdown(choices, value=param.default, filterable=False, **words)


def _models(param: ModelParam, offer: Offer, **words: str) -> gr.Dropdown:
    target = offer.first.target
    return gr.Dropdown(
        _with(model_choices(param, target), usual_models(param, target)),
        value=fitting_models(offer, param, target, None),
        multiselect=param.most > 1,
        max_choices=param.most if param.most > 1 else None,
        filterable=offer.any_model,
        allow_custom_value=offer.any_model,
        **words,
    )


_CONTROLS: Mapping[type[Param], Callable[..., Component]] = {
    IntParam: _whole,
    FloatParam: _decimal,
    Choice: _choice,
    ModelParam: _models,
}


def choice_of(choices: Sequence[Listed], *chosen: str | None, **more: Any) -> Any:
    """An update of a list with what is chosen in it, which Gradio refuses if the list lacks it."""
    return gr.update(choices=_with(choices, chosen), **more)


def _with(choices: Sequence[Listed], chosen: Sequence[str | None]) -> list[Listed]:
    known = [name for _, name in choices]
    return [*((Path(name).name, name) for name in chosen if name is not None and name not in known), *choices]


def drawer_fields(first: Request) -> dict[str, Component]:
    """What every method understands but few people change, by the name of the request's field."""
    most = min(MOST_NEW_TOKENS, settings().max_new_tokens)
    return {
        "top_p": gr.Slider(0.05, 1, first.top_p, step=0.05, label="Top-p", elem_id="top-p", buttons=[]),
        "top_k": gr.Slider(
            0, 100, first.top_k, step=1, precision=0, label="Top-k (0: off)", elem_id="top-k", buttons=[]
        ),
        "max_new_tokens": gr.Slider(
            1,
            most,
            first.max_new_tokens,
            step=1,
            precision=0,
            label="Most new tokens",
            elem_id="max-tokens",
            buttons=[],
        ),
        "seed": gr.Number(first.seed, precision=0, minimum=0, label="Seed", info=SEED_INFO, elem_id="seed"),
        "chat": gr.Checkbox(first.chat, label="Chat template", elem_id="chat"),
    }


def rendered_prompt() -> gr.Textbox:
    return gr.Textbox(
        label="What the target reads", lines=2, max_lines=8, interactive=False, visible=False, elem_id="rendered"
    )
