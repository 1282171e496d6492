"""The one bridge from tensors to records: an engine Step in, a trace Step out, with one transfer in between.

Numbers are rounded to nine significant digits; a row of a distribution holds both models' likeliest tokens, the drafted
and the emitted one, and the rest as a sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from specviz import trace
from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.engine import StepResult
from specviz.decoding.turns import clock
from specviz.models.tokens import TokenText
from specviz.trace.evidence import write_evidence

NUM_TOP = 8
COLUMNS = ("p", "q", "residual", "p_raw", "q_raw")
NUM_COLUMNS = 1 + len(COLUMNS)  # per shown token, its id first
NUM_SUMS = 6
TINY = 1e-37  # smaller probabilities are raised to it: arithmetic on denormal floats is many times slower


class Recorder:
    """Keeps the text decoder of one run; `record` must see its steps in order."""

    def __init__(self, text: TokenText, made: Iterable[int] = ()) -> None:
        """made: the run's tokens that were recorded before."""
        self._label = cache(text.label)
        self._piece = cache(text.piece)
        self._decoder = text.incremental()
        for token in made:
            self._decoder.push(token)

    def follow(
        self, steps: Iterable[StepResult], settings: trace.Settings
    ) -> Iterator[tuple[StepResult, trace.Step]]:
        """Each step with its record, made one right after the other under the same settings."""
        started = begun = clock()
        for step in steps:
            yield step, self.record(step, settings, started=begun, at_ms=(begun - started) * 1e3)
            begun = clock()

    @torch.inference_mode()
    def record(
        self,
        step: StepResult,
        settings: trace.Settings,
        *,
        started: float,
        at_ms: float = 0.0,
        wait_ms: float = 0.0,
        changed: Sequence[str] = (),
    ) -> trace.Step:
        """started: `turns.clock()` when the step began, after all waiting. changed: settings since the last one."""
        record_started = clock()
        numbers = _Numbers(step)
        positions = self._positions(step, numbers)
        drafted = self._draft_tokens(step, numbers)
        emitted = self._emitted_tokens(step, numbers)
        now = clock()
        phases = (
            step.timing.draft_ms,
            step.timing.verify_ms,
            step.timing.accept_ms,
            (now - record_started) * 1e3,
        )
        total_ms = (now - started) * 1e3 + wait_ms
        return trace.Step(
            index=step.index,
            at_ms=trace.round9(at_ms),
            context_length=step.context_length,
            truncated=step.truncated,
            settings=settings,
            changed=tuple(changed),
            calls={"target": step.target_work.calls, "draft": step.draft_work.calls},
            fed={"target": step.target_work.fed, "draft": step.draft_work.fed},
            draft=drafted,
            emitted=emitted,
            positions=positions,
            timing=trace.Timing(*map(trace.round9, (*phases, wait_ms, total_ms))),
            evidence=write_evidence(step.draft.evidence, self._piece),
        )

    def _positions(self, step: StepResult, numbers: _Numbers) -> tuple[trace.Position, ...]:
        positions = []
        is_lossy = not step.plan.rule.lossless
        for walk_node, child, has_q, (*sums, shift), shown in numbers.rows():
            top, rest = _top_rows(shown, sums[-1], has_q, child is None, self._label)
            alone = has_q and len(step.draft.children(walk_node)) == 1
            moved = trace.round9(shift) if is_lossy and child is not None else None
            positions.append(
                trace.Position(walk_node, child, top, rest, *_statistics(sums, has_q, alone), moved)
            )
        return tuple(positions)

    def _draft_tokens(self, step: StepResult, numbers: _Numbers) -> tuple[trace.DraftToken, ...]:
        draft = step.draft
        judged = {check.node: numbers.judged[i] for i, check in enumerate(step.verdict.checks)}
        accepted, first_scratch = set(step.verdict.path), len(draft) - draft.num_scratch
        nodes = []
        for node, (token, parent, depth) in enumerate(
            zip(draft.tokens, draft.parents, draft.depths, strict=True)
        ):
            scratch = node >= first_scratch
            status = "scratch" if scratch else "rejected" if node in judged else "ignored"
            p_judged, accept_prob, u = judged.get(node, (None, None, None))
            nodes.append(
                trace.DraftToken(
                    token,
                    *self._piece(token),
                    parent=parent,
                    depth=depth,
                    status="accepted" if node in accepted else status,
                    p=None if scratch else numbers.draft_p[node],
                    q=None if draft.probs[node] is None else numbers.draft_q[node],
                    p_judged=p_judged,
                    accept_prob=accept_prob,
                    u=u,
                )
            )
        return tuple(nodes)

    def _emitted_tokens(
        self, step: StepResult, numbers: _Numbers
    ) -> tuple[trace.EmittedToken, ...]:
        emitted = []
        for index, token in enumerate(step.tokens):
            piece = self._decoder.push(token)
            if index < len(step.verdict.path):
                node = step.verdict.path[index]
                q = None if step.draft.probs[node] is None else numbers.draft_q[node]
                place = {"node": node, "kind": "accepted", "p": numbers.draft_p[node], "q": q}
            else:
                place = {
                    "node": None,
                    "kind": step.verdict.kind,
                    "p": numbers.final_p,
                    "q": numbers.final_q,
                }
            emitted.append(trace.EmittedToken(token, piece.text, piece.bytes, **place))
        return tuple(emitted)


