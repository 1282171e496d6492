"""The verdicts of a race: which side was faster, and whether both texts are the same; if not, with the logits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.analysis.rounds import FEWEST
from specviz.trace import Trace
from specviz.views import blocks
from specviz.views.blocks import PageBlock, VerdictState, Words
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
    """A side's title, shortened, with names from outside made harmless."""
    return reveal(title[:MOST_TITLE])


def sides(result: Race) -> tuple[Sequence[Trace], Sequence[Trace]]:
    """The runs of either side, one per heat."""
    return [heat.left for heat in result.heats], [heat.right for heat in result.heats]


def lossy_names(result: Race, titles: Titles) -> list[str]:
    """The sides with a step that a lossy rule judged."""
    names = []
    for title, runs in zip(titles, sides(result), strict=True):
        if any(_is_lossy(run) for run in runs):
            names.append(bare_title(title))
    return names


def _is_lossy(trace: Trace) -> bool:
    return any(not step.settings.lossless for step in trace.steps)


def speed_verdict(result: Race, titles: Titles) -> tuple[VerdictState, Words]:
    """The state of the verdict, and its words with both sides' names."""
    if result.is_shared:
        return "unsure", LOADED
    comparison = result.comparison
    if comparison is None:
        return "unsure", "No time was measured, so no side can be called faster."
    state, words = _comparison_words(
        result, comparison, bare_title(titles[0]), bare_title(titles[1])
    )
    if names := lossy_names(result, titles):
        are = " is lossy: its text is" if len(names) == 1 else " are lossy: their texts are"
        words = [*words[:-1], f"{words[-1]} ", " and ".join(names), f"{are} not the target's own."]
    return state, words


def _comparison_words(
    result: Race, comparison: SpeedComparison, one: str, other: str
) -> tuple[VerdictState, list[str]]:
    if not comparison.is_possible:
        return "unsure", [IMPOSSIBLE]
    ratio = f"{comparison.ratio:.2f}× the speed of "
    end = f" ({_range_words(result, comparison)})."
    lack = _lack_words(result)
    if comparison.is_clear and not lack:
        return "consistent", ["", other, f" was {comparison.verdict}: {ratio}", one, end]
    wins, losses = result.wins_and_losses
    if wins and not lack:
        counts = f" on {wins} of {len(comparison.ratios)}, slower on {losses}"
        lead = "It depends on the prompt: "
        return "unsure", [lead, other, " was faster than ", one, f"{counts}{end}"]
    if lack:
        lead = "Too few to tell: "
        end += f" {lack}"
    elif comparison.verdict == "even":
        lead = "About as fast: "
    else:
        lead = "No clear difference: "
        if comparison.verdict == "noisy":
            spread = (
                f"two runs of one setup on the same prompt differed by {percent(comparison.spread)}"
            )
            end += f" This machine was too busy: {spread}. Race again when it is idle."
    return "unsure", [lead, other, f" ran at {ratio}", one, end]


def _lack_words(result: Race) -> str:
    """The words on a race that is too small to call a side faster; empty where it is large enough."""
    needs = []
    if len(result.comparison.ratios) < FEWEST:
        needs.append(f"over {FEWEST} prompts or more")
    lengths = [min(len(heat.left.tokens), len(heat.right.tokens)) for heat in result.heats]
    if statistics.median(lengths) < ENOUGH_TOKENS:
        needs.append(f"with texts of {ENOUGH_TOKENS} tokens or more")
    return f"Race {' and '.join(needs)} to be sure." if needs else ""


def _range_words(result: Race, comparison: SpeedComparison) -> str:
    """The number of prompts, and how far apart their ratios lie; a ratio that cannot be is left out."""
    if len(comparison.ratios) == 1:
        return "one prompt only"
    ratios = []
    for heat in result.heats:
        of_heat = heat.comparison
        if of_heat is not None and of_heat.is_possible:
            ratios.append(of_heat.ratio)
    low, high = comparison.between
    if not ratios:
        ratios = [low, high]
    words = f"median of {len(comparison.ratios)} prompts, {min(ratios):.2f}× to {max(ratios):.2f}×"
    left_out = sum(ratio < low for ratio in comparison.ratios)
    if left_out:
        words += f"; {low:.2f}× to {high:.2f}× without the {left_out} at either end"
    return words


