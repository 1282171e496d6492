"""The part of an alignment report that sets what an engine counted beside what the draft's files allow."""

from specviz.alignment.report import cells
from specviz.alignment.served.beside import WAYS, fault_words, finding_of, note_of, tokens_words
from specviz.alignment.summary import Allowed, Summary
from specviz.views import blocks
from specviz.views.blocks import PageBlock
from specviz.views.words import percent, reveal

LEAD = (
    "Tokens per step and acceptance by position, for the steps that draft: as an engine counted them, and as these "
    "files allow on these texts. Intervals: 95 %, over the texts. An engine drafts either drawn or most likely tokens; "
    "its counters should fit one of the two."
)


def as_served(summary: Summary) -> list[PageBlock]:
    """The counters beside the two ways of drafting, and what may lie between."""
    found = summary.as_served
    if found is None:
        return []
    counters = found.counters
    titles = ["", f"counted ({counters.source}, {counters.num_steps:,.0f} steps)"]
    titles += [f"these files, {WAYS[way.by_argmax]} tokens" for way in found.allowed]
    rows = [
        ["tokens per step", f"{counters.tokens_per_step:.2f}", *map(tokens_words, found.allowed)]
    ]
    for place in range(summary.k):
        told = counters.by_position[place : place + 1]
        row = [f"steps that accept {place + 1} or more", percent(told[0]) if told else cells.NONE]
        rows.append(row + [_share_words(way, place) for way in found.allowed])
    table = blocks.TableBlock(titles, rows)
    if any(way.fits for way in found.allowed):
        fitting = [WAYS[way.by_argmax] for way in found.allowed if way.fits]
        words = f"The counters fit {' and '.join(fitting)} tokens: the engine gets what these files allow."
        return [table, blocks.VerdictBlock("consistent", words)]
    is_below = finding_of(found, summary.k) is not None
    sentences = [fault_words(found)] if is_below else note_of(found)
    return [table, *(blocks.WordsBlock(reveal(words)) for words in sentences)]


def _share_words(way: Allowed, place: int) -> str:
    return f"{percent(way.by_position[place])} ({cells.spread_words(way.intervals[place])})"
