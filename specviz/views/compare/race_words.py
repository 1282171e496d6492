"""The verdicts of a race: which side was faster, and whether both texts are the same; where not, with the logits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.analysis.rounds import FEWEST
from specviz.trace import Trace
from specviz.views import blocks
from specviz.views.blocks import Props, Words
from specviz.views.words import label, percent, reveal, token_label

if TYPE_CHECKING:
    from specviz.analysis.rounds import SpeedComparison
    from specviz.bench.race import Race, RaceDifference

Titles = tuple[str, str]
MOST_TITLE = 160  # characters
ENOUGH_TOKENS = 32  # for a side to be called faster
SAME_DISTRIBUTION = "Both texts are drawn from the same distribution, so they differ by design."
LOADED = (
    "Under load: this server did other work meanwhile (somebody's run, a file, a model), so no speedup is given. "
    "Race again later."
)
IMPOSSIBLE = (
    "No ratio: it would be above the tokens per target call, and no draft gives more than that. This machine was busy "
    "during the race, or the prompts differ too much for one number."
)


def bare_title(title: str) -> str:
    """A side's title may hold names from outside: here they are harmless."""
    return reveal(title[:MOST_TITLE])


def sides(result: Race) -> tuple[Sequence[Trace], Sequence[Trace]]:
    """The runs of either side, one per heat."""
    return [heat.left for heat in result.heats], [heat.right for heat in result.heats]


def lossy_names(result: Race, titles: Titles) -> list[str]:
    """The sides of which a step was judged by a lossy rule."""
    both = zip(titles, sides(result), strict=True)
    return [
        bare_title(title)
        for title, runs in both
        if any(not s.settings.lossless for run in runs for s in run.steps)
    ]


def speed_verdict(result: Race, titles: Titles) -> tuple[str, Words]:
    """The state of the verdict, and its words with both sides' names."""
    if result.is_shared:
        return "unsure", LOADED
    found = result.comparison
    if found is None:
        return "unsure", "No time was measured, so no side can be called faster."
    state, words = _comparison_words(result, found, *map(bare_title, titles))
    if names := lossy_names(result, titles):
        are = " is lossy: its text is" if len(names) == 1 else " are lossy: their texts are"
        words[-1:] = [f"{words[-1]} ", " and ".join(names), f"{are} not the target's own."]
    return state, words


def _comparison_words(
    result: Race, found: SpeedComparison, one: str, other: str
) -> tuple[str, list[str]]:
    if not found.is_possible:
        return "unsure", [IMPOSSIBLE]
    ran, over = f"{found.ratio:.2f}× the speed of ", f" ({_range_words(result, found)})."
    lack = _lack_words(result)
    if found.is_clear and not lack:
        return "consistent", ["", other, f" was {found.verdict}: {ran}", one, over]
    ahead, behind = result.wins_and_losses
    if ahead and not lack:
        counts = f" on {ahead} of {len(found.ratios)}, slower on {behind}"
        return "unsure", [
            "It depends on the prompt: ",
            other,
            " was faster than ",
            one,
            f"{counts}{over}",
        ]
    if lack:
        lead, over = "Too few to tell: ", f"{over} {lack}"
    elif found.verdict == "even":
        lead = "About as fast: "
    else:
        lead = "No clear difference: "
        if found.verdict == "noisy":
            took = f"two runs of one setup on the same prompt differed by {percent(found.spread)}"
            over += f" This machine was too busy: {took}. Race again when it is idle."
    return "unsure", [lead, other, f" ran at {ran}", one, over]


def _lack_words(result: Race) -> str:
    """What a race must have more of before a side can be called faster; empty where it has enough."""
    lengths = [min(len(heat.left.tokens), len(heat.right.tokens)) for heat in result.heats]
    lacks = [
        f"over {FEWEST} prompts or more" if len(result.comparison.ratios) < FEWEST else "",
        f"with texts of {ENOUGH_TOKENS} tokens or more"
        if statistics.median(lengths) < ENOUGH_TOKENS
        else "",
    ]
    needed = " and ".join(filter(None, lacks))
    return f"Race {needed} to be sure." if needed else ""


