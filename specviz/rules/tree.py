"""TreeRule: the walk down a token tree. The first of some siblings is judged against p, each later one against the
residual of the one before. One transfer to the host per level, one for the last token and every node's p and q."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import ACCEPT, FINAL, Draws
from specviz.decoding.rule import Check, Distributions, Verdict, proposal
from specviz.decoding.sampling import TARGET, refuse_nan
from specviz.rules.chain import ChainRule


class TreeRule(ChainRule):
    """judged_as: draft, node and the target's rows -> the law [V] that the node's token counts as sampled from."""

    judged_as: staticmethod[[Draft, int, Tensor], Tensor] = staticmethod(proposal)

    def judge_tree(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """The walk down from ROOT. SpecInfer, Miao et al. 2023, algorithm 2."""
        path: list[int] = []
        checks: list[Check] = []
        judged: list[Tensor] = []
        node, rejected = ROOT, False
        while children := draft.children(node):
            level, rows = _judge_siblings(
                self, draft, children, probs[node + 1], draws, position + len(path)
            )
            checks += level
            judged += rows[: len(level)]
            rejected = not level[-1].accepted
            if rejected:
                break
            node = level[-1].node
            path.append(node)
        row = rows[-1] if rejected else self.bonus(probs[node + 1])
        return make_verdict(draft, probs, path, checks, judged, row, draws, position)


def make_verdict(
    draft: Draft,
    probs: Tensor,
    path: Sequence[int],
    checks: Sequence[Check],
    judged: Sequence[Tensor],
    final: Tensor,
    draws: Draws,
    position: int,
) -> Verdict:
    """judged: the target's row [V] that each check was made against; final: the law [V] of the last token, which is
    drawn here and comes to the host with every node's p and q."""
    drawn_from, wide = (
        [proposal(draft, check.node, probs) for check in checks],
        exact_dtype(probs.device),
    )
    stacked = (torch.stack(list(rows)) if rows else probs[:0] for rows in (judged, drawn_from))
    last = torch.stack([draws.sample(final, FINAL, position, ROOT).to(wide), final.sum(dtype=wide)])
    columns = torch.cat([node_p(draft, probs).to(wide), node_q(draft, probs).to(wide), last])
    *numbers, token, total = to_host(columns).tolist()
    refuse_nan([total], TARGET)
    distributions = Distributions(
        *stacked, final, tuple(numbers[: len(draft)]), tuple(numbers[len(draft) :])
    )
    kind = "resampled" if checks and not checks[-1].accepted else "bonus" if path else "plain"
    return Verdict(tuple(path), int(token), kind, tuple(checks), distributions)


def _judge_siblings(
    rule: TreeRule,
    draft: Draft,
    children: tuple[int, ...],
    row: Tensor,
    draws: Draws,
    position: int,
) -> tuple[list[Check], list[Tensor]]:
    """Judges a node's children up to the first accepted one; also the target's row before each and after all."""
    rows, columns = [row], []
    for child in children:
        token = draft.tokens[child]
        left, q = rows[-1], rule.judged_as(draft, child, row[None])
        threshold = rule.threshold(left[token : token + 1], q[token : token + 1], left)[0]
        u, kept = draws.below(threshold, ACCEPT, position, child)
        numbers = (row[token], left[token], _q_of(draft, child, row), threshold, u, kept)
        columns.append(torch.stack([value.to(threshold.dtype) for value in numbers]))
        rows.append(rule.residual(left, q))
    checks, numbers = [], to_host(torch.stack(columns)).tolist()
    for child, (p, p_judged, q, threshold, u, kept) in zip(children, numbers, strict=True):
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
    """Every drafted token's q [N], 1 where it was not sampled."""
    return torch.stack([_q_of(draft, node, probs) for node in range(len(draft))])


def _q_of(draft: Draft, node: int, like: Tensor) -> Tensor:
    q = draft.probs[node]
    return like.new_ones(()) if q is None else q[draft.tokens[node]].to(like.dtype)
