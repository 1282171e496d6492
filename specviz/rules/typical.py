"""Medusa's typical acceptance: a drafted token is kept if the target finds it likely enough. Lossy."""

from collections.abc import Sequence

import torch
from torch import Tensor

from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import ACCEPT, Draws
from specviz.decoding.rule import Check, Verdict
from specviz.decoding.sampling import TARGET, refuse_nan
from specviz.rules.chain import ChainRule, greedy_distribution, widen
from specviz.rules.facts import FACTS
from specviz.rules.tree import make_verdict, node_p, node_q


class Typical(ChainRule):
    """Keep x iff p(x) > min(eps, delta exp(-H(p))), H the entropy in nats; delta = sqrt(eps).

    The target's own token, after the accepted ones or alone, is its most likely one. In a tree the longest path whose
    tokens all pass is accepted, the first of several; what passes on another path counts as not judged. Cai et al.
    2024 (arXiv:2401.10774), section 2.3.1.
    """

    facts = FACTS["typical"]

    def __init__(self, eps: float = 0.09) -> None:
        self._eps = eps

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        entropy = torch.special.entr(widen(row)).sum(-1, keepdim=True)
        return widen(widen(p) > (self._eps**0.5 * (-entropy).exp()).clamp_max(self._eps))

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return greedy_distribution(p)

    def bonus(self, p: Tensor) -> Tensor:
        return greedy_distribution(p)

    def judge_tree(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        all_checks = self._checks(draft, probs, draws, position)
        path = longest_path(draft, [check.accepted for check in all_checks])
        checks = _deciding_checks(draft, path, all_checks)
        row = self.bonus(probs[path[-1] + 1 if path else 0])
        judged = [probs[draft.parents[check.node] + 1] for check in checks]
        return make_verdict(draft, probs, path, checks, judged, row, draws, position)

    def _checks(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> list[Check]:
        """Every node judged by itself, whether those before it were accepted or not; one transfer."""
        wide = exact_dtype(probs.device)
        rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
        p, q = node_p(draft, probs).to(wide), node_q(draft, probs).to(wide)
        thresholds = self.threshold(p[:, None], q[:, None], probs[rows])[:, 0]
        tests = [
            draws.below(threshold, ACCEPT, position + depth - 1, node)
            for node, (threshold, depth) in enumerate(zip(thresholds, draft.depths, strict=True))
        ]
        u, passed = (torch.stack(column).to(wide) for column in zip(*tests, strict=True))
        numbers = to_host(torch.stack([p, q, thresholds, u, passed])).T.tolist()
        refuse_nan([p for p, *_ in numbers], TARGET)
        return [
            Check(node, p, p, q, chance, u, bool(kept))
            for node, (p, q, chance, u, kept) in enumerate(numbers)
        ]


def longest_path(draft: Draft, passed: Sequence[bool]) -> tuple[int, ...]:
    """The longest path from ROOT whose nodes all passed; of several the one whose end was drafted first."""
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node in range(len(draft) - draft.num_scratch):
        above = paths.get(draft.parents[node])
        if passed[node] and above is not None:
            paths[node] = (*above, node)
    return max(paths.values(), key=len)  # max keeps the first


def _deciding_checks(
    draft: Draft, path: tuple[int, ...], checks: Sequence[Check]
) -> tuple[Check, ...]:
    """The checks that decided: down the path, at each node up to the child taken, without those passed over."""
    decided: list[Check] = []
    for parent, taken in zip((ROOT, *path), (*path, None), strict=True):
        for child in draft.children(parent):
            if child == taken or not checks[child].accepted:
                decided.append(checks[child])
            if child == taken:
                break
    return tuple(decided)