def _range_words(result: Race, found: SpeedComparison) -> str:
    """How many prompts there are, and how far apart their ratios lie, each as far as it can be."""
    if len(found.ratios) == 1:
        return "one prompt only"
    (low, high), own = (
        found.between,
        [heat.comparison for heat in result.heats if heat.comparison is not None],
    )
    ratios = [each.ratio for each in own if each.is_possible] or [low, high]
    left_out = sum(ratio < low for ratio in found.ratios)
    ends = f"; {low:.2f}× to {high:.2f}× without the {left_out} at either end" if left_out else ""
    return f"median of {len(found.ratios)} prompts, {min(ratios):.2f}× to {max(ratios):.2f}×{ends}"


def text_verdict(result: Race, titles: Titles) -> list[Props]:
    """Whether the texts are the same; where they first differ, the models' logits and odds of both tokens."""
    lossy = lossy_names(result, titles)
    if result.heats[0].left.header.request.get("temperature") != 0:
        used = [
            "Two draws from different distributions: ",
            " and ".join(lossy),
            " used a lossy rule.",
        ]
        words = used if lossy else SAME_DISTRIBUTION
        return [blocks.words(words)]
    if result.difference is not None:
        return _difference_blocks(result, result.difference, lossy, titles)
    if num_parted := sum(heat.parting is not None for heat in result.heats):
        words = f"Not identical: the texts differ on {num_parted} of {len(result.heats)} prompts."
        why = "The race was stopped before the models were asked for the logits of both tokens."
        return [blocks.verdict("unsure", f"{words} {why}")]
    number, lengths = (
        len(result.heats),
        [(len(heat.left.tokens), len(heat.right.tokens)) for heat in result.heats],
    )
    pairs = "the two texts are" if number == 1 else f"on all {number} prompts the two texts are"
    known = {length for pair in lengths for length in pair}
    each = f" ({max(known):,} tokens each)" if len(known) == 1 else ""
    early = (
        "; where one side ended early, as far as both go"
        if any(one != other for one, other in lengths)
        else ""
    )
    return [blocks.verdict("exact", f"Identical: {pairs} the same, token for token{each}{early}.")]


def _difference_blocks(
    result: Race, found: RaceDifference, lossy: Sequence[str], titles: Titles
) -> list[Props]:
    num_same = sum(heat.parting is None for heat in result.heats)
    same = (
        f" {num_same} of {len(result.heats)} prompts gave the same text."
        if len(result.heats) > 1
        else ""
    )
    names = [bare_title(title) for title in titles]
    one, other = (token_label(token) for token in (found.left, found.right))
    where = [
        f"Not identical: on “{reveal(found.title)}” the texts differ from token {found.place + 1:,}: ", names[0],
        " wrote ", one, ", ", names[1], " wrote ", other, f".{same} {_reason(found, lossy)}",
    ]  # fmt: skip
    columns = ("read again, up to this token", f"logit of {one}", f"logit of {other}", f"probability of {one}",
               f"probability of {other}")  # fmt: skip
    rows = [
        [
            f"{each.role} {label(each.name)}",
            *(f"{logit:.5f}" for logit in each.logits),
            *map(percent, each.probabilities),
        ]
        for each in found.readings
    ]
    return [
        blocks.verdict("unsure" if found.is_tie or lossy else "differs", where),
        blocks.table(columns, rows),
    ]


def _reason(found: RaceDifference, lossy: Sequence[str]) -> str:
    target = found.readings[0]
    gap = abs(target.logits[0] - target.logits[1])
    if found.is_tie:
        return (
            f"The target's logits for the two tokens are only {gap:.2g} apart: a tie at its precision. Reading tokens "
            "one at a time or several at once adds up in a different order, so either may come first."
        )
    if lossy:
        return f"{' and '.join(lossy)} used a lossy rule, which may accept tokens that the target would not write."
    if target.best > max(target.logits):
        return "The target's most likely token there is neither of the two. This should not happen."
    return f"The target's logits for the two tokens are {gap:.2g} apart. This is no tie and should not happen."
