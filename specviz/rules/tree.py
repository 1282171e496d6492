"""TreeRule: the walk down a token tree. Siblings are judged in order, each against the residual that the rejected ones
before it left of p. One transfer to the host per level, one for the last token, one for every node's p and q.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.decoding.device import to_device, to_host
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import ACCEPT, Draws
from specviz.decoding.rule import Check, Laws, Verdict, draw_last, proposal
from specviz.decoding.sampling import TARGET, refuse_nan
from specviz.rules.chain import ChainRule, is_plain_chain


class TreeRule(ChainRule):
    """Judges chains by the loop and token trees by the walk.

    judged_as: the law [V] that a node's token counts as drawn from; takes the draft, the node and the target's rows.
    """

    judged_as: staticmethod[[Draft, int, Tensor], Tensor] = staticmethod(proposal)

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        if is_plain_chain(draft):
            return super().__call__(draft, probs, draws, position)
        return judge_tree(self, draft, probs, draws, position)


def judge_tree(rule: TreeRule, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
    """The walk down from ROOT with the rule's three answers. SpecInfer, Miao et al. 2023, algorithm 2."""
    path: list[int] = []
    checks: list[Check] = []
    judged: list[Tensor] = []
    node, rejected = ROOT, False
    while children := draft.children(node):
        level, rows = _judge_siblings(rule, draft, children, probs[node + 1], draws, position + len(path))
        checks += level
        judged += rows[: len(level)]
        rejected = not level[-1].accepted
        if rejected:
            break
        node = level[-1].node
        path.append(node)
    row = rows[-1] if rejected else rule.bonus(probs[node + 1])
    token = draw_last(row, draws, position)
    return Verdict(
        tuple(path), token, kind_of(path, rejected), tuple(checks), laws_of(draft, probs, checks, judged, row)
    )


def kind_of(path: Sequence[int], rejected: bool) -> str:
    """Which kind of token follows `path`, where a node below it was rejected or there is none."""
    if rejected:
        return "resampled"
    return "bonus" if path else "plain"


def laws_of(draft: Draft, probs: Tensor, checks: Sequence[Check], judged: Sequence[Tensor], final: Tensor) -> Laws:
    """judged: the target's row [V] that each check was made against."""
    drawn_from = [proposal(draft, check.node, probs) for check in checks]
    stacked = (torch.stack(list(rows)) if rows else probs[:0] for rows in (judged, drawn_from))
    return Laws(*stacked, final, *_of_nodes(draft, probs))


def _judge_siblings(
    rule: TreeRule, draft: Draft, children: tuple[int, ...], row: Tensor, draws: Draws, position: int
) -> tuple[list[Check], list[Tensor]]:
    """Judges one node's children in order up to the first accepted one; also the target's row before each of them and
    after all."""
    rows, columns = [row], []
    for child in children:
        token = draft.tokens[child]
        left, q = rows[-1], rule.judged_as(draft, child, row[None])
        threshold = rule.threshold(left[token : token + 1], q[token : token + 1], left)[0]
        u, kept = draws.below(threshold, ACCEPT, position, child)
        numbers = (row[token], left[token], _q_of(draft, child, row), threshold, u, kept)
        columns.append(torch.stack([value.to(threshold.dtype) for value in numbers]))
        rows.append(rule.residual(left, q))
    checks = []
    for child, (p, p_judged, q, threshold, u, kept) in zip(
        children, to_host(torch.stack(columns)).tolist(), strict=True
    ):
        checks.append(Check(child, p, p_judged, q, min(1.0, threshold), u, bool(kept)))
        if kept:
            break
    refuse_nan([check.p for check in checks], TARGET)
    return checks, rows


def node_p(draft: Draft, probs: Tensor) -> Tensor:
    """Every drafted token's p at its parent [N]."""
    rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
    return probs[rows, to_device(draft.tokens, torch.long, probs.device)]


def node_q(draft: Draft, probs: Tensor) -> Tensor:
    """Every drafted token's q [N], 1 where it was chosen without chance."""
    return torch.stack([_q_of(draft, node, probs) for node in range(len(draft))])


def _q_of(draft: Draft, node: int, like: Tensor) -> Tensor:
    q = draft.probs[node]
    return like.new_ones(()) if q is None else q[draft.tokens[node]].to(like.dtype)


def _of_nodes(draft: Draft, probs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    p, q = to_host(torch.stack([node_p(draft, probs), node_q(draft, probs)])).tolist()
    return tuple(p), tuple(q)
