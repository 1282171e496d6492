"""Which tokens hang below the nodes of a token tree: the likeliest ones, or sampled ones with the q of each.

GROW: name -> (logits [F, V], context, how many, first draw's number) -> Children. No two draws share an address.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.drafter import Context
from specviz.decoding.draws import DRAFT
from specviz.decoding.sampling import DRAFT_MODEL, Sampling, fetch_tokens, fit


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """What hangs below F nodes, n each: ids and the model's chance of them [F, n], chance 0 where there is none; the
    rows [F, V] that the i-th ones were sampled from, none where they were not sampled."""

    ids: Tensor
    chances: Tensor
    rows: Sequence[Tensor] = ()


def take_likeliest(logits: Tensor, context: Context, count: int, number: int) -> Children:
    """The likeliest tokens of each row, by the plain odds: at temperature 0 these still tell how sure the model is."""
    chances, ids = Sampling().probs(logits).topk(count, dim=-1)
    return Children(ids, chances)


def sample_independently(logits: Tensor, context: Context, count: int, number: int) -> Children:
    """Each sampled from all of q, as in SpecInfer; siblings may be the same token."""
    q = context.sampling.probs(logits)
    ids = torch.stack([_sample(q, context, number + i * len(q)) for i in range(count)], dim=1)
    return Children(ids, q.gather(1, ids), [q] * count)


def sample_without_replacement(
    logits: Tensor, context: Context, count: int, number: int
) -> Children:
    """Each sampled from q without its earlier siblings, as in Sequoia, while any probability is left."""
    left = context.sampling.probs(logits)
    ids, chances, rows = [], [], []
    for i in range(count):
        rows.append(_normalise(left))
        ids.append(_sample(rows[-1], context, number + i * len(left))[:, None])
        chances.append(left.gather(1, ids[-1]))
        left = left.scatter(1, ids[-1], 0.0)
    return Children(torch.cat(ids, dim=1), torch.cat(chances, dim=1), rows)


def _sample(rows: Tensor, context: Context, number: int) -> Tensor:
    return context.draws.sample(rows, DRAFT, len(context.tokens) + number, number)


def _normalise(left: Tensor) -> Tensor:
    """Rows [F, V] that add up to 1; a row of zeros becomes all on token 0, whose chance is 0 there."""
    total = left.sum(-1, keepdim=True)
    nothing = torch.zeros_like(left)
    nothing[:, 0] = 1.0
    return torch.where(total > 0, left / total, nothing)


Grow = Callable[[Tensor, Context, int, int], Children]
GROW: dict[str, Grow] = {
    "top": take_likeliest,
    "independent": sample_independently,
    "without_replacement": sample_without_replacement,
}


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A token below a node. order: its place among siblings; q [V]: None if it was not sampled; row: the logits."""

    token: int
    chance: float
    order: int
    q: Tensor | None
    row: Tensor


def grow(kind: str, logits: Tensor, context: Context, count: int, number: int) -> list[list[Child]]:
    """The children of each node whose logits [F, V] these are, in one transfer. kind: a name of GROW."""
    rows = fit(logits, context.vocab_size)
    found = GROW[kind](rows, context, count, number)
    ids, chances = fetch_tokens(found.ids, found.chances, DRAFT_MODEL)
    return [
        [
            Child(token, chance, i, found.rows[i][f] if found.rows else None, row)
            for i, (token, chance) in enumerate(zip(ids[f], chances[f], strict=True))
            if chance > 0
        ]
        for f, row in enumerate(rows)
    ]
