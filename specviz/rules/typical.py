"""Medusa's typical acceptance: a drafted token is kept if the target finds it likely enough. Lossy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import ACCEPT, Draws
from specviz.decoding.rule import Check, Verdict, draw_last
from specviz.decoding.sampling import TARGET, refuse_nan
from specviz.rules.chain_rule import ChainRule, exact, favourite, is_plain_chain
from specviz.rules.tree_walk import kind_of, laws_of, node_p, node_q


class Typical(ChainRule):
    """Keep x iff p(x) > min(eps, delta exp(-H(p))), H the entropy in nats; delta = sqrt(eps).

    The target's own token, behind the kept ones or alone, is its favourite. Of a tree the longest path is kept of
    which every token passes, the first of several; what passes on another path counts as not judged. Cai et al. 2024,
    section 2.3.1.
    """

    name = "typical"
    title = "Typical acceptance"
    source = "Medusa: Cai et al., arXiv:2401.10774, section 2.3.1"
    summary = "Keeps every drafted token that the target finds likely enough; the target's own token is its favourite."
    lossless = False

    def __init__(self, eps: float = 0.09) -> None:
        self._eps = eps

    def supports(self, draft: Draft) -> bool:
        return True

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        entropy = torch.special.entr(exact(row)).sum(-1, keepdim=True)
        return exact(exact(p) > (self._eps**0.5 * (-entropy).exp()).clamp_max(self._eps))

    def replacement(self, p: Tensor, q: Tensor) -> Tensor:
        return favourite(p)

    def unaided(self, p: Tensor) -> Tensor:
        return favourite(p)

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        if is_plain_chain(draft):
            return super().__call__(draft, probs, draws, position)
        all_checks = self._checks(draft, probs, draws, position)
        path = longest(draft, [check.accepted for check in all_checks])
        checks = _along(draft, path, all_checks)
        row = self.unaided(probs[path[-1] + 1 if path else 0])
        token = draw_last(row, draws, position)
        kind = kind_of(path, rejected=bool(checks) and not checks[-1].accepted)
        judged = [probs[draft.parents[check.node] + 1] for check in checks]
        return Verdict(path, token, kind, checks, laws_of(draft, probs, checks, judged, row))

    def _checks(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> list[Check]:
        """Every node by itself, whatever became of those before it; in one transfer."""
        wide = exact_dtype(probs.device)
        rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
        p, q = node_p(draft, probs).to(wide), node_q(draft, probs).to(wide)
        thresholds = self.threshold(p[:, None], q[:, None], probs[rows])[:, 0]
        thrown = [
            draws.below(threshold, ACCEPT, position + depth - 1, node)
            for node, (threshold, depth) in enumerate(zip(thresholds, draft.depths, strict=True))
        ]
        u, passed = (torch.stack(column).to(wide) for column in zip(*thrown, strict=True))
        numbers = to_host(torch.stack([p, q, thresholds, u, passed])).T.tolist()
        refuse_nan([p for p, *_ in numbers], TARGET)
        return [Check(node, p, p, q, chance, u, bool(kept)) for node, (p, q, chance, u, kept) in enumerate(numbers)]


def longest(draft: Draft, passed: Sequence[bool]) -> tuple[int, ...]:
    """The longest path from ROOT of which every node passed; of several the one whose end was drafted first."""
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node in range(len(draft) - draft.num_scratch):
        above = paths.get(draft.parents[node])
        if passed[node] and above is not None:
            paths[node] = (*above, node)
    return max(paths.values(), key=len)  # max keeps the first


def _along(draft: Draft, path: tuple[int, ...], checks: Sequence[Check]) -> tuple[Check, ...]:
    """The checks that decided: down the path, at each node up to the child taken, without those passed over."""
    decided: list[Check] = []
    for parent, taken in zip((ROOT, *path), (*path, None), strict=True):
        for child in draft.children(parent):
            if child == taken or not checks[child].accepted:
                decided.append(checks[child])
            if child == taken:
                break
    return tuple(decided)
