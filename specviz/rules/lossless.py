"""Lossless rules other than speculative sampling: block verification, and sample and match."""

from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.rule import point_mass
from specviz.rules.chain import ChainRows, widen
from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class BlockVerification(SpeculativeSampling):
    """With w_0 = 1 and w_i = min(1, w_{i-1} p(x_i)/q(x_i)), the draft is kept up to the LAST token i with u_i < h_i.

    h_i = Z_i / (Z_i + 1 - w_i) and Z_i = sum max(0, w_i p - q) over the rows after token i; the last token's h is its
    w. What follows token i comes from norm(max(0, w_i p - q)). Sun et al. 2024 (arXiv:2403.10444).
    """

    facts = FACTS["block_verification"]
    judges_alone = False

    def thresholds(self, rows: ChainRows) -> Tensor:
        weights = self._weights(rows)
        inner = weights[1:-1, None]
        shortfall = (inner * rows.p_rows[1:-1] - rows.q_rows[1:]).clamp_min(0).sum(-1)  # [N-1]
        whole = shortfall + 1 - weights[1:-1]
        return torch.cat([torch.where(whole > 0, shortfall / whole, 1.0), weights[-1:]])

    def num_accepted(self, passed: Tensor) -> Tensor:
        places = torch.arange(1, len(passed) + 1, device=passed.device)
        return (passed * places).max()

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        p, q = rows.after(num_accepted)
        distribution = self.residual(self._weights(rows).index_select(0, num_accepted[None]) * p, q)
        return torch.where(
            num_accepted == len(rows), p, (distribution / distribution.sum()).to(p.dtype)
        )

    def distribution_of_num_accepted(self, chances: Tensor) -> Tensor:
        one = torch.ones_like(chances[:1])
        later_fail = (1 - chances).flip(0).cumprod(0).flip(0)  # [N] that u_i and all after it fail
        return torch.cat([later_fail, one]) * torch.cat([one, chances])

    def _weights(self, rows: ChainRows) -> Tensor:
        """w_0 to w_N, in the widest float."""
        ratios = super().thresholds(rows)
        weights = [torch.ones_like(ratios[0])]
        for step in ratios:
            weights.append((weights[-1] * step).clamp_max(1))
        return torch.stack(weights)


class SampleAndMatch(SpeculativeSampling):
    """Draw y ~ p; x is kept if y = x, and y is written anyway. q is not used: SpecInfer's "naive sampling", Miao et al.
    2023 (arXiv:2305.09781).

    Asked in parts, so that it can be given the same u as other rules: x is kept with probability p(x), else y is drawn
    from p without x. Over siblings each is asked in turn: a tree walk in which every node is a point mass.
    """

    facts = FACTS["sample_and_match"]
    judged_as = staticmethod(point_mass)

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return widen(p)

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        certain = torch.zeros_like(rows.q_rows).scatter_(1, rows.ids, 1.0)
        return super().last_distribution(replace(rows, q_rows=certain), num_accepted)

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        """Kept with q(x) p(x); y in the place of any other x with q(x) (1 - p(x)) times p(y) / (1 - p(x))."""
        kept, p, q = self.one_step_accepted(p, q), widen(p), widen(q)
        return kept + p * (q.sum(-1, keepdim=True) - q)
