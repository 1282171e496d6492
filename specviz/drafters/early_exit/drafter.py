"""Early exit: some of the target's own layers, and then its own last norm and head, write K tokens ahead.

They read behind the rows that the whole target left of the text, so nothing is read twice and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context
from specviz.drafters.draft_model.drafter import ModelDrafter
from specviz.drafters.method import Parts
from specviz.drafters.params import Value
from specviz.drafters.policy import Policy, make_policy
from specviz.errors import SpecvizError


class EarlyExit(ModelDrafter):
    """layers: the numbers of the layers that draft, from 0 and rising; of: how many the target has."""

    def __init__(self, parts: Parts, layers: tuple[int, ...], policy: Policy) -> None:
        super().__init__(parts.target.lm.exit(layers), policy)
        self._evidence = {"layers": list(layers), "of": parts.target.lm.num_layers}

    def draft(self, context: Context, k: int) -> Draft:
        if len(self._lm.missing(context.tokens)) > 1:  # the target has not read the text yet
            return EMPTY
        draft = super().draft(context, k)
        return replace(draft, evidence={**self._evidence, **draft.evidence}) if len(draft) else draft


def first(count: int, of: int) -> tuple[int, ...]:
    """The first `count` layers, as LayerSkip leaves the model early."""
    return tuple(range(count))


def outer(count: int, of: int) -> tuple[int, ...]:
    """Those at both ends: the middle is skipped."""
    front = (count + 1) // 2
    return (*range(front), *range(of - count + front, of))


def spread(count: int, of: int) -> tuple[int, ...]:
    """Evenly spaced ones, the first among them."""
    return tuple(index * of // count for index in range(count))


_WAYS: Mapping[str, Callable[[int, int], tuple[int, ...]]] = {"first": first, "outer": outer, "spread": spread}


def build(parts: Parts, params: Mapping[str, Value]) -> EarlyExit:
    of, count = parts.target.lm.num_layers, params["layers"]
    if count > of:
        raise SpecvizError(f"layers must be at most {of}, as many as {parts.target.name} has (got {count})")
    return EarlyExit(parts, _WAYS[params["which"]](count or max(1, of // 3), of), make_policy(params))
