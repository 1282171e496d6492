"""The fields of the page: from their values to a request and back, their lists, and what panels may use of the page.

A value may come from anyone who reaches the server: nothing of it has been checked before.
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
    """The list of draft models for a target and a method, with one of them chosen."""
    return update_list(offer.drafts_for(target, method), draft, value=draft, **more)


def update_rules(method: Method, rule: str) -> Any:
    """The list of rules that can judge the method's drafts; hidden where there is nothing to choose."""
    return gr.update(
        choices=list(list_rules(method)),
        value=rule,
        visible=len(method.rules) > 1 and method.drafts,
    )


def update_models(param: ModelParam, target: str, value: Any) -> Any:
    """The list of a parameter that names models, with `value` chosen: a name, or a list of them."""
    names = split_names(as_value(value) or "")
    return update_list(
        list_models(param, target),
        *names,
        value=names if param.most > 1 else next(iter(names), None),
    )


@dataclass(frozen=True, slots=True)
class Form:
    """The names of the fields in the order in which their values arrive; "method.param" for a method's own.

    ranges: the first limits of the sliders among them.
    """

    names: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, fields: Mapping[str, Component]) -> Form:
        sliders = {name: part for name, part in fields.items() if isinstance(part, gr.Slider)}
        return cls(
            tuple(fields), {name: (part.minimum, part.maximum) for name, part in sliders.items()}
        )

    def request(self, values: Sequence[Any]) -> tuple[Request, str]:
        """The checked request and the pace. Raises SpecvizError."""
        given = dict(zip(self.names, values, strict=True))
        pace = given.pop("pace")
        own = {name: value for name, value in given.items() if "." not in name}
        typed = str(own.get("chat_options") or "").splitlines() if own.get("chat") is True else ()
        own["chat_options"] = read_options(typed)
        own["stop"] = read_stops(str(own.get("stop") or "").splitlines())
        own |= {name: number_or_none(own.get(name)) for name in Request.DRAFT_SAMPLING}
        return Request.from_dict(
            {**own, "params": params_of(find_method(own["method"]), given)}
        ), pace

    def _params(self) -> dict[str, tuple[Method, Param]]:
        """The fields of methods' own parameters."""
        every = {
            f"{method.name}.{param.name}": (method, param)
            for method in METHODS.values()
            for param in method.params
        }
        return {name: every[name] for name in self.names if name in every}

    def model_params(self) -> dict[str, ModelParam]:
        """The fields whose values are names of further models, with what may stand there."""
        return {
            name: param
            for name, (_, param) in self._params().items()
            if isinstance(param, ModelParam)
        }

    def governors(self) -> list[str]:
        """The fields on whose values others depend, each once."""
        return list(dict.fromkeys(governor for governor, _ in self.dependents().values()))

    def method(self, name: Any, *values: Any) -> Method:
        """The method of that name under these values of the governors, as far as they are given. SpecvizError."""
        method, given = find_method(name), dict(zip(self.governors(), values, strict=False))
        return method.under(
            {param.name: given.get(f"{name}.{param.name}") for param in method.params}
        )

    def show_dependents(self, *values: Any) -> list[Any]:
        """Updates of the dependents that show those which count under these values of the governors."""
        given = dict(zip(self.governors(), values, strict=True))
        return [
            gr.update(visible=given[name] in allowed)
            for name, allowed in self.dependents().values()
        ]

    def dependents(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """The fields that count only under some values of another: its governor, and those values."""
        needs = {
            name: (method, param.needs)
            for name, (method, param) in self._params().items()
            if param.needs
        }
        return {
            name: (f"{method.name}.{governor}", allowed)
            for name, (method, (governor, allowed)) in needs.items()
        }

    def fill(self, request: Request, offer: Offer) -> list[Any]:
        """Updates that put a request into the fields; the pace and other methods' parameters stay as they are. Raises
        SpecvizError if it cannot be run here."""
        method = find_method(request.method)
        refuse_unoffered(offer, replace(request, rule=request.rule or method.default_rule))
        return self.show(request, offer)

    def show(self, request: Request, offer: Offer) -> list[Any]:
        """As `fill`, for a run that stands on the stage, whether or not it can be made here."""
        method = find_method(request.method)
        request = replace(
            request,
            rule=request.rule or method.default_rule,
            params=method.validate(request.params),
        )
        own = {f"{method.name}.{name}": value for name, value in request.params.items()}
        return self._updates(request, own | request.to_dict() | spelled(request), offer)

    def restore(self, given: Any, offer: Offer) -> list[Any]:
        """Updates that put back what a browser remembers of the fields. Raises SpecvizError if it cannot be used."""
        if not isinstance(given, dict) or set(given) != set(self.names):
            raise SpecvizError("the fields have changed since they were saved")
        request, pace = self.request([given[name] for name in self.names])
        refuse_unoffered(offer, request)
        has_params = (
            offer.allows_params(method, params_of(method, given)) for method in METHODS.values()
        )
        if pace not in PACES or not all(has_params):
            raise SpecvizError("what was saved is no longer on offer")
        return self._updates(request, given, offer)

    def _updates(self, request: Request, given: Mapping[str, Any], offer: Offer) -> list[Any]:
        """One per field, to the value given; a list has what is chosen in it, and a slider goes as far as it must."""
        method, params = METHODS[request.method].under(request.params), self.model_params()
        made = {
            name: update_models(params[name], request.target, given[name])
            for name in params
            if name in given
        }
        targets = as_options(name for _, name in offer.targets)
        made["target"] = update_list(targets, request.target, value=request.target)
        made["draft"] = update_drafts(offer, request.target, method, request.draft)
        made["rule"] = update_rules(method, request.rule)
        for name, (low, high) in self.ranges.items():
            if name in given:
                value = given[name]
                made[name] = gr.update(
                    value=value, minimum=min(low, value), maximum=max(high, value)
                )
        return [made.get(name, given.get(name, gr.skip())) for name in self.names]


def refuse_unoffered(offer: Offer, request: Request) -> None:
    """Raises SpecvizError if models or rule of a request cannot be chosen on this page."""
    method = METHODS[request.method].under(request.params)
    models = [name for name in (request.target, request.draft) if name is not None]
    if absent := [name for name in models if not offer.allows(name)]:
        raise SpecvizError(f"the model {absent[0]!r:.100} is not on offer here")
    if request.rule not in method.rules:
        known = ", ".join(method.rules)
        raise SpecvizError(
            f"rule must be one of {known} for {method.title} (got {request.rule!r:.100})"
        )
    if not offer.allows_params(method, request.params):
        raise SpecvizError(f"a model that {method.title} needs is not on offer here")


def params_of(method: Method, given: Mapping[str, Any]) -> dict[str, Value]:
    """The method's own parameters from all fields, as they were given."""
    return {param.name: as_value(given[f"{method.name}.{param.name}"]) for param in method.params}


@dataclass(frozen=True, slots=True)
class Frame:
    """What a panel beside the stage may use of the page.

    stage: the output of every event that puts another run on it, as the registry's messages. `fill(event, callback)`
    wires an event whose `callback(request, event)` gives one update per field of the form, and all that follows.
    """

    registry: Registry
    offer: Offer
    form: Form
    stage: gr.HTML
    fill: Callable[[Any, Callable[..., Any]], Any]
