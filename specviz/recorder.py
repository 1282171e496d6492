"""The one bridge from tensors to records: an engine Step in, a trace Step out, with one transfer in between.

Numbers are rounded to nine significant digits; a row of a distribution holds both models' likeliest tokens, the drafted
and the emitted one, and the rest as a sum.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from . import trace
from .accept import Laws
from .device import exact_dtype, to_device, to_host
from .engine import Step
from .text import TokenText

NUM_TOP = 8


@dataclass(frozen=True, slots=True)
class Situation:
    """What the engine does not know of a step and a reader wants to."""

    settings: trace.Settings
    changed: tuple[str, ...]
    at_ms: float
    wait_ms: float
    started: float  # time.perf_counter() when the step began, after all waiting


class Recorder:
    """Keeps the text decoder of one run; `record` must see its steps in order."""

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._decoder = text.incremental()

    @torch.inference_mode()
    def record(self, step: Step, situation: Situation) -> trace.Step:
        started = time.perf_counter()
        numbers = _Numbers(step)
        positions = self._positions(step, numbers)
        drafted = self._drafted(step, numbers)
        emitted = self._emitted(step, numbers)
        timing = _timing(step, started, situation)
        return trace.Step(
            index=step.index,
            at_ms=trace.round9(situation.at_ms),
            context_length=step.context_length,
            truncated=step.truncated,
            settings=situation.settings,
            changed=situation.changed,
            calls={"target": step.target_work.calls, "draft": step.draft_work.calls},
            fed={"target": step.target_work.fed, "draft": step.draft_work.fed},
            draft=drafted,
            emitted=emitted,
            positions=positions,
            timing=timing,
            evidence=dict(step.draft.evidence),
        )

    def _positions(self, step: Step, numbers: _Numbers) -> tuple[trace.Position, ...]:
        label, positions = self._text.label, []
        for walk_node, child, columns, owed, stats in numbers.rows():
            top = tuple([(token, label(token), *values) for token, values in columns.items()])
            positions.append(trace.Position(walk_node, child, top, _rest(top, owed), *stats))
        return tuple(positions)

    def _drafted(self, step: Step, numbers: _Numbers) -> tuple[trace.DraftToken, ...]:
        draft = step.draft
        judged = {check.node: numbers.judged[i] for i, check in enumerate(step.verdict.checks)}
        accepted, first_scratch = set(step.verdict.path), len(draft) - draft.num_scratch
        nodes = []
        for node, (token, parent, depth) in enumerate(zip(draft.tokens, draft.parents, draft.depths, strict=True)):
            scratch = node >= first_scratch
            status = "scratch" if scratch else "rejected" if node in judged else "ignored"
            nodes.append(
                trace.DraftToken(
                    token,
                    *self._text.piece(token),
                    parent,
                    depth,
                    "accepted" if node in accepted else status,
                    None if scratch else numbers.draft_p[node],
                    None if draft.probs[node] is None else numbers.draft_q[node],
                    *judged.get(node, (None, None, None)),
                )
            )
        return tuple(nodes)

    def _emitted(self, step: Step, numbers: _Numbers) -> tuple[trace.EmittedToken, ...]:
        emitted = []
        for index, token in enumerate(step.tokens):
            piece = self._decoder.push(token)
            if index < len(step.verdict.path):
                node = step.verdict.path[index]
                q = None if step.draft.probs[node] is None else numbers.draft_q[node]
                place = (node, "accepted", numbers.draft_p[node], q)
            else:
                place = (None, step.verdict.kind, numbers.final_p, numbers.final_q)
            emitted.append(trace.EmittedToken(token, piece.text, piece.bytes, *place))
        return tuple(emitted)


class _Numbers:
    """Everything a record needs from the device, gathered there, brought over and rounded at once."""

    def __init__(self, step: Step) -> None:
        checks = step.verdict.checks
        self._step, self._num_checks = step, len(checks)
        packed = _pack(step, step.plan.rule.laws(step.draft, step.probs, step.verdict))
        on_host = to_host(torch.cat([part.reshape(-1) for part in packed])).numpy()
        own = [number for check in checks for number in (check.p_judged, check.accept_prob, check.u)]
        rounded = _nine_digits(np.concatenate([on_host, own]))
        shapes = [part.shape for part in packed] + [(len(checks), 3)]
        ends = np.cumsum([math.prod(shape) for shape in shapes])
        parts = [rounded[end - math.prod(shape) : end].reshape(shape) for shape, end in zip(shapes, ends, strict=True)]
        self._ids = parts[0].astype(np.int64).tolist()
        self._values, self._stats, (self.draft_p, self.draft_q), final, self.judged = (
            part.tolist() for part in parts[1:]
        )
        failed = step.verdict.kind == "resampled" and step.draft.probs[checks[-1].node] is not None
        self.final_p, self.final_q = final[0], final[1] if failed else None

    def rows(self):
        """Per draw of the walk: node, child, columns by id (drafted, emitted, by p, by q), sum owed, statistics."""
        step = self._step
        for row, (ids, values) in enumerate(zip(self._ids, self._values, strict=True)):
            is_final = row == self._num_checks
            node = step.verdict.last_node if is_final else step.draft.parents[step.verdict.checks[row].node]
            child = None if is_final else step.verdict.checks[row].node
            has_q = not is_final and step.draft.probs[child] is not None
            columns, owed = _columns(ids, values, has_q, is_final), self._stats[row][-1]
            yield node, child, columns, owed, self._statistics(row, child, has_q)

    def _statistics(self, row: int, child: int | None, has_q: bool) -> tuple[float | None, ...]:
        overlap, kl, p_entropy, q_entropy, _ = self._stats[row]
        if not has_q:
            return None, None, p_entropy, None
        alone = len(self._step.draft.children(self._step.draft.parents[child])) == 1
        return min(overlap, 1.0) if alone else None, max(kl, 0.0) if math.isfinite(kl) else None, p_entropy, q_entropy


def _columns(ids: list[int], values: list[list[float]], has_q: bool, is_final: bool) -> dict[int, tuple]:
    """(p, q, residual, p_raw, q_raw) by id; the draft's likeliest tokens only where it gives them anything."""
    num_sure = len(ids) - (len(ids) - 2) // 2  # the first two and the target's likeliest
    columns = {}
    for place, (token, line) in enumerate(zip(ids, values, strict=True)):
        p, q, owed, p_raw, q_raw = line
        if place < num_sure or q > 0:
            columns[token] = (p, q, owed, p_raw, q_raw) if has_q else (p, None, None if is_final else owed, p_raw, None)
    return columns


