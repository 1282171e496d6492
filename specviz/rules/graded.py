"""Graded: whole reasoning steps that the target found good enough are kept as they stand. Lossy by design."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.decoding.draft import Draft
from specviz.rules.chain import is_plain_chain, widen
from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class Graded(SpeculativeSampling):
    """Keeps every token of a draft that was graded before it was handed over, and of no other draft; then the target
    adds one of its own. Pan et al. 2025.
    """

    facts = FACTS["graded"]

    def supports(self, draft: Draft) -> bool:
        return is_plain_chain(draft) and (not len(draft) or draft.evidence.get("verdict") == "kept")

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return torch.ones_like(widen(p))
