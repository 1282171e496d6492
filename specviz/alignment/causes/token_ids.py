"""Ids that a draft never gives where the target wants them: their rows of the embedding or head are in a wrong place.

Where the target wants x, a draft may again and again give y instead. If it never gives y where y is wanted, the rows
of x and y have changed places: to read the row of y for x is a cure that can be tried.
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

FEWEST_WANTED = (
    0.5  # the target's probability of an id, summed over all tokens, to judge the id at all
)
DEAF = 0.05  # of what the draft gives to other wanted ids, at most
CLEAR = 0.1  # mean q of the other id where this one is wanted, at least
LEAST_SHARE = 0.03  # of the target's probability; below, nothing is said
FEWEST_IDS = 5  # below, nothing is said
SHOWN = 6  # ids that are named


@dataclass(frozen=True, slots=True, eq=False)
class DeafIds:
    """The ids that the target wants and the draft does not give."""

    ids: tuple[int, ...]
    num_wanted: int
    """How many ids the target wants, given or not."""
    share: float
    """The target's probability on these ids that the draft lacks, as a share of all."""
    found: Mapping[int, int]
    """The id that the draft gives instead, for some of these ids. Their rows have changed places."""


def deaf_ids(sample: TargetTexts, draft: LoadedModel, texts: Sequence[TextIds]) -> DeafIds:
    """Finds the ids that the draft gives least, compared with what the target wants. texts: what the draft reads."""
    width = sample.p.shape[1]
    wanted = torch.zeros(width, dtype=torch.float64, device=sample.p.device)  # [V], sums of p
    overlap = torch.zeros_like(wanted)  # [V], sums of min(p, q)
    for _, p, logits in sample.read_draft(draft, texts):
        q = sample.sampling.probs(logits)
        wanted += p.sum(0)
        overlap += torch.minimum(p, q).sum(0)
    is_wanted = wanted >= FEWEST_WANTED
    usual = float(overlap[is_wanted].sum() / wanted[is_wanted].sum().clamp_min(1e-9))
    is_deaf = is_wanted & (overlap < DEAF * usual * wanted)
    deaf = torch.nonzero(is_deaf).flatten()
    share = float((wanted[deaf] - overlap[deaf]).sum() / wanted.sum())
    given_instead = _find_given_instead(sample, draft, texts, deaf, wanted)
    return DeafIds(tuple(deaf.tolist()), int(is_wanted.sum()), share, given_instead)


def _find_given_instead(
    sample: TargetTexts, draft: LoadedModel, texts: Sequence[TextIds], deaf: Tensor, wanted: Tensor
) -> Mapping[int, int]:
    """The id that the draft gives in the place of a deaf one, each at most once, the clearest first.

    deaf: ids [D]. wanted: sums of p [V].
    """
    if not len(deaf):
        return {}
    sums = sample.p.new_zeros(len(deaf), sample.p.shape[1])  # [D, V]
    for _, p, logits in sample.read_draft(draft, texts):
        q = sample.sampling.probs(logits)
        surplus = (q - p).clamp_min(0)  # what the target does not want itself
        sums += p[:, deaf].T @ surplus
    rates = sums / wanted[deaf, None].float()
    best, other = rates.max(1)  # [D]
    found: dict[int, int] = {}
    for place in best.argsort(descending=True).tolist():
        other_id = int(other[place])
        if best[place] >= CLEAR and other_id not in found.values():
            found[int(deaf[place])] = other_id
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
    """Trials that give each id the row of the id in its place.

    The first changes the embedding and the output matrix, the second the output matrix alone. Tied matrices are changed
    together only.
    """
    if not found:
        return []
    cure = f"the rows of {len(found):,} ids put back in their places"
    embedding = draft.model.get_input_embeddings()
    output = draft.model.get_output_embeddings()
    in_both = twin(draft, lambda model: _put_rows_back(model, found, 2))
    trials = [Trial("token ids", f"{cure} (embedding and output)", in_both, texts)]
    if embedding.weight is not output.weight:
        in_output = twin(draft, lambda model: _put_rows_back(model, found, 1))
        trials.append(Trial("token ids", f"{cure} (output)", in_output, texts))
    return trials


def _put_rows_back(model: nn.Module, found: Mapping[int, int], num_tables: int) -> None:
    """Copies rows from the values of `found` to its keys, in the output matrix and, for 2 tables, in the embedding."""
    to = torch.tensor(list(found.keys()))
    source = torch.tensor(list(found.values()))
    tables = [model.get_output_embeddings(), model.get_input_embeddings()][:num_tables]
    copies = [table.weight.detach().clone() for table in tables]  # before either changes: tied
    for table, rows in zip(tables, copies, strict=True):
        rows[to.to(rows.device)] = rows[source.to(rows.device)]
        table.weight = nn.Parameter(rows, requires_grad=False)
