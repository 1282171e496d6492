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
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from specviz import trace
from specviz.decoding.device import exact_dtype, to_device, to_host
from specviz.decoding.draft import ROOT
from specviz.decoding.engine import StepResult
from specviz.decoding.rule import Rule, Verdict
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
        walks = _walks([made.step for made in all_made])
        draws = sorted(chain(*walks), key=_Draw.group)
        packed = _pack([made.step for made in all_made], draws)
        rows = _nine_digits(to_host(packed).double().numpy()).tolist()
        numbers = dict(zip(draws, map(_unpack, draws, rows), strict=True))
        shared_ms = (clock() - self._flushed_at) * 1e3 / len(all_made)
        for made, walk in zip(all_made, walks, strict=True):
            yield made.step, self._record(made, [numbers[draw] for draw in walk], shared_ms)

    def _record(self, made: _Made, draws: Sequence[_DrawNumbers], shared_ms: float) -> trace.Step:
        """The record of a step. draws: those of its walk, in their order."""
        started = clock()
        step = made.step
        numbers = _Numbers(step, draws)
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
            read_again=_read_again(step),
        )

    def _positions(self, step: StepResult, numbers: _Numbers) -> tuple[trace.Position, ...]:
        positions = []
        is_lossy = not step.plan.rule.lossless
        for values in numbers.draws:
            draw = values.draw
            rows, rest = _top_rows(values, self._label)
            is_only_child = len(step.draft.children(draw.node)) == 1
            statistics = _statistics(values, is_only_child)
            shift = None
            if is_lossy and draw.child is not None:
                shift = trace.round9(values.shift)
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


@dataclass(frozen=True, slots=True, eq=False)
class _Draw:
    """A random draw of the walk: the judgement of a child, or the final token."""

    node: int
    child: int | None  # None for the final token
    drafted: int  # token; the emitted one for the final token
    emitted: int  # the token at this place of the text: the drafted one if it was accepted
    place: int  # in the texts of the steps, one behind the other
    p: Tensor  # [V]
    q: Tensor | None = None  # [V], None for a point mass and for the final token
    q_logits: Tensor | None = None  # [V] behind q

    def group(self) -> tuple[bool, ...]:
        """The key that sorts draws: those with q and its logits, with q alone, point masses, final tokens."""
        return self.child is None, self.q is None, self.q_logits is None


def _walks(steps: Iterable[StepResult]) -> list[list[_Draw]]:
    """The draws of each step, in their order."""
    walks: list[list[_Draw]] = []
    first = 0
    for step in steps:
        draft = step.draft
        verdict = step.verdict
        emitted = verdict.emitted(draft)
        depths = draft.depths
        walk: list[_Draw] = []
        for check, p in zip(verdict.checks, verdict.distributions.judged, strict=True):
            node = check.node
            place = depths[node] - 1
            q = draft.probs[node]
            q_logits = None if q is None else draft.logits[node]
            tokens = (draft.tokens[node], emitted[place])
            walk.append(_Draw(draft.parents[node], node, *tokens, first + place, p, q, q_logits))
        last = (emitted[-1], emitted[-1], first + len(emitted) - 1)
        walk.append(_Draw(verdict.last_node, None, *last, verdict.distributions.final))
        walks.append(walk)
        first += len(emitted)
    return walks


@dataclass(frozen=True, slots=True)
class _DrawNumbers:
    """The numbers of one random draw of the walk."""

    draw: _Draw
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
    own_p: float  # of a final token, in the target's row for its place


class _Numbers:
    """All numbers that a record needs from the device. draws: those of the step's walk."""

    def __init__(self, step: StepResult, draws: Sequence[_DrawNumbers]) -> None:
        distributions = step.verdict.distributions
        self.draws = draws
        self.node_p = [trace.round9(p) for p in distributions.node_p]
        self.node_q = [
            None if row is None else trace.round9(q)
            for row, q in zip(step.draft.probs, distributions.node_q, strict=True)
        ]
        self.final_p, self.final_q = self._final(step.verdict)

    def _final(self, verdict: Verdict) -> tuple[float, float | None]:
        """The target's own p of the last token, and the q of the last rejected draft token at its place, if any."""
        *judged, final = self.draws
        q = None
        if verdict.kind == "resampled" and judged[-1].draw.q is not None:
            q = judged[-1].q[1]  # the emitted token is shown second
        return final.own_p, q


