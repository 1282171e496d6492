"""A draft model over a token tree: several guesses at a place, so that one of them is more often right.

What is grown and used goes by the draft's odds where children are its likeliest tokens, and by order alone where they
are drawn: to choose among drawn tokens by what was drawn would change the text's law. One forward and one transfer per
level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.device import exact_dtype, to_host
from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter, Work
from specviz.decoding.sampling import DRAFT_MODEL, fit, refuse_nan
from specviz.drafters.method import Parts
from specviz.drafters.params import Value
from specviz.drafters.tree.children import GROW, Children

EVERY = 1 << 30
FIRST, SECOND = 0.7, 0.08  # how often the bundled target keeps a first and a second drawn child; every next half of it
CHILDREN = {
    "suited": ("top", "without_replacement"),
    **{name: (name, name) for name in GROW},
}
"""name -> which children at temperature 0, and above."""


@dataclass(frozen=True, slots=True)
class Shape:
    """level(width, depth): how many children a node has at that depth, and how many nodes have any. grows_more: more
    is grown than the budget allows, and what promises most is used."""

    level: Callable[[int, int], tuple[int, int]]
    grows_more: bool = False


SHAPES = {
    "dynamic": Shape(lambda width, depth: (width, width), grows_more=True),
    "even": Shape(lambda width, depth: (width, EVERY)),
    "fan": Shape(lambda width, depth: (width if depth == 0 else 1, EVERY)),
}


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """A node. score: the product of the draft's probabilities from the text to here; promise: the same, or what its
    place among drawn tokens lets expect; row: the logits behind q."""

    token: int
    parent: int
    score: float
    promise: float
    q: Tensor | None
    row: Tensor


class TreeDrafter(Drafter):
    """A budget that may not be overgrown is spread over the levels, so that the tree reaches its depth."""

    def __init__(self, lm: CachedLM, children: str, shape: str, width: int, nodes: int) -> None:
        self._lm, self._children, self._shape = lm, CHILDREN[children], SHAPES[shape]
        self._width, self._budget = width, nodes

    @property
    def work(self) -> Work:
        return Work(self._lm.calls, self._lm.fed)

    def draft(self, context: Context, k: int) -> Draft:
        k = min(k, self._lm.context_limit - len(context.tokens) + 1)
        if k < 1 or any(token >= self._lm.vocab_size for token in self._lm.missing(context.tokens)):
            return EMPTY
        children = self._children[context.sampling.temperature > 0]
        nodes: list[Grown] = []
        level, read, places, drawn = [ROOT], DraftBuilder(), {ROOT: ROOT}, 0
        for depth in range(k):
            count, most = self._room(depth, k - depth, len(nodes), context.vocab_size)
            frontier = _best(nodes, level, most)
            if not frontier or not count:
                break
            for node in frontier if depth else ():
                places[node] = read.add(nodes[node].token, places[nodes[node].parent])
            logits = self._lm.forward(context.tokens, read.build())[-len(frontier) :]
            rows = fit(logits, context.vocab_size)
            level = _hang(nodes, frontier, rows, GROW[children](rows, context, count, drawn))
            drawn += len(frontier) * count
        return self._built(nodes, children)

    def _room(self, depth: int, levels_left: int, grown: int, vocab_size: int) -> tuple[int, int]:
        """How many children a node has at this depth, and how many nodes have any."""
        count, most = self._shape.level(min(self._width, vocab_size), depth)
        if self._shape.grows_more:
            return count, most
        count = min(count, self._budget - grown)
        return count, min(most, max(1, (self._budget - grown) // levels_left // max(count, 1)))

    def _built(self, nodes: Sequence[Grown], children: str) -> Draft:
        """What promises most; a node never promises more than its parent, so none loses it."""
        used = sorted(_best(nodes, range(len(nodes)), self._budget))
        builder, places = DraftBuilder(), {ROOT: ROOT}
        for node in used:
            grown = nodes[node]
            places[node] = builder.add(grown.token, places[grown.parent], grown.q, grown.row)
        scores = [round(nodes[node].score, 4) for node in used]
        return builder.build(evidence={"children": children, "scores": scores, "grown": len(nodes), "kept": len(used)})


def _best(nodes: Sequence[Grown], among: Sequence[int], most: int) -> list[int]:
    """The first ones stay first among equals."""
    return sorted(among, key=lambda node: 0.0 if node == ROOT else -nodes[node].promise)[:most]


def _hang(nodes: list[Grown], frontier: Sequence[int], rows: Tensor, children: Children) -> list[int]:
    """Adds what exists of `children` below the frontier, in one transfer; returns the new nodes."""
    first, wide = len(nodes), exact_dtype(rows.device)
    ids, chances = to_host(torch.stack([children.ids.to(wide), children.chances.to(wide)])).tolist()
    refuse_nan([chance for row in chances for chance in row], DRAFT_MODEL)
    for f, parent in enumerate(frontier):
        score, promise = (1.0, 1.0) if parent == ROOT else (nodes[parent].score, nodes[parent].promise)
        for i, (token, chance) in enumerate(zip(ids[f], chances[f], strict=True)):
            if chance <= 0:
                continue
            chance, q = min(chance, 1.0), children.rows[i][f] if children.rows else None
            hope = chance if q is None else _rate(i)
            nodes.append(Grown(int(token), parent, score * chance, promise * hope, q, rows[f]))
    return list(range(first, len(nodes)))


def _rate(i: int) -> float:
    return FIRST if i == 0 else SECOND / 2 ** (i - 1)


def build(parts: Parts, params: Mapping[str, Value]) -> TreeDrafter:
    return TreeDrafter(parts.draft.lm, **params)
