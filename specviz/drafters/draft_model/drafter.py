"""ModelDrafter: a language model that writes K tokens, one by one, each drawn from its own q."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import exact_dtype, to_host
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.draws import DRAFT
from specviz.decoding.rule import Verdict
from specviz.decoding.sampling import DRAFT_MODEL, fit, refuse_nan
from specviz.drafters.method import Parts
from specviz.drafters.params import Value
from specviz.drafters.policy import Constant, Policy, make_policy


class ModelDrafter(Drafter):
    """Ids stay on the device while drafting and come to the host in one transfer at the end, unless the policy looks
    at every token."""

    def __init__(self, lm: CachedLM, policy: Policy | None = None) -> None:
        self._lm = lm
        self._policy = policy or Constant()

    @property
    def work(self) -> Work:
        return Work(self._lm.calls, self._lm.fed)

    def draft(self, context: Context, k: int) -> Draft:
        k = self._policy.most(min(k, self._lm.context_limit - len(context.tokens) + 1), context.tokens)
        if k < 1 or any(token >= self._lm.vocab_size for token in self._lm.missing(context.tokens)):
            return EMPTY
        position = len(context.tokens)
        logits = self._lm.forward(context.tokens)[0]
        tokens, rows, probs = [], [], []
        for node in range(k):
            rows.append(fit(logits, context.vocab_size))
            probs.append(context.sampling.probs(rows[-1]))
            tokens.append(context.draws.sample(probs[-1], DRAFT, position + node, node))
            if node == k - 1 or self._policy.stops(rows[-1], tokens[-1]):
                break
            logits = self._lm.extend(tokens[-1])
        wide = exact_dtype(probs[0].device)
        sums = [row.sum(dtype=wide) for row in probs]
        ids, sums = to_host(torch.stack([torch.stack(tokens).to(wide), torch.stack(sums)])).tolist()
        refuse_nan(sums, DRAFT_MODEL)
        ids = [int(token) for token in ids]
        self._lm.settle(ids)
        return chain(ids, probs, rows, self._policy.evidence(k))

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        self._policy.observe(draft, verdict)


def build(parts: Parts, params: Mapping[str, Value]) -> ModelDrafter:
    return ModelDrafter(parts.draft.lm, make_policy(params))
