"""A draft model with another tokenizer than the target's (Timor et al., arXiv:2502.05202).

Here by text (SLEM): the draft writes greedy text, which the target's tokenizer cuts. So every token is a point mass,
and it is proposed only if it spells the very bytes that continue the text. By shared tokens: shared.py.
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
from specviz.drafters.policy import K_PARAMS, ChainDrafter, Policy, make_policy
from specviz.models.tokens import TokenText, encode_after, whole_start

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM


class ReencodingDrafter(ChainDrafter):
    """target, draft: the two vocabularies; lm: the draft model."""

    def __init__(
        self, lm: CachedLM, target: TokenText, draft: TokenText, vocab_size: int, policy: Policy
    ) -> None:
        super().__init__(lm, policy)
        self._target, self._draft = target, draft
        self._respelled = Respelled(target, draft)

    def draft(self, context: Context, k: int) -> Draft:
        k = self._policy.most(k, context.tokens)
        if k < 1 or not self._respelled.follow(context.tokens) or not self._respelled.ids:
            return EMPTY
        own = self._respelled.ids
        size = limit_depth(self._lm, own, math.ceil(k * len(own) / len(context.tokens)) + 1)
        if size < 1:
            return no_draft(self._lm, own)
        written = self._write(own, size, _most_likely)
        written = list(takewhile(lambda token: token not in self._draft.special_ids, written))
        added = b"".join(map(self._draft.bytes_of, written))
        before = b"".join(map(self._target.bytes_of, context.tokens[-LOOKBACK:]))
        cut = encode_after(self._target, before, whole_start(added))
        tokens = list(takewhile(lambda token: token < context.vocab_size, cut))[:k]
        if not tokens:
            return EMPTY
        pieces = [self._draft.piece(token)[0] for token in written]
        evidence = {
            **self._respelled.evidence("reencode", pieces, tokens),
            **self._policy.evidence(k),
        }
        return chain(tokens, evidence=evidence)


def _most_likely(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    peak, token = logits.max(-1)
    return logits, token, peak


def _build(parts: Parts, params: Mapping[str, Value]) -> ChainDrafter:
    from specviz.drafters.cross_vocabulary.shared import SharedVocabularyDrafter  # loads torch

    kind = ReencodingDrafter if params["way"] == "reencode" else SharedVocabularyDrafter
    target, draft = parts.target, parts.draft
    return kind(draft.lm, target.text, draft.text, target.lm.vocab_size, make_policy(params))


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
        *K_PARAMS,
    ),
    build=_build,
    foreign=True,
    proposer="A small draft model with other tokens than the target's proposes up to ",
    why_no_what_if="the draft model writes other tokens than the target",
)
