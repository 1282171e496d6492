"""Medusa's typical acceptance: a drafted token is kept if the target finds it likely enough. Lossy."""

from __future__ import annotations

import torch
from torch import Tensor

from .chain_rule import ChainRule, exact, favourite


class Typical(ChainRule):
    """Keep x iff p(x) > min(eps, delta exp(-H(p))), H the entropy in nats; delta = sqrt(eps).

    The target's own token, behind the kept ones or alone, is its favourite. Cai et al. 2024, section 2.3.1.
    """

    name = "typical"
    title = "Typical acceptance"
    source = "Medusa: Cai et al., arXiv:2401.10774, section 2.3.1"
    summary = "Keeps every drafted token that the target finds likely enough; the target's own token is its favourite."
    lossless = False

    def __init__(self, eps: float = 0.09) -> None:
        self._eps = eps

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        entropy = torch.special.entr(exact(row)).sum(-1, keepdim=True)
        return exact(exact(p) > (self._eps**0.5 * (-entropy).exp()).clamp_max(self._eps))

    def replacement(self, p: Tensor, q: Tensor) -> Tensor:
        return favourite(p)

    def unaided(self, p: Tensor) -> Tensor:
        return favourite(p)
