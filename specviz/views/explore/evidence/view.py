"""How a step's draft was made, as props: parts that follow from what the evidence says, whichever method said it.

A part is {"kind": "tree" | "lines" | "facts" | "passage", "title", ...}; the browser lays it out and computes nothing.
Evidence comes from files too: what has another shape than expected is left out, never shown half.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specviz.trace.file import Step
from specviz.views.explore.evidence.parts import Chip, Part, Props, Said, drafted, facts, line, lines
from specviz.views.explore.evidence.stories import grade, rounds, tokenisations, window
from specviz.views.explore.evidence.tree import candidates, tree, tree_words
from specviz.views.explore.sentences import counted, label

AROUND = 6  # tokens of the text shown on either side of a match
MOST_LAYERS = 96
POLICIES = {
    "heuristic": "2 more after a draft that was kept whole, else 1 fewer",
    "confidence": "drafting stops behind a token that the draft itself finds unlikely",
    "moving_average": "by how much was kept lately",
}
CHILDREN = {
    "top": "the likeliest tokens at each place, chosen without chance",
    "independent": "drawn from the draft's odds, each on its own",
    "without_replacement": "drawn from the draft's odds, no token twice at one place",
}


def made_props(step: Step, text: Sequence[str]) -> Props | None:
    """text: the labels of the tokens before this step; None where there is nothing to show beside the lane."""
    said = Said(step.evidence)
    made = [part for make in MAKERS for part in make(step, said, text)]
    return {"lead": tree_words(step), "parts": made} if made else None


def _policy(step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    policy, in_force = said.words("policy"), said.whole("k")
    if not policy or in_force is None:
        return []
    words = ": ".join(filter(None, (policy.replace("_", " "), POLICIES.get(policy))))
    return [facts("How long a draft may be", [["K in force", str(in_force)], ["policy", words]])]


def _growth(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    """How the nodes of a tree came to be."""
    known = []
    if children := CHILDREN.get(said.words("children")):
        known.append(["children", children])
    grown, kept = said.whole("grown"), said.whole("kept")
    if grown is not None and kept is not None:
        known.append(["grown, then handed over", f"{grown:,}, then the best {kept:,}"])
    return [facts("How the tree was grown", known)] if known else []


def _lookup(step: Step, said: Said, text: Sequence[str]) -> list[Part]:
    """The place where the last words stood before, above the end of the text as it is now."""
    start, matched, proposed = (said.whole(name) for name in ("start", "matched", "proposed"))
    if None in (start, matched, proposed) or len(text) != step.context_length:
        return []
    end, follows = start + matched, start + matched + proposed
    if not 0 < matched <= len(text) - start or follows > len(text):
        return []
    before = [_plain(word) for word in text[max(0, start - AROUND) : start]]
    same = [_same(word) for word in text[start:end]]
    after = [_plain(word) for word in text[follows : follows + AROUND]]
    earlier = line("earlier", [*before, *same, *map(_from, text[end:follows]), *after])
    now = line("now", [*map(_plain, text[-matched - AROUND : -matched]), *map(_same, text[-matched:]), *drafted(step)])
    ago = len(text) - matched - start
    same, before = counted(matched, "token"), counted(ago, "token")
    note = f"The last {same} stood in the text {before} before; what followed there is proposed."
    return [lines("Where it was found", [earlier, now], note)]


def _layers(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    used, total = said.wholes("layers"), said.whole("of")
    if not used or total is None or not max(used) < total <= MOST_LAYERS:
        return []
    chips: list[Chip] = [[str(number + 1), "on" if number in used else "off", ""] for number in range(total)]
    note = f"{len(used)} of the target's {total} layers wrote the draft, with the target's own head on top."
    return [lines("Layers used", [line("", chips)], note)]


def _modules(_step: Step, said: Said, _text: Sequence[str]) -> list[Part]:
    modules = said.whole("modules")
    return [] if modules is None else [facts("Modules for later tokens", [["modules of the target", str(modules)]])]


MAKERS: tuple[Callable[[Step, Said, Sequence[str]], list[Part]], ...] = (
    _policy,
    tree,
    _growth,
    candidates,
    _lookup,
    window,
    rounds,
    tokenisations,
    grade,
    _layers,
    _modules,
)


def _plain(word: str) -> Chip:
    return [label(word), "", ""]


def _same(word: str) -> Chip:
    return [label(word), "same", ""]


def _from(word: str) -> Chip:
    return [label(word), "from", ""]
