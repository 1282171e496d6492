"""Multi-token prediction: modules that a model brings along write further tokens, each from the one before it
(DeepSeek-V3, arXiv:2412.19437, section 2.2). The modules and their loading: mtp_modules.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context, Drafter
from specviz.drafters.draft_model.drafter import ModelDrafter
from specviz.drafters.method import Parts
from specviz.drafters.mtp.modules import Modules, modules_of
from specviz.drafters.params import Value
from specviz.drafters.policy import Policy, make_policy


class MtpDrafter(ModelDrafter):
    """A draft model that reads the target's states."""

    hidden_layers = (-1,)

    def __init__(self, modules: Modules, policy: Policy | None = None) -> None:
        super().__init__(modules, policy)
        self._modules = modules

    def draft(self, context: Context, k: int) -> Draft:
        hidden = context.hidden
        if hidden is None or not 0 < len(context.tokens) - 1 == len(hidden):
            return EMPTY
        self._modules.see(hidden)
        draft = super().draft(context, min(k, self._modules.depth))
        if not len(draft):
            return EMPTY
        return replace(draft, evidence={**draft.evidence, "modules": self._modules.depth})


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    lm = parts.target.lm
    return MtpDrafter(Modules(modules_of(parts.target), lm.vocab_size, lm.context_limit), make_policy(params))
