"""What the clock of a race says, in words: who was faster, by how much, and when nobody may be called so.

Pure data in, props and texts out. A title may hold names from outside: `bare_title` makes it harmless.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.analysis.rounds import FEWEST, LEVEL, NEAR, ONE_RUN
from specviz.trace.file import Trace
from specviz.views.blocks import Words
from specviz.views.explore.sentences import percent, visible

if TYPE_CHECKING:
    from specviz.analysis.rounds import Comparison
    from specviz.bench.race import Race

Titles = tuple[str, str]
MOST_TITLE = 160  # characters
ENOUGH_TOKENS = 32  # for a side to be called faster
LOADED = (
    "Under load: this server did other work meanwhile (somebody's run, a file, a model), so no speedup is told. Race "
    "again later."
)
HOW = (
    "A ratio is one side's tokens per second over the other's on the same prompt. Every prompt is run twice by each "
    "side, in the order A B B A or B A A B, drawn by lot; a side's quicker run counts, and it is the one that is "
    "replayed.",
    f"A side is called faster when, over {FEWEST} prompts or more with {ENOUGH_TOKENS} tokens or more, the median is "
    f"{percent(NEAR - 1)} or more away from 1 and its whole interval lies on one side of 1: from the smallest to the "
    f"largest ratio of 6 prompts, without one at either end of 9, without two of 12. Two equal setups are called "
    f"different in at most {percent(LEVEL)} of races, however busy the machine is.",
    f"It depends on the prompt when on one both runs of a side were quicker than both of the other, on another the "
    f"other way round, each time by {percent(ONE_RUN)} and by more than two runs of one setup ever lay apart in the "
    "race.",
    "One unrecorded run of each side comes first, to warm up. Every run starts with nothing read, so reading the "
    "prompt counts on both sides.",
    "Other work of this server is noticed, and then no speedup is told. Other programs on the machine are not: they "
    "show in how far two runs of the same setup lie apart.",
)


def bare_title(title: str) -> str:
    return visible(title[:MOST_TITLE])


def speed_verdict(result: Race, titles: Titles) -> tuple[str, Words]:
    """The verdict of the clock: its state, and words with both sides' names."""
    if result.is_shared:
        return "unsure", LOADED
    found = result.comparison
    if found is None:
        return "unsure", "No time was measured, so neither side can be called faster."
    state, words = _compared(result, found, *map(bare_title, titles))
    *most, end = words
    return state, [*most, *_lossy(result, titles, end)]


def _compared(result: Race, found: Comparison, one: str, other: str) -> tuple[str, list[str]]:
    ran, over = f"{found.ratio:.2f}× the speed of ", f" ({_over(found)})."
    if lack := _lack(result, found):
        return "unsure", ["Too few to tell: ", other, f" ran at {ran}", one, f"{over} {lack}"]
    if found.is_told:
        return "consistent", ["", other, f" was {found.verdict}: {ran}", one, over]
    ahead, behind = result.divided
    if ahead:
        counts = f" on {ahead} of {len(found.ratios)}, slower on {behind}"
        return "unsure", ["It depends on the prompt: ", other, " was faster than ", one, f"{counts}{over}"]
    if found.verdict == "even":
        return "unsure", ["About as fast: ", other, f" ran at {ran}", one, over]
    busy = f" {_busy(found.spread)}" if found.verdict == "noisy" else ""
    return "unsure", ["No clear difference: ", other, f" ran at {ran}", one, f"{over}{busy}"]


def _busy(share: float) -> str:
    took = f"the same setup on the same prompt took {percent(share)} more or less time"
    return f"This machine was too busy: {took}. Race again when it is idle."


def _lack(result: Race, found: Comparison) -> str:
    """What a race still lacks to say anything; empty where it lacks nothing."""
    lengths = [min(len(heat.left.tokens), len(heat.right.tokens)) for heat in result.heats]
    lacks = [
        f"over {FEWEST} prompts or more" if len(found.ratios) < FEWEST else "",
        f"with texts of {ENOUGH_TOKENS} tokens or more" if statistics.median(lengths) < ENOUGH_TOKENS else "",
    ]
    needed = " and ".join(filter(None, lacks))
    return f"Race {needed} to be sure." if needed else ""


def _over(found: Comparison) -> str:
    """What the ratio stands on: how many prompts, and how far apart they were."""
    number, low, high = len(found.ratios), min(found.ratios), max(found.ratios)
    if number == 1:
        return "one prompt only"
    inner = found.between
    left_out = sum(ratio < inner[0] for ratio in found.ratios)
    ends = f"; {inner[0]:.2f}× to {inner[1]:.2f}× without the {left_out} at either end" if left_out else ""
    return f"median of {number} prompts, {low:.2f}× to {high:.2f}×{ends}"


def _lossy(result: Race, titles: Titles, end: str) -> list[str]:
    """A speed of a text that does not follow the target's own odds says so, of whichever side."""
    names = lossy_names(result, titles)
    are = " is lossy: its text is" if len(names) == 1 else " are lossy: their texts are"
    return [f"{end} ", " and ".join(names), f"{are} not the target's own."] if names else [end]


def lossy_names(result: Race, titles: Titles) -> list[str]:
    return [
        bare_title(title) for title, runs in zip(titles, sides(result), strict=True) if not all(map(_is_exact, runs))
    ]


def sides(result: Race) -> tuple[Sequence[Trace], Sequence[Trace]]:
    """The runs of either side, a heat after the other."""
    return [heat.left for heat in result.heats], [heat.right for heat in result.heats]


def _is_exact(trace: Trace) -> bool:
    return all(step.settings.lossless for step in trace.steps)


def steadiness(result: Race) -> list[str]:
    """How far two runs of one setup lay apart; nothing where others slowed them down."""
    found = result.comparison
    if found is None or result.is_shared:
        return []
    took = f"In its slower run the same setup on the same prompt took {percent(found.spread)} more time"
    return [f"{took} (median over both sides and all prompts)."]
