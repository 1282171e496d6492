"""Ensemble: speculative sampling against a mixture of both models. Lossy: the text follows the mixture."""

from __future__ import annotations

from torch import Tensor

from specviz.rules.chain_rule import ChainRule


class Ensemble(ChainRule):
    """Judges exactly against m = w p + (1 - w) q, w = 0.5: keep with min(1, m/q), else norm(max(0, m - q)).

    Where nothing was drafted the target writes alone, from p.
    """

    name = "ensemble"
    title = "Ensemble"
    summary = "Judges against the average of both models' odds, so the text follows that average and not the target."
    source = "speculative sampling (arXiv:2211.17192) with the average of both models as its target"
    lossless = False

    def __init__(self, weight: float = 0.5) -> None:
        self._weight = weight

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return super().threshold(self._mixed(p, q), q, row)

    def replacement(self, p: Tensor, q: Tensor) -> Tensor:
        return super().replacement(self._mixed(p, q), q)

    def _mixed(self, p: Tensor, q: Tensor) -> Tensor:
        return self._weight * p + (1 - self._weight) * q
