"""A draft model that writes a token tree: several guesses at a place, so that one of them is more often right.

If children are the draft's most likely tokens, its probabilities decide which are grown and used. If they are drawn,
only their order decides: to choose by what was drawn would change the text's distribution. One forward and one transfer
per level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from specviz.decoding.draft import ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Context, Drafter, limit_depth, no_draft
from specviz.drafters.method import TREE_RULES, Method
from specviz.drafters.params import Choice, IntParam, SizeParam

if TYPE_CHECKING:
    from specviz.decoding.cached_lm import CachedLM
    from specviz.drafters.tree.children import Child

FIRST = 0.7  # how often the bundled target accepts a first drawn child
SECOND = 0.08  # a second one; each later child half as often as the one before
PER_CALL = {2: 1.81, 3: 2.01, 4: 2.17, 5: 2.25, 6: 2.30, 8: 2.40, 12: 2.53, 16: 2.59, 24: 2.64}
"""Tokens per target call by the number of nodes: the mean of `fable-draft` and `smol-draft` at the temperatures 0 and
1, K = 4."""
CHILDREN = {
    "suited": ("top", "without_replacement"),
    "top": ("top", "top"),
    "independent": ("independent", "independent"),
    "without_replacement": ("without_replacement", "without_replacement"),
}
"""The kind of children by the parameter's value: at temperature 0, and above."""


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A node of the growing tree."""

    child: Child
    parent: int
    score: float  # the product of the draft's probabilities from the root to here
    promise: float  # the same; for drawn children the product of FIRST, SECOND and so on


class TreeDrafter(Drafter):
    """Drafts a token tree. It spreads the budget of nodes over the levels, so that the tree reaches its depth."""

    def __init__(self, lm: CachedLM, children: str, shape: str, width: int, nodes: int) -> None:
        self._lm = lm
        self._children = CHILDREN[children]
        self._shape = shape
        self._width = width
        self._budget = nodes

    def draft(self, context: Context, k: int) -> Draft:
        from specviz.drafters.tree.children import grow  # loads torch

        k = limit_depth(self._lm, context.tokens, k)
        if k < 1:
            return no_draft(self._lm, context.tokens)
        kind = self._children[context.sampling.temperature > 0]
        nodes: list[Node] = []
        level = [ROOT]
        num_draws = 0
        read = DraftBuilder()  # the nodes that the draft model reads
        places = {ROOT: ROOT}  # node -> its place among them
        for depth in range(k):
            count, most = self._room(depth, k - depth, len(nodes), context.vocab_size)
            frontier = self._leading(nodes, level, most)
            stride = most if depth else 1
            if not frontier or not count:
                break
            if depth:
                for number in frontier:
                    node = nodes[number]
                    places[number] = read.add(node.child.token, places[node.parent])
            logits = self._lm.forward(context.tokens, read.build())[-len(frontier) :]  # [F, V]
            first = len(nodes)
            grown = grow(kind, logits, context, count, num_draws, stride)
            for parent, children in zip(frontier, grown, strict=True):
                nodes += [_add_scores(nodes, parent, child) for child in children]
            level = list(range(first, len(nodes)))
            num_draws += stride * count
        return self._prune(nodes, kind)

    def _room(self, depth: int, levels_left: int, grown: int, vocab_size: int) -> tuple[int, int]:
        """How many children a node has at this depth, and how many nodes have any.

        The dynamic shape grows more nodes than the budget allows and uses the most promising ones.
        """
        width = min(self._width, vocab_size)
        if self._shape == "dynamic":
            return width, width
        left = self._budget - grown
        is_chain = self._shape == "fan" and depth > 0
        count = min(1 if is_chain else width, left)
        return count, max(1, left // levels_left // max(count, 1))

    def _leading(self, nodes: Sequence[Node], level: Sequence[int], most: int) -> list[int]:
        """The most promising nodes of a level, without those below which no node could be among the used ones."""
        best = _pick_best(nodes, level, most)
        if len(nodes) < self._budget:
            return best
        last = _pick_best(nodes, range(len(nodes)), self._budget)[-1]
        return [node for node in best if nodes[node].promise > nodes[last].promise]

    def _prune(self, nodes: Sequence[Node], kind: str) -> Draft:
        """Takes the most promising nodes. No node promises more than its parent, so every parent is among them."""
        used = sorted(_pick_best(nodes, range(len(nodes)), self._budget))
        builder = DraftBuilder()
        places = {ROOT: ROOT}
        for number in used:
            child = nodes[number].child
            parent = places[nodes[number].parent]
            places[number] = builder.add(child.token, parent, child.q, child.row)
        scores = [round(nodes[number].score, 4) for number in used]
        evidence = {"children": kind, "scores": scores, "grown": len(nodes), "kept": len(used)}
        return builder.build(evidence=evidence)


def _pick_best(nodes: Sequence[Node], among: Sequence[int], most: int) -> list[int]:
    """The most promising nodes, the best first. Equal ones stay in their order."""
    return sorted(among, key=lambda node: 0.0 if node == ROOT else -nodes[node].promise)[:most]


def _add_scores(nodes: Sequence[Node], parent: int, child: Child) -> Node:
    probability = min(child.probability, 1.0)
    if child.q is None:
        factor = probability
    elif child.order == 0:
        factor = FIRST
    else:
        factor = SECOND / 2 ** (child.order - 1)
    if parent == ROOT:
        return Node(child, parent, probability, factor)
    return Node(child, parent, nodes[parent].score * probability, nodes[parent].promise * factor)


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
        SizeParam(
            "nodes",
            "most tokens",
            0,
            "How many draft tokens the target reads at most in one call. 0: the best by time on this device, as "
            "measured when the page started, else 8.",
            0,
            64,
            usual=8,
            per_call=PER_CALL,
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
