"""Multi-token prediction: a model's own extra modules write further tokens, each from the one before it
(DeepSeek-V3, arXiv:2412.19437, section 2.2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Ahead, Context
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import Value
from specviz.drafters.policy import K_PARAMS, make_policy

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.drafters.mtp.modules import Modules


class MtpDrafter(ModelDrafter):
    """Drafts with modules that read the target's states."""

    hidden_layers = (-1,)
    _lm: Modules

    def draft(self, context: Context, k: int) -> Draft:
        if context.states is None:
            return EMPTY
        self._lm.see(context.states)
        draft = super().draft(context, min(k, self._lm.depth))
        if not len(draft):
            return draft
        return replace(draft, evidence={**draft.evidence, "modules": self._lm.depth})

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        states_by_module = self._lm.along(tokens, states)

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            for rows in states_by_module[:depths]:
                places = (starts - 2).clamp_max(len(rows) - 1)
                yield self._lm.logits(rows[places]), None

        return ahead


def _build(parts: Parts, params: Mapping[str, Value]) -> MtpDrafter:
    from specviz.drafters.mtp.modules import Modules, modules_of  # loads torch

    lm = parts.target.lm
    modules = Modules(modules_of(parts.target), lm.vocab_size, lm.context_limit)
    return MtpDrafter(modules, make_policy(params))


METHOD = Method(
    name="mtp",
    title="Multi-token prediction",
    summary="The target's own extra modules write the next tokens, one module per token.",
    caution="Only for models that were trained with such modules. Each costs about as much as one layer of the target, "
    "and K is at most their number.",
    source="DeepSeek-AI, arXiv:2412.19437",
    params=K_PARAMS,
    build=_build,
    target_has=("num_mtp_layers", "modules for multi-token prediction"),
    proposer="The target's own modules for later tokens write ",
    why_no_what_if="a multi-token module's draft depends on where its step begins",
    reads_ahead=True,
)
