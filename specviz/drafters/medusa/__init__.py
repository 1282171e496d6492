"""Medusa: heads on the target's last state each guess one later token; the best combinations form a token tree
(arXiv:2401.10774).

A path names a node by one rank per depth: (0, 2) is the most likely token of head 0, then the third of head 1. All
heads guess at once and none sees another's guess, so a deeper node is less often right. Heads with a Markov bias
(DSpark, arXiv:2607.05147) add to each guess what the token before it says.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from specviz.decoding.draft import EMPTY, ROOT, Draft, DraftBuilder
from specviz.decoding.drafter import Ahead, Context, Drafter
from specviz.decoding.work import Work
from specviz.drafters.method import TREE_RULES, Method, Parts
from specviz.drafters.params import (
    DRAWN,
    MARKOV,
    TOP,
    TRAINED,
    Choice,
    IntParam,
    ModelParam,
    Value,
    drawn_or_top,
)

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
BIASED_HITS: tuple[tuple[float, ...], ...] = (
    (0.41, 0.12, 0.059, 0.048, 0.036, 0.025, 0.022, 0.017, 0.012, 0.011),
    (0.38, 0.10, 0.054, 0.050, 0.033, 0.028, 0.020, 0.020, 0.017, 0.015),
    (0.35, 0.11, 0.056, 0.033, 0.030, 0.026, 0.019, 0.017, 0.016, 0.016),
    (0.35, 0.09, 0.052, 0.035, 0.033, 0.029, 0.026, 0.022, 0.016, 0.015),
)
"""The same with the bundled heads' Markov bias, behind the right token: deeper guesses are worth more."""


Below = Callable[[Path], Sequence[float]]
"""A function that gives the scores of a path's children by rank, the best first; none where it has no children."""


def by_depth(scores: Sequence[Sequence[float]]) -> Below:
    """Gives the same scores[depth][rank] below every path of a depth."""
    return lambda path: scores[len(path)] if len(path) < len(scores) else ()


def best_paths(below: Below, num_nodes: int) -> tuple[Path, ...]:
    """The paths with the largest products of scores along them, the best first.

    No product grows with depth or rank, so a path comes after its parent and its likelier siblings.
    """
    found: list[Path] = []
    # minus its product, path, its parent's product, the scores of its siblings and its own
    waiting: list[tuple[float, Path, float, Sequence[float]]] = []
    if first := below(()):
        waiting.append((-first[0], (0,), 1.0, first))
    while waiting and len(found) < num_nodes:
        score, path, parent_score, scores = heapq.heappop(waiting)
        found.append(path)
        next_rank = path[-1] + 1
        if next_rank < len(scores):
            sibling = (*path[:-1], next_rank)
            sibling_score = -parent_score * scores[next_rank]
            heapq.heappush(waiting, (sibling_score, sibling, parent_score, scores))
        if children := below(path):
            heapq.heappush(waiting, (score * children[0], (*path, 0), -score, children))
    return tuple(found)


@cache
def fixed_paths(
    num_depths: int, num_ranks: int, num_nodes: int, hits: tuple[tuple[float, ...], ...] = HITS
) -> tuple[Path, ...]:
    """The tree of every step, by `hits`. Heads beyond the measured ones count as the last measured one."""
    rows = [hits[min(depth, len(hits) - 1)][:num_ranks] for depth in range(num_depths)]
    return best_paths(by_depth(rows), num_nodes)


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
        biased: bool = True,
    ) -> None:
        self._heads = heads
        self._output = output
        self._draws = draws
        self._num_nodes = num_nodes
        self._is_fixed = tree == "fixed"
        self._bias = heads.markov if biased else None
        self.hidden_layers = heads.hidden_layers

    def draft(self, context: Context, k: int) -> Draft:
        depth = min(k, len(self._heads))
        states = context.states
        if depth < 1 or states is None:
            return EMPTY
        self.work += Work(1, 1)
        # the target has not read the last token: from the state before it, head j predicts the token at depth j+1
        logits = self._heads.logits(states[-1], self._output, depth)
        if not self._draws:
            return self._tree(context.tokens[-1], logits)
        from specviz.drafters.markov import draw_chain

        return draw_chain(context, logits, None if self._bias is None else self._bias.biased)

    def _tree(self, last: int, logits: Tensor) -> Draft:
        """Takes the fixed tree's ranks, or the likeliest paths, below the text's last token. logits: [depth, V]."""
        from specviz.drafters.markov import filled
        from specviz.drafters.medusa.guesses import guess, guess_biased

        num_ranks = min(len(HITS[0]), self._heads.num_choices)
        paths: tuple[Path, ...] = ()
        if self._is_fixed:
            hits = HITS if self._bias is None else BIASED_HITS
            paths = fixed_paths(len(logits), num_ranks, self._num_nodes, hits)
        if self._bias is None:
            guesses = guess(logits, num_ranks)
        else:
            guesses = guess_biased(logits, self._bias, last, num_ranks, self._num_nodes, paths)
        if not self._is_fixed:
            paths = best_paths(guesses.probs, self._num_nodes)
        builder = DraftBuilder()
        nodes: dict[Path, int] = {(): ROOT}
        scores: list[float] = []
        for path in paths:
            token, prob, row = guesses.at(path)
            nodes[path] = builder.add(token, nodes[path[:-1]], logits=row)
            scores.append(round(prob, 4))
        ranks = [path[-1] for path in paths]
        evidence = {"heads": len(self._heads), "ranks": ranks, "scores": scores}
        return builder.build(evidence={**evidence, **filled(self._bias)})

    def along(self, tokens: Tensor, states: Tensor) -> Ahead:
        def ahead(starts: Tensor, depths: int) -> Iterator[tuple[Tensor, None]]:
            for head in range(min(depths, len(self._heads))):
                logits = self._heads.one(head, states[starts - 2], self._output)
                if self._bias is not None:
                    from specviz.drafters.markov import tokens_before

                    logits = self._bias.biased(head, tokens_before(tokens, starts, head), logits)
                yield logits, None

        return ahead


def _build(parts: Parts, params: Mapping[str, Value]) -> MedusaDrafter:
    output = parts.target.lm.model.get_output_embeddings()
    draws = params["children"] != TOP
    biased = params["bias"] == TRAINED
    return MedusaDrafter(
        parts.heads, output, params["nodes"], params["tree"], draws=draws, biased=biased
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
        MARKOV,
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
