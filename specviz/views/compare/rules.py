"""The section that puts all rules side by side on the drafts of one run. Pure data in, props out; every number worded.

A result is what `specviz.checks.side_by_side` yields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Cell, Props
from specviz.views.explore.sentences import percent

if TYPE_CHECKING:
    from specviz.checks.side_by_side import RuleResult, SideBySide

NAME, TITLE = "side_by_side", "Rules side by side"
LEAD = (
    "Every rule judges the same drafted tokens of this run with the same random numbers u; so do programs that get it "
    "wrong. A rule is right if the token it writes follows the large model's own odds p. How much it keeps says "
    "nothing about that."
)
COLUMNS = (
    "rule",
    "text",
    "kept, same u",
    "kept, on average",
    "tokens per target call",
    "off on average",
    "off at worst",
    "whole texts off",
)
BY_FORMULA = "✓ exact by formula, where one token is judged alone"
ROUNDING = 1e-9
MARKS = {"exact": "✓ exact (enumerated)", "differs": "✗ differs", "unsure": "– no harm here"}
NOT_JUDGED = "– nothing judged"
TONES = {"exact": "accepted", "differs": "rejected", "unsure": "ignored"}
NONE = "–"
ENUMERATING = "Every rule's program is enumerated over small texts; then the run's steps are judged again"
NOTES = (
    "“kept, same u”: kept of judged tokens, with this run's own u. “kept, on average” and “off”: by formula, over the "
    "places that the run judged, whatever u is. “off” is the total variation between what the rule writes and p: the "
    "share of the probability that lies on the wrong tokens. Block verification judges a draft as a whole, so no token "
    "has a chance of its own there.",
    "“whole texts off”: every outcome of the rule's own program is enumerated, drafting included, over texts of three "
    "tokens in a small language made from this run's odds: its two likeliest tokens, and all others together as one. "
    "Only what is exact there too is called enumerated.",
    "“tokens per target call”: expected for these drafts over all u, the target's own token included. A rule whose "
    "mistake lies in drafting got drafts of its own at the same places.",
)


def side_by_side(result: SideBySide | None, *, problem: str = "") -> Props:
    """`result`: None before the button was pressed. `problem`: why it could not be done, in words."""
    controls = [blocks.button("judge", "Judge with every rule", primary=True)]
    if result is None:
        words = problem or "Nothing judged yet. It needs a run with drafted tokens, and takes a few seconds."
        return blocks.section(NAME, TITLE, LEAD, controls, [blocks.words(words)])
    shown = [
        *_skipped(result),
        *([_table(result)] if result.done else []),
        *_told(result),
        blocks.details("What the columns say", [*map(blocks.words, NOTES)]),
    ]
    if result.done < result.total:
        words = f"{result.done} of {result.total} steps judged again" if result.done else ENUMERATING
        shown = [blocks.progress(result.done, result.total, words), *shown]
    if problem:
        shown = [blocks.words(problem), *shown]
    rules = [blocks.words(["", row.title, f": {row.summary}"]) for row in result.rows]
    shown += [blocks.details("The rules", rules)] if rules else []
    return blocks.section(NAME, TITLE, LEAD, controls, shown)


def _skipped(result: SideBySide) -> list[Props]:
    if not result.num_skipped:
        return []
    words = f"{result.num_skipped} more steps were made by other models than those of the last one; they are left out."
    return [blocks.words(words)]


def _table(result: SideBySide) -> Props:
    caption = f"{result.done} steps of this run; rules that keep the target's law first, then by how far they are off"
    return blocks.table(COLUMNS, [_row(row) for row in result.rows], caption=caption)


def _row(row: RuleResult) -> list[Cell]:
    return [
        f"{row.title} (a mistake)" if row.is_broken else row.title if row.lossless else f"{row.title} (lossy)",
        {"text": _mark(row), "tone": TONES[row.verdict]},
        f"{row.num_kept} of {row.num_judged}",
        NONE if row.acceptance is None else percent(row.acceptance),
        NONE if row.tokens_per_call is None else f"{row.tokens_per_call:.2f}",
        _off(row, row.mean_distance),
        _off(row, row.largest_distance),
        _off(row, row.whole_distance),
    ]


def _mark(row: RuleResult) -> str:
    if row.largest_distance is None:
        return NOT_JUDGED
    return BY_FORMULA if row.verdict == "exact" and row.whole_distance is None else MARKS[row.verdict]


def _off(row: RuleResult, distance: float | None) -> str:
    """Zero up to the rounding of float64 reads 0."""
    if distance is None:
        return NONE
    return percent(0.0 if distance < ROUNDING else distance)


def _told(result: SideBySide) -> list[Props]:
    """The lesson of the table, with its own numbers."""
    if result.done < result.total:
        return []
    if all(row.largest_distance is None for row in result.rows):
        return [blocks.words("The run judged no drafted token, so nothing can be said of any rule here.")]
    if result.twins is None:
        return [blocks.words("At these places no wrong rule keeps exactly as much as a right one.")]
    right, wrong = result.twins
    share, off = percent(right.acceptance), percent(wrong.mean_distance)
    words = [
        "Acceptance alone cannot tell right from wrong: ", right.title, " and ", wrong.title, " both keep ", share,
        " of the judged tokens, but the second puts ", off, " of the probability on the wrong tokens.",
    ]  # fmt: skip
    return [blocks.words(words)]
