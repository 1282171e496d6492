"""The fields of the page: from their values to a request, from what a browser remembers back to them, and their lists.

A value may come from anyone who reaches the server: nothing of it has been checked before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import gradio as gr
from gradio.components import Component

from specviz.drafters import METHODS, find_method
from specviz.drafters.method import Method
from specviz.drafters.params import ModelParam, Value, split_names
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.session.controls import PACES
from specviz.ui.choices import Offer, as_listed, as_value, model_choices, rule_choices
from specviz.ui.components import choice_of


def text_or_none(value: Any) -> str | None:
    """A field's value, from a browser that nobody has checked, as a name."""
    return value if isinstance(value, str) and value else None


def draft_list(offer: Offer, target: str, method: Method, draft: str | None, **more: Any) -> Any:
    """The list of draft models for a target and a method, with one of them chosen."""
    return choice_of(offer.drafts_for(target, method), draft, value=draft, **more)


def rule_list(method: Method, rule: str) -> Any:
    """The list of rules that can judge the method's drafts; hidden where there is nothing to choose."""
    has_choice = len(method.rules) > 1 and method.drafts
    return gr.update(choices=list(rule_choices(method)), value=rule, visible=has_choice)


def model_list(param: ModelParam, target: str, value: Any) -> Any:
    """The list of a parameter that names models, with `value` chosen: a name, or a list of them."""
    names = split_names(as_value(value) or "")
    return choice_of(model_choices(param, target), *names, value=names if param.most > 1 else next(iter(names), None))


@dataclass(frozen=True, slots=True)
class Form:
    """The names of the fields in the order in which their values arrive; "method.param" for a method's own.

    ranges: from where to where the sliders among them go at first.
    """

    names: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, fields: Mapping[str, Component]) -> Form:
        """That of these fields."""
        sliders = {name: part for name, part in fields.items() if isinstance(part, gr.Slider)}
        return cls(tuple(fields), {name: (part.minimum, part.maximum) for name, part in sliders.items()})

    def request(self, values: Sequence[Any]) -> tuple[Request, str]:
        """The checked request and the pace. Raises SpecvizError."""
        given = dict(zip(self.names, values, strict=True))
        pace = given.pop("pace")
        own = {name: value for name, value in given.items() if "." not in name}
        method = find_method(own["method"])
        return Request.from_dict({**own, "params": params_of(method, given)}), pace

    def models(self) -> dict[str, ModelParam]:
        """The fields whose values are names of further models, with what may stand there."""
        params = {f"{name}.{param.name}": param for name, method in METHODS.items() for param in method.params}
        return {name: params[name] for name in self.names if isinstance(params.get(name), ModelParam)}

    def governing(self) -> list[str]:
        """The fields that other fields count by, each once."""
        return list(dict.fromkeys(governor for governor, _ in self._dependent().values()))

    def dependent(self) -> list[str]:
        """The fields that count under some values of others only."""
        return list(self._dependent())

    def shown(self, values: Sequence[Any]) -> list[Any]:
        """Updates of the dependent fields from the values of the governing ones: only those that count are shown."""
        given = dict(zip(self.governing(), values, strict=True))
        return [gr.update(visible=given[name] in allowed) for name, allowed in self._dependent().values()]

    def _dependent(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Field -> the field that it counts by, and the values of that one under which it does."""
        return {
            f"{method.name}.{param.name}": (f"{method.name}.{param.needs[0]}", param.needs[1])
            for method in METHODS.values()
            for param in method.params
            if param.needs is not None and f"{method.name}.{param.name}" in self.names
        }

    def showing(self, request: Request, offer: Offer) -> list[Any]:
        """Updates that put a request into the fields; the pace and other methods' parameters stay as they are.

        Raises SpecvizError if it cannot be run here.
        """
        method = find_method(request.method)
        request = replace(request, rule=request.rule or method.default_rule, params=method.checked(request.params))
        refuse_unoffered(offer, request)
        given = {f"{method.name}.{name}": value for name, value in request.params.items()}
        given |= request.to_dict()
        return self._updates(request, given, offer)

    def remembered(self, given: Any, offer: Offer) -> list[Any]:
        """Updates that put back what a browser remembers of the fields. Raises SpecvizError if it cannot be used."""
        if not isinstance(given, dict) or set(given) != set(self.names):
            raise SpecvizError("the fields have changed since they were remembered")
        request, pace = self.request([given[name] for name in self.names])
        if pace not in PACES or not is_offered(offer, request, given):
            raise SpecvizError("what is remembered is not on offer any more")
        return self._updates(request, given, offer)

    def _updates(self, request: Request, given: Mapping[str, Any], offer: Offer) -> list[Any]:
        """One per field, to the value given; a list has what is chosen in it, and a slider goes as far as it must."""
        own = {name: param for name, param in self.models().items() if name in given}
        made = {name: model_list(param, request.target, given[name]) for name, param in own.items()}
        made |= fitting_lists(offer, request)
        made |= {name: self._reaching(name, given[name]) for name in self.ranges if name in given}
        return [made.get(name, given.get(name, gr.skip())) for name in self.names]

    def _reaching(self, name: str, value: float) -> Any:
        """An update of a slider to exactly this value: it goes as far as it must, and else as at first."""
        low, high = self.ranges[name]
        return gr.update(value=value, minimum=min(low, value), maximum=max(high, value))


def fitting_lists(offer: Offer, request: Request) -> dict[str, Any]:
    """The lists of models and rules, with what the request has chosen in them."""
    method = METHODS[request.method]
    drafts = draft_list(offer, request.target, method, request.draft)
    targets = choice_of(as_listed(name for _, name in offer.targets), request.target, value=request.target)
    return {"target": targets, "draft": drafts, "rule": rule_list(method, request.rule)}


def refuse_unoffered(offer: Offer, request: Request) -> None:
    """Raises SpecvizError if models or rule of a request cannot be chosen on this page."""
    method = METHODS[request.method]
    models = [name for name in (request.target, request.draft) if name is not None]
    if absent := [name for name in models if not offer.allows(name)]:
        raise SpecvizError(f"the model {absent[0]!r:.100} is not on offer here")
    if request.rule not in method.rules:
        known = ", ".join(method.rules)
        raise SpecvizError(f"rule must be one of {known} for {method.title} (got {request.rule!r:.100})")
    if not offer.allows_params(method, request.params):
        raise SpecvizError(f"a model that {method.title} needs is not on offer here")


def params_of(method: Method, given: Mapping[str, Any]) -> dict[str, Value]:
    """The method's own parameters from all fields, as they were given."""
    return {param.name: as_value(given[f"{method.name}.{param.name}"]) for param in method.params}


def is_offered(offer: Offer, request: Request, given: Mapping[str, Any]) -> bool:
    """Whether models, rule and the parameters of all methods can be chosen here. SpecvizError: a value out of range."""
    models = [name for name in (request.target, request.draft) if name is not None]
    fits = request.rule in METHODS[request.method].rules and all(map(offer.allows, models))
    return fits and all(offer.allows_params(method, params_of(method, given)) for method in METHODS.values())
