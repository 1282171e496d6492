"""The parts of the page: each factory returns plain Gradio components, and none of them knows a handler.

No template holds data: what the stage and the prompt list show arrives as a JSON string and goes through textContent.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
import msgspec
from gradio.components import Component

from specviz.drafters import METHODS
from specviz.drafters.method import Method
from specviz.drafters.params import Choice, FloatParam, IntParam, ModelParam, Param
from specviz.request import MAX_TEMPERATURE, Request
from specviz.session.controls import PACES
from specviz.settings import settings
from specviz.ui.choices import (
    FIRST_SEED,
    Offer,
    Option,
    choose_models,
    list_models,
    spelled,
    usual_models,
)
from specviz.views.blocks import dump
from specviz.views.bundle import web_file
from specviz.views.document import REPORT_HTML, stage_html
from specviz.views.explore.panels import MethodHelp

ACTIONS = {
    "back": "‹ Earlier",
    "pause": "Pause",
    "resume": "Resume",
    "stop": "Stop",
    "run": "Run",
    "forward": "Later ›",
    "step": "One step",
    "more": "More",
}
PAGES = {"explore": "Explore", "compare": "Compare", "check": "Check", "learn": "Learn"}
Calls = Sequence[Callable[..., object]]
SCRIPT = "specviz/web/specviz.js"
"""The address of the browser's half: beside the page, wherever that lies, as every address that the page asks for."""

MOST_NEW_TOKENS = 2048
DECIMAL_STEPS = (1.0, 0.5, 0.1, 0.05, 0.01, 0.005, 0.001)
MANY_STEPS = 20
"""Places on a slider for a decimal number. It has the first of DECIMAL_STEPS that leaves it as many."""
SEED_INFO = (
    f"The same seed gives the same text. With the small models and seed {FIRST_SEED}, the first example shows every "
    "mark in its first steps."
)
OF_DRAFT_INFO = (
    "Empty: as the target's. With an exact rule this never changes how the text is distributed, only how much is "
    "accepted."
)
STOP_INFO = (
    "One text a line; the answer ends before the first that comes. \\n is a line break, \\t a tab."
)
OPTIONS_INFO = (
    "Switches of the chat template, one NAME=VALUE a line, such as enable_thinking=false."
)

_HELP_HTML = '<section class="sv-help"></section><a href="specviz/docs/methods.md" target="_blank">All methods</a>'
_PICKER_HTML = (
    '<label class="sv-field"><span>Examples</span>'
    '<select translate="no" aria-label="Ready prompts"></select></label>'
)


def _html(
    name: str,
    template: str,
    value: str | None = None,
    *,
    kind: str = "",
    events: Sequence[str] = (),
    calls: Calls = (),
) -> gr.HTML:
    """A part of the page that assets/web/page.js draws, by the function `name`, or by that of its kind.

    name: its element's id; events: what it triggers; calls: the server's functions that it may call, by their names.
    """
    function = f"{kind}('{name}', element" if kind else f"{name}(element"
    heard = " ".join(f"'{event}'" for event in events)  # where Gradio looks for the names of events
    script = f"specvizPage.{function}, {{props, watch, trigger, server}});\n// events the page listens to: {heard}"
    return gr.HTML(
        value,
        html_template=template,
        js_on_load=script,
        server_functions=[_in_builtins(call) for call in calls],
        elem_id=name,
        apply_default_css=False,
    )


def _in_builtins(call: Callable[..., object]) -> Callable[..., Any]:
    """A function of the server that answers in builtin types: Gradio cannot send a record."""

    @wraps(call)
    def answer(*args: Any, **named: Any) -> Any:
        return msgspec.to_builtins(call(*args, **named))

    return answer


def stage(calls: Calls, value: str) -> gr.HTML:
    """The one output of a run: Explore's own views, fed with JSON increments. calls: what they may ask the server."""
    events = (
        "measure",
        "unmeasure",
        "refused",
        "cancel",
        "arrive",
        "restore",
        "really",
        "made",
        "first",
    )
    return _html("stage", stage_html(), value, events=events, calls=calls)


def pages_list() -> gr.HTML:
    """The list of the app's pages, and the button of the help beside them."""
    entries = "".join(
        f'<button type="button" data-page="{name}">{title}</button>'
        for name, title in PAGES.items()
    )
    entries += '<button type="button" id="guide-open">Help</button>'
    return _html("pages", f'<nav class="sv-pages" aria-label="Pages">{entries}</nav>')


