"""How a step's draft was made, as props: parts that follow from what the evidence says, whichever method said it.

A part is {"kind": "tree" | "lines" | "facts" | "passage", "title", ...}; the browser lays it out and computes nothing.
Evidence comes from files too: what has another shape than expected is left out, never shown half. Each function of
MAKERS reads its own keys of the evidence and returns the parts that follow from them, or none.
"""

import math
from collections.abc import Sequence
from typing import Any

from specviz.drafters import METHODS
from specviz.drafters.policy import K_PARAMS
from specviz.trace import Step
from specviz.views.explore.evidence import parts
from specviz.views.explore.evidence.parts import Chip, Part, Said
from specviz.views.explore.evidence.tree import candidates, tree, tree_words
from specviz.views.words import (
    drafted_nodes,
    label,
    percent,
    prose,
    quantity,
    share_words,
    why_nothing,
)

AROUND = 6  # tokens of the text shown on either side of a match
MOST_LAYERS = 96
POLICIES = K_PARAMS[0].options
CHILDREN = {
    "top": "the most likely tokens at each place, nothing drawn",
    "independent": "drawn from the draft's distribution, each on its own",
    "without_replacement": "drawn from the draft's distribution, no token twice at one place",
}
OF_ROUNDS = (
    "The marks show what the checking model did with each token. The target judges afterwards."
)
ROUND_STATUSES = ("accepted", "rejected", "ignored")
LAST_KINDS = ("resampled", "bonus", "plain")
WINDOW = (  # a key of lookahead's evidence -> title, the name of its line number n, note
    (
        "window",
        "The window",
        "level {}",
        "These tokens ride along in the same pass. None of them can be accepted, but they grow into n-grams.",
    ),
    (
        "guesses",
        "Guesses from the pool",
        "{}",
        "N-grams from the pool that begin with the text's last token. This step checked them.",
    ),
    ("found", "Added to the pool last time", "", ""),
)
WAYS = {
    "reencode": "the draft's text is split into the target's tokens",
    "shared": "only tokens that both vocabularies spell alike are drafted",
}
VERDICTS = {"kept": "accepted", "refused": "rejected"}
VERDICT_WORDS = {
    "kept": "accepted whole",
    "refused": "rejected: the target writes this reasoning step itself",
    "waiting": "nothing was drafted: the target is still replacing a rejected reasoning step",
}
JUDGES = {
    "mean_logprob": "the probability that the target gives its tokens (geometric mean)",
    "score": "the grade from 0 to 9 that the target writes",
}
FOUND = "The last {} also stood {} earlier; what followed there is proposed."
TAKEN_BACK = "the draft took back {} (“{}”) to spell the end of the text in its own tokens"


def made_props(step: Step, text: Sequence[str]) -> dict[str, Any] | None:
    """text: the labels of the tokens before this step; None where there is nothing to show beside the lane."""
    said = Said(step.evidence)
    made = [part for make in MAKERS for part in make(step, said, text)]
    return {"lead": tree_words(step), "parts": made} if made else None


def _nothing(step: Step, _said: Said, _text: Sequence[str]) -> list[Part]:
    why = why_nothing(step)
    return parts.facts("Why K is 0", [["reason", why]] if why else [])