def _unpack(draw: _Draw, row: list[float]) -> _DrawNumbers:
    """The numbers of a draw, from the row that `_pack` has packed."""
    size = (len(row) - NUM_SUMS) // NUM_COLUMNS
    ids, *columns = (row[size * i : size * (i + 1)] for i in range(NUM_COLUMNS))
    sums = row[size * NUM_COLUMNS :]
    return _DrawNumbers(draw, list(map(int, ids)), *columns, *sums)


def _read_again(step: StepResult) -> dict[str, int] | None:
    """How many tokens each model read again; None where none was."""
    again = {"target": step.target_work.read_again, "draft": step.draft_work.read_again}
    return again if any(again.values()) else None


def _top_rows(
    numbers: _DrawNumbers, label: Callable[[int], str]
) -> tuple[tuple[tuple, ...], dict[str, float | None]]:
    """The rows (id, text, p, q, residual, p_raw, q_raw), each id once, and per column what they leave out.

    A distribution's column adds up to one with it, an empty residual to 0. The draft's most likely tokens are shown
    only where their q is above 0.
    """
    draw = numbers.draw
    ids = numbers.ids
    num_always = len(ids) - (len(ids) - 2) // 2  # the first two and the target's most likely
    places: dict[int, int] = {}
    for place, token in enumerate(ids):
        if token not in places and (place < num_always or numbers.q[place]):
            places[token] = place

    unknown = set()
    if draw.q is None:
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
            column = getattr(numbers, name)
            shown = [column[place] for place in places.values()]
            columns.append(shown)
            rest[name] = min(1.0, max(0.0, round(1.0 - sum(shown), 9)))
    if draw.child is not None and not numbers.shortfall:
        rest["residual"] = 0.0
    return tuple(zip(places, map(label, places), *columns, strict=True)), rest


def _statistics(numbers: _DrawNumbers, is_only_child: bool) -> tuple[float | None, ...]:
    """Overlap (of an only child), KL(p||q), entropy of p and of q, in nats."""
    p_entropy = trace.round9(-numbers.p_log_p)
    if numbers.draw.q is None:
        return None, None, p_entropy, None
    overlap = trace.round9(max(0.0, 1.0 - numbers.shortfall)) if is_only_child else None
    kl = None if numbers.beyond_q else trace.round9(max(0.0, numbers.p_log_p - numbers.p_log_q))
    return overlap, kl, p_entropy, trace.round9(-numbers.q_log_q)


@torch.inference_mode()
def _pack(steps: Sequence[StepResult], draws: Sequence[_Draw]) -> Tensor:
    """A row for each of M draws: the columns of its R shown tokens, then sums [M, NUM_COLUMNS R + NUM_SUMS].

    draws: those of the steps by group, so the first D have a q, and the first C judge a child. The steps have the same
    target, rule and sampling.
    """
    p = torch.stack([draw.p for draw in draws]).clamp_min_(TINY)  # [M, V]
    q_rows = [draw.q for draw in draws if draw.q is not None]
    q = torch.stack(q_rows).to(p.dtype).clamp_min_(TINY) if q_rows else p[:0]  # [D, V]
    num_q = len(q)
    num_checks = len(draws) - len(steps)
    numbers = [(draw.drafted, draw.emitted, draw.place) for draw in draws]
    on_device = to_device(numbers, torch.long, p.device)
    first, places = on_device.split((2, 1), dim=1)
    drafted = first[:, :1]

    top_p = p.topk(min(NUM_TOP, p.shape[1]))
    top_q = q.topk(top_p.indices.shape[1])
    no_q = drafted[num_q:].expand(-1, top_p.indices.shape[1])
    ids = torch.cat([first, top_p.indices, torch.cat([top_q.indices, no_q])], dim=1)  # [M, R]
    shown_p = p.gather(1, ids)
    point_mass = (ids == drafted).to(p.dtype).clamp_min_(TINY)
    shown_q = torch.cat([q.gather(1, ids[:num_q]), point_mass[num_q:]])
    raw = _raw(steps, draws, places, ids, shown_q)

    sums = torch.zeros((len(p), NUM_SUMS), dtype=exact_dtype(p.device), device=p.device)
    rows = (p, q)
    if _are_one_hot(top_p.values) and _are_one_hot(top_q.values):  # other tokens add nothing
        rows = (top_p.values, q.gather(1, top_p.indices[:num_q]))
    sums[:, 0], sums[:num_q, 1:4] = _sums(*rows)
    sums[:, 4] = _shortfalls(p, q, drafted, num_checks)
    sums[:num_checks, 5] = _shift(steps[0].plan.rule, draws[:num_checks], q, drafted)
    sums[num_checks:, 6] = torch.cat([_own_p(step) for step in steps])

    shortfall = sums[:, 4:5].to(p.dtype).clamp_min(TINY)
    residual = (shown_p - shown_q).clamp_min_(0) / shortfall
    columns = torch.cat([shown_p, shown_q, residual, *raw], dim=1)
    return torch.cat([ids.to(sums.dtype), columns.to(sums.dtype), sums], dim=1)


