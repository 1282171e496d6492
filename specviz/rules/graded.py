"""Graded: whole reasoning steps that the target found good enough are kept as they stand. Lossy by design."""

from __future__ import annotations

import torch
from torch import Tensor

from specviz.decoding.draft import Draft
from specviz.rules.chain_rule import ChainRule, exact, is_plain_chain


class Graded(ChainRule):
    """Keeps every token of a draft that was graded before it was handed over, and of no other draft; then the target
    adds one of its own. Pan et al. 2025.
    """

    name = "graded"
    title = "Graded reasoning steps"
    summary = "Keeps a whole reasoning step that the target graded well enough, word for word as the draft wrote it."
    source = "SpecReason: Pan et al., arXiv:2504.07891"
    lossless = False

    def supports(self, draft: Draft) -> bool:
        return is_plain_chain(draft) and (not len(draft) or draft.evidence.get("verdict") == "kept")

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return torch.ones_like(exact(p))
