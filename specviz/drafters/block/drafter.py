"""BlockDrafter: one pass of a head guesses all tokens of a draft at once (DFlash, arXiv:2602.06036)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from specviz.decoding.device import argmax, exact_dtype, to_device
from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.decoding.drafter import Ahead, Context
from specviz.decoding.sampling import HEADS, fetch_tokens
from specviz.decoding.work import Work
from specviz.drafters.block.heads import BlockHead
from specviz.drafters.markov import draw_chain
from specviz.drafters.method import Parts
from specviz.drafters.params import TOP, TRAINED, Value
from specviz.drafters.policy import ChainDrafter, Policy, make_policy

AT_ONCE = 32  # blocks in one pass over a known text


class BlockDrafter(ChainDrafter):
    """Keeps a row of the head for every token of the text that the target has read; a block's rows are dropped.

    No token of a block sees another one's guess, so agreement falls with the depth. A Markov bias mends that: tokens
    are then chosen one after another.
    """

    work = Work()

    def __init__(
        self,
        head: BlockHead,
        policy: Policy | None = None,
        *,
        draws: bool = True,
        biased: bool = True,
    ) -> None:
        """draws: whether each token is drawn from its distribution, and not the most likely one.

        biased: whether the head's Markov bias counts, if it has one.
        """
        super().__init__(policy=policy)
        self._head = head
        self._draws = draws
        self._bias = head.markov if biased else None
        self.hidden_layers = head.hidden_layers
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._rows = self._head.rows()

    @torch.inference_mode()
    def draft(self, context: Context, k: int) -> Draft:
        k = self._policy.most(min(k, self._head.most_tokens), context.tokens)
        states = context.states
        if k < 1 or states is None:
            return EMPTY
        if context.tokens is not self._text:
            self._reset(context.tokens)
        rows = self._guess(context.tokens, states)[:k]
        evidence = {"block": self._head.most_tokens, **self._policy.evidence(k)}
        if not self._draws:
            return replace(self._most_likely(context.tokens[-1], rows), evidence=evidence)
        return replace(draw_chain(context, rows, self._bias), evidence=evidence)

    def _most_likely(self, last: int, rows: Tensor) -> Draft:
        """The most likely token of each row [k, V], biased by the one before it, as a point mass."""
        if self._bias is not None:
            token = to_device([last], torch.long, rows.device)[0]
            biased = []
            for depth, row in enumerate(rows):
                biased.append(row + self._bias(depth, token))
                token = argmax(biased[-1])
            rows = torch.stack(biased)
        sums = rows.softmax(-1).sum(-1, dtype=exact_dtype(rows.device))
        ids, _ = fetch_tokens(argmax(rows), sums, HEADS)
        return chain(ids, None, rows)

    def _guess(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """The logits [N, V] of all tokens of a block behind the text. states: the target's before its last token."""
        known = self._rows.count
        if known < len(states):
            self._rows.store(self._head.fuse(states[known:]))
        last = to_device(tokens[-1:], torch.long, states.device)
        place = torch.full_like(last, len(states))
        features = self._head.guess(self._rows, last, place)[0]
        self.work += Work(1, len(states) - known + len(features))
        return self._head.logits(features)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        """The head's guesses at any place of a known text, some blocks in one pass."""
        rows = self._head.rows()
        rows.store(self._head.fuse(states))

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            pieces = []
            for places in (starts - 1).split(AT_ONCE):
                pieces.append(self._head.guess(rows, tokens[places], places))
            features = torch.cat(pieces)  # [S, N, H]
            for depth in range(min(depths, features.shape[1])):
                logits = self._head.logits(features[:, depth])
                if self._bias is not None:
                    before = (starts + depth - 1).clamp_max(len(tokens) - 1)
                    logits = logits + self._bias(depth, tokens[before])
                yield logits, None

        return ahead


def build(parts: Parts, params: Mapping[str, Value]) -> BlockDrafter:
    draws = params["children"] != TOP
    biased = params["bias"] == TRAINED
    return BlockDrafter(parts.heads, make_policy(params), draws=draws, biased=biased)