def _first_tokens(step: Step) -> list[list[int]]:
    """Per draw: the drafted token and the one emitted at that place (the same one when it was kept)."""
    depths = step.draft.depths
    emitted = (*(step.draft.tokens[node] for node in step.verdict.path), step.verdict.token)
    firsts = [[step.draft.tokens[check.node], emitted[depths[check.node] - 1]] for check in step.verdict.checks]
    return [*firsts, [step.verdict.token, step.verdict.token]]


def _pack(step: Step, laws: Laws) -> tuple[Tensor, ...]:
    """ids [M, R], values [M, R, 5], statistics and what is owed [M, 5], p and q of nodes [2, N] and last token [2]."""
    p = torch.cat([laws.judged, laws.final[None]])  # [M, V]
    q = torch.cat([laws.drawn_from, torch.zeros_like(p[:1])])
    both = torch.cat([p, q])
    likeliest = both.topk(min(NUM_TOP, p.shape[1])).indices
    ids = torch.cat([to_device(_first_tokens(step), torch.long, p.device), *likeliest.chunk(2)], dim=1)
    owed = (p - q).clamp_min_(0)
    p_raw, q_raw = _raw(step, q)
    values = torch.stack([rows.gather(1, ids) for rows in (p, q, owed, p_raw, q_raw)], dim=-1)
    total = owed.sum(-1, keepdim=True)
    values[..., 2] /= total.clamp_min(torch.finfo(owed.dtype).tiny)
    wide = ids.to(exact_dtype(p.device))  # the others widen when they are joined
    return (
        wide,
        values,
        torch.cat([_statistics(both, p, q), total], dim=1),
        _node_numbers(step),
        _final_numbers(step, q),
    )


