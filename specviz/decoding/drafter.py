"""Drafter: sees the text so far and proposes a Draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft
from specviz.decoding.work import Work

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM
    from specviz.decoding.draws import Draws
    from specviz.decoding.rule import Verdict
    from specviz.decoding.sampling import Sampling


@dataclass(frozen=True, slots=True)
class PhaseTimes:
    """The times that a step's phases took."""

    draft_ms: float
    verify_ms: float
    accept_ms: float


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """The things that a drafter may look at."""

    tokens: Sequence[int]  # the text so far, the same growing list at every step
    sampling: Sampling  # the draft's
    draws: Draws
    vocab_size: int  # the target's; rows of q are this wide
    hidden: Tensor | None = None
    """The target's states [n, C] behind the n tokens that it has read, C the drafter's hidden_layers side by side.

    n is len(tokens) - 1 while a text goes on, and less where the target has not read it yet.
    """

    @property
    def states(self) -> Tensor | None:
        """`hidden` where the target has read all tokens but the last; None otherwise."""
        has_all = self.hidden is not None and 0 < len(self.tokens) - 1 == len(self.hidden)
        return self.hidden if has_all else None


Ahead = Callable[["Tensor", int], Iterator[tuple["Tensor", "Tensor | None"]]]
"""A function (starts [S], number of depths) that yields what would be drafted at each depth, from 0.

It yields logits [S, V] behind q, given the text's own tokens since each start, or ids [S] of point masses. Beside them
stands where there is such a draft token [S]; None: everywhere.
"""


class Drafter:
    """A source of drafts. It keeps whatever state it likes, but a draft depends on the context and the draws alone.

    Its length may depend on measured times, too.
    """

    hidden_layers: tuple[int, ...] = ()
    """The target's states that it wants: 0 the embeddings, i the output of the i-th layer.

    The number of layers stands for the last layer before the final norm, and -1 for the same after the norm.
    transformers' hidden_states have the same numbers, but hold the last layer's only after the norm.
    """
    _lm: CachedLM | None = None
    """The model that drafts, if one does."""

    @property
    def work(self) -> Work:
        """The cost of drafting so far."""
        return self._lm.work if self._lm is not None else Work()

    @property
    def target_work(self) -> Work:
        """The cost of its own calls of the target, beside the engine's."""
        return Work()

    def draft(self, context: Context, k: int) -> Draft:
        """A draft of depth at most k; empty where the drafter has nothing to say or cannot read the text."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """Whether it drafts only once the target has read the text."""
        return bool(self.hidden_layers)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        """The drafts that it would make at every place of a finished text, from 2 on; None where that is not known.

        tokens: [T]. states: the target's of `hidden_layers` [T, C]. Such a draft depends on the text alone.
        """
        return None

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict, timing: PhaseTimes) -> None:
        """Learns from a step: the engine calls it with the target's rows [1+N, V], the verdict and the times."""


def limit_depth(lm: CachedLM, tokens: Sequence[int], k: int) -> int:
    """How many tokens `lm` can write behind the text: at most k, 0 where the text has an id that it lacks."""
    if any(token >= lm.vocab_size for token in lm.missing(tokens)):
        return 0
    return min(k, lm.context_limit - len(tokens) + 1)


def no_draft(lm: CachedLM, tokens: Sequence[int], *, num_read: int = 0) -> Draft:
    """The empty draft; if `lm` cannot write behind the text, its evidence says why.

    `full` is the most tokens that it reads, `unknown` the first id that it lacks. num_read: how many tokens of its own
    it must read at least.
    """
    if len(tokens) + num_read > lm.context_limit:
        return Draft(evidence={"full": lm.context_limit})
    unknown = next((token for token in lm.missing(tokens) if token >= lm.vocab_size), None)
    return EMPTY if unknown is None else Draft(evidence={"unknown": unknown})
