"""What a drafter is to the engine: it sees the text so far and proposes a Draft."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.cached_lm import CachedLM
    from specviz.decoding.draws import Draws
    from specviz.decoding.rule import Verdict
    from specviz.decoding.sampling import Sampling


@dataclass(frozen=True, slots=True)
class Work:
    """Forwards made and tokens read."""

    calls: int = 0
    fed: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.calls + other.calls, self.fed + other.fed)

    def __sub__(self, other: Work) -> Work:
        return Work(self.calls - other.calls, self.fed - other.fed)


@dataclass(frozen=True, slots=True, eq=False)
class Context:
    """What a drafter may look at. tokens: the text so far, the same growing list at every step; sampling: the draft's.

    hidden: where the drafter names hidden_layers, the target's states behind the tokens that it has read [n, C], C the
    named layers side by side. n is len(tokens) - 1 while a text goes on; less where the target has not read it yet.
    """

    tokens: Sequence[int]
    sampling: Sampling
    draws: Draws
    vocab_size: int  # the target's; rows of q are this wide
    hidden: Tensor | None = None

    @property
    def states(self) -> Tensor | None:
        """`hidden` where the target has read all tokens but the last; None otherwise."""
        has_all = self.hidden is not None and 0 < len(self.tokens) - 1 == len(self.hidden)
        return self.hidden if has_all else None


Ahead = Callable[["Tensor", int], Iterator[tuple["Tensor", "Tensor | None"]]]
"""(starts [S], depths) -> for each depth, from 0, up to so many: logits [S, V] behind q of the token so far behind each
start, given the text's own tokens in between, or the ids [S] of point masses; and where there is such a draft token
[S], None: everywhere."""


class Drafter:
    """Proposes drafts. Keeps whatever state it likes, but its draft may depend on the context and the draws alone.

    hidden_layers: the target's states that it wants: 0 the embeddings, i what the i-th layer gives, so with as many
    as there are layers the last before the final norm, and -1 that one after the norm. transformers' hidden_states have
    the same numbers, but hold the last layer's only after the norm. _lm: the model that drafts, if one does.
    """

    hidden_layers: tuple[int, ...] = ()
    _lm: CachedLM | None = None

    @property
    def work(self) -> Work:
        """What drafting has cost so far."""
        return Work(self._lm.calls, self._lm.fed) if self._lm is not None else Work()

    @property
    def target_work(self) -> Work:
        """What it has asked of the target's weights beside the engine's own calls."""
        return Work()

    def draft(self, context: Context, k: int) -> Draft:
        """A draft of depth at most k; empty where the drafter has nothing to say or cannot read the text."""
        raise NotImplementedError

    @property
    def waits(self) -> bool:
        """Whether it drafts only once the target has read the text."""
        return bool(self.hidden_layers)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead | None:
        """What it would draft at every place of a text that exists, from 2 on; None where nobody has worked that out.

        tokens: [T]; states: the target's of `hidden_layers` [T, C]. What the draft hangs on is the text alone.
        """
        return None

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        """Called after each step with the target's rows [1+N, V] and the verdict."""


def limit_depth(lm: CachedLM, tokens: Sequence[int], k: int) -> int:
    """How many tokens `lm` can write behind the text: at most k, 0 where the text has an id that it lacks."""
    if any(token >= lm.vocab_size for token in lm.missing(tokens)):
        return 0
    return min(k, lm.context_limit - len(tokens) + 1)


def no_draft(lm: CachedLM, tokens: Sequence[int], *, num_read: int = 0) -> Draft:
    """The empty draft. Where `lm` itself cannot write behind the text, its evidence says why: `full`, the most tokens
    that it reads, or `unknown`, the first id that it lacks. num_read: how many of its own it must read at least."""
    if len(tokens) + num_read > lm.context_limit:
        return Draft(evidence={"full": lm.context_limit})
    unknown = next((token for token in lm.missing(tokens) if token >= lm.vocab_size), None)
    return EMPTY if unknown is None else Draft(evidence={"unknown": unknown})
