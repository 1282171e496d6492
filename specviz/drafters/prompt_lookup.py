"""Prompt lookup: if the last tokens stood in the text before, it proposes what followed them then."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import IntParam, Value
from specviz.drafters.policy import BLIND_K_PARAMS, Policy, make_policy
from specviz.drafters.text_drafter import TextDrafter
from specviz.errors import SpecvizError

MOST_TAKEN_BACK = 512  # tokens; a draft that another model rejects is shorter
Entry = tuple[int, tuple[int, ...], int | None]
"""An n-gram in the index: where it ends, its tokens, where they ended before."""


class PromptLookup(TextDrafter):
    """Proposes what followed the longest match, and the latest one if several are as long.

    At most MOST_TAKEN_BACK tokens are taken back; where a text changes before them, all of it is indexed again.
    """

    def __init__(self, max_ngram: int, min_ngram: int, policy: Policy | None = None) -> None:
        super().__init__(policy)
        self._sizes = range(max_ngram, min_ngram - 1, -1)
        self._clear()

    def _clear(self) -> None:
        self._ends: dict[tuple[int, ...], int] = {}
        self._learnt: deque[Entry] = deque(maxlen=MOST_TAKEN_BACK * len(self._sizes))

    def _propose(self, tokens: Sequence[int], k: int) -> Draft:
        for size in self._sizes:
            end = self._ends.get(tuple(tokens[-size:])) if size < len(tokens) else None
            if end is not None:
                found = tokens[end : end + k]
                span = {"start": end - size, "matched": size, "proposed": len(found)}
                return chain(found, evidence={**span, **self._policy.evidence(k)})
        return EMPTY

    def _learn(self, tokens: Sequence[int]) -> int:
        """Stores where each n-gram ended last, all but the one that the text ends with."""
        for end in range(self._num_known + 1, len(tokens)):
            for size in self._sizes:
                if size <= end:
                    ngram = tuple(tokens[end - size : end])
                    self._learnt.append((end, ngram, self._ends.get(ngram)))
                    self._ends[ngram] = end
        return max(self._num_known, len(tokens) - 1)

    def _take_back(self, common: int) -> int:
        """Removes the n-grams that end after the common prefix; all of them if not all of those are on record."""
        if common < self._num_known:
            has_all = self._learnt and self._learnt[0][0] <= max(common, 1)
            if not has_all:
                self._clear()
                return 0
        while self._learnt and self._learnt[-1][0] > common:
            _, ngram, before = self._learnt.pop()
            if before is None:
                del self._ends[ngram]
            else:
                self._ends[ngram] = before
        return common


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
