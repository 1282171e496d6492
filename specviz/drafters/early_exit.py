"""Early exit: some of the target's own layers, then its last norm and head, write K tokens ahead.

They use the keys and values that the whole target stored for the text, so nothing is read twice and nothing is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Ahead, Context
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import Choice, IntParam, Value
from specviz.drafters.policy import K_PARAMS, Policy, make_policy
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from torch import Tensor


class EarlyExit(ModelDrafter):
    """Drafts with some of the target's layers. layers: their numbers, from 0 and rising."""

    def __init__(self, parts: Parts, layers: tuple[int, ...], policy: Policy) -> None:
        super().__init__(parts.target.lm.exit(layers), policy)
        self._target = parts.target
        self._is_first = layers == tuple(range(len(layers)))
        self._evidence = {"layers": list(layers), "of": parts.target.lm.num_layers}

    def draft(self, context: Context, k: int) -> Draft:
        if len(self._lm.missing(context.tokens)) > 1:  # the target has not read the text yet
            return EMPTY
        draft = super().draft(context, k)
        if not len(draft):
            return draft
        return replace(draft, evidence={**self._evidence, **draft.evidence})

    waits = True

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        """The drafts at any place of a known text, if the first layers draft: their rows are the target's own.

        None where layers are skipped in between: then a draft depends on where its step began.
        """
        if not self._is_first:
            return None
        first, *rest = tokens.tolist()
        lm = self._target.another().exit(self._evidence["layers"])
        logits = lm.forward([first], chain(rest))  # [T, V]

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            for depth in range(depths):
                places = (starts + depth - 1).clamp_max(len(tokens) - 1)
                yield logits[places], None

        return ahead


def _first_layers(count: int, total: int) -> tuple[int, ...]:
    """The first layers, as LayerSkip leaves the model early."""
    return tuple(range(count))


def _outer_layers(count: int, total: int) -> tuple[int, ...]:
    """The layers at both ends; the middle is skipped."""
    num_last = count // 2
    return (*range(count - num_last), *range(total - num_last, total))


def _spread_layers(count: int, total: int) -> tuple[int, ...]:
    return tuple(index * total // count for index in range(count))


_CHOOSE_LAYERS: Mapping[str, Callable[[int, int], tuple[int, ...]]] = {
    "first": _first_layers,
    "outer": _outer_layers,
    "spread": _spread_layers,
}
"""The ways to choose layers: (how many draft, how many the target has) -> their numbers."""


def _build(parts: Parts, params: Mapping[str, Value]) -> EarlyExit:
    total = parts.target.lm.num_layers
    count = params["layers"]
    if count > total:
        raise SpecvizError(
            f"layers must be at most {total}, as many as {parts.target.name} has (got {count})"
        )
    choose_layers = _CHOOSE_LAYERS[params["which"]]
    layers = choose_layers(count or max(1, total // 3), total)
    return EarlyExit(parts, layers, make_policy(params))


METHOD = Method(
    name="early_exit",
    title="Early exit",
    summary="The target drafts for itself with some of its layers; all of them check the draft in one pass.",
    caution="Needs no second model. Pays where the first layers already agree with the whole model, which most models "
    "were not trained for. It is never nearly free: every drafted token scores the target's full vocabulary.",
    source="LayerSkip: Elhoushi et al., arXiv:2404.16710; Draft & Verify: Zhang et al., arXiv:2309.08168",
    params=(
        IntParam(
            "layers",
            "layers that draft",
            0,
            "How many of the target's layers draft (0: a third of them).",
            0,
            512,
        ),
        Choice(
            "which",
            "which layers",
            "first",
            "A model that was not trained for early exit may do better when middle layers are skipped.",
            {
                "first": "the first ones",
                "outer": "both ends, none in the middle",
                "spread": "evenly spaced",
            },
        ),
        *K_PARAMS,
    ),
    build=_build,
    is_common=True,
    proposer="The target's own first layers write ",
    why_no_what_if="what the first layers would have drafted elsewhere in this text was not recorded",
    reads_ahead=True,
)
