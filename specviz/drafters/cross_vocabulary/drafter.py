"""A draft model with another tokenizer: it writes text, which the target's tokenizer cuts (SLEM, arXiv:2502.05202).

Greedy text, so every token is a point mass; a token is proposed only if it spells the very bytes that continue the
text. The other way, drawing from the shared tokens, is shared_vocabulary.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import takewhile

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import exact_dtype, to_host
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.rule import Verdict
from specviz.decoding.sampling import DRAFT_MODEL, refuse_nan
from specviz.drafters.cross_vocabulary.respelled import LOOKBACK, Respelled
from specviz.drafters.cross_vocabulary.shared import SharedVocabularyDrafter
from specviz.drafters.method import Parts
from specviz.drafters.params import Value
from specviz.drafters.policy import Policy, make_policy
from specviz.models.tokens import TokenText, encode_after, whole_start


class ReencodingDrafter(Drafter):
    """target, draft: the two vocabularies; lm: the draft model."""

    def __init__(self, lm: CachedLM, target: TokenText, draft: TokenText, vocab_size: int, policy: Policy) -> None:
        self._lm, self._target, self._draft = lm, target, draft
        self._respelled, self._policy = Respelled(target, draft), policy

    @property
    def work(self) -> Work:
        return Work(self._lm.calls, self._lm.fed)

    def draft(self, context: Context, k: int) -> Draft:
        k = self._policy.most(k, context.tokens)
        if k < 1 or not self._respelled.follow(context.tokens):
            return EMPTY
        own = self._respelled.ids
        size = min(math.ceil(k * len(own) / len(context.tokens)) + 1, self._lm.context_limit - len(own) + 1)
        if not own or size < 1 or any(token >= self._lm.vocab_size for token in self._lm.missing(own)):
            return EMPTY
        written = list(takewhile(lambda token: token not in self._draft.special_ids, self._write(own, size)))
        added = b"".join(map(self._draft.bytes_of, written))
        before = b"".join(map(self._target.bytes_of, context.tokens[-LOOKBACK:]))
        cut = encode_after(self._target, before, whole_start(added))
        tokens = list(takewhile(lambda token: token < context.vocab_size, cut))[:k]
        return chain(tokens, evidence=self._evidence(written, tokens, k)) if tokens else EMPTY

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        self._policy.observe(draft, verdict)

    def _write(self, own: list[int], size: int) -> list[int]:
        """The draft model's favourites, at most `size`, in one transfer at the end."""
        logits = self._lm.forward(own)[0]
        tokens, peaks = [], []
        for place in range(size):
            peak, token = logits.max(-1)
            tokens.append(token)
            peaks.append(peak)
            if place == size - 1 or self._policy.stops(logits, token):
                break
            logits = self._lm.extend(token)
        wide = exact_dtype(peaks[0].device)
        ids, peaks = to_host(torch.stack([torch.stack(tokens).to(wide), torch.stack(peaks).to(wide)])).tolist()
        refuse_nan(peaks, DRAFT_MODEL)
        ids = [int(token) for token in ids]
        self._lm.settle(ids)
        return ids

    def _evidence(self, written: list[int], tokens: list[int], k: int) -> dict[str, object]:
        num_backed, text = self._respelled.backed
        return {
            "way": "reencode",
            "draft_tokens": [{"text": self._draft.piece(token)[0]} for token in written],
            "target_tokens": [{"id": token} for token in tokens],
            "boundary": {"backed": num_backed, "text": text} if num_backed else None,
            **self._policy.evidence(k),
        }


WAYS = {"reencode": ReencodingDrafter, "shared": SharedVocabularyDrafter}


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    target, draft = parts.target, parts.draft
    return WAYS[params["way"]](draft.lm, target.text, draft.text, target.lm.vocab_size, make_policy(params))
