"""One recorded position under some rules: each token's chance to come out, beside the target's own odds, as bars.

Computed from the recorded odds alone. A rule that judges one drafted token keeps min(p, q) of every token and gives
the rest, 1 - overlap, to replacements, which it draws from its own column of the trace. Loads no torch.
"""

import math
from collections.abc import Sequence

from specviz.lessons.types import DISTRIBUTION_RULES
from specviz.rules.facts import RuleFacts, facts_of
from specviz.trace import Step, Trace
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.explore.inspector import OTHERS, TokenRow
from specviz.views.words import label, percent

MOST_ROWS = 5
WRONG = "misplaced"
RIGHT, WRONG_RULE = "right", "broken"
BROKEN = "broken:"  # before the name of a broken rule, in lessons
INDENT = "\u00a0" * 3
SAME = 1e-6  # recorded numbers have nine digits
KEY = (
    ("both", "accepted from the draft"),
    ("shortfall", "replacements"),
    ("tick", "the target's probability: where a bar has to end"),
    ("excess", "probability on the wrong tokens"),
)


def distribution_block(trace: Trace, step: int, ref: str, rules: Sequence[str]) -> Props:
    """One bar per token and rule at the judged drafted token `ref` of a step. Raises ValueError."""
    facts = [facts_of(rule.removeprefix(BROKEN)) for rule in rules]
    unknown = [rule for rule, each in zip(rules, facts, strict=True) if not each.residual_column]
    if unknown or not rules:
        raise ValueError(
            f"rules must be some of {', '.join(DISTRIBUTION_RULES)} (got {', '.join(unknown) or 'none'})"
        )
    if not 0 <= step < len(trace.steps):
        raise ValueError(f"step must be from 0 to {len(trace.steps) - 1} (got {step})")
    overlap, known = _read_position(trace.steps[step], ref)
    shares, everything = (_with_others(part, overlap) for part in (known[:MOST_ROWS], known))
    scale = 100 / max(
        max(share.p, _chance(share, rule, overlap)) for share in shares for rule in facts
    )
    rows = []
    for share in shares:
        for rule in facts:
            chance = _chance(share, rule, overlap)
            parts = [("both", scale * share.both), ("shortfall", scale * (chance - share.both))]
            name, values = _row_name(share.text, rule, facts), (percent(share.p), percent(chance))
            rows.append(blocks.bar(name, parts, values, scale * share.p))
    for rule in facts:
        moved = _distance(everything, rule, overlap)
        parts, amount = (
            ([("excess", scale * moved)], f"at least {percent(moved)}")
            if moved
            else ([], percent(0))
        )
        rows.append(blocks.bar(_row_name(WRONG, rule, facts), parts, ("", amount)))
    return blocks.bars(rows, heads=("target", "written"), key=KEY)


def _read_position(step: Step, ref: str) -> tuple[float, list[TokenRow]]:
    """sum min(p, q), and the recorded tokens: the drafted one, those with a row of their own by p, then the rest."""
    position = next(
        (each for each in step.positions if each.child is not None and str(each.child) == ref), None
    )
    if position is None or position.overlap is None:
        raise ValueError(
            f"ref must be a drafted token that was judged by both models' probabilities (got {ref!r:.40})"
        )
    drafted = step.draft[position.child].id
    known = sorted(position.top, key=lambda row: (row[0] != drafted, -max(row[2], row[3] or 0.0)))
    known[1:MOST_ROWS] = sorted(known[1:MOST_ROWS], key=lambda row: -row[2])
    rows = (
        (label(text), "", p, q or 0.0, min(p, q or 0.0), residual or 0.0)
        for _, text, p, q, residual, *_ in known
    )
    return position.overlap, [TokenRow(*row) for row in rows]


def _with_others(shares: Sequence[TokenRow], overlap: float) -> list[TokenRow]:
    """These, and one share of all other tokens."""
    parts = (
        math.fsum(getattr(share, name) for share in shares) for name in ("p", "both", "residual")
    )
    p, both, residual = (
        max(0.0, whole - part) for whole, part in zip((1.0, overlap, 1.0), parts, strict=True)
    )
    return [*shares, TokenRow(OTHERS, "others", p, both=both, residual=residual)]


def _chance(share: TokenRow, rule: RuleFacts, overlap: float) -> float:
    return share.both + (1 - overlap) * getattr(share, rule.residual_column)


def _distance(shares: Sequence[TokenRow], rule: RuleFacts, overlap: float) -> float:
    """Total variation between the rule's law and p; a lower bound, because all other tokens count as one."""
    distance = math.fsum(abs(_chance(share, rule, overlap) - share.p) for share in shares) / 2
    return distance if distance > SAME else 0.0


def _row_name(text: str, rule: RuleFacts, rules: Sequence[RuleFacts]) -> str:
    """The token's text in the first rule's row, "right" or "broken" in those below it."""
    if rule is not rules[0]:
        return f"{INDENT}{RIGHT if rule.lossless else WRONG_RULE}"
    return text if rule.lossless else f"{text}, {WRONG_RULE}"
