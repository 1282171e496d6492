"""The section of two recorded runs side by side."""

from specviz.trace import Trace
from specviz.views import blocks
from specviz.views.blocks import Options, PageBlock, PageSection, TableBlock
from specviz.views.compare.race import LETTERS, WORDS, metric_cells
from specviz.views.compare.race_words import Titles, bare_title
from specviz.views.compare.side_by_side_player import (
    difference_words,
    num_shown,
    side_by_side_block,
)

NAME = "two-runs"
TITLE = "Two runs side by side"
LEAD = (
    "Any two runs: recorded ones, the one on Explore, or two that you tick in the library. They advance together, "
    "token by token, until their texts differ."
)
NOTHING = "Choose two runs and press Show."
PACE = (
    "By time, each run replays at its recorded pace, perhaps from another machine: this is no race."
)


def two_runs(
    options: Options,
    chosen: tuple[str, str],
    traces: tuple[Trace, Trace] | None = None,
    titles: Titles = LETTERS,
) -> PageSection:
    """The section of two runs. options: (words, value) per known run. traces: the two runs to show, if any."""
    controls = [
        blocks.ChoiceControl("left", LETTERS[0], options, chosen[0]),
        blocks.ChoiceControl("right", LETTERS[1], options, chosen[1]),
        blocks.ButtonControl("show", "Show", primary=True, free=True),
    ]
    shown = [blocks.WordsBlock(NOTHING)] if traces is None else _comparison_blocks(traces, titles)
    return blocks.PageSection(NAME, TITLE, LEAD, controls, shown)


def summary(traces: tuple[Trace, Trace], titles: Titles) -> list[PageBlock]:
    """The numbers of both runs, and the place where their texts first differ."""
    words = blocks.WordsBlock(difference_words(*traces, titles))
    return [_numbers(traces, titles), words]


def _comparison_blocks(traces: tuple[Trace, Trace], titles: Titles) -> list[PageBlock]:
    notes = []
    for title, trace in zip(titles, traces, strict=True):
        most = num_shown(trace)
        if most < len(trace.steps):
            note = f"{bare_title(title)} is long: only its first {most:,} steps are shown."
            notes.append(blocks.WordsBlock(note))
    return [
        _numbers(traces, titles),
        *notes,
        side_by_side_block(*traces, "token", titles),
        blocks.WordsBlock(PACE, small=True),
    ]


def _numbers(traces: tuple[Trace, Trace], titles: Titles) -> TableBlock:
    rows = []
    for title, trace in zip(titles, traces, strict=True):
        rows.append([bare_title(title), *metric_cells(trace)[1:]])  # without tokens/s
    return blocks.TableBlock(("run", *WORDS[1:]), rows)
