"""ModelDrafter: a smaller language model writes K tokens ahead, each drawn from its own distribution q."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.decoding.draft import Draft, chain
from specviz.decoding.drafter import Context, limit_depth, no_draft
from specviz.drafters.method import Method
from specviz.drafters.policy import K_PARAMS, ChainDrafter, make_policy

if TYPE_CHECKING:
    from torch import Tensor


class ModelDrafter(ChainDrafter):
    """Writes a chain with a draft model.

    Ids come to the host in one transfer at the end, unless the policy looks at each token.
    """

    def draft(self, context: Context, k: int) -> Draft:
        from specviz.decoding.device import argmax, exact_dtype
        from specviz.decoding.draws import DRAFT
        from specviz.decoding.sampling import fit

        k = self._policy.most(limit_depth(self._lm, context.tokens, k), context.tokens)
        if k < 1:
            return no_draft(self._lm, context.tokens)
        rows: list[Tensor] = []
        probs: list[Tensor] = []

        def sample(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            node = len(rows)
            row = fit(logits, context.vocab_size)
            q = context.sampling.probs(row)
            rows.append(row)
            probs.append(q)
            if context.sampling.temperature == 0:  # one token has all of q, whatever u is
                token = argmax(q)
            else:
                token = context.draws.sample(q, DRAFT, len(context.tokens) + node, node)
            return row, token, q.sum(dtype=exact_dtype(q.device))

        ids = self._write(context.tokens, k, sample)
        return chain(ids, probs, rows, self._policy.evidence(k))


METHOD = Method(
    name="draft_model",
    title="Draft model",
    summary="A draft model writes K tokens ahead; the target checks them in one pass.",
    caution="Pays where the draft model often agrees with the target and its calls cost far less time. Otherwise it is "
    "slower than no draft.",
    source="Leviathan et al., arXiv:2211.17192; Chen et al., arXiv:2302.01318",
    roles=("draft",),
    params=K_PARAMS,
    build=lambda parts, params: ModelDrafter(parts.draft.lm, make_policy(params)),
    is_common=True,
    proposer="A small draft model writes ",
    is_plain=True,
    needs_only_probabilities=True,
)