def _are_one_hot(top: Tensor) -> bool:
    """Whether rows are known to have all on one token; top: their largest numbers, sorted.

    Only the CPU is asked: for the answer of another device all would wait.
    """
    if not top.is_cpu:
        return False
    return bool((top[:, :1] == 1).all() and (top[:, 1:2] <= TINY).all())


def _sums(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of p ln p [M]; and those of q ln q, p ln q, and of p where q is 0, of the first draws [D, 3].

    p [M, V] and q [D, V] are at least TINY.
    """
    log_q = q.log()
    first_p = p[: len(q)]
    beyond_q = _dot(first_p, (q <= TINY).to(p.dtype))
    of_q = torch.stack((_dot(q, log_q), _dot(first_p, log_q), beyond_q), dim=1)
    return _dot(p, p.log()), of_q


def _dot(rows: Tensor, others: Tensor) -> Tensor:
    """The dot product of each row [M, V] with the other one [M].

    Torch has several threads add up a row that is alone. It gets a copy: its last digits are the same in any company.
    """
    if len(rows) == 1:
        return _dot(rows.expand(2, -1), others.expand(2, -1))[:1]
    return torch.linalg.vecdot(rows, others)


def _shortfalls(p: Tensor, q: Tensor, drafted: Tensor, num_checks: int) -> Tensor:
    """The sum of max(0, p - q) per draw [M]: q [D, V], then point masses on drafted [M, 1], then nothing.

    It is written over p.
    """
    num_q = len(q)
    p[:num_q].sub_(q).clamp_min_(0)
    p[num_q:num_checks].scatter_(1, drafted[num_q:num_checks], 0.0)
    return p.sum(-1)


def _shift(rule: Rule, checks: Sequence[_Draw], q: Tensor, drafted: Tensor) -> Tensor | float:
    """The total variation between the rule's distribution of one token and the target's, per check [C].

    It is 0 for a lossless rule. q: rows of the first checks [D, V]; the others are point masses on drafted [M, 1].
    """
    if rule.lossless or not checks:
        return 0.0
    p = torch.stack([check.p for check in checks])  # [C, V]
    point_masses = torch.zeros_like(p[len(q) :]).scatter_(1, drafted[len(q) : len(checks)], 1.0)
    by_rule = rule.one_step_distribution(p, torch.cat([q, point_masses]))
    distance = (by_rule - p).abs().sum(-1)
    return (distance / 2).clamp_max(1)


def _own_p(step: StepResult) -> Tensor:
    """The p of the final token [1] in the target's row for its place."""
    token = step.verdict.token
    return step.probs[step.verdict.last_node + 1, token : token + 1]


def _raw(
    steps: Sequence[StepResult],
    draws: Sequence[_Draw],
    places: Tensor,
    ids: Tensor,
    shown_q: Tensor,
) -> tuple[Tensor, Tensor]:
    """The models' unfiltered p and q of `ids` at temperature 1, each [M, R]; q is 0 where there is no draft row.

    places: of each draw in the texts of the steps [M, 1]. shown_q: the filtered q of `ids`.
    """
    is_plain = steps[0].plan.sampling.is_plain
    rows = []
    for step in steps:
        target = step.probs if is_plain else step.logits
        rows += [target[node + 1] for node in (ROOT, *step.verdict.path)]
    target = torch.stack(rows)  # [W, V]
    if is_plain:
        return target[places, ids], shown_q
    dtype = steps[0].probs.dtype
    p_raw = target.to(dtype).softmax(-1)[places, ids]
    q_raw = torch.zeros_like(p_raw)
    if q_rows := [draw.q_logits for draw in draws if draw.q_logits is not None]:
        q = torch.stack(q_rows).to(dtype).softmax(-1)
        q_raw[: len(q)] = q.gather(1, ids[: len(q)])
    return p_raw, q_raw


def _nine_digits(values: np.ndarray) -> np.ndarray:
    """Rounds many finite numbers as trace.round9 does; what is smaller than 1e-12 becomes 0."""
    size = np.abs(values)
    is_small = size < 1e-12
    size[is_small] = 1.0
    scale = 10.0 ** (8.0 - np.floor(np.log10(size)))
    rounded = np.rint(values * scale) / scale
    rounded[is_small] = 0.0
    return rounded