class _Numbers:
    """Everything a record needs from the device, gathered there, brought over and rounded at once."""

    def __init__(self, step: StepResult) -> None:
        checks, distributions = step.verdict.checks, step.verdict.distributions
        self._step = step
        self._draws = _nine_digits(to_host(_pack(step)).double().numpy()).tolist()
        self._num_shown = (len(self._draws[0]) - NUM_SUMS) // NUM_COLUMNS
        self.draft_p, self.draft_q = (
            [*map(trace.round9, row)] for row in (distributions.node_p, distributions.node_q)
        )
        self.judged = [
            tuple(map(trace.round9, (check.p_judged, check.accept_prob, check.u)))
            for check in checks
        ]
        self.final_p, self.final_q = self._final()

    def _final(self) -> tuple[float, float | None]:
        """The target's own p of the last token, and the q of the draft that failed there; it is shown second there."""
        verdict, draft, second = self._step.verdict, self._step.draft, self._num_shown + 1
        if verdict.kind != "resampled":
            return self._draws[-1][self._num_shown], None
        here = [
            row
            for row, check in enumerate(verdict.checks)
            if draft.parents[check.node] == verdict.last_node
        ]
        has_q = draft.probs[verdict.checks[-1].node] is not None
        return self._draws[here[0]][second], self._draws[here[-1]][
            self._num_shown + second
        ] if has_q else None

    def rows(self):
        """Per draw of the walk: node, child, whether it has a q, the sums, and the shown ids with their columns."""
        draft, verdict, size = self._step.draft, self._step.verdict, self._num_shown
        children = [check.node for check in verdict.checks]
        places = [
            (draft.parents[child], child, draft.probs[child] is not None) for child in children
        ]
        for place, draw in zip(
            [*places, (verdict.last_node, None, False)], self._draws, strict=True
        ):
            ids, *columns = (draw[size * i : size * (i + 1)] for i in range(NUM_COLUMNS))
            yield *place, draw[size * NUM_COLUMNS :], ([int(token) for token in ids], *columns)


def _top_rows(
    shown: tuple, shortfall: float, has_q: bool, is_final: bool, label: Callable[[int], str]
) -> tuple[tuple[tuple, ...], dict[str, float | None]]:
    """The rows (id, text, p, q, residual, p_raw, q_raw), each id once, and what they leave out, per column.

    The columns of a distribution add up to one, an empty residual to 0; the draft's likeliest tokens are shown only
    where it gives them anything.
    """
    ids, p, q, *others = shown
    num_sure = len(ids) - (len(ids) - 2) // 2  # the first two and the target's likeliest
    places: dict[int, int] = {}
    for place, token in enumerate(ids):
        if token not in places and (place < num_sure or q[place]):
            places[token] = place
    kept = ([column[place] for place in places.values()] for column in (p, q, *others))
    columns = dict(zip(COLUMNS, kept, strict=True))
    unknown = [
        name
        for name, is_known in (("q", has_q), ("q_raw", has_q), ("residual", not is_final))
        if not is_known
    ]
    rest = {
        name: min(1.0, max(0.0, round(1.0 - sum(column), 9))) for name, column in columns.items()
    }
    if not shortfall:
        rest["residual"] = 0.0
    columns |= dict.fromkeys(unknown, (None,) * len(places))
    rest |= dict.fromkeys(unknown)
    return tuple(zip(places, map(label, places), *columns.values(), strict=True)), rest


def _statistics(sums: list[float], has_q: bool, alone: bool) -> tuple[float | None, ...]:
    """Overlap (of an only child), KL(p||q), entropy of p and of q, in nats."""
    p_log_p, q_log_q, p_log_q, beyond_q, shortfall = sums
    p_entropy = trace.round9(-p_log_p)
    if not has_q:
        return None, None, p_entropy, None
    overlap = trace.round9(max(0.0, 1.0 - shortfall)) if alone else None
    kl = None if beyond_q else trace.round9(max(0.0, p_log_p - p_log_q))
    return overlap, kl, p_entropy, trace.round9(-q_log_q)


