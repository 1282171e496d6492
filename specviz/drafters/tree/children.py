"""Which tokens hang below the nodes of a token tree: the likeliest ones, or drawn ones with the q of each draw.

GROW: name -> (logits [F, V], context, how many, first draw's number) -> Children. No two draws share an address.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.drafter import Context
from specviz.decoding.draws import DRAFT
from specviz.decoding.sampling import Sampling


@dataclass(frozen=True, slots=True, eq=False)
class Children:
    """What hangs below F nodes, n each: ids and the model's chance of them [F, n], chance 0 where there is none; the
    rows [F, V] that the i-th ones were drawn from, none where chance plays no part."""

    ids: Tensor
    chances: Tensor
    rows: Sequence[Tensor] = ()


def likeliest(logits: Tensor, context: Context, count: int, number: int) -> Children:
    """The likeliest tokens of each row, by the plain odds: at temperature 0 these still tell how sure the model is."""
    chances, ids = Sampling().probs(logits).topk(count, dim=-1)
    return Children(ids, chances)


def independent(logits: Tensor, context: Context, count: int, number: int) -> Children:
    """Each drawn from all of q, as in SpecInfer; siblings may be the same token."""
    q = context.sampling.probs(logits)
    ids = torch.stack([_sample(q, context, number + i * len(q)) for i in range(count)], dim=1)
    return Children(ids, q.gather(1, ids), [q] * count)


def without_replacement(logits: Tensor, context: Context, count: int, number: int) -> Children:
    """Each drawn from what its elder siblings left of q, as in Sequoia, while anything is left."""
    left = context.sampling.probs(logits)
    ids, chances, rows = [], [], []
    for i in range(count):
        rows.append(_normalised(left))
        ids.append(_sample(rows[-1], context, number + i * len(left))[:, None])
        chances.append(left.gather(1, ids[-1]))
        left = left.scatter(1, ids[-1], 0.0)
    return Children(torch.cat(ids, dim=1), torch.cat(chances, dim=1), rows)


def _sample(rows: Tensor, context: Context, number: int) -> Tensor:
    return context.draws.sample(rows, DRAFT, len(context.tokens) + number, number)


def _normalised(left: Tensor) -> Tensor:
    """Rows [F, V] that add up to 1; where nothing is left all on token 0, whose chance is 0 there."""
    total = left.sum(-1, keepdim=True)
    nothing = torch.zeros_like(left)
    nothing[:, 0] = 1.0
    return torch.where(total > 0, left / total, nothing)


Grow = Callable[[Tensor, Context, int, int], Children]
GROW: dict[str, Grow] = {
    "top": likeliest,
    "independent": independent,
    "without_replacement": without_replacement,
}