def report(name: str) -> gr.HTML:
    """A page of sections, sent as JSON; it triggers `look`, `act` and `halt`."""
    return _html(name, REPORT_HTML, "", kind="report", events=("act", "halt", "look"))


def panel(name: str, *, events: Sequence[str], value: str = "", calls: Calls = ()) -> gr.HTML:
    template = f'<div class="sv-panel" data-panel="{name}"></div>'
    return _html(name, template, value, kind="panel", events=events, calls=calls)


def prompt_picker(titles: Mapping[str, Sequence[str]]) -> gr.HTML:
    """A native list of ready prompts, `titles` by kind; choosing one triggers `choose` with {"kind", "title"}."""
    return _html("picker", _PICKER_HTML, json.dumps(titles), events=["choose"])


def get_card(value: str) -> gr.HTML:
    """The card of a model that can be fetched. Its buttons trigger `get`, `stop`, and `run` once it is here."""
    markup = '<section class="sv-get-card" aria-label="Get a real model"></section>'
    return _html("getting", markup, value, events=["get", "stop", "run"])


def showcase() -> gr.HTML:
    """The button that offers what shows the chosen method best; pressing it triggers `show`."""
    return _html("showcase", '<div class="sv-showcase"></div>', dump(None), events=["show"])


def prompt_label(*, answers: bool) -> str:
    """The label of the prompt's field: what the target can do with a prompt."""
    return "Prompt: ask a question" if answers else "Prompt: begin a text"


def fold_line() -> gr.HTML:
    """The one line that, on a phone, stands for the setup row and opens it."""
    words = '<span translate="no">Setup</span>'
    return _html("fold", f'<button class="sv-setup-line" aria-expanded="false">{words}</button>')


def method_panel(words: MethodHelp) -> gr.HTML:
    """The help: what the chosen method does and what the rule in force means."""
    return _html("help", _HELP_HTML, dump(words))


def button(name: str, words: str) -> gr.Button:
    variant = "primary" if name == "run" else "secondary"
    return gr.Button(words, elem_id=name, size="sm", variant=variant)


def prompt_box(value: str, *, answers: bool = False) -> gr.Textbox:
    return gr.Textbox(
        value, label=prompt_label(answers=answers), lines=1, max_lines=8, elem_id="prompt"
    )


def rendered_prompt() -> gr.Textbox:
    return gr.Textbox(
        label="What the target reads",
        lines=2,
        max_lines=8,
        interactive=False,
        visible=False,
        elem_id="rendered",
    )


def model_list(
    role: str, label: str, choices: Sequence[Option], value: str | None, any_model: bool
) -> gr.Dropdown:
    """A list of model names; with `any_model` a path or another name may be typed."""
    return gr.Dropdown(
        list(choices),
        value=value,
        label=label,
        elem_id=role,
        filterable=any_model,
        allow_custom_value=any_model,
    )


def method_list(choices: Sequence[Option], value: str) -> gr.Dropdown:
    """The list of methods. The style sheet writes a heading above the first method that is not a common one."""
    num_common = sum(METHODS[name].is_common for _, name in choices)
    return gr.Dropdown(
        list(choices),
        value=value,
        filterable=False,
        label="Method",
        elem_id="method",
        elem_classes=f"sv-first-{num_common}",
    )


def rule_list(choices: Sequence[Option], value: str, *, visible: bool) -> gr.Dropdown:
    return gr.Dropdown(
        list(choices), value=value, label="Rule", elem_id="rule", filterable=False, visible=visible
    )


def _slider(name: str, label: str, low: float, high: float, value: float, **more: Any) -> gr.Slider:
    return gr.Slider(low, high, value, label=label, elem_id=name, buttons=[], **more)


def _text(name: str, label: str, value: str, info: str | None = None, **more: Any) -> gr.Textbox:
    """A field that may be left empty, which a number field of Gradio's may not: it would show 0."""
    return gr.Textbox(value, label=label, info=info, elem_id=name, max_lines=4, **more)


_WHOLE = {"step": 1, "precision": 0}


def setup_fields(offer: Offer) -> dict[str, Component]:
    """The fields that people change most, by the name of the request's field."""
    first = offer.first
    return {
        "draft": model_list("draft", "Draft model", offer.drafts, first.draft, offer.any_model),
        "target": model_list(
            "target", "Target model", offer.targets, first.target, offer.any_model
        ),
        "k": _slider("k", "K", 1, 16, first.num_speculative_tokens, **_WHOLE),
        "temperature": _slider(
            "temperature", "Temperature", 0, MAX_TEMPERATURE, first.temperature, step=0.05
        ),
        "pace": gr.Radio(list(PACES), value="normal", label="Pace", elem_id="pace"),
    }


