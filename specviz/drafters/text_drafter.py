"""TextDrafter: a drafter that proposes what the text says, in point masses; no model and no draw decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft, common_prefix
from specviz.decoding.drafter import Ahead, Context
from specviz.drafters.policy import ChainDrafter, Policy

if TYPE_CHECKING:
    from torch import Tensor

MOST_AHEAD = 32  # tokens proposed at a place of a known text


class TextDrafter(ChainDrafter):
    """Keeps an index of the text, which grows with it: O(new tokens) per step.

    When the text changes and shares a prefix with the last one, only the rest is indexed again.
    """

    def __init__(self, policy: Policy | None = None) -> None:
        super().__init__(policy=policy)
        self._text: Sequence[int] = ()
        self._num_known = 0  # tokens of the text in the index

    def draft(self, context: Context, k: int) -> Draft:
        tokens = context.tokens
        if tokens is not self._text:
            common = common_prefix(self._text, tokens, min(self._num_known, len(tokens) - 1))
            self._text = tokens
            self._num_known = self._take_back(common)
        self._num_known = self._learn(tokens)
        k = self._policy.most(k, tokens)
        return self._propose(tokens, k) if k > 0 else EMPTY

    def _take_back(self, common: int) -> int:
        """Takes tokens out of the index until none behind the first `common` is left; returns how many are left."""
        raise NotImplementedError

    def _learn(self, tokens: Sequence[int]) -> int:
        """Puts the tokens behind the known ones into the index; returns how many it has now."""
        raise NotImplementedError

    def _propose(self, tokens: Sequence[int], k: int) -> Draft:
        """A draft of at most k tokens, 1 or more. With a smaller k it is the beginning of the same draft."""
        raise NotImplementedError

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        """The proposals at every place, as point masses. One counts only if the text confirms those before it."""
        from specviz.decoding.draws import Seeded
        from specviz.decoding.sampling import Sampling

        text = tokens.tolist()
        growing = text[:2]
        context = Context(growing, Sampling(), Seeded(0), 0)
        found: dict[int, Sequence[int]] = {}
        for start in range(2, len(text)):
            drafted = self.draft(context, MOST_AHEAD).tokens
            rest = text[start:]
            num_right = common_prefix(drafted, rest, min(len(drafted), len(rest)))
            found[start] = drafted[: num_right + 1]
            growing.append(text[start])

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, Tensor]]:
            drafts = [found[start] for start in starts.tolist()]
            for depth in range(depths):
                known = [depth < len(draft) for draft in drafts]
                ids = [draft[depth] if depth < len(draft) else 0 for draft in drafts]
                yield starts.new_tensor(ids), starts.new_tensor(known).bool()

        return ahead
