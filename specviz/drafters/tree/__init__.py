"""A draft model over a token tree: several guesses at a place, so that one of them is more often right.

Where children are the draft's likeliest tokens, its odds decide what is grown and used. Where they are sampled, their
order alone decides: choosing among sampled tokens by what was sampled would change the law of the text. One forward and
one transfer per level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.decoding.draft import ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter, limit_depth, no_draft
from specviz.drafters.method import TREE_RULES, Method
from specviz.drafters.params import Choice, IntParam

if TYPE_CHECKING:
    from specviz.decoding.cached_lm import CachedLM
    from specviz.drafters.tree.children import Child

FIRST, SECOND = (
    0.7,
    0.08,
)  # how often the bundled target keeps a first and a second sampled child; each later one half
CHILDREN = {
    "suited": ("top", "without_replacement"),
    **{name: (name, name) for name in ("top", "independent", "without_replacement")},
}
"""name -> which children at temperature 0, and above."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """score: the product of the draft's probabilities down to here; promise: the same, or by its order if sampled."""

    child: Child
    parent: int
    score: float
    promise: float


class TreeDrafter(Drafter):
    """A budget that may not be overgrown is spread over the levels, so that the tree reaches its depth."""

    def __init__(self, lm: CachedLM, children: str, shape: str, width: int, nodes: int) -> None:
        self._lm, self._children, self._shape = lm, CHILDREN[children], shape
        self._width, self._budget = width, nodes

    def draft(self, context: Context, k: int) -> Draft:
        from specviz.drafters.tree.children import grow  # loads torch

        k = limit_depth(self._lm, context.tokens, k)
        if k < 1:
            return no_draft(self._lm, context.tokens)
        kind = self._children[context.sampling.temperature > 0]
        nodes: list[Node] = []
        level, read, places, num_draws = [ROOT], DraftBuilder(), {ROOT: ROOT}, 0
        for depth in range(k):
            count, most = self._room(depth, k - depth, len(nodes), context.vocab_size)
            frontier = _pick_best(nodes, level, most)
            if not frontier or not count:
                break
            for node in frontier if depth else ():
                places[node] = read.add(nodes[node].child.token, places[nodes[node].parent])
            logits = self._lm.forward(context.tokens, read.build())[-len(frontier) :]
            first = len(nodes)
            for parent, children in zip(
                frontier, grow(kind, logits, context, count, num_draws), strict=True
            ):
                nodes += [_hang(nodes, parent, child) for child in children]
            level = list(range(first, len(nodes)))
            num_draws += len(frontier) * count
        return self._prune(nodes, kind)

    def _room(self, depth: int, levels_left: int, grown: int, vocab_size: int) -> tuple[int, int]:
        """How many children a node has at this depth, and how many nodes have any. The dynamic shape grows more than
        the budget allows, and what promises most is used."""
        width, left = min(self._width, vocab_size), self._budget - grown
        if self._shape == "dynamic":
            return width, width
        count = min(1 if self._shape == "fan" and depth else width, left)
        return count, max(1, left // levels_left // max(count, 1))

    def _prune(self, nodes: Sequence[Node], kind: str) -> Draft:
        """The most promising nodes; none promises more than its parent, so every parent is among them."""
        used = sorted(_pick_best(nodes, range(len(nodes)), self._budget))
        builder, places = DraftBuilder(), {ROOT: ROOT}
        for place in used:
            child, parent = nodes[place].child, places[nodes[place].parent]
            places[place] = builder.add(child.token, parent, child.q, child.row)
        scores = [round(nodes[place].score, 4) for place in used]
        return builder.build(
            evidence={"children": kind, "scores": scores, "grown": len(nodes), "kept": len(used)}
        )


def _pick_best(nodes: Sequence[Node], among: Sequence[int], most: int) -> list[int]:
    """The first ones stay first among equals."""
    return sorted(among, key=lambda node: 0.0 if node == ROOT else -nodes[node].promise)[:most]


def _hang(nodes: Sequence[Node], parent: int, child: Child) -> Node:
    score, promise = (1.0, 1.0) if parent == ROOT else (nodes[parent].score, nodes[parent].promise)
    chance = min(child.chance, 1.0)
    by_order = FIRST if child.order == 0 else SECOND / 2 ** (child.order - 1)
    return Node(child, parent, score * chance, promise * (chance if child.q is None else by_order))


METHOD = Method(
    name="tree",
    title="Token tree",
    summary="A draft model writes a tree of guesses; the target checks all branches in one pass and follows one.",
    source="EAGLE-2 (arXiv:2406.16858) without its head; SpecInfer, arXiv:2305.09781; Sequoia, arXiv:2402.12374",
    roles=("draft",),
    params=(
        Choice(
            "children",
            "children",
            "suited",
            "Which tokens follow a node: the draft's most likely ones, or tokens drawn from its distribution.",
            {
                "suited": "most likely at temperature 0, else drawn, none twice",
                "top": "the most likely",
                "independent": "drawn, each from all of q",
                "without_replacement": "drawn, none twice",
            },
        ),
        Choice(
            "shape",
            "shape",
            "dynamic",
            "Where the tree grows. Drawn tokens are taken in order, never by their probability.",
            {
                "dynamic": "where acceptance seems most likely",
                "even": "below every node, while the budget lasts",
                "fan": "several first tokens, one chain after each",
            },
        ),
        IntParam("width", "width", 3, "How many children a node has at most.", 1, 10),
        IntParam(
            "nodes",
            "most tokens",
            12,
            "How many draft tokens the target reads at most in one call.",
            1,
            64,
        ),
    ),
    rules=TREE_RULES,
    build=lambda parts, params: TreeDrafter(parts.draft.lm, **params),
    caution="Gives more tokens per target call than a chain of the same depth, for one draft call and one transfer per "
    "level. Pays where reading many tokens costs the target little more than one, as on a GPU.",
    proposer="A small draft model writes a tree of guesses, up to ",
    drafts_as="token tree",
    needs_only_probabilities=True,
)
