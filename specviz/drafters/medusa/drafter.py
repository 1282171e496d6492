"""Medusa: heads on the target's last state each guess one later token; the best combinations form a token tree.

A node is named by a path, a rank per depth: (0, 2) is the likeliest token of head 0 and the third of head 1 behind it.
All heads speak at once, none has seen what another said, so a deeper node is a blinder guess.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor, nn

from specviz.decoding.device import exact_dtype, to_host
from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.sampling import HEADS, refuse_nan
from specviz.drafters.medusa.heads import MedusaHeads
from specviz.drafters.method import Parts
from specviz.drafters.params import Value

Path = tuple[int, ...]
HITS: tuple[tuple[float, ...], ...] = (
    (0.34, 0.10, 0.06, 0.049, 0.037, 0.032, 0.015, 0.014, 0.014, 0.013),
    (0.25, 0.07, 0.055, 0.04, 0.037, 0.03, 0.027, 0.024, 0.02, 0.012),
    (0.20, 0.07, 0.05, 0.037, 0.03, 0.024, 0.021, 0.02, 0.017, 0.016),
    (0.17, 0.066, 0.04, 0.035, 0.034, 0.03, 0.021, 0.02, 0.017, 0.015),
)
"""How often the token of a rank was the one that came: the bundled heads on the target's own text; depth, then rank."""
_RANKS = len(HITS[0])


def best_paths(scores: Sequence[Sequence[float]], num_nodes: int) -> tuple[Path, ...]:
    """The paths with the largest products of scores[depth][rank], the best first; scores fall with the rank.

    No product grows with depth or rank, so what a path hangs from and its likelier siblings stand before it.
    """
    found: list[Path] = []
    waiting: list[tuple[float, Path, float]] = [(-scores[0][0], (0,), 1.0)] if scores and scores[0] else []
    while waiting and len(found) < num_nodes:
        score, path, above = heapq.heappop(waiting)
        found.append(path)
        rank, depth = path[-1] + 1, len(path)
        if rank < len(scores[depth - 1]):
            heapq.heappush(waiting, (-above * scores[depth - 1][rank], (*path[:-1], rank), above))
        if depth < len(scores):
            heapq.heappush(waiting, (score * scores[depth][0], (*path, 0), -score))
    return tuple(found)


@cache
def fixed_paths(num_depths: int, num_ranks: int, num_nodes: int) -> tuple[Path, ...]:
    """The tree of every step, by HITS; further heads count as the last one that was measured."""
    rows = [HITS[min(depth, len(HITS) - 1)][:num_ranks] for depth in range(num_depths)]
    return best_paths(rows, num_nodes)


def _by_hits(chances: Sequence[Sequence[float]], num_nodes: int) -> tuple[Path, ...]:
    return fixed_paths(len(chances), len(chances[0]), num_nodes)


_TREES: Mapping[str, Callable[[Sequence[Sequence[float]], int], tuple[Path, ...]]] = {
    "fixed": _by_hits,
    "likeliest": best_paths,
}


class MedusaDrafter(Drafter):
    """One pass through all heads and one transfer a step; every node is a point mass."""

    hidden_layers = (-1,)

    def __init__(self, heads: MedusaHeads, output: nn.Module, num_nodes: int, tree: str = "fixed") -> None:
        self._heads, self._output = heads, output
        self._num_nodes, self._paths = num_nodes, _TREES[tree]
        self._calls = 0

    @property
    def work(self) -> Work:
        return Work(self._calls, self._calls)

    def draft(self, context: Context, k: int) -> Draft:
        depth, hidden = min(k, len(self._heads)), context.hidden
        if depth < 1 or hidden is None or not 0 < len(context.tokens) - 1 == len(hidden):
            return EMPTY
        self._calls += 1
        # the last token has not been read: from the state before it, head j sees the token that is drafted at depth j+1
        logits = torch.stack([self._heads.one(head, hidden[-1], self._output) for head in range(depth)])  # [depth, V]
        ids, chances = self._likeliest(logits)
        builder, nodes = DraftBuilder(), {(): ROOT}
        paths = self._paths(chances, self._num_nodes)
        for path in paths:
            head, rank = len(path) - 1, path[-1]
            nodes[path] = builder.add(ids[head][rank], nodes[path[:-1]], logits=logits[head])
        return builder.build(
            evidence={
                "heads": len(self._heads),
                "ranks": [path[-1] for path in paths],
                "scores": [round(chances[len(path) - 1][path[-1]], 4) for path in paths],
            }
        )

    def _likeliest(self, logits: Tensor) -> tuple[list[list[int]], list[list[float]]]:
        """Per head its likeliest tokens and their probabilities, the likeliest first."""
        wide = exact_dtype(logits.device)
        chances, ids = logits.to(wide).softmax(-1).topk(min(_RANKS, logits.shape[-1]))
        ids, chances = to_host(torch.stack([ids.to(wide), chances])).tolist()
        refuse_nan((chance for row in chances for chance in row), HEADS)
        return [[int(token) for token in row] for row in ids], chances


def build(parts: Parts, params: Mapping[str, Value]) -> Drafter:
    output = parts.target.lm.model.get_output_embeddings()
    return MedusaDrafter(parts.heads, output, params["nodes"], params["tree"])