def _first_tokens(step: StepResult) -> list[list[int]]:
    """Per draw: the drafted token and the one emitted at that place (the same one when it was kept)."""
    depths = step.draft.depths
    emitted = step.verdict.emitted(step.draft)
    firsts = [
        [step.draft.tokens[check.node], emitted[depths[check.node] - 1]]
        for check in step.verdict.checks
    ]
    return [*firsts, [step.verdict.token, step.verdict.token]]


def _pack(step: StepResult) -> Tensor:
    """Per draw (M) the columns of the shown tokens (R), then the sums: [M, NUM_COLUMNS R + NUM_SUMS]."""
    distributions, num_draws = step.verdict.distributions, len(step.verdict.checks) + 1
    final = distributions.final[None]
    exact = torch.cat(
        [distributions.judged, final, distributions.drawn_from, torch.zeros_like(final)]
    )  # [2M, V]
    both = exact.clamp_min(TINY)
    p, q = both[:num_draws], both[num_draws:]
    likeliest = both.topk(min(NUM_TOP, p.shape[1])).indices
    shown = to_device(_first_tokens(step), torch.long, p.device)
    ids = torch.cat([shown, likeliest[:num_draws], likeliest[num_draws:]], dim=1)
    shortfall = (p - q).clamp_min_(0)
    total = shortfall.sum(-1, keepdim=True)
    residual = shortfall.gather(1, ids) / total.clamp_min(TINY)
    wide = ids.to(exact_dtype(p.device))  # the others widen when they are joined
    sums = _sums(both, exact[num_draws:])
    shown_p, shown_q = p.gather(1, ids), q.gather(1, ids)
    unfiltered = _unfiltered_probabilities(step, ids, shown_q)
    columns = [wide, shown_p, shown_q, residual, *unfiltered, sums, total, _shift(step)]
    return torch.cat(columns, dim=1)


def _shift(step: StepResult) -> Tensor:
    """Per draw [M, 1] the total variation between the rule's law of one token and the target's; 0 where it is lossless
    and for the last draw."""
    rule, judged = step.plan.rule, step.verdict.distributions.judged
    moved = torch.zeros(
        (len(judged) + 1, 1), dtype=exact_dtype(judged.device), device=judged.device
    )
    if not rule.lossless and len(judged):
        apart = rule.one_step_distribution(judged, step.verdict.distributions.drawn_from) - judged
        moved[:-1] = (apart.abs().sum(-1, keepdim=True) / 2).clamp_max(1)
    return moved


def _sums(both: Tensor, exact_q: Tensor) -> Tensor:
    """Sums of p ln p, q ln q, p ln q, and of p where q is nothing, per draw [M, 4].

    both: p above q, [2M, V], at least TINY.
    """
    num_draws = len(exact_q)
    logs, p = both.log(), both[:num_draws]
    own = torch.linalg.vecdot(both, logs)
    cross, beyond_q = (
        torch.linalg.vecdot(p, logs[num_draws:]),
        torch.linalg.vecdot(p, 1 - exact_q.sign()),
    )
    return torch.stack((own[:num_draws], own[num_draws:], cross, beyond_q), dim=1)


def _unfiltered_probabilities(
    step: StepResult, ids: Tensor, shown_q: Tensor
) -> tuple[Tensor, Tensor]:
    """The models' unfiltered p and q of `ids` at temperature 1, each [M, R]; q 0 where there is no draft row."""
    checks, draft = step.verdict.checks, step.draft
    parents = [draft.parents[check.node] for check in checks] + [step.verdict.last_node]
    rows = to_device([node + 1 for node in parents], torch.long, ids.device)
    if step.plan.sampling.is_plain:
        return step.probs[rows[:, None], ids], shown_q
    p_raw = step.logits[rows].to(step.probs.dtype).softmax(-1)
    q_raw = torch.zeros_like(p_raw)
    for row, check in enumerate(checks):
        if draft.logits[check.node] is not None:
            q_raw[row] = draft.logits[check.node].to(q_raw.dtype).softmax(-1)
    return p_raw.gather(1, ids), q_raw.gather(1, ids)


def _nine_digits(values: np.ndarray) -> np.ndarray:
    """trace.round9 of many finite numbers at once; what is smaller than 1e-12 becomes 0."""
    size = np.abs(values)
    is_small = size < 1e-12
    size[is_small] = 1.0
    scale = 10.0 ** (8.0 - np.floor(np.log10(size)))
    rounded = np.rint(values * scale) / scale
    rounded[is_small] = 0.0
    return rounded
