"""Lenience: speculative sampling that forgives the draft part of what it overstates. Lossy."""

from __future__ import annotations

from torch import Tensor

from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class Lenience(SpeculativeSampling):
    """Keep x with probability min(1, p/(l q)), l = 0.5.

    A choice made here: what replaces a token that fails stays norm(max(0, p - q)), so that l = 1 is speculative
    sampling. Leviathan et al. 2022, appendix A.5.
    """

    facts = FACTS["lenience"]

    def __init__(self, lenience: float = 0.5) -> None:
        self._lenience = lenience

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return super().threshold(p, q, row) / self._lenience
