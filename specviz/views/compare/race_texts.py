"""Are the texts of a race the same? The verdict, and what the models give both tokens where they part first.

Pure data in, props out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from specviz.views import blocks
from specviz.views.blocks import Cell, Props, Words
from specviz.views.compare.race_words import Titles, bare_title, lossy_names
from specviz.views.explore.sentences import label, percent, visible

if TYPE_CHECKING:
    from specviz.bench.race import Difference, Race, Reading

SAME_LAW = "Two draws from the same law; texts differ by design."
NOT_ASKED = "The race was stopped before the models were asked once more what they give both tokens there."


def identity(result: Race, titles: Titles) -> list[Props]:
    lossy = lossy_names(result, titles)
    if result.heats[0].left.header.request.get("temperature") != 0:
        return [blocks.words(_by_chance(lossy))]
    num_parted = sum(heat.parted is not None for heat in result.heats)
    if num_parted and result.difference is None:
        words = f"Not identical: the texts part on {num_parted} of {len(result.heats)} prompts. {NOT_ASKED}"
        return [blocks.verdict("unsure", words)]
    if result.difference is None:
        return [blocks.verdict("exact", _identical(result))]
    return _differs(result, result.difference, lossy, titles)


def _by_chance(lossy: Sequence[str]) -> Words:
    if not lossy:
        return SAME_LAW
    names = " and ".join(lossy)
    return ["Two draws, but not from the same law: ", names, " is lossy, so its words come with other odds."]


def _identical(result: Race) -> str:
    number, lengths = len(result.heats), {len(each.tokens) for heat in result.heats for each in (heat.left, heat.right)}
    pairs = "the two texts are" if number == 1 else f"on all {number} prompts the two texts are"
    each = f" ({max(lengths):,} tokens each)" if len(lengths) == 1 else ""
    ends = [heat for heat in result.heats if len(heat.left.tokens) != len(heat.right.tokens)]
    early = "; where one side ended early, as far as both go" if ends else ""
    return f"Identical: {pairs} the same, token for token{each}{early}."


def _differs(result: Race, found: Difference, lossy: Sequence[str], titles: Titles) -> list[Props]:
    """The verdict, and what the models give both tokens at the first difference."""
    count = sum(heat.parted is None for heat in result.heats)
    same = f" {count} of {len(result.heats)} prompts gave the same text." if len(result.heats) > 1 else ""
    names = [bare_title(title) for title in titles]
    one, other = (label(token.text, token.bytes) for token in (found.left, found.right))
    where = [
        f"Not identical: on “{visible(found.title)}” the texts part at token {found.place + 1:,}: ", names[0],
        " wrote ", one, ", ", names[1], " wrote ", other, f".{same} {_why(found, lossy)}",
    ]  # fmt: skip
    state = "unsure" if found.is_tie or lossy else "differs"
    columns = ("read once more, both texts up to there", f"logit of {one}", f"logit of {other}", f"odds of {one}",
               f"odds of {other}")  # fmt: skip
    return [blocks.verdict(state, where), blocks.table(columns, [_reading(each) for each in found.readings])]


def _why(found: Difference, lossy: Sequence[str]) -> str:
    target = found.readings[0]
    gap = abs(target.logits[0] - target.logits[1])
    if found.is_tie:
        return (
            f"The target's two candidates are {gap:.2g} apart in logits: a tie, as far as its numbers can tell. "
            "Reading one token at a time and several at once adds up in another order, so either may come first."
        )
    if lossy:
        return f"{' and '.join(lossy)} follows a lossy rule, which may keep what the target would not write."
    if target.best > max(target.logits):
        return "The target's favourite there is neither of the two: this should not happen."
    return f"The target's two candidates are {gap:.2g} apart in logits. That is no tie: this should not happen."


def _reading(each: Reading) -> list[Cell]:
    return [f"{each.role} {label(each.name)}", *(f"{logit:.5f}" for logit in each.logits), *map(percent, each.odds)]
