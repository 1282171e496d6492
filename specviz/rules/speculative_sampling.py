"""Speculative sampling: Leviathan et al. 2022 (arXiv:2211.17192), algorithm 1; Chen et al. 2023 (arXiv:2302.01318),
algorithm 2.

The draft has written x_1 ... x_K, each x_i ~ q_i; one call of the target has given p_1 ... p_K+1. For i = 1 ... K:

    draw u ~ U(0, 1)
    u < p_i(x_i) / q_i(x_i)    accept x_i: it is kept with probability min(1, p/q)
    else                       reject it, write a token drawn from norm(max(0, p_i - q_i)) in its place, and stop

If all were accepted, the same call gives one more token for nothing: the bonus, drawn from p_K+1.

Lossless: a place holds x with probability q min(1, p/q) = min(p, q) as a draft, and max(0, p - q) as a replacement,
because rejections have probability 1 - sum min(p, q), which is the sum that the norm divides by. Together that is p.
"""

import torch
from torch import Tensor

from specviz.rules.chain import widen
from specviz.rules.facts import FACTS
from specviz.rules.tree import TreeRule


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)) over the last axis [..., V]; p itself where nothing is left (p = q up to rounding)."""
    rest = (p - q).clamp_min(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp_min(torch.finfo(rest.dtype).tiny), p)


class SpeculativeSampling(TreeRule):
    """Over siblings of a token tree, p becomes the residual after each rejection: SpecInfer, Miao et al. 2023."""

    facts = FACTS["speculative_sampling"]

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        q = widen(q)
        return widen(p) / q.clamp_min(torch.finfo(q.dtype).tiny)  # finite where q is 0

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return residual(p, q)

    def bonus(self, p: Tensor) -> Tensor:
        return p
