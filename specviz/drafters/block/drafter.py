"""BlockDrafter: one pass of a head guesses all tokens of a draft at once (DFlash, arXiv:2602.06036)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specviz.decoding.device import to_device
from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.drafter import Ahead, Context
from specviz.decoding.work import Work
from specviz.drafters.block.heads import BlockHead
from specviz.drafters.markov import Biased, draw_chain, tokens_before
from specviz.drafters.method import Parts
from specviz.drafters.params import TOP, TRAINED, Value
from specviz.drafters.policy import ChainDrafter, Policy, make_policy
from specviz.errors import SpecvizError

AT_ONCE = 32  # blocks in one pass over a known text


class BlockDrafter(ChainDrafter):
    """Keeps a row of the head for every token of the text that the target has read; a block's rows are dropped.

    No token of a block sees another one's guess, so agreement falls with the depth. A Markov bias or a selector mends
    that: tokens are then chosen one after another.
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

        biased: whether the token before counts, by the head's Markov bias or its selector, if it has one.
        """
        super().__init__(policy=policy)
        self._head = head
        self._draws = draws
        self._is_biased = biased
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
        features = self._guess(context.tokens, states)[:k]
        draft = draw_chain(
            context,
            self._head.logits(features),
            self._chain(features),
            draws=self._draws,
            refuses=partial(self._refuses, features) if self._policy.asks_the_head else None,
        )
        sizes = {"block": self._head.most_tokens, "masks": self._head.num_masks}
        return replace(draft, evidence={**sizes, **draft.evidence, **self._policy.evidence(k)})

    def _chain(self, features: Tensor) -> Biased | None:
        return self._head.chain(features) if self._is_biased else None

    def _refuses(self, features: Tensor, depth: int, before: Tensor) -> bool:
        return self._policy.refuses(self._head.confidence(features[depth], before))

    def _guess(self, tokens: Sequence[int], states: Tensor) -> Tensor:
        """The features [N, H] of all tokens of a block behind the text. states: the target's before its last token."""
        known = self._rows.count
        if known < len(states):
            self._rows.store(self._head.fuse(states[known:]))
        last = to_device(tokens[-1:], torch.long, states.device)
        place = torch.full_like(last, len(states))
        features = self._head.guess(self._rows, last, place)[0]
        self.work += Work(1, len(states) - known + len(features))
        return features

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        """The head's guesses at any place of a known text, some blocks in one pass."""
        rows = self._head.rows()
        rows.store(self._head.fuse(states))

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            pieces = []
            for places in (starts - 1).split(AT_ONCE):
                pieces.append(self._head.guess(rows, tokens[places], places))
            features = torch.cat(pieces)  # [S, N, H]
            biased = self._chain(features)
            for depth in range(min(depths, features.shape[1])):
                logits = self._head.logits(features[:, depth])
                if biased is not None:
                    logits = biased(depth, tokens_before(tokens, starts, depth), logits)
                yield logits, None

        return ahead


def build(parts: Parts, params: Mapping[str, Value]) -> BlockDrafter:
    head = parts.heads
    policy = make_policy(params)
    if policy.asks_the_head and head.confidence_head is None:
        raise SpecvizError(
            f"k_policy {policy.name} needs a head with a confidence head (DSpark), and this one has none: choose "
            "another draft length"
        )
    draws = params["children"] != TOP
    return BlockDrafter(head, policy, draws=draws, biased=params["bias"] == TRAINED)
