"""The words of the bar for the run that stands on the stage, and why it cannot be made again here. It knows no Gradio.

A trace may come from anywhere: nothing of its request has been checked before.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from specviz.views.explore.panels import FieldFacts, RunButton
from specviz.views.words import CHANGE_NAMES, label, reveal

OTHERWISE = "Run with these settings"
TITLES = CHANGE_NAMES | {
    "draft": "draft",
    "max_new_tokens": "max new tokens",
    "chat": "chat template",
    "seed": "seed",
}
WHOLE = {"prompt": "this prompt", "stop": "these stop texts", "chat_options": "these chat options"}
"""Fields with values that are too long to name, and the words that stand for these."""
LIVE = ("k", *Request.NAMES, *Request.ALL_SAMPLING)
"""Fields that a run in progress follows."""
_OF_TEXT = ("prompt", "chat", "chat_options", "max_new_tokens", "stop")
OF_ANY_METHOD = (*_OF_TEXT, "target", "method", *Request.ALL_SAMPLING, "seed")
"""Fields that have a meaning under every method."""


def request_shown(trace: Trace) -> Request:
    """A run as it was asked for, with the settings of its last step, as far as the bar can show it. Raises
    SpecvizError."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    values = {**trace.header.request, "time_limit_s": None}
    if values.get("prompt_ids") is not None:
        values["prompt"] = trace.header.prompt.text
        values["prompt_ids"] = None
        values["chat"] = False
        values["chat_options"] = {}
    length = values.get("max_new_tokens")
    if isinstance(length, int):
        values["max_new_tokens"] = min(length, settings().max_new_tokens)
    if trace.steps:
        last = trace.steps[-1].settings
        for name in (*Request.NAMES, *Request.ALL_SAMPLING):
            if name != "draft":
                values[name] = getattr(last, name)
        values["params"] = dict(last.params)
        if last.draft_model:
            values["draft"] = last.draft_model
        if last.k:
            values["k"] = last.k
    request = Request.from_dict(values)
    find_method(request.method).validate(request.params)
    return request


def usable_rule(request: Request) -> Request:
    """The request with a rule that can be chosen: a recorded run may have had one that is wrong on purpose."""
    method = find_method(request.method).under(request.params)
    if request.rule in method.rules:
        return request
    return replace(request, rule=method.default_rule)


def standing_props(trace: Trace, offer: Offer, pool: ModelPool) -> RunButton:
    """What Run says of a run that stands."""
    if trace.header is None:
        return RunButton()
    try:
        request = request_shown(trace)
    except SpecvizError as error:
        missing = f"The bar cannot show how this run was made: {reveal(str(error))}."
        return RunButton(OTHERWISE, missing)
    for kind, name in models_named(request):
        if reason := _why_not_here(name, offer, pool):
            words = f"Run needs {label(Path(name).name)}"
            return RunButton(words, reason, _fields_of(kind, request))
    method = METHODS[request.method].under(request.params)
    if reason := lacks(method, request.target, pool):
        return RunButton(OTHERWISE, reason)
    if request.rule is not None and usable_rule(request).rule != request.rule and method.drafts:
        title = RULES[method.default_rule].title
        missing = f"This run's rule is not on offer here: {title} judges instead."
        return RunButton(f"Run with {title}", missing)
    return RunButton()


def _fields_of(kind: str, request: Request) -> list[str]:
    """The fields that decide which model of a kind a request names."""
    if kind == "target":
        return ["target"]
    fields = []
    depends_on_target = False
    for param in METHODS[request.method].params:
        if isinstance(param, ModelParam) and param.kind == kind:
            fields.append(f"{request.method}.{param.name}")
            depends_on_target |= request.params.get(param.name) is None
    if not fields:
        return ["method", "draft"]
    return ["method", *fields, "target"] if depends_on_target else ["method", *fields]


def _why_not_here(name: str, offer: Offer, pool: ModelPool) -> str:
    """The reason why a model cannot be used at once; empty where it can. It loads nothing, and asks no network. A name
    that only the trace has may be any path: no file system is asked for it."""
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
    stated = catalog.stated(name)
    facts = f" ({stated})" if stated else ""
    return f"{label(name)}{facts} is not on this machine: Run would fetch it."


def not_followed(
    trace: Trace, asked: RunSettings, pool: ModelPool
) -> Mapping[str, str | float | None]:
    """The live fields that were changed too late for any step, with the values that the last step was made with.

    asked: the settings that the run had at its end.
    """
    request = request_shown(trace)
    shown = request.to_dict() | spelled(request)
    last = request.to_dict()
    wanted = asked.to_dict()
    wanted["rule"] = asked.rule or last["rule"]
    for name in ("target", "draft"):
        if wanted[name]:
            wanted[name] = pool.shown_name(wanted[name])
    return {name: shown[name] for name in LIVE if last[name] != wanted[name]}


def about_fields() -> FieldFacts:
    """The facts about the fields of every method."""
    titles = dict(TITLES)
    for method in METHODS.values():
        for param in method.params:
            titles[f"{method.name}.{param.name}"] = param.title
    counting = {method.name: _counting(method) for method in METHODS.values()}
    values = {known.name: known.title for known in (*METHODS.values(), *RULES.values())}
    return FieldFacts(counting, titles, WHOLE, values, LIVE, OTHERWISE)


def _counting(method: Method) -> list[str]:
    """The fields that have a meaning under the method."""
    counting = [name for name, counts in counts_under(method).items() if counts]
    params = [f"{method.name}.{param.name}" for param in method.params]
    return [*OF_ANY_METHOD, *counting, *params]


def counts_under(method: Method) -> dict[str, bool]:
    """Whether a field has a meaning under this method, for each field that has none under some methods."""
    return {"draft": "draft" in method.roles, "k": method.sets_k, "rule": method.drafts}