def _statistics(both: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Overlap, KL(p||q), entropy of p and of q, in nats, per draw [M, 4]. both: p above q, [2M, V]."""
    logs = both.log()  # 0 log 0 is NaN and left out; p log 0 is infinite and stays
    p_entropy, q_entropy = (-(both * logs).nansum(-1)).chunk(2)
    kl = -(p * logs[len(p) :]).nansum(-1) - p_entropy
    return torch.stack((torch.minimum(p, q).sum(-1), kl, p_entropy, q_entropy), dim=-1)


def _raw(step: Step, q: Tensor) -> tuple[Tensor, Tensor]:
    """Both models' unfiltered distributions at temperature 1 per draw [M, V]; zeros where there is no draft row."""
    checks, draft = step.verdict.checks, step.draft
    parents = [draft.parents[check.node] for check in checks] + [step.verdict.last_node]
    rows = to_device([parent + 1 for parent in parents], torch.long, q.device)
    if step.plan.sampling.is_plain:
        return step.probs[rows], q
    q_raw = torch.zeros_like(q)
    for row, check in enumerate(checks):
        if draft.logits[check.node] is not None:
            q_raw[row] = draft.logits[check.node].to(q.dtype).softmax(-1)
    return step.logits[rows].to(q.dtype).softmax(-1), q_raw


def _node_numbers(step: Step) -> Tensor:
    """p and q [2, N] of every drafted token at its parent; q is 1 for a point mass."""
    draft, probs = step.draft, step.probs
    rows = to_device([parent + 1 for parent in draft.parents], torch.long, probs.device)
    tokens = to_device(draft.tokens, torch.long, probs.device)
    q = probs.new_ones(len(draft))
    drawn = [node for node, row in enumerate(draft.probs) if row is not None]
    if drawn:
        nodes = to_device(drawn, torch.long, probs.device)
        q[nodes] = torch.stack([draft.probs[node] for node in drawn]).gather(1, tokens[nodes, None])[:, 0].to(q.dtype)
    return torch.stack([probs[rows, tokens], q])


def _final_numbers(step: Step, q: Tensor) -> Tensor:
    """The target's and the last judged draft row's probability of the last token, [2]."""
    verdict = step.verdict
    last_q = q[len(verdict.checks) - 1] if verdict.checks else q[-1]
    return torch.stack([step.probs[verdict.last_node + 1, verdict.token], last_q[verdict.token]])


def _rest(top: Sequence[tuple], owed: float) -> Mapping[str, float | None]:
    """What the rows leave out, per column; the columns of a distribution add up to one, an empty residual to 0."""
    sums = [None if column[0] is None else sum(column) for column in [*zip(*top, strict=True)][2:]]
    if sums[2] is not None and owed == 0.0:
        sums[2] = 1.0
    left = [None if total is None else min(1.0, max(0.0, round(1.0 - total, 9))) for total in sums]
    return {"p": left[0], "q": left[1], "residual": left[2], "p_raw": left[3], "q_raw": left[4]}


def _nine_digits(values: np.ndarray) -> np.ndarray:
    """trace.round9 of many numbers at once; what is smaller than 1e-12 becomes 0, infinity stays."""
    size = np.abs(values)
    ordinary = (size > 1e-12) & np.isfinite(values)
    size[~ordinary] = 1.0
    scale = 10.0 ** (8 - np.floor(np.log10(size)))
    return np.where(ordinary, np.round(values * scale) / scale, np.where(np.isfinite(values), 0.0, values))


def _timing(step: Step, record_started: float, situation: Situation) -> trace.Timing:
    now = time.perf_counter()
    phases = (step.timing.draft_ms, step.timing.verify_ms, step.timing.accept_ms, (now - record_started) * 1e3)
    total = (now - situation.started) * 1e3 + situation.wait_ms
    return trace.Timing(*(trace.round9(value) for value in (*phases, situation.wait_ms, total)))
