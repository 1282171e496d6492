"""Medusa: heads on the target's last state each guess one later token; the best combinations form a token tree
(arXiv:2401.10774).

A node is named by a path, a rank per depth: (0, 2) is the likeliest token of head 0 and the third of head 1 behind it.
All heads guess at once, none has seen another's guess, so a deeper node is less often right.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder, chain
from specviz.decoding.drafter import Ahead, Context, Drafter, Work
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
"""How often the token of a rank was the right one: the bundled heads on the target's own text; depth, then rank."""


def best_paths(scores: Sequence[Sequence[float]], num_nodes: int) -> tuple[Path, ...]:
    """The paths with the largest products of scores[depth][rank], the best first; scores fall with the rank.

    No product grows with depth or rank, so a path comes after its parent and its likelier siblings.
    """
    found: list[Path] = []
    waiting: list[tuple[float, Path, float]] = (
        [(-scores[0][0], (0,), 1.0)] if scores and scores[0] else []
    )
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


_TREES: Mapping[str, Callable[[Sequence[Sequence[float]], int], tuple[Path, ...]]] = {
    "fixed": lambda chances, num_nodes: fixed_paths(len(chances), len(chances[0]), num_nodes),
    "likeliest": best_paths,
}


class MedusaDrafter(Drafter):
    """One pass through all heads and one transfer a step; every node is a point mass."""

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
        self._heads, self._output, self._draws, self.hidden_layers = (
            heads,
            output,
            draws,
            heads.hidden_layers,
        )
        self._num_nodes, self._paths = num_nodes, _TREES[tree]

    def draft(self, context: Context, k: int) -> Draft:
        depth, states = min(k, len(self._heads)), context.states
        if depth < 1 or states is None:
            return EMPTY
        self.work += Work(1, 1)
        # the last token has not been read: from the state before it, head j sees the token that is drafted at depth j+1
        if self._draws:
            return self._chain(context, states[-1], depth)
        logits, ids, chances = self._heads.guess(states[-1], self._output, depth, len(HITS[0]))
        builder, nodes = DraftBuilder(), {(): ROOT}
        paths = self._paths(chances, self._num_nodes)
        for path in paths:
            head, rank = len(path) - 1, path[-1]
            nodes[path] = builder.add(ids[head][rank], nodes[path[:-1]], logits=logits[head])
        scores = [round(chances[len(path) - 1][path[-1]], 4) for path in paths]
        ranks = [path[-1] for path in paths]
        return builder.build(evidence={"heads": len(self._heads), "ranks": ranks, "scores": scores})

    def _chain(self, context: Context, state: Tensor, depth: int) -> Draft:
        """A token from each head, drawn from its law, which is its q."""
        import torch

        from specviz.decoding.device import exact_dtype
        from specviz.decoding.draws import DRAFT
        from specviz.decoding.sampling import HEADS, fetch_tokens

        rows = torch.stack([self._heads.one(head, state, self._output) for head in range(depth)])
        probs = context.sampling.probs(rows)
        tokens = context.draws.sample(probs, DRAFT, len(context.tokens), 0)
        return chain(
            fetch_tokens(tokens, probs.sum(-1, dtype=exact_dtype(probs.device)), HEADS)[0],
            probs,
            rows,
        )

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            for head in range(min(depths, len(self._heads))):
                yield self._heads.one(head, states[starts - 2], self._output), None

        return ahead


def _build(parts: Parts, params: Mapping[str, Value]) -> MedusaDrafter:
    output = parts.target.lm.model.get_output_embeddings()
    return MedusaDrafter(
        parts.heads, output, params["nodes"], params["tree"], draws=params["children"] != TOP
    )


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
