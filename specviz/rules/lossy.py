"""Lossy rules that differ from speculative sampling by a threshold: lenience, the ensemble, graded drafts."""

import torch
from torch import Tensor

from specviz.decoding.draft import Draft
from specviz.rules.chain import is_plain_chain, widen
from specviz.rules.facts import FACTS
from specviz.rules.speculative_sampling import SpeculativeSampling


class Lenience(SpeculativeSampling):
    """Accepts x with probability min(1, p/(l q)), l = 0.5. Leviathan et al. 2022 (arXiv:2211.17192), appendix A.5.

    specviz's choice: a rejected token is still replaced from norm(max(0, p - q)), so l = 1 is speculative sampling.
    """

    facts = FACTS["lenience"]

    def __init__(self, lenience: float = 0.5) -> None:
        self._lenience = lenience

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return super().threshold(p, q, row) / self._lenience


class Ensemble(SpeculativeSampling):
    """Judges exactly against the mean m = w p + (1 - w) q, w = 0.5.

    It accepts with probability min(1, m/q), else it draws from norm(max(0, m - q)). Where nothing was drafted the
    target writes alone, from p.
    """

    facts = FACTS["ensemble"]

    def __init__(self, weight: float = 0.5) -> None:
        self._weight = weight

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return super().threshold(self._mix(p, q), q, row)

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return super().residual(self._mix(p, q), q)

    def _mix(self, p: Tensor, q: Tensor) -> Tensor:
        return self._weight * p + (1 - self._weight) * q


class Graded(SpeculativeSampling):
    """Accepts every token of a draft that was graded well enough, then adds one of the target's own.

    The drafter has had it graded; this rule judges no other draft. Pan et al. 2025 (arXiv:2504.07891).
    """

    facts = FACTS["graded"]

    def supports(self, draft: Draft) -> bool:
        return is_plain_chain(draft) and (not len(draft) or draft.evidence.get("verdict") == "kept")

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        return torch.ones_like(widen(p))
