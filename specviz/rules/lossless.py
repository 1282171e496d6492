"""Lossless rules other than speculative sampling: block verification, and sample and match."""

from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.rule import point_mass
from specviz.rules.chain import ChainRows, widen
from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class BlockVerification(SpeculativeSampling):
    """Accepts the draft up to the LAST token i with u_i < h_i. Sun et al. 2024 (arXiv:2403.10444).

    The weights are w_0 = 1 and w_i = min(1, w_{i-1} p(x_i)/q(x_i)). The shortfall behind token i is
    Z_i = sum max(0, w_i p - q). Then h_i = Z_i / (Z_i + 1 - w_i), and the last token's h is its w.
    The token behind token i is drawn from norm(max(0, w_i p - q)).
    """

    facts = FACTS["block_verification"]
    judges_alone = False

    def thresholds(self, rows: ChainRows) -> Tensor:
        weights = self._weights(rows)  # [1+N]
        inner = weights[1:-1]  # [N-1]
        weighted_p = inner[:, None] * rows.p_rows[1:-1]
        shortfall = (weighted_p - rows.q_rows[1:]).clamp_min(0).sum(-1)  # [N-1]
        whole = shortfall + 1 - inner
        h = torch.where(whole > 0, shortfall / whole, 1.0)
        return torch.cat([h, weights[-1:]])

    def num_accepted(self, passed: Tensor) -> Tensor:
        places = torch.arange(1, len(passed) + 1, device=passed.device)
        return (passed * places).max()

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        p, q = rows.after(num_accepted)
        weight = self._weights(rows).index_select(0, num_accepted[None])
        residual = self.residual(weight * p, q)
        residual = (residual / residual.sum()).to(p.dtype)
        return torch.where(num_accepted == len(rows), p, residual)

    def distribution_of_num_accepted(self, chances: Tensor) -> Tensor:
        one = torch.ones_like(chances[:1])
        all_fail = (1 - chances).flip(0).cumprod(0).flip(0)  # [N] token i and all behind it
        return torch.cat([all_fail, one]) * torch.cat([one, chances])

    def _weights(self, rows: ChainRows) -> Tensor:
        """The weights w_0 to w_N [1+N], in the widest float."""
        ratios = super().thresholds(rows)
        weights = [torch.ones_like(ratios[0])]
        for ratio in ratios:
            weights.append((weights[-1] * ratio).clamp_max(1))
        return torch.stack(weights)


class SampleAndMatch(SpeculativeSampling):
    """Draws y ~ p, accepts x if y = x, and writes y anyway; q is not used.

    To share its u with other rules it asks in two parts. x is accepted with probability p(x); else y is drawn from p
    without x. Siblings are asked in turn: a tree walk in which every node is a point mass.
    SpecInfer's "naive sampling", Miao et al. 2023 (arXiv:2305.09781).
    """

    facts = FACTS["sample_and_match"]
    judged_as = staticmethod(point_mass)

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return widen(p)

    def last_distribution(self, rows: ChainRows, num_accepted: Tensor) -> Tensor:
        point_masses = torch.zeros_like(rows.q_rows).scatter_(1, rows.ids, 1.0)
        return super().last_distribution(replace(rows, q_rows=point_masses), num_accepted)

    def one_step_distribution(self, p: Tensor, q: Tensor) -> Tensor:
        """The distribution [..., V] of the first token.

        x is drafted and accepted with q(x) p(x). y replaces another x with q(x) (1 - p(x)) times p(y) / (1 - p(x)).
        """
        accepted = self.one_step_accepted(p, q)
        p = widen(p)
        q = widen(q)
        drafted_other = q.sum(-1, keepdim=True) - q
        return accepted + p * drafted_other