def _policy(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    policy, k = said.words("policy"), said.whole("k")
    if not policy or k is None:
        return []
    words = ": ".join(filter(None, (policy.replace("_", " "), POLICIES.get(policy))))
    return parts.facts("How long a draft may be", [["K in force", str(k)], ["policy", words]])


def _growth(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """How the nodes of a tree came to be."""
    known = []
    if children := CHILDREN.get(said.words("children")):
        known.append(["children", children])
    grown, kept = said.whole("grown"), said.whole("kept")
    if grown is not None and kept is not None:
        known.append(["grown, then proposed", f"{grown:,}, then the best {kept:,}"])
    return parts.facts("How the tree was grown", known)


def _lookup(step: Step, said: Said, text: Sequence[str]) -> list[Part]:
    """The place where the last words stood before, above the end of the text as it is now."""
    start, matched, proposed = (said.whole(name) for name in ("start", "matched", "proposed"))
    if None in (start, matched, proposed) or len(text) != step.context_length:
        return []
    end, follows = start + matched, start + matched + proposed
    if not 0 < matched <= len(text) - start or follows > len(text):
        return []

    def chips(first: int, behind: int, mark: str = "") -> list[Chip]:
        return [[label(word), mark, ""] for word in text[first:behind]]

    now = len(text) - matched
    before, after = chips(max(0, start - AROUND), start), chips(follows, follows + AROUND)
    earlier = parts.line(
        "earlier", [*before, *chips(start, end, "same"), *chips(end, follows, "from"), *after]
    )
    end_now = [
        *chips(max(0, now - AROUND), now),
        *chips(now, len(text), "same"),
        *parts.draft_chips(step),
    ]
    note = FOUND.format(quantity(matched, "token"), quantity(now - start, "token"))
    return [parts.lines("Where it was found", [earlier, parts.line("now", end_now)], note)]


def _layers(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    used, total = said.wholes("layers"), said.whole("of")
    if not used or total is None or not max(used) < total <= MOST_LAYERS:
        return []
    chips: list[Chip] = [
        [str(number + 1), "on" if number in used else "off", ""] for number in range(total)
    ]
    note = f"{len(used)} of the target's {total} layers wrote the draft, with the target's own output head."
    return [parts.lines("Layers used", [parts.line("", chips)], note)]


def _modules(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    modules = said.whole("modules")
    return parts.facts(
        "Modules for later tokens",
        [] if modules is None else [["the target's modules", str(modules)]],
    )


def _rounds(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """The draft model's own draft-verify rounds, and what came out of them."""
    rounds = [Said(item) for item in said.items("rounds")]
    if not rounds:
        return []
    who = [
        f"{_name(each.words('by')) or 'Nobody'} for {_name(each.words('for')) or '?'}"
        for each in rounds
    ]
    is_one = len(set(who)) == 1
    names = [f"round {number}" for number in range(1, len(rounds) + 1)] if is_one else who
    lead = f"{who[0]}. {OF_ROUNDS}" if is_one else OF_ROUNDS
    rows = [parts.line(name, _round_chips(each)) for name, each in zip(names, rounds, strict=True)]
    calls = [
        [f"forwards of {_name(name)}", f"{number:,}"]
        for name, number in said.inside("calls").counts()
        if number
    ]
    handed = parts.line(
        "proposed to the target", [[text, "", ""] for text, *_ in parts.draft_chips(step)]
    )
    made = parts.lines(
        "Rounds inside the draft", [*rows[: parts.MOST_LINES - 1], handed], lead=lead
    )
    return [made, *parts.facts("What drafting cost", calls)]


def _name(name: str) -> str:
    """A drafter that needs no model goes by its method; a model by its own name."""
    return METHODS[name].title if name in METHODS else label(name)


def _round_chips(said: Said) -> list[Chip]:
    marked = [
        (token, token.words("status"), ROUND_STATUSES) for token in map(Said, said.items("tokens"))
    ]
    if last := said.inside("last"):
        marked.append((last, said.words("kind"), LAST_KINDS))
    return [token.chip(mark if mark in allowed else "") for token, mark, allowed in marked]


def _window(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """Lookahead's window, the n-grams that it verified, those that it found last, and the size of its pool."""
    made = [
        parts.lines(
            title,
            [parts.line(name.format(n), parts.token_chips(row)) for n, row in enumerate(rows, 1)],
            note,
        )
        for key, title, name, note in WINDOW
        if (rows := said.items(key))
    ]
    pool = said.inside("pool")
    keys, ngrams = pool.whole("keys"), pool.whole("ngrams")
    if keys is not None and ngrams is not None:
        made += parts.facts(
            "The pool", [["n-grams", f"{ngrams:,}"], ["different first tokens", f"{keys:,}"]]
        )
    return made


def _tokenisations(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """What the draft wrote in its own tokens, above the target's tokens for the same text."""
    way = said.words("way")
    if way not in WAYS:
        return []
    drafted = [step.draft[node] for node in drafted_nodes(step)]
    tokens = [Said(item) for item in said.items("target_tokens")]
    is_draft = [token.whole("id") for token in tokens] == [token.id for token in drafted]
    marks = [token.status for token in drafted] if is_draft else [""] * len(tokens)
    rows = [
        parts.line("draft", parts.token_chips(said.items("draft_tokens"))),
        parts.line("target", [token.chip(mark) for token, mark in zip(tokens, marks, strict=True)]),
    ]
    known = [["way", WAYS[way]]]
    boundary = said.inside("boundary")
    if backed := boundary.whole("backed"):
        known.append(
            [
                "at the boundary",
                TAKEN_BACK.format(quantity(backed, "token"), label(boundary.words("text"))),
            ]
        )
    if shared := share_words(said.number("shared")):
        known.append(["the draft's probability on shared tokens", shared])
    return [
        parts.lines("The same text in both vocabularies", rows, aligned=True),
        *parts.facts("Between the vocabularies", known),
    ]


def _grade(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """A whole reasoning step, the target's grade of it, and the threshold."""
    verdict, threshold, judged_by = (
        said.words("verdict"),
        said.number("threshold"),
        said.words("judged_by"),
    )
    if verdict not in VERDICT_WORDS or threshold is None:
        return []
    known = [["verdict", VERDICT_WORDS[verdict]]]
    if (given := said.number("grade")) is not None:
        known.append(["grade", _grade_words(judged_by, given, threshold)])
    if judged_by in JUDGES:
        known.append(["judged by", JUDGES[judged_by]])
    if (tokens := said.whole("tokens")) is not None:
        known.append(["tokens", f"{tokens:,}"])
    made = parts.facts("The grade", known)
    if text := said.inside("step").passage("text"):
        shown = {"text": prose(text), "mark": VERDICTS.get(verdict, ""), "note": ""}
        made.insert(0, {"kind": "passage", "title": "The reasoning step", **shown})
    return made


def _grade_words(judged_by: str, given: float, threshold: float) -> str:
    if judged_by == "score":
        return f"{given:.1f} of 9; needed: {threshold:.1f}"
    if judged_by == "mean_logprob":
        found, asked = (percent(math.exp(min(0.0, share))) for share in (given, threshold))
        return f"on average the target gives a token {found}; needed: {asked}"
    return f"{given:.3f}; needed: {threshold:.3f}"


MAKERS = (
    _nothing,
    _policy,
    tree,
    _growth,
    candidates,
    _lookup,
    _window,
    _rounds,
    _tokenisations,
    _grade,
    _layers,
    _modules,
)
