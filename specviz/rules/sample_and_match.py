"""Sample and match: the target writes a token of its own, and a drafted one is kept if it is the same."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.rule import point_mass
from specviz.rules.chain import Rows, widen
from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class SampleAndMatch(SpeculativeSampling):
    """Draw y ~ p; x is kept if y = x, and y is written anyway. q is not used.

    Asked in parts, so that it can be given the same u as other rules: x is kept with probability p(x), else y is drawn
    from p without x. Over siblings each is asked in turn: a tree walk in which every node is a point mass.
    """

    facts = FACTS["sample_and_match"]
    judged_as = staticmethod(point_mass)

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return widen(p)

    def last_law(self, rows: Rows, num_kept: Tensor) -> Tensor:
        certain = torch.zeros_like(rows.q_rows).scatter_(1, rows.ids, 1.0)
        return super().last_law(replace(rows, q_rows=certain), num_kept)

    def one_step_law(self, p: Tensor, q: Tensor) -> Tensor:
        """Kept with q(x) p(x); y in the place of any other x with q(x) (1 - p(x)) times p(y) / (1 - p(x))."""
        kept, p, q = self.one_step_kept(p, q), widen(p), widen(q)
        return kept + p * (q.sum(-1, keepdim=True) - q)
