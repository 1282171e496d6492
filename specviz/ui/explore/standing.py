"""What the bar says of the run that stands on the stage, and why it cannot be made again here. Knows no Gradio.

A trace may come from anywhere: nothing of its request has been checked before.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from specviz.drafters import METHODS, find_method
from specviz.drafters.method import Method
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.files.hub import find, is_here
from specviz.models.library import Library
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.setup import models_named
from specviz.settings import settings
from specviz.trace.file import Trace
from specviz.ui.choices import Offer
from specviz.ui.reports.trace_models import lacks
from specviz.views.explore.sentences import CHANGE_NAMES, label, reveal

RUN, OTHERWISE = "Run", "Run with these settings"
TITLES = CHANGE_NAMES | {"draft": "draft", "max_new_tokens": "max new tokens", "chat": "chat template", "seed": "seed"}
WHOLE = {"prompt": "this prompt", "stop": "these stop texts", "chat_options": "these chat options"}
"""Fields whose values are too long to name."""
_OF_ANY = (
    "prompt",
    "chat",
    "chat_options",
    "target",
    "method",
    *Request.ALL_SAMPLING,
    "seed",
    "max_new_tokens",
    "stop",
)


def request_shown(trace: Trace) -> Request:
    """A run as it was asked for, with the settings of its last step, as far as the bar can say it. SpecvizError."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    asked = {**trace.header.request, "time_limit_s": None}
    if asked.get("prompt_ids") is not None:
        asked |= {"prompt": trace.header.prompt.text, "prompt_ids": None, "chat": False, "chat_options": {}}
    length = asked.get("max_new_tokens")
    if isinstance(length, int):
        asked["max_new_tokens"] = min(length, settings().max_new_tokens)
    if trace.steps:
        made = trace.steps[-1].settings
        asked |= {name: getattr(made, name) for name in (*Request.NAMES, *Request.ALL_SAMPLING) if name != "draft"}
        asked |= {"params": dict(made.params)} | ({"draft": made.draft_model} if made.draft_model else {})
        asked |= {"k": made.k} if made.k else {}
    request = Request.from_dict(asked)
    find_method(request.method).validate(request.params)
    return request


def usable_rule(request: Request) -> Request:
    """The request with a rule that can be chosen: a recorded run may have had one that is wrong on purpose."""
    method = find_method(request.method).under(request.params)
    return request if request.rule in method.rules else replace(request, rule=method.default_rule)


def standing_props(trace: Trace, offer: Offer, library: Library) -> Mapping[str, str]:
    """{"words", "missing"}: what Run says while nothing is changed, and why it cannot make this run here, if so."""
    try:
        request = request_shown(trace)
    except SpecvizError as error:
        return {"words": OTHERWISE, "missing": f"The bar cannot show how this run was made: {reveal(str(error))}."}
    for _, name in models_named(request):
        if why := _why_not_here(name, offer):
            return {"words": f"{RUN} needs {label(Path(name).name)}", "missing": why}
    method = METHODS[request.method].under(request.params)
    if why := lacks(method, request.target, library):
        return {"words": OTHERWISE, "missing": why}
    if usable_rule(request).rule != request.rule and method.drafts:
        title = RULES[method.default_rule].title
        why = f"This run's rule is not on offer here: {title} judges instead."
        return {"words": f"{RUN} with {title}", "missing": why}
    return {"words": RUN, "missing": ""}


def _why_not_here(name: str, offer: Offer) -> str:
    """Why a model cannot be used at once, in words; empty where it can. Loads nothing, and asks no network."""
    try:
        source = find(name, allow_any=offer.any_model)
    except SpecvizError as error:
        return f"{reveal(str(error))}."
    if source.folder is not None or (is_here(name) and catalog.is_known(name)):
        return ""
    return f"{label(name)} is not on this machine: Run would fetch it."


def about_fields() -> Mapping[str, Any]:
    """For the browser: which fields count under each method, their titles, and the titles of methods and rules.
    live: those that a run in progress follows."""
    return {
        "counting": {method.name: _counting(method) for method in METHODS.values()},
        "titles": TITLES | {f"{m.name}.{param.name}": param.title for m in METHODS.values() for param in m.params},
        "whole": WHOLE,
        "values": {each.name: each.title for each in (*METHODS.values(), *RULES.values())},
        "live": ["k", *Request.NAMES, *Request.ALL_SAMPLING],
        "otherwise": OTHERWISE,
    }


def _counting(method: Method) -> list[str]:
    own = [f"{method.name}.{param.name}" for param in method.params]
    counts = {"draft": "draft" in method.roles, "k": method.sets_k, "rule": method.drafts}
    return [*_OF_ANY, *(name for name, does in counts.items() if does), *own]
