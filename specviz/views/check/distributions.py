"""One recorded position under some rules, as bars: how often each rule writes a token, beside the target's probability.

Computed from the recorded probabilities alone. A rule that judges one drafted token accepts min(p, q) of every token.
The rest, 1 - overlap, goes to replacements, which the rule draws from its own column of the trace. Loads no torch.
"""

import math
from collections.abc import Sequence

from specviz.lessons.types import DISTRIBUTION_RULES
from specviz.rules.facts import RuleFacts, facts_of
from specviz.trace import Step, Trace
from specviz.views import blocks
from specviz.views.blocks import BarsBlock
from specviz.views.explore.inspector import OTHERS, TokenRow
from specviz.views.words import label, percent

MOST_ROWS = 5
WRONG = "misplaced"
RIGHT = "right"
WRONG_RULE = "broken"
BROKEN = "broken:"  # begins the name of a broken rule in lessons
INDENT = "\u00a0" * 3
SAME = 1e-6  # recorded numbers have nine digits
KEY = (
    ("both", "accepted from the draft"),
    ("shortfall", "replacements"),
    ("tick", "the target's probability: where a bar has to end"),
    ("excess", "probability on the wrong tokens"),
)


def distribution_block(trace: Trace, step: int, ref: str, rules: Sequence[str]) -> BarsBlock:
    """A bar per token and rule at the judged drafted token `ref` of a step. Raises ValueError."""
    facts = [facts_of(rule.removeprefix(BROKEN)) for rule in rules]
    unknown = [name for name, rule in zip(rules, facts, strict=True) if not rule.residual_column]
    if unknown or not rules:
        allowed = ", ".join(DISTRIBUTION_RULES)
        raise ValueError(f"rules must be some of {allowed} (got {', '.join(unknown) or 'none'})")
    if not 0 <= step < len(trace.steps):
        raise ValueError(f"step must be from 0 to {len(trace.steps) - 1} (got {step})")
    overlap, known = _read_position(trace.steps[step], ref)
    shown = _with_others(known[:MOST_ROWS], overlap)
    everything = _with_others(known, overlap)
    longest = 0.0
    for row in shown:
        chances = [_chance(row, rule, overlap) for rule in facts]
        longest = max(longest, row.p, *chances)
    scale = 100 / longest
    bars = []
    for row in shown:
        for rule in facts:
            chance = _chance(row, rule, overlap)
            parts = [("both", scale * row.both), ("shortfall", scale * (chance - row.both))]
            name = _row_name(row.text, rule, facts)
            values = (percent(row.p), percent(chance))
            bars.append(blocks.bar(name, parts, values, scale * row.p))
    for rule in facts:
        misplaced = _distance(everything, rule, overlap)
        parts = [("excess", scale * misplaced)] if misplaced else []
        amount = f"at least {percent(misplaced)}" if misplaced else percent(0)
        bars.append(blocks.bar(_row_name(WRONG, rule, facts), parts, ("", amount)))
    return blocks.BarsBlock(bars, heads=("target", "written"), key=KEY)


def _read_position(step: Step, ref: str) -> tuple[float, list[TokenRow]]:
    """The sum of min(p, q), and the recorded tokens.

    The drafted token comes first, then the tokens with a row of their own by p, then the rest.
    """
    position = None
    for draw in step.positions:
        if draw.child is not None and str(draw.child) == ref:
            position = draw
            break
    if position is None or position.overlap is None:
        raise ValueError(
            f"ref must be a drafted token that was judged by both models' probabilities (got {ref!r:.40})"
        )
    drafted = step.draft[position.child].id
    known = []
    for id_, text, p, q, residual, *_ in position.top:
        q = q or 0.0
        both = min(p, q)
        row = TokenRow(label(text), "", p, q, both, residual or 0.0)
        known.append((id_ != drafted, row))
    known.sort(key=lambda item: -max(item[1].p, item[1].q))
    known.sort(key=lambda item: item[0])  # the drafted token first; the order of the others stays
    rows = [row for _, row in known]
    rows[1:MOST_ROWS] = sorted(rows[1:MOST_ROWS], key=lambda row: -row.p)
    return position.overlap, rows


def _with_others(rows: Sequence[TokenRow], overlap: float) -> list[TokenRow]:
    """The rows, and one more for all other tokens."""
    p = max(0.0, 1.0 - math.fsum(row.p for row in rows))
    both = max(0.0, overlap - math.fsum(row.both for row in rows))
    residual = max(0.0, 1.0 - math.fsum(row.residual for row in rows))
    return [*rows, TokenRow(OTHERS, "others", p, both=both, residual=residual)]


def _chance(row: TokenRow, rule: RuleFacts, overlap: float) -> float:
    """The probability that the rule writes the token."""
    return row.both + (1 - overlap) * getattr(row, rule.residual_column)


def _distance(rows: Sequence[TokenRow], rule: RuleFacts, overlap: float) -> float:
    """Total variation between the rule's distribution and p; a lower bound, as all other tokens count as one."""
    differences = [abs(_chance(row, rule, overlap) - row.p) for row in rows]
    distance = math.fsum(differences) / 2
    return distance if distance > SAME else 0.0


def _row_name(text: str, rule: RuleFacts, rules: Sequence[RuleFacts]) -> str:
    """The token's text in the first rule's row, "right" or "broken" in the rows below it."""
    if rule is not rules[0]:
        kind = RIGHT if rule.lossless else WRONG_RULE
        return f"{INDENT}{kind}"
    return text if rule.lossless else f"{text}, {WRONG_RULE}"
