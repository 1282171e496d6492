"""Suffix decoding: what most often followed the longest repeated end of the text, for as long as the text is sure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from specviz.decoding.draft import EMPTY, Draft, chain
from specviz.drafters.method import Method, Parts
from specviz.drafters.params import Choice, FloatParam, IntParam, Param, Value
from specviz.drafters.policy import BLIND_K_PARAMS, Policy, make_policy
from specviz.drafters.suffix.automaton import SuffixAutomaton
from specviz.drafters.text_drafter import TextDrafter

MOST_MATCHED = 64  # tokens of a match that count
MOST_DRAFTED = 64
OFF, ANSWERS = "off", "answers"


class SuffixDrafter(TextDrafter):
    """Follows the longest match by the counts of what came after it.

    The most frequent token is proposed as a point mass, not drawn: so nothing but the text decides a draft.
    A draft ends before the product of its shares falls below `least`, where a token's share is how often it followed
    there, of all tokens that did; and at `factor` times the length of the match.
    answers: earlier texts that count as if they stood before this one.
    """

    def __init__(
        self,
        shortest: int,
        factor: float,
        least: float,
        policy: Policy | None = None,
        answers: Sequence[Sequence[int]] = (),
    ) -> None:
        super().__init__(policy)
        self._shortest = shortest
        self._factor = factor
        self._least = least
        self._automaton = SuffixAutomaton(MOST_MATCHED + MOST_DRAFTED)
        self._ends: list[int] = []  # of the answers, in the automaton
        for number, answer in enumerate(answers, 1):
            # no other token is -number, so no match goes across it
            for token in (*answer, -number):
                self._automaton.push(token)
            self._ends.append(len(self._automaton))
        self._num_before = len(self._automaton)

    def _learn(self, tokens: Sequence[int]) -> int:
        for place in range(self._num_known, len(tokens)):
            self._automaton.push(tokens[place])
        return len(tokens)

    def _take_back(self, common: int) -> int:
        while len(self._automaton) > self._num_before + common:
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
            followers = [each for each in automaton.followers(state) if each.token >= 0]
            if not followers:
                break  # a text ended there
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
        evidence = {
            **self._place(automaton.first_end(state), matched + len(found)),
            "matched": matched,
            "proposed": len(found),
            "counts": counts,
            "totals": totals,
            **self._policy.evidence(k),
        }
        return chain(found, evidence=evidence)

    def _place(self, end: int, size: int) -> dict[str, int]:
        """The place in the text where so many tokens up to `end` begin, or how many answers back they stand."""
        if end > self._num_before:
            return {"start": end - self._num_before - size}
        return {"answers_back": len(self._ends) - bisect_left(self._ends, end)}


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
        "The draft ends where its probability by the counts would fall below this.",
        0.0,
        1.0,
    ),
    Choice(
        "pool",
        "where it looks",
        OFF,
        "Your earlier answers are those of the last minutes on this page. With them, drafts depend on what you ran "
        "before: the same seed may give another text of the same distribution.",
        {OFF: "in this text", ANSWERS: "also in your earlier answers"},
    ),
)


def make_drafter(
    parts: Parts, params: Mapping[str, Value], policy: Policy | None = None
) -> SuffixDrafter:
    """A drafter with the values of MATCH_PARAMS."""
    return SuffixDrafter(
        int(params["min_match"]),
        float(params["factor"]),
        float(params["least_probability"]),
        policy,
        parts.answers if params["pool"] == ANSWERS else (),
    )


def _build(parts: Parts, params: Mapping[str, Value]) -> SuffixDrafter:
    return make_drafter(parts, params, make_policy(params))


METHOD = Method(
    name="suffix",
    title="Suffix decoding",
    summary="No second model: what most often followed the longest repeated end of the text is proposed again.",
    caution="Drafting costs next to nothing, and a draft is longer after a longer match. Pays where the text repeats "
    "long passages (code edits, agents, quotes). Elsewhere it drafts little, so little is wasted.",
    source="Oliaro et al., arXiv:2411.04975",
    params=(*MATCH_PARAMS, *BLIND_K_PARAMS),
    build=_build,
    proposer="Matching earlier text proposes up to ",
    text_alone_when=("pool", (OFF,)),
    replays_from_text=True,
    needs_only_probabilities=True,
    reads_ahead=True,
    why_no_what_if="its drafts came from earlier answers as well, which the run does not hold",
)
