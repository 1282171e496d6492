"""What the bar says of the run that stands on the stage, and why it cannot be made again here. Knows no Gradio.

A trace may come from anywhere: nothing of its request has been checked before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from specviz.drafters import METHODS, find_method
from specviz.drafters.method import Method
from specviz.drafters.params import ModelParam
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.files.hub import find, is_here
from specviz.models.pool import ModelPool
from specviz.request import Request, RunSettings
from specviz.rules import RULES
from specviz.session.setup import models_named
from specviz.settings import settings
from specviz.trace import Trace
from specviz.ui.choices import Offer, spelled
from specviz.ui.reports.trace_models import lacks
from specviz.views.words import CHANGE_NAMES, label, reveal

RUN, OTHERWISE = "Run", "Run with these settings"
TITLES = CHANGE_NAMES | {
    "draft": "draft",
    "max_new_tokens": "max new tokens",
    "chat": "chat template",
    "seed": "seed",
}
WHOLE = {"prompt": "this prompt", "stop": "these stop texts", "chat_options": "these chat options"}
"""Fields whose values are too long to name."""
LIVE = ("k", *Request.NAMES, *Request.ALL_SAMPLING)
"""Fields that a run in progress follows."""
_OF_TEXT = ("prompt", "chat", "chat_options", "max_new_tokens", "stop")
OF_ANY_METHOD = (*_OF_TEXT, "target", "method", *Request.ALL_SAMPLING, "seed")
"""Fields that have a meaning under every method."""


def request_shown(trace: Trace) -> Request:
    """A run as it was asked for, with the settings of its last step, as far as the bar can say it. SpecvizError."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    asked = {**trace.header.request, "time_limit_s": None}
    if asked.get("prompt_ids") is not None:
        asked |= {
            "prompt": trace.header.prompt.text,
            "prompt_ids": None,
            "chat": False,
            "chat_options": {},
        }
    length = asked.get("max_new_tokens")
    if isinstance(length, int):
        asked["max_new_tokens"] = min(length, settings().max_new_tokens)
    if trace.steps:
        made = trace.steps[-1].settings
        asked |= {
            name: getattr(made, name)
            for name in (*Request.NAMES, *Request.ALL_SAMPLING)
            if name != "draft"
        }
        asked |= {"params": dict(made.params)} | (
            {"draft": made.draft_model} if made.draft_model else {}
        )
        asked |= {"k": made.k} if made.k else {}
    request = Request.from_dict(asked)
    find_method(request.method).validate(request.params)
    return request


def usable_rule(request: Request) -> Request:
    """The request with a rule that can be chosen: a recorded run may have had one that is wrong on purpose."""
    method = find_method(request.method).under(request.params)
    return request if request.rule in method.rules else replace(request, rule=method.default_rule)


def standing_props(trace: Trace, offer: Offer, pool: ModelPool) -> Mapping[str, Any]:
    """{"words", "missing", "needs"}: what Run says while nothing is changed, why it cannot make this run here, if so,
    and the fields that must change until it can."""
    if trace.header is None:
        return _say()
    try:
        request = request_shown(trace)
    except SpecvizError as error:
        return _say(OTHERWISE, f"The bar cannot show how this run was made: {reveal(str(error))}.")
    for kind, name in models_named(request):
        if why := _why_not_here(name, offer, pool):
            return _say(f"{RUN} needs {label(Path(name).name)}", why, _fields_of(kind, request))
    method = METHODS[request.method].under(request.params)
    if why := lacks(method, request.target, pool):
        return _say(OTHERWISE, why)
    if request.rule is not None and usable_rule(request).rule != request.rule and method.drafts:
        title = RULES[method.default_rule].title
        return _say(
            f"{RUN} with {title}", f"This run's rule is not on offer here: {title} judges instead."
        )
    return _say()


def _say(words: str = RUN, missing: str = "", needs: Sequence[str] = ()) -> Mapping[str, Any]:
    return {"words": words, "missing": missing, "needs": list(needs)}


def _fields_of(kind: str, request: Request) -> list[str]:
    """The fields that decide which model of a kind a request names."""
    if kind == "target":
        return [kind]
    params = METHODS[request.method].params
    asked = [param.name for param in params if isinstance(param, ModelParam) and param.kind == kind]
    own = [f"{request.method}.{name}" for name in asked]
    depends = ["target"] if any(request.params.get(name) is None for name in asked) else []
    return ["method", *own, *depends] if own else ["method", "draft"]


def _why_not_here(name: str, offer: Offer, pool: ModelPool) -> str:
    """Why a model cannot be used at once, in words; empty where it can. Loads nothing, and asks no network. A name that
    only the trace has may be any path: no file system is asked for it."""
    if name in pool.loaded_names():
        return ""
    is_known = catalog.is_known(name) or offer.knows(name)
    if offer.any_model and not is_known:
        return f"{label(name)} is none of this page's models: Run would look for it."
    try:
        source = find(catalog.without_format(name), allow_any=offer.any_model)
    except SpecvizError as error:
        return f"{reveal(str(error))}."
    if source.folder is not None or (is_here(name) and catalog.is_known(name)):
        return ""
    return f"{label(name)} is not on this machine: Run would fetch it."


def not_followed(trace: Trace, asked: RunSettings, pool: ModelPool) -> Mapping[str, Any]:
    """The live fields whose last change came too late for any step, with the values that the last step was made with.
    asked: what the run was told in the end."""
    request = request_shown(trace)
    made, told = request.to_dict() | spelled(request), request.to_dict()
    wanted = asked.to_dict() | {"rule": asked.rule or told["rule"]}
    wanted |= {name: wanted[name] and pool.shown_name(wanted[name]) for name in ("target", "draft")}
    return {name: made[name] for name in LIVE if told[name] != wanted[name]}


def about_fields() -> Mapping[str, Any]:
    """For the browser: which fields count under each method, their titles, and the titles of methods and rules.
    live: those that a run in progress follows."""
    return {
        "counting": {method.name: _counting(method) for method in METHODS.values()},
        "titles": TITLES
        | {f"{m.name}.{param.name}": param.title for m in METHODS.values() for param in m.params},
        "whole": WHOLE,
        "values": {each.name: each.title for each in (*METHODS.values(), *RULES.values())},
        "live": LIVE,
        "otherwise": OTHERWISE,
    }


def _counting(method: Method) -> list[str]:
    own = [f"{method.name}.{param.name}" for param in method.params]
    return [*OF_ANY_METHOD, *(name for name, does in counts_under(method).items() if does), *own]


def counts_under(method: Method) -> dict[str, bool]:
    """Whether each field that has no meaning under some method has one under this."""
    return {"draft": "draft" in method.roles, "k": method.sets_k, "rule": method.drafts}
