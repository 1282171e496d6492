"""The walk down a token tree: one node's children are judged in order, and what each failure leaves of p is what the
next one is judged against. One transfer per level, one for the last token, one for the nodes' own p and q.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from specviz.decoding.device import to_device, to_host
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import ACCEPT, Draws
from specviz.decoding.rule import Check, Laws, Verdict, draw_last, proposal, ratio, residual
from specviz.decoding.sampling import TARGET, refuse_nan
from specviz.rules.chain_rule import ChainRule, is_plain_chain

JudgedAs = Callable[[Draft, int, Tensor], Tensor]
"""The law [V] that a node's token counts as drawn from: draft, node, rows like the target's -> q."""


class TreeRule(ChainRule):
    """Chains as ever, trees by the walk."""

    judged_as: staticmethod[..., Tensor] = staticmethod(proposal)

    def supports(self, draft: Draft) -> bool:
        return True

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        if is_plain_chain(draft):
            return super().__call__(draft, probs, draws, position)
        return judge_tree(draft, probs, draws, position, self.judged_as)


def judge_tree(draft: Draft, probs: Tensor, draws: Draws, position: int, judged_as: JudgedAs = proposal) -> Verdict:
    """The walk from ROOT. Keep x with probability min(1, r/q), r what is left of p; else r becomes norm(max(0, r - q)).

    SpecInfer, Miao et al. 2023, algorithm 2.
    """
    path: list[int] = []
    checks: list[Check] = []
    judged: list[Tensor] = []
    node, rejected = ROOT, False
    while children := draft.children(node):
        level, rows = _judge_siblings(draft, children, probs[node + 1], draws, position + len(path), judged_as)
        checks += level
        judged += rows[: len(level)]
        rejected = not level[-1].accepted
        if rejected:
            break
        node = level[-1].node
        path.append(node)
    row = rows[-1] if rejected else probs[node + 1]
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
    draft: Draft, children: tuple[int, ...], row: Tensor, draws: Draws, position: int, judged_as: JudgedAs
) -> tuple[list[Check], list[Tensor]]:
    """Judges one node's children in order up to the first accepted one; also the target's row before each of them and
    after all."""
    rows, columns = [row], []
    for child in children:
        token = draft.tokens[child]
        q = judged_as(draft, child, row[None])
        threshold = ratio(rows[-1][token], q[token])
        u, kept = draws.below(threshold, ACCEPT, position, child)
        numbers = (row[token], rows[-1][token], _q_of(draft, child, row), threshold, u, kept)
        columns.append(torch.stack([value.to(threshold.dtype) for value in numbers]))
        rows.append(residual(rows[-1], q))
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