def drawer_fields(first: Request) -> dict[str, Component]:
    """The fields that every method understands but few people change, by the name of the request's field."""
    most = min(MOST_NEW_TOKENS, settings().max_new_tokens)
    own = spelled(first)
    return {
        "top_p": _slider("top-p", "Top-p", 0.05, 1, first.top_p, step=0.05),
        "min_p": _slider("min-p", "Min-p (0: off)", 0, 1, first.min_p, step=0.01),
        "top_k": _slider("top-k", "Top-k (0: off)", 0, 100, first.top_k, **_WHOLE),
        "draft_temperature": _text(
            "draft-temperature", "Draft temperature", own["draft_temperature"], OF_DRAFT_INFO
        ),
        "draft_top_p": _text("draft-top-p", "Draft top-p", own["draft_top_p"]),
        "draft_min_p": _text("draft-min-p", "Draft min-p (0: off)", own["draft_min_p"]),
        "draft_top_k": _text("draft-top-k", "Draft top-k (0: off)", own["draft_top_k"]),
        "max_new_tokens": _slider(
            "max-tokens", "Max new tokens", 1, most, first.max_new_tokens, **_WHOLE
        ),
        "stop": _text("stop-at", "Stop at", own["stop"], STOP_INFO),
        "seed": gr.Number(
            first.seed, precision=0, minimum=0, label="Seed", info=SEED_INFO, elem_id="seed"
        ),
        "chat": gr.Checkbox(first.chat, label="Chat template", elem_id="chat"),
        "chat_options": _text(
            "chat-options", "Chat options", own["chat_options"], OPTIONS_INFO, visible=first.chat
        ),
    }


def parameter(method: Method, param: Param, offer: Offer) -> Component:
    """The control of one parameter, by its kind and as the method describes it."""
    defaults = {other.name: other.default for other in method.params}
    words = {
        "label": param.title[:1].upper() + param.title[1:],
        "info": param.help,
        "elem_id": f"param-{method.name}-{param.name}",
        "visible": param.counts(defaults),
    }
    match param:
        case IntParam():
            return gr.Slider(param.low, param.high, param.default, buttons=[], **_WHOLE, **words)
        case FloatParam():
            step = _decimal_step(param.high - param.low)
            return gr.Slider(param.low, param.high, param.default, step=step, buttons=[], **words)
        case Choice():
            choices = [(title, name) for name, title in param.options.items()]
            return gr.Dropdown(choices, value=param.default, filterable=False, **words)
        case ModelParam():
            return _param_models(param, offer, words)


def _decimal_step(length: float) -> float:
    """The first step that leaves a slider of this length many places."""
    for step in DECIMAL_STEPS:
        if step * MANY_STEPS <= length:
            return step
    return DECIMAL_STEPS[-1]


def _param_models(param: ModelParam, offer: Offer, words: Mapping[str, Any]) -> gr.Dropdown:
    """The list of models for a parameter that names one or several."""
    target = offer.first.target
    takes_several = param.most > 1
    return gr.Dropdown(
        _add_missing(list_models(param, target), usual_models(param, target)),
        value=choose_models(offer, param, target, None),
        multiselect=takes_several,
        max_choices=param.most if takes_several else None,
        filterable=offer.any_model,
        allow_custom_value=offer.any_model,
        **words,
    )


def update_list(choices: Sequence[Option], *chosen: str | None, **more: Any) -> Any:
    """An update of a list with what is chosen in it, which Gradio refuses if the list lacks it."""
    return gr.update(choices=_add_missing(choices, chosen), **more)


def _add_missing(choices: Sequence[Option], chosen: Sequence[str | None]) -> list[Option]:
    known = [name for _, name in choices]
    missing = [name for name in chosen if name is not None and name not in known]
    return [*((Path(name).name, name) for name in missing), *choices]


def theme() -> gr.themes.Base:
    """The colours of assets/web/theme.json, each for some of Gradio's variables; fonts are the system's."""
    variables = {}
    for colour in json.loads(web_file("theme.json").read_text("utf-8")):
        for name in colour["variables"]:
            variables[name] = colour["light"]
            variables[f"{name}_dark"] = colour["dark"]
    base = gr.themes.Base(
        font="sans-serif",
        font_mono="monospace",
        text_size="sm",
        radius_size="sm",
        spacing_size="sm",
    )
    return base.set(**variables)
