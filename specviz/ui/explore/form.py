"""The fields of the page: how their values become a request, how a request fills them, and what panels may use.

Anyone who reaches the server may send values: nothing of them has been checked before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gradio as gr
from gradio.components import Component

from specviz.drafters import METHODS, find_method
from specviz.drafters.method import Method
from specviz.drafters.params import ModelParam, Param, Value, split_names
from specviz.errors import SpecvizError
from specviz.request import Request, read_options, read_stops
from specviz.session.controls import PACES
from specviz.ui.choices import (
    Offer,
    as_options,
    as_value,
    list_models,
    list_rules,
    number_or_none,
    spelled,
)
from specviz.ui.components import update_list
from specviz.ui.registry import Registry


def update_drafts(offer: Offer, target: str, method: Method, draft: str | None, **more: Any) -> Any:
    """An update of the list of draft models for a target and a method, with one draft model chosen."""
    return update_list(offer.drafts_for(target, method), draft, value=draft, **more)


def update_rules(method: Method, rule: str) -> Any:
    """An update of the list of rules that can judge the method's drafts. It is hidden where there is nothing to
    choose."""
    return gr.update(
        choices=list(list_rules(method)),
        value=rule,
        visible=len(method.rules) > 1 and method.drafts,
    )


def update_models(param: ModelParam, target: str, value: Any) -> Any:
    """An update of a list of models, with `value` chosen: one name, or a list of them."""
    names = split_names(as_value(value) or "")
    chosen = names if param.most > 1 else next(iter(names), None)
    return update_list(list_models(param, target), *names, value=chosen)


@dataclass(frozen=True, slots=True)
class Form:
    """The names of the page's fields, in the order in which their values arrive."""

    names: tuple[str, ...]
    """A parameter that only one method has is named "method.param"."""
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    """The limits that each slider has at first: low, high."""

    @classmethod
    def of(cls, fields: Mapping[str, Component]) -> Form:
        ranges = {
            name: (part.minimum, part.maximum)
            for name, part in fields.items()
            if isinstance(part, gr.Slider)
        }
        return cls(tuple(fields), ranges)

    def request(self, values: Sequence[Any]) -> tuple[Request, str]:
        """The checked request and the pace. Raises SpecvizError."""
        fields = dict(zip(self.names, values, strict=True))
        pace = fields.pop("pace")
        shared = {name: value for name, value in fields.items() if "." not in name}
        options = shared.get("chat_options") if shared.get("chat") is True else None
        shared["chat_options"] = read_options(str(options or "").splitlines())
        shared["stop"] = read_stops(str(shared.get("stop") or "").splitlines())
        for name in Request.DRAFT_SAMPLING:
            shared[name] = number_or_none(shared.get(name))
        shared["params"] = params_of(find_method(shared["method"]), fields)
        return Request.from_dict(shared), pace

    def _params(self) -> dict[str, tuple[Method, Param]]:
        """The parameters of methods that have a field on this page, by the field's name."""
        params = {}
        for method in METHODS.values():
            for param in method.params:
                params[f"{method.name}.{param.name}"] = (method, param)
        return {name: params[name] for name in self.names if name in params}

    def model_params(self) -> dict[str, ModelParam]:
        """The parameters that name further models, by their field's name."""
        models = {}
        for name, (_, param) in self._params().items():
            if isinstance(param, ModelParam):
                models[name] = param
        return models

    def governors(self) -> list[str]:
        """The fields that decide whether others count, each once."""
        governors = [governor for governor, _ in self.dependents().values()]
        return list(dict.fromkeys(governors))

    def method(self, name: Any, *values: Any) -> Method:
        """The method of that name under the governors' values, as far as these came. Raises SpecvizError."""
        method = find_method(name)
        governors = dict(zip(self.governors(), values, strict=False))
        params = {param.name: governors.get(f"{name}.{param.name}") for param in method.params}
        return method.under(params)

    def show_dependents(self, *values: Any) -> list[Any]:
        """Updates that show each dependent field only while it counts under the governors' values."""
        governors = dict(zip(self.governors(), values, strict=True))
        needs = self.dependents().values()
        return [gr.update(visible=governors[name] in allowed) for name, allowed in needs]

    def dependents(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The fields that count only under some values of another field: that field (the governor), and the values."""
        dependents = {}
        for name, (method, param) in self._params().items():
            if param.needs:
                governor, allowed = param.needs
                dependents[name] = (f"{method.name}.{governor}", allowed)
        return dependents

    def fill(self, request: Request, offer: Offer) -> list[Any]:
        """Updates that put a request into the fields. The pace and other methods' parameters stay as they are. Raises
        SpecvizError if the request cannot be run here."""
        method = find_method(request.method)
        refuse_unoffered(offer, replace(request, rule=request.rule or method.default_rule))
        return self.show(request, offer)

    def show(self, request: Request, offer: Offer) -> list[Any]:
        """Updates as `fill` makes them, for a run that stands on the stage, even where it cannot be run here."""
        method = find_method(request.method)
        rule = request.rule or method.default_rule
        request = replace(request, rule=rule, params=method.validate(request.params))
        params = {f"{method.name}.{name}": value for name, value in request.params.items()}
        values = params | request.to_dict() | spelled(request)
        return self._updates(request, values, offer)

    def restore(self, saved: Any, offer: Offer) -> list[Any]:
        """Updates that put back what a browser remembers of the fields. Raises SpecvizError if it cannot be used."""
        if not isinstance(saved, dict) or set(saved) != set(self.names):
            raise SpecvizError("the fields have changed since they were saved")
        request, pace = self.request([saved[name] for name in self.names])
        refuse_unoffered(offer, request)
        has_params = (
            offer.allows_params(method, params_of(method, saved)) for method in METHODS.values()
        )
        if pace not in PACES or not all(has_params):
            raise SpecvizError("what was saved is no longer on offer")
        return self._updates(request, saved, offer)

    def _updates(self, request: Request, values: Mapping[str, Any], offer: Offer) -> list[Any]:
        """Updates that set all fields to these values. A list has what is chosen in it, and a slider reaches its
        value."""
        method = METHODS[request.method].under(request.params)
        targets = as_options(name for _, name in offer.targets)
        updates = {
            "target": update_list(targets, request.target, value=request.target),
            "draft": update_drafts(offer, request.target, method, request.draft),
            "rule": update_rules(method, request.rule),
        }
        for name, param in self.model_params().items():
            if name in values:
                updates[name] = update_models(param, request.target, values[name])
        for name in self.ranges:
            if name in values:
                updates[name] = self._update_slider(name, values[name])
        all_values = {**values, **updates}
        return [all_values.get(name, gr.skip()) for name in self.names]

    def _update_slider(self, name: str, value: float) -> Any:
        low, high = self.ranges[name]
        return gr.update(
            value=value,
            minimum=min(low, value),
            maximum=max(high, value),
        )


def refuse_unoffered(offer: Offer, request: Request) -> None:
    """Raises SpecvizError if the models or the rule of a request cannot be chosen on this page."""
    method = METHODS[request.method].under(request.params)
    for name in (request.target, request.draft):
        if name is not None and not offer.allows(name):
            raise SpecvizError(f"the model {name!r:.100} is not on offer here")
    if request.rule not in method.rules:
        known = ", ".join(method.rules)
        raise SpecvizError(
            f"rule must be one of {known} for {method.title} (got {request.rule!r:.100})"
        )
    if not offer.allows_params(method, request.params):
        raise SpecvizError(f"a model that {method.title} needs is not on offer here")


def params_of(method: Method, fields: Mapping[str, Any]) -> dict[str, Value]:
    """The method's own parameters among the values of all fields. Nothing of them is checked."""
    return {param.name: as_value(fields[f"{method.name}.{param.name}"]) for param in method.params}


@dataclass(frozen=True, slots=True)
class Frame:
    """The parts of the page that a panel beside the stage may use."""

    registry: Registry
    offer: Offer
    form: Form
    stage: gr.HTML
    """The output of every event that puts another run on the stage, as a message of the run's view."""
    fill: Callable[[Any, Callable[..., Any]], Any]
    """`fill(event, callback)` wires an event to a callback that gives one update per field, and all that follows."""
