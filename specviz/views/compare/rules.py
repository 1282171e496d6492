"""The section that compares all rules on the drafts of one run, from results of `specviz.checks.side_by_side`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Cell, PageSection, TableCell, Tone, Words
from specviz.views.words import percent

if TYPE_CHECKING:
    from specviz.checks.side_by_side import RuleResult, SideBySide

NAME = "side_by_side"
TITLE = "Rules side by side"
LEAD = (
    "Every rule judges the same drafted tokens of this run with the same random numbers u. So do rules that get it "
    "wrong. A rule is right if the tokens it writes follow the target's probabilities p. How many it accepts says "
    "nothing about that."
)
COLUMNS = (
    "rule",
    "text",
    "acceptance rate, same u",
    "accepted, on average",
    "tokens per target call",
    "wrong share, on average",
    "wrong share, at worst",
    "wrong share, whole texts",
)
BY_FORMULA = "✓ exact by formula (one token judged alone)"
ROUNDING = 1e-9  # distances below it come from float64
MARKS = {"exact": "✓ exact (enumerated)", "differs": "✗ differs", "unsure": "– no error here"}
NOT_JUDGED = "– nothing judged"
TONES: dict[str, Tone] = {"exact": "accepted", "differs": "rejected", "unsure": "ignored"}
NONE = "–"
ENUMERATING = (
    "Enumerating every rule's program over small texts; then the run's steps are judged again"
)
NOTES = (
    "“acceptance rate, same u”: with this run's own random numbers. “accepted, on average” and “wrong share”: by "
    "formula, over the positions that the run judged, for all u. “wrong share” is the total variation between the "
    "rule's output and p: the share of the probability that lies on the wrong tokens. Block verification judges a "
    "draft as a whole, so no single token has a probability of its own there.",
    "“wrong share, whole texts”: enumerates every outcome of the rule's own program, drafting included. The texts "
    "are three tokens long, in a small language made from this run's probabilities: its two likeliest tokens, and "
    "all others together as one. Only a rule that is exact there too is called enumerated.",
    "“tokens per target call”: expected for these drafts over all u, the target's own token included. A rule whose "
    "mistake is in drafting got its own drafts at the same positions.",
)


def side_by_side(result: SideBySide | None) -> PageSection:
    """The section that compares all rules. result: None before the button was pressed."""
    controls = [blocks.ButtonControl("judge", "Judge with every rule", primary=True)]
    if result is None:
        words = "Nothing judged yet. It needs a run with drafted tokens."
        return blocks.PageSection(NAME, TITLE, LEAD, controls, [blocks.WordsBlock(words)])
    shown = []
    if result.done < result.total:
        words = ENUMERATING
        if result.done:
            words = f"{result.done} of {result.total} steps judged again"
        shown.append(blocks.progress(result.done, result.total, words))
    if result.num_skipped:
        others = "were made by other models, or drafted by heads, layers or another vocabulary; they are left out."
        shown.append(blocks.WordsBlock(f"{result.num_skipped} more steps {others}"))
    if result.done:
        caption = f"{result.done} steps of this run; lossless rules first, then by the wrong share"
        rows = [_row(row) for row in result.rows]
        shown.append(blocks.TableBlock(COLUMNS, rows, caption=caption))
    if result.done == result.total:
        shown.append(blocks.WordsBlock(_finding(result)))
    notes = [blocks.WordsBlock(note) for note in NOTES]
    shown.append(blocks.DetailsBlock("What the columns mean", notes))
    if result.rows:
        rules = [
            blocks.WordsBlock(["", row.rule.title, f": {row.rule.summary}"]) for row in result.rows
        ]
        shown.append(blocks.DetailsBlock("The rules", rules))
    return blocks.PageSection(NAME, TITLE, LEAD, controls, shown)


def _row(row: RuleResult) -> list[Cell]:
    """The cells of one rule, in the order of COLUMNS."""
    name = row.rule.title
    if row.is_broken:
        name += " (wrong)"
    elif not row.rule.lossless:
        name += " (lossy)"
    per_call = NONE if row.tokens_per_call is None else f"{row.tokens_per_call:.2f}"
    return [
        name,
        TableCell(_verdict_words(row), tone=TONES[row.verdict]),
        f"{row.num_accepted} of {row.num_judged}",
        NONE if row.acceptance is None else percent(row.acceptance),
        per_call,
        _distance_words(row.mean_distance),
        _distance_words(row.largest_distance),
        _distance_words(row.whole_distance),
    ]


def _verdict_words(row: RuleResult) -> str:
    if not row.num_judged:
        return NOT_JUDGED
    if row.verdict == "exact" and row.whole_distance is None:
        return BY_FORMULA
    return MARKS[row.verdict]


def _distance_words(distance: float | None) -> str:
    if distance is None:
        return NONE
    return percent(0.0 if distance < ROUNDING else distance)


def _finding(result: SideBySide) -> Words:
    """A wrong rule that accepts as much as a right one, if there is one."""
    if not any(row.num_judged for row in result.rows):
        return "The run judged no drafted token, so nothing can be said about any rule."
    if result.twins is None:
        return "At these positions, no wrong rule accepts exactly as much as a right one."
    right, wrong = result.twins
    share = percent(right.acceptance)
    misplaced = percent(wrong.mean_distance)
    return [
        "Acceptance alone cannot tell right from wrong: ", right.rule.title, " and ", wrong.rule.title,
        " both accept ", share, " of the judged tokens, but the second puts ", misplaced,
        " of the probability on the wrong tokens.",
    ]  # fmt: skip
