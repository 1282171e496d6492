"""Ensemble: speculative sampling against a mixture of both models. Lossy: the text follows the mixture."""

from __future__ import annotations

from torch import Tensor

from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class Ensemble(SpeculativeSampling):
    """Judges exactly against m = w p + (1 - w) q, w = 0.5: keep with min(1, m/q), else norm(max(0, m - q)).

    Where nothing was drafted the target writes alone, from p.
    """

    facts = FACTS["ensemble"]

    def __init__(self, weight: float = 0.5) -> None:
        self._weight = weight

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return super().threshold(self._mixed(p, q), q, row)

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return super().residual(self._mixed(p, q), q)

    def _mixed(self, p: Tensor, q: Tensor) -> Tensor:
        return self._weight * p + (1 - self._weight) * q
