"""The part of an alignment report that sets what an engine counted beside what the draft's files allow."""

from typing import NamedTuple

from specviz.alignment.report import cells
from specviz.alignment.served.beside import WAYS, fault_words, finding_of, note_of
from specviz.alignment.summary import Interval, Summary
from specviz.views import blocks
from specviz.views.blocks import PageBlock
from specviz.views.words import percent, reveal

LEAD = (
    "Tokens per step and acceptance by position, for the steps that draft: as an engine counted them, and as these "
    "files allow on these texts. Intervals: 95 %, over the texts. An engine drafts either drawn or most likely tokens; "
    "its counters should fit one of the two."
)


class _Row(NamedTuple):
    what: str
    tokens_per_step: float
    interval: Interval | None
    by_position: tuple[float, ...]


def as_served(summary: Summary) -> list[PageBlock]:
    """The counters, the two ways of drafting, and engine faults that would give such counters."""
    found = summary.as_served
    if found is None:
        return []
    counters = found.counters
    what = f"counted ({counters.source}, {counters.num_steps:,.0f} steps)"
    rows = [_Row(what, counters.tokens_per_step, None, counters.by_position)]
    rows += [
        _Row(
            f"these files, {WAYS[way.by_argmax]} tokens",
            way.tokens_per_step,
            way.interval,
            way.by_position,
        )
        for way in found.allowed
    ]
    rows += [
        _Row(
            f"{WAYS[fault.by_argmax]} tokens with {fault.words}",
            fault.tokens_per_step,
            None,
            fault.by_position,
        )
        for fault in found.faults
    ]
    columns = {
        "": lambda row: reveal(row.what),
        "tokens per step": lambda row: cells.number(row.tokens_per_step, "{:.2f}".format),
        "95 %": lambda row: _interval_words(row.interval),
        "steps that accept 1, 2, ... K tokens": lambda row: (
            ", ".join(map(percent, row.by_position)) or cells.NONE
        ),
    }
    table = blocks.table_of(rows, columns)
    if any(way.fits for way in found.allowed):
        fitting = [WAYS[way.by_argmax] for way in found.allowed if way.fits]
        words = f"The counters fit {' and '.join(fitting)} tokens: the engine gets what these files allow."
        return [table, blocks.VerdictBlock("consistent", words)]
    is_below = finding_of(found, summary.k) is not None
    sentences = [fault_words(found)] if is_below else note_of(found)
    return [table, *(blocks.WordsBlock(reveal(words)) for words in sentences)]


def _interval_words(interval: Interval | None) -> str:
    return cells.NONE if interval is None else f"{interval[0]:.2f} to {interval[1]:.2f}"
