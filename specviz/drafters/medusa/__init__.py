"""Medusa: heads on the target's last state each guess one later token; the best combinations form a token tree
(arXiv:2401.10774).

A path names a node by one rank per depth: (0, 2) is the most likely token of head 0, then the third of head 1. All
heads guess at once and none sees another's guess, so a deeper node is less often right.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder, chain
from specviz.decoding.drafter import Ahead, Context, Drafter
from specviz.decoding.work import Work
from specviz.drafters.method import TREE_RULES, Method, Parts
from specviz.drafters.params import DRAWN, TOP, Choice, IntParam, ModelParam, Value, drawn_or_top

if TYPE_CHECKING:
    from torch import Tensor, nn

    from specviz.drafters.medusa.heads import MedusaHeads

Path = tuple[int, ...]
HITS: tuple[tuple[float, ...], ...] = (
    (0.34, 0.10, 0.06, 0.049, 0.037, 0.032, 0.015, 0.014, 0.014, 0.013),
    (0.25, 0.07, 0.055, 0.04, 0.037, 0.03, 0.027, 0.024, 0.02, 0.012),
    (0.20, 0.07, 0.05, 0.037, 0.03, 0.024, 0.021, 0.02, 0.017, 0.016),
    (0.17, 0.066, 0.04, 0.035, 0.034, 0.03, 0.021, 0.02, 0.017, 0.015),
)
"""How often each rank's token was right: HITS[depth][rank], measured with the bundled heads on the target's text."""


def best_paths(scores: Sequence[Sequence[float]], num_nodes: int) -> tuple[Path, ...]:
    """The paths with the largest products of scores[depth][rank], the best first; scores fall with the rank.

    No product grows with depth or rank, so a path comes after its parent and its likelier siblings.
    """
    found: list[Path] = []
    waiting: list[tuple[float, Path, float]] = []  # (minus its product, path, its parent's product)
    if scores and scores[0]:
        waiting.append((-scores[0][0], (0,), 1.0))
    while waiting and len(found) < num_nodes:
        score, path, parent_score = heapq.heappop(waiting)
        found.append(path)
        depth = len(path)
        next_rank = path[-1] + 1
        if next_rank < len(scores[depth - 1]):
            sibling = (*path[:-1], next_rank)
            sibling_score = -parent_score * scores[depth - 1][next_rank]
            heapq.heappush(waiting, (sibling_score, sibling, parent_score))
        if depth < len(scores):
            heapq.heappush(waiting, (score * scores[depth][0], (*path, 0), -score))
    return tuple(found)


@cache
def fixed_paths(num_depths: int, num_ranks: int, num_nodes: int) -> tuple[Path, ...]:
    """The tree of every step, by HITS. Heads beyond the measured ones count as the last measured one."""
    rows = [HITS[min(depth, len(HITS) - 1)][:num_ranks] for depth in range(num_depths)]
    return best_paths(rows, num_nodes)


def _fixed_tree(probs: Sequence[Sequence[float]], num_nodes: int) -> tuple[Path, ...]:
    return fixed_paths(len(probs), len(probs[0]), num_nodes)


_TREES: Mapping[str, Callable[[Sequence[Sequence[float]], int], tuple[Path, ...]]] = {
    "fixed": _fixed_tree,
    "likeliest": best_paths,
}


class MedusaDrafter(Drafter):
    """Drafts with one pass through all heads and one transfer per step. Every node of its trees is a point mass."""

    work = Work()

    def __init__(
        self,
        heads: MedusaHeads,
        output: nn.Module,
        num_nodes: int,
        tree: str = "fixed",
        *,
        draws: bool = False,
    ) -> None:
        self._heads = heads
        self._output = output
        self._draws = draws
        self._num_nodes = num_nodes
        self._find_paths = _TREES[tree]
        self.hidden_layers = heads.hidden_layers

    def draft(self, context: Context, k: int) -> Draft:
        depth = min(k, len(self._heads))
        states = context.states
        if depth < 1 or states is None:
            return EMPTY
        self.work += Work(1, 1)
        # the target has not read the last token: from the state before it, head j predicts the token at depth j+1
        if self._draws:
            return self._chain(context, states[-1], depth)
        logits, ids, probs = self._heads.guess(states[-1], self._output, depth, len(HITS[0]))
        builder = DraftBuilder()
        nodes: dict[Path, int] = {(): ROOT}
        ranks: list[int] = []
        scores: list[float] = []
        for path in self._find_paths(probs, self._num_nodes):
            head = len(path) - 1
            rank = path[-1]
            nodes[path] = builder.add(ids[head][rank], nodes[path[:-1]], logits=logits[head])
            ranks.append(rank)
            scores.append(round(probs[head][rank], 4))
        return builder.build(evidence={"heads": len(self._heads), "ranks": ranks, "scores": scores})

    def _chain(self, context: Context, state: Tensor, depth: int) -> Draft:
        """Draws a token from each head's distribution, which is its q."""
        import torch

        from specviz.decoding.device import exact_dtype
        from specviz.decoding.draws import DRAFT
        from specviz.decoding.sampling import HEADS, fetch_tokens

        rows = torch.stack([self._heads.one(head, state, self._output) for head in range(depth)])
        probs = context.sampling.probs(rows)  # [depth, V]
        tokens = context.draws.sample(probs, DRAFT, len(context.tokens), 0)
        sums = probs.sum(-1, dtype=exact_dtype(probs.device))
        ids, _ = fetch_tokens(tokens, sums, HEADS)
        return chain(ids, probs, rows)

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            for head in range(min(depths, len(self._heads))):
                yield self._heads.one(head, states[starts - 2], self._output), None

        return ahead


def _build(parts: Parts, params: Mapping[str, Value]) -> MedusaDrafter:
    output = parts.target.lm.model.get_output_embeddings()
    draws = params["children"] != TOP
    return MedusaDrafter(parts.heads, output, params["nodes"], params["tree"], draws=draws)


METHOD = Method(
    name="medusa",
    title="Medusa",
    summary="Extra heads on the target's last state each guess one later token; the best combinations are checked "
    "together as a tree.",
    caution="Drafting costs little beside a large target, but the heads must be trained for it. Every step reads the "
    "whole tree, so it pays where reading many tokens costs hardly more time than reading one.",
    source="Cai et al., arXiv:2401.10774",
    roles=("heads",),
    params=(
        ModelParam(
            "heads", "Medusa heads", None, "Heads that were trained for the target.", "medusa"
        ),
        *drawn_or_top(
            "a tree of the heads' most likely tokens",
            "a chain, a token drawn from each head",
            IntParam(
                "nodes",
                "tree nodes",
                24,
                "How many tokens the tree may hold at most. K is its depth.",
                1,
                256,
            ),
            Choice(
                "tree",
                "tree",
                "fixed",
                "Which guesses are checked: the paper's tree, the same at every step, by how often each rank was "
                "right; or a tree grown at each step from the heads' probabilities there.",
                {
                    "fixed": "the same at every step",
                    "likeliest": "the most likely guesses of each step",
                },
            ),
        ),
    ),
    rules=TREE_RULES,
    build=_build,
    proposer="Small heads on the target model guess later tokens as a tree, up to ",
    drafts_as="token tree",
    chain_when=("children", (DRAWN,)),
    why_no_what_if="the draft of Medusa heads depends on where their step begins",
    reads_ahead=True,
)
