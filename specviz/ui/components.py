"""Factories for the parts of the page. Each returns plain Gradio components; none of them knows a handler.

No template holds data: what the stage and the prompt list show arrives as a JSON string and goes through textContent.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import gradio as gr
from gradio.components import Component

from specviz.controls import PACES
from specviz.drafters.base import Method, Whole
from specviz.request import Request
from specviz.settings import settings
from specviz.ui.offer import FIRST_SEED, Choice

ACTIONS = {
    "back": "Back",
    "run": "Run",
    "pause": "Pause",
    "resume": "Resume",
    "forward": "Forward",
    "step": "Step",
    "stop": "Stop",
    "more": "More",
}
PAGES = {"explore": "Explore", "compare": "Compare", "check": "Check"}
SCRIPT_ORDER = ("hub.js", "stage.js")
"""The hub runs first and the stage last; the views between them only register themselves."""

MOST_NEW_TOKENS = 2048
SEED_INFO = (
    f"One seed, one text. {FIRST_SEED} was chosen so that the first example shows every mark in its first steps."
)

_STAGE_JS = """specvizPage.stage(element, {props, watch, trigger, server});
// events the page listens to: 'measure' 'refused' 'cancel' 'arrive' 'restore'"""
_REPORT_JS = """specvizPage.report('{name}', element, {{props, watch, trigger}});
// events the page listens to: 'act' 'halt' 'look'"""
REPORT_HTML = (
    '<div class="sv-report"><div class="sv-report-body"></div>'
    '<p class="sv-live sv-hidden" aria-live="polite"></p></div>'
)
_PICKER_JS = """specvizPage.picker(element, {props, trigger});
// events the page listens to: 'choose'"""
_PICKER_HTML = '<label class="sv-field"><span>Examples</span><select aria-label="Ready prompts"></select></label>'


def scripts(files: Mapping[str, Path]) -> str:
    """Script tags for the browser's half, in the order in which they must run."""
    first, last = SCRIPT_ORDER
    between = sorted(name for name in files if name.endswith(".js") and name not in SCRIPT_ORDER)
    names = [name for name in (first, *between, last) if name in files]
    return "".join(f'<script src="/specviz/web/{name}"></script>' for name in names)


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
        head=scripts(files),
        server_functions=[since],
        apply_default_css=False,
        elem_id="stage",
    )


def pages_list(files: Mapping[str, Path]) -> gr.HTML:
    """The pages of the app, one of which is shown."""
    entries = (f'<button type="button" data-page="{name}">{title}</button>' for name, title in PAGES.items())
    return gr.HTML(
        html_template=f'<nav class="sv-pages" aria-label="Pages">{"".join(entries)}</nav>',
        js_on_load="specvizPage.pages(element);",
        head=scripts(files),
        apply_default_css=False,
        elem_id="pages",
    )


def report(name: str, files: Mapping[str, Path]) -> gr.HTML:
    """A page of sections, sent as JSON: what is done on it comes back as `act`, `halt` and `look`."""
    return gr.HTML(
        "",
        html_template=REPORT_HTML,
        js_on_load=_REPORT_JS.format(name=name),
        head=scripts(files),
        apply_default_css=False,
        elem_id=name,
    )


def prompt_picker(files: Mapping[str, Path], titles: Mapping[str, Sequence[str]]) -> gr.HTML:
    """A native list of ready prompts, `titles` by kind; choosing one triggers `choose` with {"kind", "title"}."""
    return gr.HTML(
        json.dumps(titles),
        html_template=_PICKER_HTML,
        js_on_load=_PICKER_JS,
        head=scripts(files),
        apply_default_css=False,
        elem_id="picker",
    )


def fold_line(files: Mapping[str, Path]) -> gr.HTML:
    """On a phone, the one line that stands for the setup row and opens it."""
    return gr.HTML(
        html_template='<button class="sv-setup-line" aria-expanded="false"><span>Setup</span></button>',
        js_on_load="specvizPage.fold(element);",
        head=scripts(files),
        apply_default_css=False,
        elem_id="fold",
    )


def prompt_box(value: str) -> gr.Textbox:
    return gr.Textbox(value, label="Prompt", lines=1, max_lines=8, elem_id="prompt", placeholder="Write a beginning")


def model_choice(role: str, label: str, choices: Sequence[Choice], value: str | None, any_model: bool) -> gr.Dropdown:
    """A list of model names; with `any_model` a path or another name may be typed."""
    return gr.Dropdown(
        list(choices), value=value, label=label, elem_id=role, filterable=any_model, allow_custom_value=any_model
    )


def method_choice(methods: Mapping[str, Method], value: str) -> gr.Dropdown:
    choices = [(method.title, name) for name, method in methods.items()]
    return gr.Dropdown(choices, value=value, label="Method", elem_id="method", filterable=False)


def k_slider(value: int) -> gr.Slider:
    return gr.Slider(1, 16, value, step=1, precision=0, label="K", elem_id="k", buttons=[])


def temperature_slider(value: float) -> gr.Slider:
    return gr.Slider(0, 2, value, step=0.05, label="Temperature", elem_id="temperature", buttons=[])


def pace_choice() -> gr.Radio:
    return gr.Radio(list(PACES), value="reading", label="Pace", elem_id="pace")


def button(name: str, words: str) -> gr.Button:
    return gr.Button(words, elem_id=name, size="sm", variant="primary" if name == "run" else "secondary")


def parameter(method: Method, param: Whole) -> gr.Slider:
    """The control of one parameter, as the method describes it."""
    return gr.Slider(
        param.low,
        param.high,
        param.default,
        step=1,
        precision=0,
        label=param.title.capitalize(),
        info=param.help,
        elem_id=f"param-{method.name}-{param.name}",
        buttons=[],
    )


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
