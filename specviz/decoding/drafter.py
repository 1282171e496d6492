"""What a drafter is to the engine: it sees the text so far and proposes a Draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.decoding.draft import Draft
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
    """What a drafter may look at. tokens: the text so far, the same growing list at every step.

    hidden: where the drafter names hidden_layers, the target's states behind the tokens that it has read [n, C], C the
    named layers side by side. n is len(tokens) - 1 while a text goes on; less where the target has not read it yet.
    """

    tokens: Sequence[int]
    sampling: Sampling
    draws: Draws
    vocab_size: int  # the target's; rows of q are this wide
    hidden: Tensor | None = None


class Drafter:
    """Proposes drafts. Keeps whatever state it likes, but its draft may depend on the context and the draws alone.

    hidden_layers: the target's states that it wants, by transformers' numbers: 0 the embeddings, i the output of layer
    i, -1 the last after the final norm.
    """

    hidden_layers: tuple[int, ...] = ()

    @property
    def work(self) -> Work:
        """What drafting has cost so far."""
        return Work()

    @property
    def target_work(self) -> Work:
        """What it has asked of the target's weights beside the engine's own calls."""
        return Work()

    def draft(self, context: Context, k: int) -> Draft:
        """A draft of depth at most k; empty where the drafter has nothing to say or cannot read the text."""
        raise NotImplementedError

    def observe(self, draft: Draft, probs: Tensor, verdict: Verdict) -> None:
        """Called after each step with the target's rows [1+N, V] and the verdict."""
