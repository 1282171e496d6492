"""Drafts that have a story of their own: rounds inside a draft, a window that guesses, two vocabularies, graded steps.

Each function gives the parts that follow from its keys of the evidence, or none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from specviz.drafters import METHODS
from specviz.trace.file import Step
from specviz.views.explore.evidence.parts import (
    MOST_LINES,
    Chip,
    Part,
    Said,
    drafted,
    facts,
    line,
    lines,
    passage,
    tokens_in,
)
from specviz.views.explore.sentences import flowing, label, percent

OF_ROUNDS = "The marks say what the model that was drafted for did with each token; the target comes after it."
FATES = ("accepted", "rejected", "ignored")
KINDS = ("resampled", "bonus", "plain")
WAYS = {
    "reencode": "the draft's text is cut into the target's tokens",
    "shared": "only tokens that both vocabularies spell alike are drafted",
}
VERDICTS = {"kept": "accepted", "refused": "rejected"}
VERDICT_WORDS = {
    "kept": "kept whole",
    "refused": "refused: the target writes this reasoning step itself",
    "waiting": "nothing was drafted: the target writes on to the end of a refused reasoning step",
}
JUDGES = {
    "mean_logprob": "how likely the target finds its tokens (geometric mean)",
    "score": "the grade from 0 to 9 that the target writes",
}


def rounds(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """The draft model's own draft-verify rounds, and what came out of them."""
    told = [Said(item) for item in said.items("rounds")]
    if not told:
        return []
    who = [_who(one) for one in told]
    is_one = len(set(who)) == 1
    names = [f"round {number}" for number in range(1, len(told) + 1)] if is_one else who
    lead = f"{who[0]}. {OF_ROUNDS}" if is_one else OF_ROUNDS
    rows = [line(name, _of_round(one)) for name, one in zip(names, told, strict=True)]
    calls = [[f"forwards of {_name(name)}", f"{number:,}"] for name, number in said.inside("calls").counts() if number]
    handed = line("handed to the target", [[text, "", ""] for text, *_ in drafted(step)])
    made = [lines("Rounds inside the draft", [*rows[: MOST_LINES - 1], handed], lead=lead)]
    return [*made, facts("What drafting cost", calls)] if calls else made


def _who(told: Said) -> str:
    return f"{_name(told.words('by')) or 'Nobody'} for {_name(told.words('for')) or '?'}"


def _name(name: str) -> str:
    """A drafter that needs no model goes by its method; a model by its own name."""
    return METHODS[name].title if name in METHODS else label(name)


def _of_round(told: Said) -> list[Chip]:
    tokens = [Said(item) for item in told.items("tokens")]
    chips = [token.chip(_one_of(token.words("status"), FATES)) for token in tokens]
    last = told.inside("last")
    return [*chips, last.chip(_one_of(told.words("kind"), KINDS))] if last else chips


def window(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """Lookahead's window, the n-grams that it verified, those that it found last, and the size of its pool."""
    levels, guesses, found = said.items("window"), said.items("guesses"), said.items("found")
    made = []
    if levels:
        note = "These tokens ride along in the same pass; none of them can be kept, but they grow into n-grams."
        made.append(lines("The window", [line(f"level {n}", _row(row)) for n, row in enumerate(levels, 1)], note))
    if guesses:
        note = "N-grams from the pool that begin with the last token of the text, checked in this step."
        made.append(lines("Guesses from the pool", [line(str(n), _row(row)) for n, row in enumerate(guesses, 1)], note))
    if found:
        made.append(lines("Added to the pool last time", [line("", _row(row)) for row in found]))
    pool = said.inside("pool")
    keys, ngrams = pool.whole("keys"), pool.whole("ngrams")
    if keys is not None and ngrams is not None:
        made.append(facts("The pool", [["n-grams", f"{ngrams:,}"], ["first tokens that they begin with", f"{keys:,}"]]))
    return made


def _row(items: Any) -> list[Chip]:
    return tokens_in(items) if isinstance(items, (list, tuple)) else []


def tokenisations(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """What the draft wrote in its own tokens, above the target's tokens for the same text."""
    way = said.words("way")
    if way not in WAYS:
        return []
    ours = [token for token in step.draft if token.status != "scratch"]
    theirs = [Said(item) for item in said.items("target_tokens")]
    fates = [token.status for token in ours]
    same = len(theirs) == len(ours) and all(
        said_of.whole("id") == token.id for said_of, token in zip(theirs, ours, strict=True)
    )
    marks = fates if same else [""] * len(theirs)
    rows = [
        line("draft", tokens_in(said.items("draft_tokens"))),
        line("target", [token.chip(mark) for token, mark in zip(theirs, marks, strict=True)]),
    ]
    known = [["way", WAYS[way]], *_boundary(said.inside("boundary"))]
    shared = said.number("shared")
    if shared is not None and 0 <= shared <= 1:
        known.append(["share of the draft's odds on shared tokens", percent(shared)])
    return [lines("The same text in both vocabularies", rows, aligned=True), facts("Between the vocabularies", known)]


def _boundary(boundary: Said) -> list[list[str]]:
    backed = boundary.whole("backed")
    if not backed:
        return []
    tokens = "1 token" if backed == 1 else f"{backed} tokens"
    text = label(boundary.words("text"))
    return [["at the boundary", f"the draft took back {tokens} (“{text}”) to spell the end of the text anew"]]


def grade(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """A whole reasoning step, what the target thought of it, and what that needed to be."""
    verdict, threshold = said.words("verdict"), said.number("threshold")
    if verdict not in VERDICT_WORDS or threshold is None:
        return []
    known = [["verdict", VERDICT_WORDS[verdict]]]
    given = said.number("grade")
    if given is not None:
        known.append(["grade", GRADES.get(said.words("judged_by"), _bare)(given, threshold)])
    if judged_by := JUDGES.get(said.words("judged_by")):
        known.append(["judged by", judged_by])
    if (tokens := said.whole("tokens")) is not None:
        known.append(["tokens", f"{tokens:,}"])
    made = [facts("The grade", known)]
    text = said.inside("step").passage("text")
    return [passage("The reasoning step", flowing(text), VERDICTS.get(verdict, ""), ""), *made] if text else made


def _bare(given: float, threshold: float) -> str:
    return f"{given:.3f}; at least {threshold:.3f} is kept"


def _likely(given: float, threshold: float) -> str:
    found, asked = (percent(math.exp(min(0.0, share))) for share in (given, threshold))
    return f"on average the target finds a token {found} likely; at least {asked} is asked"


def _of_nine(given: float, threshold: float) -> str:
    return f"{given:.1f} of 9; at least {threshold:.1f} is asked"


GRADES = {"mean_logprob": _likely, "score": _of_nine}


def _one_of(word: str, allowed: Sequence[str]) -> str:
    return word if word in allowed else ""
