"""What comes out at one recorded place under a rule, token by token, beside the target's own odds: a block of bars.

From the place's recorded odds alone. Where the draft has drawn one token, what is kept has min(p, q) of every token;
the rest, 1 - overlap, goes to replacements, and there the rules part. Loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from specviz.lessons.types import LAW_RULES
from specviz.rules.facts import facts_of
from specviz.trace.file import Step, Trace
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.explore.sentences import label, percent

MOST_ROWS = 5
OTHERS = "all others"
WRONG = "misplaced"
RIGHT, WRONG_RULE = "right", "broken"
BROKEN = "broken:"  # before the name of a broken rule, in lessons
INDENT = "\u00a0" * 3
SAME = 1e-6  # recorded numbers have nine digits
KEY = (
    ("both", "kept from the draft"),
    ("owed", "replacements"),
    ("tick", "the target's own odds: where a bar has to end"),
    ("cut", "what the bars put in the wrong place"),
)


@dataclass(frozen=True, slots=True)
class Share:
    """One token at the place: the target's odds, what both models agree on, and its share of what is owed."""

    text: str
    p: float
    both: float
    residual: float


def law_block(trace: Trace, step: int, ref: str, rules: Sequence[str]) -> Props:
    """The judged drafted token `ref` of a step: per token of its place one bar for each of the `rules`."""
    unknown = [rule for rule in rules if not facts_of(rule.removeprefix(BROKEN)).residual_column]
    if unknown or not rules:
        raise ValueError(f"rules must be some of {', '.join(LAW_RULES)} (got {', '.join(unknown) or 'none'})")
    if not 0 <= step < len(trace.steps):
        raise ValueError(f"step must be from 0 to {len(trace.steps) - 1} (got {step})")
    overlap, known = _place(trace.steps[step], ref)
    shares, everything = (_with_others(part, overlap) for part in (known[:MOST_ROWS], known))
    laws = [[_chance(share, rule, overlap) for share in shares] for rule in rules]
    scale = 100 / max(*(share.p for share in shares), *(chance for law in laws for chance in law))
    rows = [
        _bar(_named(share.text, rule, rules), share, law[place], scale)
        for place, share in enumerate(shares)
        for rule, law in zip(rules, laws, strict=True)
    ]
    moved = [_moved(everything, rule, overlap) for rule in rules]
    rows += [_wrong(_named(WRONG, rule, rules), by, scale) for rule, by in zip(rules, moved, strict=True)]
    return blocks.bars(rows, heads=("target", "comes out"), key=KEY)


def _place(step: Step, ref: str) -> tuple[float, list[Share]]:
    """sum min(p, q), and what is recorded: the drafted token, the others with a row (those that either model finds
    likeliest, by p), then the rest."""
    position = next((each for each in step.positions if each.child is not None and str(each.child) == ref), None)
    if position is None or position.overlap is None:
        raise ValueError(f"ref must be a drafted token that was judged by both models' odds (got {ref!r:.40})")
    drafted = step.draft[position.child].id
    known = sorted(position.top, key=lambda row: (row[0] != drafted, -max(row[2], row[3] or 0.0)))
    known[1:MOST_ROWS] = sorted(known[1:MOST_ROWS], key=lambda row: -row[2])
    shares = [Share(label(text), p, min(p, q or 0.0), residual or 0.0) for _, text, p, q, residual, _, _ in known]
    return position.overlap, shares


def _with_others(shares: Sequence[Share], overlap: float) -> list[Share]:
    """These and all other tokens in one."""
    parts = (math.fsum(getattr(share, name) for share in shares) for name in ("p", "both", "residual"))
    rest = (max(0.0, whole - part) for whole, part in zip((1.0, overlap, 1.0), parts, strict=True))
    return [*shares, Share(OTHERS, *rest)]


def _chance(share: Share, rule: str, overlap: float) -> float:
    return share.both + (1 - overlap) * getattr(share, facts_of(rule.removeprefix(BROKEN)).residual_column)


def _moved(shares: Sequence[Share], rule: str, overlap: float) -> float:
    """How far the rule's law lies from the target's odds (total variation): at least, as all others count as one."""
    moved = math.fsum(abs(_chance(share, rule, overlap) - share.p) for share in shares) / 2
    return moved if moved > SAME else 0.0


def _bar(name: str, share: Share, chance: float, scale: float) -> Props:
    parts = [("both", scale * share.both), ("owed", scale * (chance - share.both))]
    return blocks.bar(name, parts, (percent(share.p), percent(chance)), scale * share.p)


def _wrong(name: str, moved: float, scale: float) -> Props:
    amount = f"at least {percent(moved)}" if moved else percent(0)
    return blocks.bar(name, [("cut", scale * moved)] if moved else [], ("", amount))


def _named(text: str, rule: str, rules: Sequence[str]) -> str:
    """The first rule's row has the text, those below it only how their rule is called; the right one needs no name."""
    is_right = facts_of(rule.removeprefix(BROKEN)).lossless
    if rule != rules[0]:
        return f"{INDENT}{RIGHT if is_right else WRONG_RULE}"
    return text if is_right else f"{text}, {WRONG_RULE}"
