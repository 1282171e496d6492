"""Shared vocabulary (TLI, Timor et al. 2502.05202, algorithm 4): q on the tokens that both vocabularies have.

The draft's row without all other tokens, under the target's ids, is what is drawn from: so it is q, and any lossless
rule keeps the target's law.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import to_device, to_host
from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Context, no_draft
from specviz.drafters.cross_vocabulary.respelled import Respelled
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.policy import Policy
from specviz.errors import SpecvizError
from specviz.models.tokens import TokenText, shared_ids


class SharedVocabularyDrafter(ModelDrafter):
    """target, draft: the two vocabularies; lm: the draft model."""

    def __init__(
        self, lm: CachedLM, target: TokenText, draft: TokenText, vocab_size: int, policy: Policy
    ) -> None:
        self._shared = SharedLM(lm, shared_ids(target, draft), vocab_size)
        super().__init__(self._shared, policy)
        self._whole, self._respelled, self._target = lm, Respelled(target, draft), target

    def draft(self, context: Context, k: int) -> Draft:
        if not self._respelled.follow(context.tokens) or not self._respelled.ids:
            return EMPTY
        self._shared.read(self._respelled.ids, context.tokens)
        draft = super().draft(context, k)
        if not len(draft):
            return no_draft(self._whole, self._respelled.ids)
        pieces = [self._target.piece(token)[0] for token in draft.tokens]
        own = self._respelled.evidence("shared", pieces, draft.tokens)
        return replace(draft, evidence={**draft.evidence, **own, "shared": self._shared.share()})


class SharedLM:
    """The draft model behind the interface of a CachedLM, reading and writing the target's ids that both have."""

    def __init__(self, lm: CachedLM, pairs: Sequence[tuple[int, int]], vocab_size: int) -> None:
        known = [
            (ours, theirs) for ours, theirs in pairs if ours < vocab_size and theirs < lm.vocab_size
        ]
        if not known:
            raise SpecvizError(
                "the two vocabularies have no token in common; choose another draft model or way"
            )
        self._lm, self._width = lm, vocab_size
        self._draft_ids = dict(known)
        self._ours, self._theirs = (
            to_device(ids, torch.long, lm.device) for ids in zip(*known, strict=True)
        )
        self._to_draft = self._ours.new_zeros(vocab_size).scatter_(0, self._ours, self._theirs)
        self.vocab_size = lm.vocab_size
        self.read((), ())

    def read(self, ids: Sequence[int], tokens: Sequence[int]) -> None:
        """From now on the text `tokens` is read as these ids of the draft's own."""
        self._ids = ids
        self.context_limit = self._lm.context_limit - len(ids) + len(tokens)
        self._shares: list[Tensor] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._lm, name)

    def missing(self, tokens: Sequence[int]) -> Sequence[int]:
        return self._lm.missing(self._ids)

    def forward(self, tokens: Sequence[int]) -> Tensor:
        return self._under_target_ids(self._lm.forward(self._ids))

    def extend(self, token: Tensor) -> Tensor:
        return self._under_target_ids(self._lm.extend(self._to_draft[token]))

    def settle(self, ids: Sequence[int]) -> None:
        self._lm.settle([self._draft_ids[token] for token in ids])

    def share(self) -> float:
        """The mean part of the draft's own rows, unfiltered, that lies on shared tokens; one transfer."""
        return float(to_host(torch.stack(self._shares).mean()))

    def _under_target_ids(self, logits: Tensor) -> Tensor:
        """Logits [..., V_draft] as [..., V_target]."""
        known = logits[..., self._theirs]
        self._shares.append(logits.float().softmax(-1)[..., self._theirs].sum(-1).reshape(()))
        wide = logits.new_full((*logits.shape[:-1], self._width), float("-inf"))
        return wide.index_copy(-1, self._ours, known)
