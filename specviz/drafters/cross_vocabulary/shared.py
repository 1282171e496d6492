"""Shared vocabulary (TLI, Timor et al. 2502.05202, algorithm 4): q lies on the tokens that both vocabularies have.

The draft's logits lose all other tokens and are put under the target's ids. Tokens are drawn from that row, so it is q,
and any lossless rule keeps the target's distribution.
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
    """Drafts by shared tokens. target, draft: the tokenizers of both models; lm: the draft model."""

    def __init__(
        self, lm: CachedLM, target: TokenText, draft: TokenText, vocab_size: int, policy: Policy
    ) -> None:
        self._shared = SharedLM(lm, shared_ids(target, draft), vocab_size)
        super().__init__(self._shared, policy)
        self._lm_of_draft_ids = lm
        self._respelled = Respelled(target, draft)
        self._target = target

    def draft(self, context: Context, k: int) -> Draft:
        if not self._respelled.follow(context.tokens) or not self._respelled.ids:
            return EMPTY
        self._shared.read(self._respelled.ids, context.tokens)
        draft = super().draft(context, k)
        if not len(draft):
            return no_draft(self._lm_of_draft_ids, self._respelled.ids)
        pieces = [self._target.piece(token)[0] for token in draft.tokens]
        spelling = self._respelled.evidence("shared", pieces, draft.tokens)
        share = self._shared.share()
        return replace(draft, evidence={**draft.evidence, **spelling, "shared": share})


class SharedLM:
    """The draft model behind the interface of a CachedLM. It reads and writes target ids, of shared tokens only."""

    def __init__(self, lm: CachedLM, pairs: Sequence[tuple[int, int]], vocab_size: int) -> None:
        """Takes the shared tokens as pairs (target id, draft id). Raises SpecvizError where there are none."""
        self._draft_ids: dict[int, int] = {}  # target id -> draft id
        for target_id, draft_id in pairs:
            if target_id < vocab_size and draft_id < lm.vocab_size:
                self._draft_ids[target_id] = draft_id
        if not self._draft_ids:
            raise SpecvizError(
                "the two vocabularies have no token in common; choose another draft model or way"
            )
        self._lm = lm
        self._width = vocab_size
        self._in_target = to_device(list(self._draft_ids), torch.long, lm.device)  # [S]
        self._in_draft = to_device(list(self._draft_ids.values()), torch.long, lm.device)  # [S]
        no_ids = self._in_target.new_zeros(vocab_size)
        self._to_draft = no_ids.scatter_(0, self._in_target, self._in_draft)  # [V_target]
        self.vocab_size = lm.vocab_size
        self.read((), ())

    def read(self, ids: Sequence[int], tokens: Sequence[int]) -> None:
        """Sets the draft ids that the text `tokens` is read as from now on."""
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
        """The draft's mean probability of all shared tokens together, before any filter; one transfer."""
        return float(to_host(torch.stack(self._shares).mean()))

    def _under_target_ids(self, logits: Tensor) -> Tensor:
        """Logits [..., V_draft] as [..., V_target]."""
        shared = logits[..., self._in_draft]  # [..., S]
        probs = logits.float().softmax(-1)[..., self._in_draft]
        self._shares.append(probs.sum(-1).reshape(()))
        wide = logits.new_full((*logits.shape[:-1], self._width), float("-inf"))
        return wide.index_copy(-1, self._in_target, shared)
