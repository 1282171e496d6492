"""Prompt lookup: if the last tokens stood in the text before, it proposes what followed them then."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, Draft, chain, common_prefix
from specviz.decoding.drafter import Ahead, Context
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import IntParam, Value
from specviz.drafters.policy import BLIND_K_PARAMS, ChainDrafter, Policy, make_policy
from specviz.errors import SpecvizError

if TYPE_CHECKING:
    from torch import Tensor

MOST_AHEAD = 32  # tokens proposed at a place of a known text
MOST_TAKEN_BACK = 512  # tokens; a draft that another model rejects is shorter
Entry = tuple[int, tuple[int, ...], int | None]
"""An n-gram in the index: where it ends, its tokens, where they ended before."""


class PromptLookup(ChainDrafter):
    """Proposes what followed the longest match, and the latest one if several are as long.

    Its index grows with the text: O(new tokens) per step. When the text changes and shares a prefix with the last one,
    only the rest is indexed again, unless more than MOST_TAKEN_BACK tokens must be taken back.
    """

    def __init__(self, max_ngram: int, min_ngram: int, policy: Policy | None = None) -> None:
        super().__init__(policy=policy)
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._reset(())

    def _reset(self, tokens: Sequence[int]) -> None:
        self._text = tokens
        self._indexed = 0  # n-grams that end before this position are known
        self._ends: dict[tuple[int, ...], int] = {}
        self._learnt: deque[Entry] = deque(maxlen=MOST_TAKEN_BACK * len(self._sizes))

    def draft(self, context: Context, k: int) -> Draft:
        tokens = context.tokens
        if tokens is not self._text:
            self._switch_to(tokens)
        self._learn(tokens)
        k = self._policy.most(k, tokens)
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if end is not None and k > 0:
                found = tokens[end : end + k]
                span = {"start": end - size, "matched": size, "proposed": len(found)}
                return chain(found, evidence={**span, **self._policy.evidence(k)})
        return EMPTY

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

    def _learn(self, tokens: Sequence[int]) -> None:
        """Stores where each n-gram ended last, all but the one that the text ends with."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    ngram = tuple(tokens[end - size : end])
                    self._learnt.append((end, ngram, self._ends.get(ngram)))
                    self._ends[ngram] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _switch_to(self, tokens: Sequence[int]) -> None:
        """Removes the n-grams that end after the common prefix; starts empty if not all of them are on record."""
        common = common_prefix(self._text, tokens, min(self._indexed, len(tokens) - 1))
        if common < self._indexed:
            has_all = self._learnt and self._learnt[0][0] <= max(common, 1)
            if not has_all:
                self._reset(tokens)
                return
        while self._learnt and self._learnt[-1][0] > common:
            _, ngram, before = self._learnt.pop()
            if before is None:
                del self._ends[ngram]
            else:
                self._ends[ngram] = before
        self._text = tokens
        self._indexed = common


def _build(parts: Parts, params: Mapping[str, Value]) -> PromptLookup:
    longest = int(params["max_ngram"])
    shortest = int(params["min_ngram"])
    if shortest > longest:
        raise SpecvizError(f"min_ngram must not exceed max_ngram (got {shortest} and {longest})")
    return PromptLookup(longest, shortest, make_policy(params))


METHOD = Method(
    name="prompt_lookup",
    title="Prompt lookup",
    summary="No second model: what followed the same words earlier in the text is proposed again.",
    caution="Drafting costs next to nothing. Pays where the text repeats itself (code, summaries, edits). Elsewhere "
    "drafts are short or wrong, and checking them is wasted.",
    source="Saxena 2023, github.com/apoorvumang/prompt-lookup-decoding",
    params=(
        IntParam(
            "max_ngram",
            "longest match",
            3,
            "How many of the last tokens are searched for first.",
            1,
            16,
        ),
        IntParam(
            "min_ngram",
            "shortest match",
            1,
            "The shortest repetition that still counts as a match.",
            1,
            16,
        ),
        *BLIND_K_PARAMS,
    ),
    build=_build,
    is_common=True,
    proposer="Matching earlier text proposes up to ",
    replays_from_text=True,
    needs_only_probabilities=True,
    reads_ahead=True,
)
