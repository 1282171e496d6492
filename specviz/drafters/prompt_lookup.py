"""Prompt lookup: if the last words stood in the text before, propose what followed them then."""

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

MOST_AHEAD = 32  # tokens, where it is read along a text
MOST_TAKEN_BACK = 512  # tokens; a draft that another model threw away is shorter
Entry = tuple[
    int, tuple[int, ...], int | None
]  # where an n-gram ends, the n-gram, where it ended before


class PromptLookup(ChainDrafter):
    """Longest match first, the most recent one of equal length. The index grows with the text: O(new tokens) a step.

    For another text that shares a prefix with the last one, only what differs is indexed again, as long as at most
    MOST_TAKEN_BACK tokens have to be taken back.
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
        """Its proposals from every place, as point masses; one behind a proposal that the text refutes is none."""
        from specviz.decoding.draws import Seeded
        from specviz.decoding.sampling import Sampling

        text, found = tokens.tolist(), {}
        context = Context(grown := text[:2], Sampling(), Seeded(0), 0)
        for start, token in enumerate(text[2:], 2):
            drafted = self.draft(context, MOST_AHEAD).tokens
            found[start] = drafted[
                : 1 + common_prefix(drafted, text[start:], min(len(drafted), len(text) - start))
            ]
            grown.append(token)

        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, Tensor]]:
            places = starts.tolist()
            for depth in range(depths):
                known = starts.new_tensor([depth < len(found[start]) for start in places]).bool()
                ids = starts.new_tensor(
                    [found[start][depth] if depth < len(found[start]) else 0 for start in places]
                )
                yield ids, known

        return ahead

    def _learn(self, tokens: Sequence[int]) -> None:
        """Notes where each n-gram ended last, up to but without the one the text ends with."""
        for end in range(self._indexed + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    ngram = tuple(tokens[end - size : end])
                    self._learnt.append((end, ngram, self._ends.get(ngram)))
                    self._ends[ngram] = end
        self._indexed = max(self._indexed, len(tokens) - 1)

    def _switch_to(self, tokens: Sequence[int]) -> None:
        """Removes the n-grams that end behind the common prefix; starts empty where not all of them are on record."""
        common = common_prefix(self._text, tokens, min(self._indexed, len(tokens) - 1))
        if common < self._indexed and not (self._learnt and self._learnt[0][0] <= max(common, 1)):
            self._reset(tokens)
            return
        while self._learnt and self._learnt[-1][0] > common:
            _, ngram, before = self._learnt.pop()
            if before is None:
                del self._ends[ngram]
            else:
                self._ends[ngram] = before
        self._text, self._indexed = tokens, common


def _build(parts: Parts, params: Mapping[str, Value]) -> PromptLookup:
    longest, shortest = int(params["max_ngram"]), int(params["min_ngram"])
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
