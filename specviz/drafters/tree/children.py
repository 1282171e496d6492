"""The tokens that hang below the nodes of a token tree: the most likely ones, or drawn ones with the q of each.

The functions of GROW make them. No two random draws share an address.
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
    """The children of F nodes, n each."""

    ids: Tensor  # [F, n]
    probs: Tensor  # [F, n] the model's probability of each; 0 where there is no child
    rows: Sequence[
        Tensor
    ] = ()  # n rows of q [F, V], one per place among siblings; none if not drawn


def take_likeliest(
    logits: Tensor, context: Context, count: int, number: int, stride: int
) -> Children:
    """The most likely tokens of each row and their probabilities at temperature 1, which tell how sure the model is."""
    probs, ids = Sampling().probs(logits).topk(count, dim=-1)
    return Children(ids, probs)


def sample_independently(
    logits: Tensor, context: Context, count: int, number: int, stride: int
) -> Children:
    """Draws every child from all of q, as in SpecInfer; siblings may be the same token."""
    q = context.sampling.probs(logits)  # [F, V]
    draws = [_sample(q, context, number + i * stride) for i in range(count)]
    ids = torch.stack(draws, dim=1)
    return Children(ids, q.gather(1, ids), [q] * count)


def sample_without_replacement(
    logits: Tensor, context: Context, count: int, number: int, stride: int
) -> Children:
    """Draws every child from q without its earlier siblings, as in Sequoia, while any probability is left."""
    left = context.sampling.probs(logits)  # [F, V]
    ids: list[Tensor] = []
    probs: list[Tensor] = []
    rows: list[Tensor] = []
    for i in range(count):
        q = _normalise(left)
        drawn = _sample(q, context, number + i * stride)[:, None]  # [F, 1]
        rows.append(q)
        ids.append(drawn)
        probs.append(left.gather(1, drawn))
        left = left.scatter(1, drawn, 0.0)
    return Children(torch.cat(ids, dim=1), torch.cat(probs, dim=1), rows)


def _sample(rows: Tensor, context: Context, number: int) -> Tensor:
    return context.draws.sample(rows, DRAFT, len(context.tokens) + number, number)


def _normalise(left: Tensor) -> Tensor:
    """Rows [F, V] that add up to 1. A row of zeros gets all its probability on token 0, which is then no child."""
    total = left.sum(-1, keepdim=True)
    nothing = torch.zeros_like(left)
    nothing[:, 0] = 1.0
    return torch.where(total > 0, left / total, nothing)


Grow = Callable[[Tensor, Context, int, int, int], Children]
GROW: dict[str, Grow] = {
    "top": take_likeliest,
    "independent": sample_independently,
    "without_replacement": sample_without_replacement,
}
"""The ways to choose children: (logits [F, V], context, children per node, number of the first draw, stride) ->
Children. stride: from the number of a node's draw to that of its next one, F or more. It does not depend on how many
nodes have children: a node's draws are the same in any company."""


@dataclass(frozen=True, slots=True, eq=False)
class Child:
    """A token below a node."""

    token: int
    probability: float
    order: int  # place among siblings, from 0
    q: Tensor | None  # [V]; None if the token was not drawn
    row: Tensor  # [V] logits


def grow(
    kind: str, logits: Tensor, context: Context, count: int, number: int, stride: int
) -> list[list[Child]]:
    """The children of F nodes by the logits [F, V] at them, in one transfer. kind: a name of GROW."""
    rows = fit(logits, context.vocab_size)
    children = GROW[kind](rows, context, count, number, stride)
    ids, probs = fetch_tokens(children.ids, children.probs, DRAFT_MODEL)
    grown: list[list[Child]] = []
    for node, row in enumerate(rows):
        siblings: list[Child] = []
        for order, token in enumerate(ids[node]):
            probability = probs[node][order]
            if probability > 0:
                q = children.rows[order][node] if children.rows else None
                siblings.append(Child(token, probability, order, q, row))
        grown.append(siblings)
    return grown
