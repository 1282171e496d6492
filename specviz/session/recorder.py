"""Recorder: turns steps of the engine into steps of a trace, some at once with one transfer from the device.

`keep` is all that must be done between two steps; `flush` may run while the engine goes on. Numbers are rounded to nine
significant digits. A record shows a few tokens of each distribution: both models' most likely ones, the drafted and the
emitted one. The rest is a sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from specviz import trace
from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.engine import StepResult
from specviz.decoding.rule import Verdict
from specviz.decoding.turns import clock
from specviz.models.tokens import TokenText
from specviz.trace.evidence import write_evidence

NUM_TOP = 8
COLUMNS = ("p", "q", "residual", "p_raw", "q_raw")
NUM_COLUMNS = 1 + len(COLUMNS)  # per shown token, its id first
NUM_SUMS = 7
FLUSH_S = 0.05
"""The least time from one flush to the next, as long as steps follow each other."""
MOST_BYTES = 16 << 20
"""The most that the target's rows of the steps between two flushes take."""
TINY = 1e-37
"""Smaller probabilities are raised to it: arithmetic on denormal floats is many times slower."""


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A step that waits for its record."""

    step: StepResult
    settings: trace.Settings
    changed: Sequence[str]
    at_ms: float
    wait_ms: float
    own_ms: float  # from its beginning until it was kept


class Recorder:
    """The recorder of one run. It must see its steps in order, because it decodes their text."""

    def __init__(self, text: TokenText, recorded: Iterable[int] = ()) -> None:
        """recorded: the run's tokens that were recorded before."""
        self._label = cache(text.label)
        self._piece = cache(text.piece)
        self._decoder = text.incremental()
        self._made: list[_Made] = []
        self._flushed_at = -math.inf
        for token in recorded:
            self._decoder.push(token)

    def follow(
        self, steps: Iterable[StepResult], settings: trace.Settings
    ) -> Iterator[tuple[StepResult, trace.Step]]:
        """Yields each step with its record. The steps are made one right after the other under the same settings."""
        run_started = clock()
        step_started = run_started
        for step in steps:
            self.keep(
                step, settings, started=step_started, at_ms=(step_started - run_started) * 1e3
            )
            if self.is_due:
                yield from self.flush()
            step_started = clock()
        yield from self.flush()

    def record(self, step: StepResult, settings: trace.Settings, **times: float) -> trace.Step:
        """The record of a step, made at once; see `keep`."""
        self.keep(step, settings, **times)
        *_, (_, record) = self.flush()
        return record

    def keep(
        self,
        step: StepResult,
        settings: trace.Settings,
        *,
        started: float,
        at_ms: float = 0.0,
        wait_ms: float = 0.0,
        changed: Sequence[str] = (),
    ) -> None:
        """Keeps a step that was just made until the next `flush`.

        started: `turns.clock()` when the step began, after all waiting. changed: settings since the last one. All steps
        between two flushes have the same settings.
        """
        own_ms = (clock() - started) * 1e3
        self._made.append(_Made(step, settings, changed, at_ms, wait_ms, own_ms))

    @property
    def num_kept(self) -> int:
        """How many steps wait for their record."""
        return len(self._made)

    @property
    def is_due(self) -> bool:
        """Whether it is time to flush: the text has ended, the last flush was a while ago, or much is kept."""
        if not self._made:
            return False
        num_bytes = sum(made.step.probs.nbytes for made in self._made)
        is_late = clock() - self._flushed_at >= FLUSH_S
        return is_late or num_bytes > MOST_BYTES or self._made[-1].step.finish is not None

    def flush(self) -> Iterator[tuple[StepResult, trace.Step]]:
        """Yields each kept step with its record, and keeps none from its beginning on.

        The `record_ms` of a step are its own and its share of what is done for all at once. They are a part of its
        `total_ms`, although they come later.
        """
        all_made = self._made
        if not all_made:
            return
        self._made = []
        self._flushed_at = clock()
        packed = _pack([made.step for made in all_made])
        rows = iter(_nine_digits(to_host(packed).double().numpy()).tolist())
        shared_ms = (clock() - self._flushed_at) * 1e3 / len(all_made)
        for made in all_made:
            yield made.step, self._record(made, rows, shared_ms)

    def _record(self, made: _Made, rows: Iterator[list[float]], shared_ms: float) -> trace.Step:
        """The record of a step, from the next of the packed rows."""
        started = clock()
        step = made.step
        numbers = _Numbers(step, rows)
        positions = self._positions(step, numbers)
        drafted = self._draft_tokens(step, numbers)
        emitted = self._emitted_tokens(step, numbers)
        evidence = write_evidence(step.draft.evidence, self._piece)
        record_ms = shared_ms + (clock() - started) * 1e3
        timing = step.timing
        times = (
            timing.draft_ms,
            timing.verify_ms,
            timing.accept_ms,
            record_ms,
            made.wait_ms,
            made.own_ms + made.wait_ms + record_ms,
        )
        return trace.Step(
            index=step.index,
            at_ms=trace.round9(made.at_ms),
            context_length=step.context_length,
            truncated=step.truncated,
            settings=made.settings,
            changed=tuple(made.changed),
            calls={"target": step.target_work.calls, "draft": step.draft_work.calls},
            fed={"target": step.target_work.fed, "draft": step.draft_work.fed},
            draft=drafted,
            emitted=emitted,
            positions=positions,
            timing=trace.Timing(*map(trace.round9, times)),
            evidence=evidence,
        )

    def _positions(self, step: StepResult, numbers: _Numbers) -> tuple[trace.Position, ...]:
        positions = []
        is_lossy = not step.plan.rule.lossless
        for draw in numbers.draws:
            rows, rest = _top_rows(draw, self._label)
            is_only_child = len(step.draft.children(draw.node)) == 1
            statistics = _statistics(draw, is_only_child)
            shift = None
            if is_lossy and draw.child is not None:
                shift = trace.round9(draw.shift)
            positions.append(trace.Position(draw.node, draw.child, rows, rest, *statistics, shift))
        return tuple(positions)

    def _draft_tokens(self, step: StepResult, numbers: _Numbers) -> tuple[trace.DraftToken, ...]:
        draft = step.draft
        judged = {}
        for check in step.verdict.checks:
            values = (check.p_judged, check.accept_prob, check.u)
            judged[check.node] = tuple(map(trace.round9, values))
        accepted = set(step.verdict.path)
        first_scratch = len(draft) - draft.num_scratch
        nodes = []
        for node, (token, parent, depth) in enumerate(
            zip(draft.tokens, draft.parents, draft.depths, strict=True)
        ):
            if node in accepted:
                status = "accepted"
            elif node >= first_scratch:
                status = "scratch"
            elif node in judged:
                status = "rejected"
            else:
                status = "ignored"
            p_judged, accept_prob, u = judged.get(node, (None, None, None))
            nodes.append(
                trace.DraftToken(
                    token,
                    *self._piece(token),
                    parent=parent,
                    depth=depth,
                    status=status,
                    p=None if status == "scratch" else numbers.node_p[node],
                    q=numbers.node_q[node],
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
        path = step.verdict.path
        for index, token in enumerate(step.tokens):
            if index < len(path):
                node = path[index]
                kind = "accepted"
                p = numbers.node_p[node]
                q = numbers.node_q[node]
            else:
                node = None
                kind = step.verdict.kind
                p = numbers.final_p
                q = numbers.final_q
            piece = self._decoder.push(token)
            emitted.append(
                trace.EmittedToken(token, piece.text, piece.bytes, node=node, kind=kind, p=p, q=q)
            )
        return tuple(emitted)


@dataclass(frozen=True, slots=True)
class _Draw:
    """The numbers of one random draw of the walk: the judgement of a child, or the final token."""

    node: int
    child: int | None  # None for the final token
    has_q: bool
    ids: list[int]  # the shown tokens: drafted, emitted, the target's most likely, the draft's
    p: list[float]  # the shown tokens' probabilities
    q: list[float]
    residual: list[float]
    p_raw: list[float]
    q_raw: list[float]
    p_log_p: float  # sums over all tokens
    q_log_q: float
    p_log_q: float
    beyond_q: float  # p where q is 0
    shortfall: float
    shift: float  # as in `_shift`
    own_p: float  # of the emitted token, in the target's row for this place


class _Numbers:
    """All numbers that a record needs from the device. rows: iterates over the packed rows, this step's next."""

    def __init__(self, step: StepResult, rows: Iterator[list[float]]) -> None:
        draft = step.draft
        verdict = step.verdict
        distributions = verdict.distributions
        self.node_p = [trace.round9(p) for p in distributions.node_p]
        self.node_q = [
            None if draft.probs[node] is None else trace.round9(q)
            for node, q in enumerate(distributions.node_q)
        ]
        self.draws = []
        for check in verdict.checks:
            node = check.node
            has_q = draft.probs[node] is not None
            self.draws.append(_unpack(next(rows), draft.parents[node], node, has_q))
        self.draws.append(_unpack(next(rows), verdict.last_node, None, False))
        self.final_p, self.final_q = self._final(verdict)

    def _final(self, verdict: Verdict) -> tuple[float, float | None]:
        """The target's own p of the last token, and the q of the last rejected draft token at its place, if any."""
        *judged, final = self.draws
        q = None
        if verdict.kind == "resampled" and judged[-1].has_q:
            q = judged[-1].q[1]  # the emitted token is shown second
        return final.own_p, q


def _unpack(row: list[float], node: int, child: int | None, has_q: bool) -> _Draw:
    """The draw of a row that `_pack` has packed."""
    size = (len(row) - NUM_SUMS) // NUM_COLUMNS
    ids, *columns = (row[size * i : size * (i + 1)] for i in range(NUM_COLUMNS))
    sums = row[size * NUM_COLUMNS :]
    return _Draw(node, child, has_q, list(map(int, ids)), *columns, *sums)


def _top_rows(
    draw: _Draw, label: Callable[[int], str]
) -> tuple[tuple[tuple, ...], dict[str, float | None]]:
    """The rows (id, text, p, q, residual, p_raw, q_raw), each id once, and per column what they leave out.

    A distribution's column adds up to one with it, an empty residual to 0. The draft's most likely tokens are shown
    only where their q is above 0.
    """
    ids = draw.ids
    num_always = len(ids) - (len(ids) - 2) // 2  # the first two and the target's most likely
    places: dict[int, int] = {}
    for place, token in enumerate(ids):
        if token not in places and (place < num_always or draw.q[place]):
            places[token] = place

    unknown = set()
    if not draw.has_q:
        unknown |= {"q", "q_raw"}
    if draw.child is None:
        unknown.add("residual")
    columns = []
    rest: dict[str, float | None] = {}
    for name in COLUMNS:
        if name in unknown:
            columns.append([None] * len(places))
            rest[name] = None
        else:
            column = getattr(draw, name)
            shown = [column[place] for place in places.values()]
            columns.append(shown)
            rest[name] = min(1.0, max(0.0, round(1.0 - sum(shown), 9)))
    if draw.child is not None and not draw.shortfall:
        rest["residual"] = 0.0
    return tuple(zip(places, map(label, places), *columns, strict=True)), rest


def _statistics(draw: _Draw, is_only_child: bool) -> tuple[float | None, ...]:
    """Overlap (of an only child), KL(p||q), entropy of p and of q, in nats."""
    p_entropy = trace.round9(-draw.p_log_p)
    if not draw.has_q:
        return None, None, p_entropy, None
    overlap = trace.round9(max(0.0, 1.0 - draw.shortfall)) if is_only_child else None
    kl = None if draw.beyond_q else trace.round9(max(0.0, draw.p_log_p - draw.p_log_q))
    return overlap, kl, p_entropy, trace.round9(-draw.q_log_q)


def _first_tokens(step: StepResult) -> list[list[int]]:
    """The drafted token of each draw, and the one emitted at its place: the same one if it was accepted."""
    depths = step.draft.depths
    emitted = step.verdict.emitted(step.draft)
    pairs = []
    for check in step.verdict.checks:
        drafted = step.draft.tokens[check.node]
        pairs.append([drafted, emitted[depths[check.node] - 1]])
    final = step.verdict.token
    return [*pairs, [final, final]]


@torch.inference_mode()
def _pack(steps: Sequence[StepResult]) -> Tensor:
    """A row for each of M draws: the columns of its R shown tokens, then sums [M, NUM_COLUMNS R + NUM_SUMS].

    The steps have the same target, rule and sampling.
    """
    p_rows: list[Tensor] = []
    q_rows: list[Tensor] = []
    pairs: list[list[int]] = []
    for step in steps:
        distributions = step.verdict.distributions
        final = distributions.final[None]
        p_rows += [distributions.judged, final]
        q_rows += [distributions.drawn_from, torch.zeros_like(final)]
        pairs += _first_tokens(step)
    exact = torch.cat([*p_rows, *q_rows])  # [2M, V]
    num_draws = len(pairs)
    both = exact.clamp_min(TINY)
    p = both[:num_draws]  # [M, V]
    q = both[num_draws:]
    most_likely = both.topk(min(NUM_TOP, p.shape[1])).indices
    first = to_device(pairs, torch.long, p.device)
    ids = torch.cat([first, most_likely[:num_draws], most_likely[num_draws:]], dim=1)  # [M, R]
    shortfall = (p - q).clamp_min_(0)
    total = shortfall.sum(-1, keepdim=True)
    residual = shortfall.gather(1, ids) / total.clamp_min(TINY)
    shown_p = p.gather(1, ids)
    shown_q = q.gather(1, ids)
    rows = _rows_of(steps, p.device)
    own_p = torch.cat([step.probs for step in steps])[rows[:, None], ids]
    raw = (own_p, shown_q)
    if not steps[0].plan.sampling.is_plain:
        raw = _unfiltered_probabilities(steps, rows, ids)
    wide_ids = ids.to(exact_dtype(p.device))  # the other columns widen when they are joined
    columns = [wide_ids, shown_p, shown_q, residual, *raw]
    sums = [_sums(both, exact[num_draws:]), total, _shift(steps, exact), own_p[:, 1:2]]
    return torch.cat([*columns, *sums], dim=1)


def _rows_of(steps: Sequence[StepResult], device: torch.device) -> Tensor:
    """The number of the target's row at the place of each draw [M], the steps' rows one below the other."""
    numbers: list[int] = []
    first = 1  # that of node 0
    for step in steps:
        nodes = [step.draft.parents[check.node] for check in step.verdict.checks]
        numbers += [first + node for node in (*nodes, step.verdict.last_node)]
        first += len(step.probs)
    return to_device(numbers, torch.long, device)


def _shift(steps: Sequence[StepResult], exact: Tensor) -> Tensor:
    """The total variation between the rule's distribution of one token and the target's, per draw [M, 1].

    It is 0 for a lossless rule and for a step's last draw. exact: p above q [2M, V].
    """
    rule = steps[0].plan.rule
    num_draws = len(exact) // 2
    shift = torch.zeros((num_draws, 1), dtype=exact_dtype(exact.device), device=exact.device)
    if rule.lossless:
        return shift
    is_check: list[bool] = []
    for step in steps:
        is_check += [*(True for _ in step.verdict.checks), False]
    places = [place for place, is_one in enumerate(is_check) if is_one]
    if places:
        index = to_device(places, torch.long, exact.device)
        judged = exact[index]
        by_rule = rule.one_step_distribution(judged, exact[index + num_draws])
        distance = (by_rule - judged).abs().sum(-1, keepdim=True)
        shift[index] = (distance / 2).clamp_max(1).to(shift.dtype)
    return shift


def _sums(both: Tensor, exact_q: Tensor) -> Tensor:
    """Sums of p ln p, q ln q, p ln q, and of p where q is 0, per draw [M, 4].

    both: p above q [2M, V], at least TINY.
    """
    num_draws = len(exact_q)
    p = both[:num_draws]
    logs = both.log()
    log_q = logs[num_draws:]
    negative_entropies = torch.linalg.vecdot(both, logs)  # [2M]
    p_log_p = negative_entropies[:num_draws]
    q_log_q = negative_entropies[num_draws:]
    p_log_q = torch.linalg.vecdot(p, log_q)
    beyond_q = torch.linalg.vecdot(p, 1 - exact_q.sign())
    return torch.stack((p_log_p, q_log_q, p_log_q, beyond_q), dim=1)


def _unfiltered_probabilities(
    steps: Sequence[StepResult], rows: Tensor, ids: Tensor
) -> tuple[Tensor, Tensor]:
    """The models' unfiltered p and q of `ids` at temperature 1, each [M, R]; q is 0 where there is no draft row.

    rows: the number of the target's row at the place of each draw [M].
    """
    logits = torch.cat([step.logits for step in steps])[rows]
    p_raw = logits.to(steps[0].probs.dtype).softmax(-1)
    places: list[int] = []
    draft_rows: list[Tensor] = []
    place = 0
    for step in steps:
        for check in step.verdict.checks:
            row = step.draft.logits[check.node]
            if row is not None:
                places.append(place)
                draft_rows.append(row)
            place += 1
        place += 1  # the last draw has no draft
    q_raw = torch.zeros(ids.shape, dtype=p_raw.dtype, device=ids.device)
    if places:
        index = to_device(places, torch.long, ids.device)
        q = torch.stack(draft_rows).to(q_raw.dtype).softmax(-1)
        q_raw[index] = q.gather(1, ids[index])
    return p_raw.gather(1, ids), q_raw


def _nine_digits(values: np.ndarray) -> np.ndarray:
    """Rounds many finite numbers as trace.round9 does; what is smaller than 1e-12 becomes 0."""
    size = np.abs(values)
    is_small = size < 1e-12
    size[is_small] = 1.0
    scale = 10.0 ** (8.0 - np.floor(np.log10(size)))
    rounded = np.rint(values * scale) / scale
    rounded[is_small] = 0.0
    return rounded
