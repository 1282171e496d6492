"""What the clock of a race says, in words: who was faster, by how much, and when nobody may be called so.

Pure data in, props and texts out. A title may hold names from outside: `bare_title` makes it harmless.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.ratios import COVERAGE, ONE_RUN, interval, is_far
from specviz.trace import Trace
from specviz.views.blocks import Words
from specviz.views.sentences import percent, visible

if TYPE_CHECKING:
    from specviz.race import Race

Titles = tuple[str, str]
MOST_TITLE = 160  # characters
ENOUGH_PROMPTS, ENOUGH_TOKENS = 5, 32  # for a side to be called faster
UNSTEADY = ONE_RUN
LOADED = (
    "Under load: this server did other work meanwhile (somebody's run, a file, a model), so no speedup is told. Race "
    "again later."
)
HOW = (
    "A ratio is one side's tokens per second over the other's on the same prompt. Every prompt is run twice by each "
    "side, in the order A B B A, on the next prompt B A A B; a side's quicker run counts, and it is the one that is "
    "replayed.",
    f"A side is called faster when, over {ENOUGH_PROMPTS} prompts or more with {ENOUGH_TOKENS} tokens or more, the "
    f"median is {percent(ONE_RUN)} or more away from 1 and its whole interval lies on one side of 1: from the smallest "
    f"to the largest ratio of 5 prompts, without one at either end of 8, without two of 12 ({percent(COVERAGE)} sure). "
    "It depends on the prompt when on one both runs of a side were clearly quicker, and on another both of the other.",
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
    if result.ratio is None:
        return "unsure", "No time was measured, so neither side can be called faster."
    if (result.unsteadiness or 0) >= UNSTEADY and not _is_beyond_doubt(result):
        return "unsure", _unsteady(result.unsteadiness)
    state, words = _compared(result, *map(bare_title, titles))
    *most, end = words
    return state, [*most, *_lossy(result, titles, end)]


def _unsteady(share: float) -> Words:
    took = f"the same setup on the same prompt took {percent(share)} more or less time"
    return f"This machine was unsteady: {took}, so neither is called faster. Race again when it has less to do."


def _compared(result: Race, one: str, other: str) -> tuple[str, list[str]]:
    ran = f"{result.ratio:.2f}× the speed of "
    if lack := _lack(result):
        return "unsure", ["Too few to tell: ", other, f" ran at {ran}", one, f" ({_over(result)}). {lack}"]
    if _is_clear(result):
        how = "faster" if result.ratio > 1 else "slower"
        return "consistent", ["", other, f" was {how}: {ran}", one, f" ({_over(result)})."]
    ahead = [heat.ahead for heat in result.heats]
    if 1 in ahead and -1 in ahead:
        counts = f"on {ahead.count(1)} of {len(ahead)}, slower on {ahead.count(-1)}"
        lead = "It depends on the prompt: "
        return "unsure", [lead, other, " was faster than ", one, f" {counts} ({_over(result)})."]
    return "unsure", ["No clear difference: ", other, f" ran at {ran}", one, f" ({_over(result)})."]


def _is_clear(result: Race) -> bool:
    """Whether the median's whole interval is on one side of 1, and the median far enough away."""
    low, high = interval(result.ratios)
    return (low > 1 or high < 1) and is_far(result.ratio)


def _is_beyond_doubt(result: Race) -> bool:
    """Whether one and the same side was clearly ahead in every run of every prompt: so far no unsteadiness reaches."""
    return {heat.ahead for heat in result.heats} in ({1}, {-1})


def _lack(result: Race) -> str:
    """What a race still lacks to say anything; empty where it lacks nothing."""
    lengths = [min(len(heat.left.tokens), len(heat.right.tokens)) for heat in result.heats]
    lacks = [
        f"over {ENOUGH_PROMPTS} prompts or more" if len(result.ratios) < ENOUGH_PROMPTS else "",
        f"with texts of {ENOUGH_TOKENS} tokens or more" if statistics.median(lengths) < ENOUGH_TOKENS else "",
    ]
    needed = " and ".join(filter(None, lacks))
    return f"Race {needed} to be sure." if needed else ""


def _over(result: Race) -> str:
    """What the ratio stands on: how many prompts, and how far apart they were."""
    number, low, high = len(result.ratios), min(result.ratios), max(result.ratios)
    if number == 1:
        return "one prompt only"
    inner = interval(result.ratios)
    left_out = sum(ratio < inner[0] for ratio in result.ratios)
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
    share = result.unsteadiness
    if share is None or result.is_shared:
        return []
    took = f"In its slower run the same setup on the same prompt took {percent(share)} more time"
    rule = f"From {percent(UNSTEADY)} on neither is called faster, unless one was clearly quicker in every run"
    return [f"{took} (median over both sides and all prompts). {rule}."]
