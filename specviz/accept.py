"""How drafted tokens are judged. A rule sees one draft, the target's rows and the draws, and nothing else.

Every rule is a separate object; whether the text keeps the target's law is a property of the rule alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .device import exact_dtype, to_device, to_host
from .draft import ROOT, Draft
from .draws import ACCEPT, FINAL, Draws
from .sampling import refuse_nan


@dataclass(frozen=True, slots=True)
class Check:
    """One judged node: p is the target's probability at the parent, p_judged the one after earlier siblings failed."""

    node: int
    p: float
    p_judged: float
    q: float  # 1 for a point mass
    accept_prob: float
    u: float
    accepted: bool


@dataclass(frozen=True, slots=True, eq=False)
class Laws:
    """The distributions behind a verdict, for showing.

    One row per check, the row the last token was drawn from, and every node's p and q at its parent (q 1 for a point
    mass).
    """

    judged: Tensor  # [C, V] the target's row each check was made against
    drawn_from: Tensor  # [C, V] the q of each check, one-hot for a point mass
    final: Tensor  # [V]
    node_p: tuple[float, ...]  # N
    node_q: tuple[float, ...]  # N


@dataclass(frozen=True, slots=True)
class Verdict:
    """path: the accepted nodes from ROOT down. token: what follows them, and of which kind."""

    path: tuple[int, ...]
    token: int
    kind: str  # "bonus" | "resampled" | "plain"
    checks: tuple[Check, ...]
    laws: Laws = field(compare=False, repr=False)

    @property
    def last_node(self) -> int:
        return self.path[-1] if self.path else ROOT

    def emitted(self, draft: Draft) -> tuple[int, ...]:
        """The accepted tokens and the one that follows them, before anything is cut at the end of the text."""
        return (*(draft.tokens[node] for node in self.path), self.token)


class Rule:
    """A named acceptance rule. `lossless`: the emitted text follows the target's law exactly."""

    name: str
    title: str
    summary: str
    source: str
    lossless: bool

    def supports(self, draft: Draft) -> bool:
        raise NotImplementedError

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        """Judges `draft` against probs [1+N, V] (row 0 follows the context of `position` tokens, row 1+i node i)."""
        raise NotImplementedError

    def one_step_law(self, p: Tensor, q: Tensor) -> Tensor:
        """The exact law [V] of the token emitted at a position where x ~ q [V] is judged against p [V]."""
        raise NotImplementedError


class SpeculativeSampling(Rule):
    """Keep x with probability min(1, p/q), else draw from norm(max(0, p - q)).

    Leviathan et al. 2022, section 2.3; Chen et al. 2023, algorithm 2. Over siblings p becomes that residual after each
    failure: SpecInfer, section 4.3.
    """

    name = "speculative_sampling"
    title = "Speculative sampling"
    summary = "Keeps a drafted token with probability min(1, p/q) and otherwise draws from what the draft owed."
    source = "Leviathan et al., arXiv:2211.17192, section 2.3"
    lossless = True

    def supports(self, draft: Draft) -> bool:
        return True

    def __call__(self, draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
        if not len(draft):
            laws = Laws(probs[:0], probs[:0], probs[0], (), ())
            return Verdict((), _draw_last(probs[0], draws, position), "plain", (), laws)
        if draft.is_chain and not draft.num_scratch:
            return _judge_chain(draft, probs, draws, position)
        return _judge_tree(draft, probs, draws, position)

    def one_step_law(self, p: Tensor, q: Tensor) -> Tensor:
        kept = torch.minimum(p, q)
        return kept + (1 - kept.sum()) * residual(p, q)


def residual(p: Tensor, q: Tensor) -> Tensor:
    """norm(max(0, p - q)) over the last axis; p itself where nothing is left (p = q up to rounding)."""
    rest = (p - q).clamp_min(0)
    total = rest.sum(-1, keepdim=True)
    return torch.where(total > 0, rest / total.clamp_min(torch.finfo(rest.dtype).tiny), p)


def proposal(draft: Draft, node: int, probs: Tensor) -> Tensor:
    """The law [V] that a node's token was drawn from; one-hot where it was chosen without chance."""
    q = draft.probs[node]
    if q is not None:
        return q.to(probs.dtype)
    row = torch.zeros_like(probs[0])
    row[draft.tokens[node]] = 1.0
    return row


def _threshold(p: Tensor, q: Tensor) -> Tensor:
    """p/q, the bound that u must stay below."""
    wide = exact_dtype(p.device)
    return p.to(wide) / q.to(wide).clamp_min(torch.finfo(wide).tiny)


def _judge_chain(draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
    """All checks and the last token on the device, then one transfer."""
    size = len(draft)
    ids = to_device(draft.tokens, torch.long, probs.device)[:, None]
    q_rows = torch.stack([proposal(draft, node, probs) for node in range(size)])  # [N, V]
    p, q = probs[:size].gather(1, ids)[:, 0], q_rows.gather(1, ids)[:, 0]
    threshold = _threshold(p, q)
    u, kept = draws.below(threshold, ACCEPT, position, 0)
    num_kept = kept.long().cumprod(0).sum()
    p_row = probs.index_select(0, num_kept[None])
    q_row = torch.cat([q_rows, torch.zeros_like(q_rows[:1])]).index_select(0, num_kept[None])
    final = residual(p_row, q_row)[0]
    token = draws.sample(final, FINAL, position, ROOT)
    wide = exact_dtype(probs.device)
    total = p_row.sum(dtype=wide)
    columns = torch.stack([p.to(wide), q.to(wide), threshold, u.to(wide), kept.to(wide)]).reshape(-1)
    numbers = to_host(torch.cat([columns, torch.stack([num_kept.to(wide), token.to(wide), total])])).tolist()
    *numbers, num_kept, token, total = numbers
    num_kept, token = int(num_kept), int(token)
    p, q, threshold, u, kept = (numbers[size * i : size * (i + 1)] for i in range(5))
    refuse_nan([*p, total], "target")
    num_judged = min(num_kept + 1, size)
    checks = tuple(Check(i, p[i], p[i], q[i], min(1.0, threshold[i]), u[i], bool(kept[i])) for i in range(num_judged))
    laws = Laws(probs[:num_judged], q_rows[:num_judged], final, tuple(p), tuple(q))
    return Verdict(tuple(range(num_kept)), token, "bonus" if num_kept == size else "resampled", checks, laws)


def _judge_tree(draft: Draft, probs: Tensor, draws: Draws, position: int) -> Verdict:
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
    token = _draw_last(row, draws, position)
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
        threshold = _threshold(rows[-1][token], q[token])
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


def _draw_last(row: Tensor, draws: Draws, position: int) -> int:
    """The token after the accepted ones, from its law [V]."""
    token = draws.sample(row, FINAL, position, ROOT)
    wide = exact_dtype(row.device)
    token, total = to_host(torch.stack([token.to(wide), row.sum(dtype=wide)])).tolist()
    refuse_nan([total], "target")
    return int(token)
