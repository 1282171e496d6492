"""Ids that a draft never gives where the target wants them: rows of its embedding or head that stand in a wrong place.

Where the target wants x and the draft gives y instead, again and again, and y is such an id too, the rows of x and y
are in each other's place: reading y's row for x is a cure that can be tried.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.causes.trials import Trial, twin
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds
from specviz.views.words import label, percent

FEWEST_WANTED = 0.5  # tokens' worth of the target's probability, to speak of an id at all
DEAF = 0.05  # of what the draft gives to other wanted ids, at most
CLEAR = 0.1  # mean q of the other id where this one is wanted, at least
LEAST_SHARE, FEWEST_IDS, SHOWN = 0.03, 5, 6  # below these, nothing is said of them


@dataclass(frozen=True, slots=True, eq=False)
class DeafIds:
    """ids: those that the target wants and the draft does not give. share: of the target's probability. found: for
    some of them the id whose row they should have."""

    ids: tuple[int, ...]
    num_wanted: int
    share: float
    found: Mapping[int, int]


def deaf_ids(sample: TargetTexts, draft: LoadedModel, texts: Sequence[TextIds]) -> DeafIds:
    width = sample.p.shape[1]
    wanted, kept = (
        torch.zeros(width, dtype=torch.float64, device=sample.p.device) for _ in range(2)
    )
    for _, p, logits in sample.each(draft, texts):
        wanted += p.sum(0)
        kept += torch.minimum(p, sample.sampling.probs(logits)).sum(0)
    often = wanted >= FEWEST_WANTED
    usual = float(kept[often].sum() / wanted[often].sum().clamp_min(1e-9))
    deaf = torch.nonzero(often & (kept < DEAF * usual * wanted)).flatten()
    share = float((wanted[deaf] - kept[deaf]).sum() / wanted.sum())
    return DeafIds(
        tuple(deaf.tolist()), int(often.sum()), share, _whose(sample, draft, texts, deaf, wanted)
    )


def _whose(
    sample: TargetTexts, draft: LoadedModel, texts: Sequence[TextIds], deaf: Tensor, wanted: Tensor
) -> Mapping[int, int]:
    """For a deaf id the one that the draft gives in its place, each at most once, the clearest first."""
    if not len(deaf):
        return {}
    given = torch.zeros(len(deaf), sample.p.shape[1], device=sample.p.device)
    for _, p, logits in sample.each(draft, texts):
        extra = (sample.sampling.probs(logits) - p).clamp_min(
            0
        )  # what the target does not want itself
        given += p[:, deaf].T @ extra
    rates = given / wanted[deaf, None].float()
    best, other = rates.max(1)
    found: dict[int, int] = {}
    for place in best.argsort(descending=True).tolist():
        if best[place] >= CLEAR and int(other[place]) not in found.values():
            found[int(deaf[place])] = int(other[place])
    return found


def deaf_words(draft: LoadedModel, found: DeafIds) -> str:
    """What is wrong with these ids; empty where they are too few or too seldom wanted."""
    if found.share < LEAST_SHARE or len(found.ids) < FEWEST_IDS:
        return ""
    shown = ", ".join(label(draft.text.label(token)) for token in found.ids[:SHOWN])
    return (
        f"The draft hardly ever gives {len(found.ids):,} of {found.num_wanted:,} ids that the target wants here, such "
        f"as {shown}: {percent(found.share)} of the target's probability is on them. Their rows in the embedding or "
        "the output matrix stand in wrong places, or were never trained."
    )


def swap_trials(
    draft: LoadedModel, texts: Sequence[TextIds], found: Mapping[int, int]
) -> list[Trial]:
    """Every such id with the row of its other one: in the embedding and the output matrix, and in that one alone."""
    if not found:
        return []
    cure = f"the rows of {len(found):,} ids put back in their places"
    is_tied = (
        draft.model.get_input_embeddings().weight is draft.model.get_output_embeddings().weight
    )
    sides = {"embedding and output": 2} | ({} if is_tied else {"output": 1})
    return [
        Trial(
            "token ids",
            f"{cure} ({side})",
            twin(draft, lambda model, num=num: _put_back(model, found, num)),
            texts,
        )
        for side, num in sides.items()
    ]


def _put_back(model: nn.Module, found: Mapping[int, int], num_tables: int) -> None:
    to, source = (torch.tensor([*ids]) for ids in (found.keys(), found.values()))
    tables = [model.get_output_embeddings(), model.get_input_embeddings()][:num_tables]
    rows = [table.weight.detach().clone() for table in tables]
    for table, own in zip(tables, rows, strict=True):
        own[to.to(own.device)] = own[source.to(own.device)]
        table.weight = nn.Parameter(own, requires_grad=False)
