"""What a run of the engine inside a draft needs: draws of its own, and the draft model as wide as the outer target."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.draws import ACCEPT, DRAFT, FINAL, Draws
from specviz.decoding.sampling import fit


class InnerDraws(Draws):
    """The draws of a run inside a draft: each has an address of its own among the DRAFT draws at the step's start.

    So no two of them share one, whatever the depth, nor does a run that a later step starts at the same place.
    """

    def __init__(self, outer: Draws, start: int) -> None:
        self._outer, self._start = outer, start

    def uniform(self, role: str, position: int, node: int) -> float:
        return self._outer.uniform(*self._address(role, position, node))

    def below(self, threshold: Tensor, role: str, position: int, node: int) -> tuple[Tensor, Tensor]:
        if threshold.ndim == 0:
            return self._outer.below(threshold, *self._address(role, position, node))
        pairs = [self.below(one, role, position + i, node + i) for i, one in enumerate(threshold)]
        return torch.stack([u for u, _ in pairs]), torch.stack([passed for _, passed in pairs])

    def sample(self, probs: Tensor, role: str, position: int, node: int) -> Tensor:
        if probs.ndim == 1:
            return self._outer.sample(probs, *self._address(role, position, node))
        return torch.stack([self.sample(row, role, position + i, node + i) for i, row in enumerate(probs)])

    def _address(self, role: str, position: int, node: int) -> tuple[str, int, int]:
        """(role, offset, node) as one number beyond the nodes of other drafts; three stages stay below 64 bits."""
        offset = position - self._start
        assert 0 <= offset < 1024, "a draft is far shorter"
        return DRAFT, self._start, ((node + 2) * 1024 + offset) * 3 + (DRAFT, ACCEPT, FINAL).index(role)


class Within:
    """The draft model as a target, without the ids that the outer one lacks."""

    def __init__(self, lm: CachedLM, vocab_size: int) -> None:
        self._lm = lm
        self.vocab_size = min(lm.vocab_size, vocab_size)

    def __getattr__(self, name: str) -> object:
        return getattr(self._lm, name)

    def forward(self, tokens: Sequence[int], draft: Draft = EMPTY) -> Tensor:
        return fit(self._lm.forward(tokens, draft), self.vocab_size)


def wide(probs: Tensor, vocab_size: int) -> Tensor:
    """Rows [..., V] with zeros for the ids that a smaller vocabulary lacks."""
    return torch.nn.functional.pad(probs, (0, vocab_size - probs.shape[-1]))
