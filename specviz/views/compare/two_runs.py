"""The section of two runs that are known already, side by side. Pure data in, props out."""

from __future__ import annotations

from specviz.trace.file import Trace
from specviz.trace.metrics import METRICS, metrics
from specviz.views import blocks
from specviz.views.blocks import Cell, Props
from specviz.views.compare.race import LETTERS, SHOWN, WORDS, Options
from specviz.views.compare.race_words import bare_title
from specviz.views.compare.side_by_side_player import duel_block, num_shown

NAME, TITLE = "two-runs", "Two runs side by side"
LEAD = (
    "Any two runs that are known here: recorded ones, the one on Explore, or two that you tick in the library. They "
    "move together, token by token, until their texts part."
)
NOTHING = "Choose two runs and press Show."
PACE = "By time, each moves at the pace at which it was recorded, maybe on another machine: that is no race."


def two_runs(
    options: Options,
    chosen: tuple[str, str],
    traces: tuple[Trace, Trace] | None = None,
    titles: tuple[str, str] = LETTERS,
) -> Props:
    """options: (words, value) per known run. traces: the two that are shown, if any."""
    controls = [
        blocks.choice("left", LETTERS[0], options, chosen[0]),
        blocks.choice("right", LETTERS[1], options, chosen[1]),
        blocks.button("show", "Show", primary=True),
    ]
    shown = [blocks.words(NOTHING)] if traces is None else _paired(*traces, titles)
    return blocks.section(NAME, TITLE, LEAD, controls, shown)


def chosen_runs(section: Props) -> tuple[str, str]:
    """The two runs that the lists of a section stand on."""
    left, right = (each["value"] for each in section["controls"] if each["kind"] == "choice")
    return left, right


def has_shown(section: Props) -> bool:
    """Whether two runs stand side by side in it."""
    return any(block["kind"] == "duel" for block in section["blocks"])


def _paired(left: Trace, right: Trace, titles: tuple[str, str]) -> list[Props]:
    long = [
        blocks.words(f"{bare_title(title)} is long: only its first {num_shown(each):,} steps are shown here.")
        for title, each in zip(titles, (left, right), strict=True)
        if num_shown(each) < len(each.steps)
    ]
    rows = [[bare_title(title), *_numbers(each)] for title, each in zip(titles, (left, right), strict=True)]
    return [
        blocks.table(("run", *WORDS[1:]), rows),
        *long,
        duel_block(left, right, "token", titles),
        blocks.words(PACE, small=True),
    ]


def _numbers(trace: Trace) -> list[Cell]:
    values = metrics(trace)
    return [METRICS[name].spell(values[name]) for name in SHOWN[1:]]
