"""Medusa's typical acceptance: a drafted token is accepted if the target finds it likely enough. Lossy."""

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
    """Accepts x if p(x) > min(eps, delta exp(-H(p))), with the entropy H in nats and delta = sqrt(eps).

    The target's own token is its most likely one. In a tree the longest path on which all tokens pass is accepted,
    the first of several. Tokens that pass on another path count as not judged.
    Cai et al. 2024 (arXiv:2401.10774), section 2.3.1.
    """

    facts = FACTS["typical"]

    def __init__(self, eps: float = 0.09) -> None:
        self._eps = eps

    def threshold(self, p: Tensor, q: Tensor, row: Tensor) -> Tensor:
        entropy = torch.special.entr(widen(row)).sum(-1, keepdim=True)
        delta = self._eps**0.5
        least = (delta * (-entropy).exp()).clamp_max(self._eps)
        return widen(widen(p) > least)

    def residual(self, p: Tensor, q: Tensor) -> Tensor:
        return greedy_distribution(p)

    def bonus(self, p: Tensor) -> Tensor:
        return greedy_distribution(p)

    def judge_tree(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        all_checks = self._check_all(draft, probs, draws, position)
        path = longest_path(draft, [check.accepted for check in all_checks])
        checks = _deciding_checks(draft, path, all_checks)
        judged = [probs[draft.parents[check.node] + 1] for check in checks]
        last_node = path[-1] if path else ROOT
        final = self.bonus(probs[last_node + 1])
        return make_verdict(draft, probs, path, checks, judged, final, draws, position)

    def _check_all(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> list[Check]:
        """Judges each node by itself, whether those above it were accepted or not; takes one transfer."""
        wide = exact_dtype(probs.device)
        rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
        p = node_p(draft, probs).to(wide)  # [N]
        q = node_q(draft, probs).to(wide)  # [N]
        thresholds = self.threshold(p[:, None], q[:, None], probs[rows])[:, 0]
        all_u = []
        all_passed = []
        for node, depth in enumerate(draft.depths):
            u, passed = draws.below(thresholds[node], ACCEPT, position + depth - 1, node)
            all_u.append(u)
            all_passed.append(passed)
        u = torch.stack(all_u).to(wide)
        passed = torch.stack(all_passed).to(wide)
        numbers = to_host(torch.stack([p, q, thresholds, u, passed]))  # [5, N]
        refuse_nan(numbers[0].tolist(), TARGET)
        checks = []
        for node, (p, q, threshold, u, passed) in enumerate(numbers.T.tolist()):
            checks.append(Check(node, p, p, q, threshold, u, bool(passed)))
        return checks


def longest_path(draft: Draft, passed: Sequence[bool]) -> tuple[int, ...]:
    """The longest path from ROOT on which all nodes passed; of several, the one with the earliest end."""
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node in range(len(draft) - draft.num_scratch):
        above = paths.get(draft.parents[node])
        if passed[node] and above is not None:
            paths[node] = (*above, node)
    return max(paths.values(), key=len)  # max keeps the first


def _deciding_checks(
    draft: Draft, path: Sequence[int], checks: Sequence[Check]
) -> tuple[Check, ...]:
    """The checks that decided: below each node of the path, the rejected siblings up to the accepted one, and it."""
    accepted = set(path)
    deciding: list[Check] = []
    for parent in (ROOT, *path):
        for child in draft.children(parent):
            if child in accepted:
                deciding.append(checks[child])
                break
            if not checks[child].accepted:
                deciding.append(checks[child])
    return tuple(deciding)
