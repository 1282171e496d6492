"""TreeRule: the walk down a token tree.

The first of some siblings is judged against p, each later one against the residual of the sibling before. There is one
transfer to the host per level, and one for the last token with every node's p and q.
"""

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
    """A rule that judges the siblings of a token tree one after another."""

    judged_as: staticmethod[[Draft, int, Tensor], Tensor] = staticmethod(proposal)
    """(draft, node, the target's rows) -> the distribution [V] that the node's token counts as drawn from."""

    def judge_tree(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """Walks down from ROOT. SpecInfer, Miao et al. 2023, algorithm 2."""
        path: list[int] = []
        checks: list[Check] = []
        judged: list[Tensor] = []
        node = ROOT
        while True:
            children = draft.children(node)
            if not children:
                final = self.bonus(probs[node + 1])
                break
            level, rows = _judge_siblings(
                self, draft, children, probs[node + 1], draws, position + len(path)
            )
            checks += level
            judged += rows[: len(level)]
            last = level[-1]
            if not last.accepted:
                final = rows[-1]
                break
            node = last.node
            path.append(node)
        return make_verdict(draft, probs, path, checks, judged, final, draws, position)


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
    """Draws the last token and gathers every node's p and q, in one transfer.

    judged: for each check the target's row [V] that it was made against. final: the distribution [V] of the last token.
    """
    wide = exact_dtype(probs.device)
    token = draws.sample(final, FINAL, position, ROOT)
    last = torch.stack([token.to(wide), final.sum(dtype=wide)])
    columns = [node_p(draft, probs).to(wide), node_q(draft, probs).to(wide), last]
    *numbers, token, total = to_host(torch.cat(columns)).tolist()
    refuse_nan([total], TARGET)

    size = len(draft)
    distributions = Distributions(
        judged=judged,
        final=final,
        node_p=tuple(numbers[:size]),
        node_q=tuple(numbers[size:]),
    )
    if checks and not checks[-1].accepted:
        kind = "resampled"
    elif path:
        kind = "bonus"
    else:
        kind = "plain"
    return Verdict(tuple(path), int(token), kind, tuple(checks), distributions)


def _judge_siblings(
    rule: TreeRule,
    draft: Draft,
    children: tuple[int, ...],
    row: Tensor,
    draws: Draws,
    position: int,
) -> tuple[list[Check], list[Tensor]]:
    """Judges a node's children up to the first accepted one.

    Returns the checks, and the target's row [V] before each child and behind a rejected last one.
    """
    rows = [row]
    numbers = []
    for child in children:
        token = draft.tokens[child]
        p_row = rows[-1]
        q_row = rule.judged_as(draft, child, row[None])
        p = p_row[token : token + 1]
        q = q_row[token : token + 1]
        threshold = rule.threshold(p, q, p_row)[0]
        u, passed = draws.below(threshold, ACCEPT, position, child)
        numbers.append((row[token], p[0], _q_of(draft, child, row), threshold, u, passed))
        if passed.is_cpu and passed:  # other devices would have to wait for the answer
            break
        rows.append(rule.residual(p_row, q_row))

    wide = exact_dtype(row.device)
    columns = [torch.stack(column).to(wide) for column in zip(*numbers, strict=True)]
    checks = []
    for child, values in zip(children, to_host(torch.stack(columns, dim=1)).tolist(), strict=False):
        p, p_judged, q, threshold, u, passed = values
        checks.append(Check(child, p, p_judged, q, min(1.0, threshold), u, bool(passed)))
        if passed:
            break
    refuse_nan([check.p for check in checks], TARGET)
    return checks, rows


def node_p(draft: Draft, probs: Tensor) -> Tensor:
    """The p of each drafted token at its parent [N]."""
    rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
    return probs[rows, to_device(draft.tokens, torch.long, probs.device)]


def node_q(draft: Draft, probs: Tensor) -> Tensor:
    """The q of each drafted token [N], 1 where it was chosen without chance."""
    return torch.stack([_q_of(draft, node, probs) for node in range(len(draft))])


def _q_of(draft: Draft, node: int, like: Tensor) -> Tensor:
    q = draft.probs[node]
    return like.new_ones(()) if q is None else q[draft.tokens[node]].to(like.dtype)
