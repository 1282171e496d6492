"""Early exit: some of the target's own layers, and then its own last norm and head, write K tokens ahead.

They read behind the rows that the whole target left of the text, so nothing is read twice and nothing is loaded.
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
    """layers: the numbers of the layers that draft, from 0 and rising; of: how many the target has."""

    def __init__(self, parts: Parts, layers: tuple[int, ...], policy: Policy) -> None:
        super().__init__(parts.target.lm.exit(layers), policy)
        self._target, self._is_first = parts.target, layers == tuple(range(len(layers)))
        self._evidence = {"layers": list(layers), "of": parts.target.lm.num_layers}

    def draft(self, context: Context, k: int) -> Draft:
        if len(self._lm.missing(context.tokens)) > 1:  # the target has not read the text yet
            return EMPTY
        draft = super().draft(context, k)
        return (
            replace(draft, evidence={**self._evidence, **draft.evidence}) if len(draft) else draft
        )

    waits = True

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        """Of the first layers, whose rows of the text are the target's own. Where layers are skipped in between, what
        they draft hangs on where the step began."""
        if not self._is_first:
            return None
        first, *rest = tokens.tolist()
        logits = self._target.another().exit(self._evidence["layers"]).forward([first], chain(rest))

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            for depth in range(depths):
                yield logits[(starts + depth - 1).clamp_max(len(tokens) - 1)], None

        return ahead


_WAYS: Mapping[str, Callable[[int, int], tuple[int, ...]]] = {
    "first": lambda count, of: tuple(range(count)),  # as LayerSkip leaves the model early
    "outer": lambda count, of: (
        *range(count - count // 2),
        *range(of - count // 2, of),
    ),  # the middle is skipped
    "spread": lambda count, of: tuple(index * of // count for index in range(count)),
}
"""Name -> which layers draft, from how many they are and how many the target has."""


def _build(parts: Parts, params: Mapping[str, Value]) -> EarlyExit:
    of, count = parts.target.lm.num_layers, params["layers"]
    if count > of:
        raise SpecvizError(
            f"layers must be at most {of}, as many as {parts.target.name} has (got {count})"
        )
    return EarlyExit(
        parts, _WAYS[params["which"]](count or max(1, of // 3), of), make_policy(params)
    )


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
