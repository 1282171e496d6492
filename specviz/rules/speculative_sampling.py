"""Speculative sampling, over chains and over token trees: the rule of the field, and lossless."""

from __future__ import annotations

import torch
from torch import Tensor

from ..accept import Check, Laws, Verdict, draw_last, proposal, ratio, residual
from ..device import to_device, to_host
from ..draft import ROOT, Draft
from ..draws import ACCEPT, Draws
from ..sampling import refuse_nan
from .chain_rule import ChainRule, is_plain_chain


class SpeculativeSampling(ChainRule):
    """Keep x with probability min(1, p/q), else draw from norm(max(0, p - q)).

    Leviathan et al. 2022, section 2.3; Chen et al. 2023, algorithm 2. Over siblings p becomes that residual after each
    failure (SpecInfer, Miao et al. 2023).
    """

    name = "speculative_sampling"
    title = "Speculative sampling"
    summary = "Keeps a drafted token with probability min(1, p/q) and otherwise draws from what the draft owed."
    source = "Leviathan et al., arXiv:2211.17192, section 2.3"
    lossless = True

    def supports(self, draft: Draft) -> bool:
        return True

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        if is_plain_chain(draft):
            return super().__call__(draft, probs, draws, position)
        return judge_tree(draft, probs, draws, position)


def judge_tree(draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
    """The walk from ROOT: one transfer per level, one for the last token, one for the nodes' own p and q."""
    path: list[int] = []
    checks: list[Check] = []
    judged: list[Tensor] = []
    node, rejected = ROOT, False
    while children := draft.children(node):
        level, rows = _judge_siblings(draft, children, probs[node + 1], draws, position + len(path))
        checks += level
        judged += rows[: len(level)]
        rejected = not level[-1].accepted
        if rejected:
            break
        node = level[-1].node
        path.append(node)
    row = rows[-1] if rejected else probs[node + 1]
    token = draw_last(row, draws, position)
    kind = "resampled" if rejected else "bonus" if path else "plain"
    drawn_from = [proposal(draft, check.node, probs) for check in checks]
    stacked = (torch.stack(list_) if list_ else probs[:0] for list_ in (judged, drawn_from))
    return Verdict(tuple(path), token, kind, tuple(checks), Laws(*stacked, row, *_of_nodes(draft, probs)))


def _judge_siblings(
    draft: Draft, children: tuple[int, ...], row: Tensor, draws: Draws, position: int
) -> tuple[list[Check], list[Tensor]]:
    """Judges one node's children in order up to the first accepted one; also the target's row before each of them and
    after all."""
    rows, columns = [row], []
    for child in children:
        token = draft.tokens[child]
        q = proposal(draft, child, row[None])
        threshold = ratio(rows[-1][token], q[token])
        u, kept = draws.below(threshold, ACCEPT, position, child)
        numbers = (row[token], rows[-1][token], q[token], threshold, u, kept)
        columns.append(torch.stack([value.to(threshold.dtype) for value in numbers]))
        rows.append(residual(rows[-1], q))
    checks = []
    for child, (p, p_judged, q, threshold, u, kept) in zip(
        children, to_host(torch.stack(columns)).tolist(), strict=True
    ):
        checks.append(Check(child, p, p_judged, q, min(1.0, threshold), u, bool(kept)))
        if kept:
            break
    refuse_nan([check.p for check in checks], "target")
    return checks, rows


def _of_nodes(draft: Draft, probs: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Every drafted token's p at its parent, and its q."""
    rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
    p = probs[rows, to_device(draft.tokens, torch.long, probs.device)]
    q = [proposal(draft, node, probs)[token] for node, token in enumerate(draft.tokens)]
    p, q = to_host(torch.stack([p, torch.stack(q)])).tolist()
    return tuple(p), tuple(q)