def text_verdict(result: Race, titles: Titles) -> list[PageBlock]:
    """Whether the texts are the same; where they first differ, the models' logits and probabilities of both tokens."""
    lossy = lossy_names(result, titles)
    num_prompts = len(result.heats)
    if result.heats[0].left.header.request.get("temperature") != 0:
        words: Words = SAME_DISTRIBUTION
        if lossy:
            words = [
                "Two draws from different distributions: ",
                " and ".join(lossy),
                " used a lossy rule.",
            ]
        return [blocks.WordsBlock(words)]
    if result.difference is not None:
        return _difference_blocks(result, result.difference, lossy, titles)
    num_different = sum(heat.parting is not None for heat in result.heats)
    if num_different:
        words = f"Not identical: the texts differ on {num_different} of {num_prompts} prompts."
        why = "The race was stopped before the models were asked for the logits of both tokens."
        return [blocks.VerdictBlock("unsure", f"{words} {why}")]
    return [blocks.VerdictBlock("exact", _identical_words(result))]


def _identical_words(result: Race) -> str:
    """The sentence on texts that are the same on every prompt, as far as both go."""
    left = [len(heat.left.tokens) for heat in result.heats]
    right = [len(heat.right.tokens) for heat in result.heats]
    pairs = "the two texts are"
    if len(result.heats) > 1:
        pairs = f"on all {len(result.heats)} prompts the two texts are"
    words = f"Identical: {pairs} the same, token for token"
    if len({*left, *right}) == 1:
        words += f" ({left[0]:,} tokens each)"
    if left != right:
        words += "; where one side ended early, as far as both go"
    return f"{words}."


def _difference_blocks(
    result: Race, difference: RaceDifference, lossy: Sequence[str], titles: Titles
) -> list[PageBlock]:
    reason = _reason(difference, lossy)
    if len(result.heats) > 1:
        num_same = sum(heat.parting is None for heat in result.heats)
        reason = f"{num_same} of {len(result.heats)} prompts gave the same text. {reason}"
    one = token_label(difference.left)
    other = token_label(difference.right)
    where = [
        f"Not identical: on “{reveal(difference.title)}” the texts differ from token {difference.place + 1:,}: ",
        bare_title(titles[0]),
        " wrote ",
        one,
        ", ",
        bare_title(titles[1]),
        " wrote ",
        other,
        f". {reason}",
    ]
    columns = (
        "read again, up to this token",
        f"logit of {one}",
        f"logit of {other}",
        f"probability of {one}",
        f"probability of {other}",
    )
    rows = []
    for reading in difference.readings:
        logits = [f"{logit:.5f}" for logit in reading.logits]
        probabilities = [percent(probability) for probability in reading.probabilities]
        rows.append([f"{reading.role} {label(reading.name)}", *logits, *probabilities])
    state = "unsure" if difference.is_tie or lossy else "differs"
    return [blocks.VerdictBlock(state, where), blocks.TableBlock(columns, rows)]


def _reason(difference: RaceDifference, lossy: Sequence[str]) -> str:
    target = difference.readings[0]
    gap = abs(target.logits[0] - target.logits[1])
    if difference.is_tie:
        return (
            f"The target's logits for the two tokens are only {gap:.2g} apart: a tie at its precision. Reading tokens "
            "one at a time or several at once adds up in a different order, so either may come first."
        )
    if lossy:
        return f"{' and '.join(lossy)} used a lossy rule, which may accept tokens that the target would not write."
    if target.best > max(target.logits):
        return "The target's most likely token there is neither of the two. This should not happen."
    return f"The target's logits for the two tokens are {gap:.2g} apart. This is no tie and should not happen."
