"""A draft model with another tokenizer than the target's (Timor et al., arXiv:2502.05202).

This module drafts through text (SLEM): the draft model writes greedy text, and the target's tokenizer splits it. So
every token is a point mass. It is proposed only if it spells exactly the bytes that continue the text. shared.py
drafts by shared tokens.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import takewhile
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context, limit_depth, no_draft
from specviz.drafters.cross_vocabulary.respelled import LOOKBACK, Respelled
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import Choice, Value
from specviz.drafters.policy import RESPELLED_K_PARAMS, ChainDrafter, Policy, make_policy
from specviz.models.tokens import TokenText, encode_after, whole_start

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM


class ReencodingDrafter(ChainDrafter):
    """Drafts through text. target, draft: the tokenizers of both models; lm: the draft model."""

    def __init__(
        self, lm: CachedLM, target: TokenText, draft: TokenText, vocab_size: int, policy: Policy
    ) -> None:
        super().__init__(lm, policy)
        self._target = target
        self._draft = draft
        self._respelled = Respelled(target, draft)

    def draft(self, context: Context, k: int) -> Draft:
        k = self._policy.most(k, context.tokens)
        if k < 1 or not self._respelled.follow(context.tokens) or not self._respelled.ids:
            return EMPTY
        draft_ids = self._respelled.ids
        # K target tokens in draft tokens, as the text so far compares, and one more
        num_draft_tokens = math.ceil(k * len(draft_ids) / len(context.tokens)) + 1
        size = limit_depth(self._lm, draft_ids, num_draft_tokens)
        if size < 1:
            return no_draft(self._lm, draft_ids)
        written = self._write(draft_ids, size, _choose_most_likely)
        written = list(takewhile(lambda token: token not in self._draft.special_ids, written))
        added = b"".join(map(self._draft.bytes_of, written))
        before = b"".join(map(self._target.bytes_of, context.tokens[-LOOKBACK:]))
        target_ids = encode_after(self._target, before, whole_start(added))
        tokens = list(takewhile(lambda token: token < context.vocab_size, target_ids))[:k]
        if not tokens:
            return EMPTY
        pieces = [self._draft.piece(token)[0] for token in written]
        evidence = self._respelled.evidence("reencode", pieces, tokens)
        return chain(tokens, evidence={**evidence, **self._policy.evidence(k)})


def _choose_most_likely(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    peak, token = logits.max(-1)
    return logits, token, peak


def _build(parts: Parts, params: Mapping[str, Value]) -> ChainDrafter:
    from specviz.drafters.cross_vocabulary.shared import SharedVocabularyDrafter  # loads torch

    drafter = ReencodingDrafter if params["way"] == "reencode" else SharedVocabularyDrafter
    target = parts.target
    draft = parts.draft
    return drafter(draft.lm, target.text, draft.text, target.lm.vocab_size, make_policy(params))


METHOD = Method(
    name="cross_vocabulary",
    title="Different vocabularies",
    summary="A draft model whose tokenizer splits text into other tokens than the target's.",
    caution="Lets any model draft for any other. Guesses are lost where the two split a text differently. Every guess "
    "through text is the draft's most likely token, which is accepted less often at high temperatures.",
    source="Timor et al., arXiv:2502.05202",
    roles=("draft",),
    params=(
        Choice(
            "way",
            "how tokens are translated",
            "reencode",
            "Through text: the draft's text is split into the target's tokens. By shared tokens: the draft writes only "
            "tokens that both vocabularies have.",
            {"reencode": "through text", "shared": "by shared tokens"},
        ),
        *RESPELLED_K_PARAMS,
    ),
    build=_build,
    foreign=True,
    proposer="A small draft model with other tokens than the target's proposes up to ",
    why_no_what_if="the draft model writes other tokens than the target",
)
