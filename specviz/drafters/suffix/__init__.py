"""Suffix decoding: what most often followed the longest repeated end of the text, for as long as the text is sure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import FloatParam, IntParam, Param, Value
from specviz.drafters.policy import BLIND_K_PARAMS, Policy, make_policy
from specviz.drafters.suffix.automaton import SuffixAutomaton
from specviz.drafters.text_drafter import TextDrafter

MOST_MATCHED = 64  # tokens of a match that count
MOST_DRAFTED = 64


class SuffixDrafter(TextDrafter):
    """Follows the longest match by the counts of what came after it.

    The most frequent token is proposed as a point mass, not drawn: so nothing but the text decides a draft.
    A draft ends before the product of its shares falls below `least`, where a token's share is how often it followed
    there, of all tokens that did; and at `factor` times the length of the match.
    """

    def __init__(
        self, shortest: int, factor: float, least: float, policy: Policy | None = None
    ) -> None:
        super().__init__(policy)
        self._shortest = shortest
        self._factor = factor
        self._least = least
        self._automaton = SuffixAutomaton(MOST_MATCHED + MOST_DRAFTED)

    def _learn(self, tokens: Sequence[int]) -> int:
        for place in range(self._num_known, len(tokens)):
            self._automaton.push(tokens[place])
        return len(tokens)

    def _take_back(self, common: int) -> int:
        while len(self._automaton) > common:
            self._automaton.pop()
        return common

    def _propose(self, tokens: Sequence[int], k: int) -> Draft:
        automaton = self._automaton
        state, matched = automaton.match(MOST_MATCHED)
        if matched < self._shortest:
            return EMPTY
        found: list[int] = []
        counts: list[int] = []
        totals: list[int] = []
        product = 1.0
        while len(found) < min(k, int(self._factor * matched), MOST_DRAFTED):
            followers = automaton.followers(state)
            if not followers:
                break  # the first occurrence goes on to the end of the text
            total = sum(follower.count for follower in followers)
            best = max(followers, key=lambda follower: follower.count)
            product *= best.count / total
            if product < self._least:
                break
            found.append(best.token)
            counts.append(best.count)
            totals.append(total)
            state = best.state
        if not found:
            return EMPTY
        start = automaton.first_end(state) - len(found) - matched
        evidence = {
            "start": start,
            "matched": matched,
            "proposed": len(found),
            "counts": counts,
            "totals": totals,
            **self._policy.evidence(k),
        }
        return chain(found, evidence=evidence)


MATCH_PARAMS: tuple[Param, ...] = (
    IntParam(
        "min_match",
        "shortest match",
        1,
        "How many of the last tokens must have stood in the text before.",
        1,
        16,
    ),
    FloatParam(
        "factor",
        "tokens per matched token",
        2.0,
        "The longest draft, as a multiple of the length of the match; K at most.",
        0.25,
        8.0,
    ),
    FloatParam(
        "least_probability",
        "least probability",
        0.1,
        "The draft ends where its probability by the counts of this text would fall below this.",
        0.0,
        1.0,
    ),
)


def make_drafter(params: Mapping[str, Value], policy: Policy | None = None) -> SuffixDrafter:
    """A drafter with the values of MATCH_PARAMS."""
    return SuffixDrafter(
        int(params["min_match"]),
        float(params["factor"]),
        float(params["least_probability"]),
        policy,
    )


def _build(parts: Parts, params: Mapping[str, Value]) -> SuffixDrafter:
    return make_drafter(params, make_policy(params))


METHOD = Method(
    name="suffix",
    title="Suffix decoding",
    summary="No second model: what most often followed the longest repeated end of the text is proposed again.",
    caution="Drafting costs next to nothing, and a draft is longer after a longer match. Pays where the text repeats "
    "long passages (code edits, agents, quotes). Elsewhere it drafts little, so little is wasted.",
    source="Oliaro et al., arXiv:2411.04975",
    params=(*MATCH_PARAMS, *BLIND_K_PARAMS),
    build=_build,
    proposer="Counting what followed the longest match proposes up to ",
    replays_from_text=True,
    needs_only_probabilities=True,
    reads_ahead=True,
)
