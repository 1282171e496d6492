"""Sample and match: the target writes a token of its own, and a drafted one is kept if it is the same."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.rule import point_mass
from specviz.rules.chain_rule import Rows, exact
from specviz.rules.tree_walk import TreeRule


class SampleAndMatch(TreeRule):
    """Draw y ~ p; x is kept if y = x, and y is written anyway. q is not used.

    Asked in parts, so that it can be given the same u as other rules: x is kept with probability p(x), else y is drawn
    from p without x. Over siblings each is asked in turn: a tree walk in which every node is a point mass.
    """

    name = "sample_and_match"
    title = "Sample and match"
    summary = "Keeps a drafted token if it is the one that the target itself draws; how it was drafted plays no part."
    source = "the “naive sampling” of SpecInfer: Miao et al., arXiv:2305.09781"
    lossless = True
    judged_as = staticmethod(point_mass)

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return exact(p)

    def last_law(self, rows: Rows, num_kept: Tensor) -> Tensor:
        certain = torch.zeros_like(rows.q_rows).scatter_(1, rows.ids, 1.0)
        return super().last_law(replace(rows, q_rows=certain), num_kept)

    def one_step_law(self, p: Tensor, q: Tensor) -> Tensor:
        """Kept with q(x) p(x); y in the place of any other x with q(x) (1 - p(x)) times p(y) / (1 - p(x))."""
        kept, p, q = self.one_step_kept(p, q), exact(p), exact(q)
        return kept + p * (q.sum(-1, keepdim=True) - q)
