"""Measured costs of a pair on this machine: a drafted token, one target forward over 1..33 tokens, a step's rest.

`measure_costs` times everything in rounds, so that a busy moment meets all alike, and reports medians; the first round
only warms up. What a step takes by these numbers is `theory.step_ms`.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from . import catalog
from .draft import chain
from .drafters.base import Drafter
from .drafters.draft_model import ModelDrafter
from .drafters.none import NoDraft
from .draws import Seeded
from .engine import Plan, speculate
from .errors import SpecvizError
from .machine import environment
from .models import LoadedModel, check_pair
from .quantised import stored_bytes
from .rules import RULES
from .sampling import Sampling
from .session import workbench
from .trace_records import Count, Extra, MaybeName, Name, Number, require
from .trace_values import Record, number, record, tuple_of

CONTEXT = 128
MOST_TOKENS = 33
REPEATS = 9
BATCHES = (1, 2, 4, 8)
BATCH_TOKENS = (1, 5, 9)  # nothing drafted, K = 4 and K = 8
STEP_K = 4
STEPS_PER_ROUND = 3
READ_BYTES, READ_BYTES_CUDA = 512 << 20, 2 << 30  # to measure the memory, not a cache
FIRST_ID = 3
PAUSE_S = 0.25  # between two results


@record
class BatchCost(Record):
    """Milliseconds of one forward over `tokens` new tokens of each of `batch` texts, their contexts cached."""

    batch: Count
    tokens: Count
    ms: Number
    extra: Extra = field(default_factory=dict)


@record
class Costs(Record):
    """Medians in milliseconds. verify_ms[n - 1]: one target forward over n new tokens, its probabilities included.

    draft_ms: one drafted token, drawing included (0 without a draft model). overhead_ms: a step's time outside drafting
    and verifying, recording left out; plain_overhead_ms: that of a step that drafts nothing. weight_bytes: what one
    forward must read. spread: the middle half of repeated timings, relative.
    """

    target: Name
    draft: MaybeName
    context_length: Count
    device: Name
    threads: Count
    dtype: Name
    draft_ms: Number
    verify_ms: Annotated[tuple[float, ...], tuple_of(number())]
    overhead_ms: Number
    plain_overhead_ms: Number
    batch: Annotated[tuple[BatchCost, ...], tuple_of(BatchCost.from_dict)]
    weight_bytes: Count
    bandwidth_gb_s: Number
    bandwidth_bytes: Count
    spread: Number
    extra: Extra = field(default_factory=dict)

    @property
    def floor_ms(self) -> float:
        """The time that reading all weights once would take at the measured bandwidth (the roofline's flat part)."""
        return self.weight_bytes / (self.bandwidth_gb_s * 1e6)

    @property
    def floor_share(self) -> float:
        """Which share of a one-token forward that reading explains; above 1 where a cache holds weights."""
        return self.floor_ms / self.verify_ms[0]

    def verify_growth(self, batch: int, tokens: int) -> float:
        """What `tokens` tokens per text cost, in forwards over one token per text, at this batch size."""
        times = {(cost.batch, cost.tokens): cost.ms for cost in self.batch}
        return times[batch, tokens] / times[batch, 1]

    def check(self) -> None:
        """The batch table has every pair of its sizes once, in order, one token per text among them."""
        sizes = [(cost.batch, cost.tokens) for cost in self.batch]
        whole = [(b, n) for b in sorted({b for b, _ in sizes}) for n in sorted({1, *(n for _, n in sizes)})]
        require(not sizes or sizes == whole, "batch", f"must list every batch and number of tokens (got {sizes})")
        require(self.verify_ms and min(self.verify_ms) > 0 and self.bandwidth_gb_s > 0, "verify_ms", "must be times")


@dataclass(frozen=True, slots=True)
class Measured:
    """How far measuring has come, in timed pieces; `costs` with the last one."""

    done: int
    total: int
    doing: str
    costs: Costs | None = None


class _Series(NamedTuple):
    """What a list of timings is about."""

    what: str
    tokens: int = 1
    batch: int = 1


Reading = tuple[_Series, float]
DRAFT, OVERHEAD, PLAIN, READ = (_Series(what) for what in ("draft", "overhead", "plain", "read"))


def costs(target=None, draft=None, context_length: int = CONTEXT) -> Costs:
    """Measures a pair and returns when done, after some seconds. Nothing else should run meanwhile.

    target, draft: as in `run`; by default the bundled pair, and no draft for a target of your own. Raises SpecvizError.
    """
    library = workbench().library
    default_target, default_draft = catalog.default_pair()
    loaded = library.load(target or default_target)
    draft = draft or (default_draft if loaded.name == default_target else None)
    small = None if draft is None else library.load(draft, as_draft=True)
    *_, last = measure_costs(loaded, small, context_length=context_length)
    return last.costs


def measure_costs(
    target: LoadedModel,
    draft: LoadedModel | None,
    *,
    context_length: int = CONTEXT,
    most_tokens: int = MOST_TOKENS,
    repeats: int = REPEATS,
) -> Iterator[Measured]:
    """Times forwards over 1..most_tokens tokens behind `context_length` tokens, real steps, batches and memory.

    Raises SpecvizError where the context does not fit and where the two models do not share a vocabulary.
    """
    if most_tokens < 1 or repeats < 1:
        raise ValueError(f"most_tokens and repeats must be >= 1 (got {most_tokens} and {repeats})")
    _check(target, draft, context_length, most_tokens)
    timer = _Timer(target, draft, context_length)
    jobs = timer.jobs(most_tokens)
    samples: dict[_Series, list[float]] = {}
    done, total, told = 0, (repeats + 1) * len(jobs), time.perf_counter()
    yield Measured(0, total, "warming up")
    for turn in range(repeats + 1):
        start = turn * len(jobs) // (repeats + 1)
        for job in (*jobs[start:], *jobs[:start]):
            readings = job()
            for series, ms in readings if turn else ():
                samples.setdefault(series, []).append(ms)
            done += 1
            if time.perf_counter() - told > PAUSE_S:
                yield Measured(done, total, f"round {turn} of {repeats}" if turn else "warming up")
                told = time.perf_counter()
    yield Measured(total, total, "done", _summary(timer, samples, most_tokens))


def longest_context(target: LoadedModel, draft: LoadedModel | None, most_tokens: int = MOST_TOKENS) -> int:
    """The longest context that leaves these models room for what is measured behind it."""
    limit = min(model.info.context_limit for model in (target, draft) if model is not None)
    return limit - max(most_tokens, 2 * (STEP_K + 1), *BATCH_TOKENS)


def _check(target: LoadedModel, draft: LoadedModel | None, context_length: int, most_tokens: int) -> None:
    if draft is not None:
        check_pair(target, draft)
    longest = longest_context(target, draft, most_tokens)
    if not 1 <= context_length <= longest:
        raise SpecvizError(
            f"the context length must be from 1 to {longest:,} tokens, which leaves these models room for what is "
            f"measured behind it (got {context_length:,})"
        )


class _Timer:
    """Times one thing per call; what a call needs is set up by its first one, which is not counted."""

    def __init__(self, target: LoadedModel, draft: LoadedModel | None, context_length: int) -> None:
        self.target, self.draft = target, draft
        self.device = target.model.device
        self.sampling = Sampling()
        self.lm = target.cached_lm()
        size = min(model.info.vocab_size for model in (target, draft) if model is not None)
        self.ids = [FIRST_ID + i % (size - FIRST_ID) for i in range(context_length)]
        self._plain = self._plan_of(NoDraft())
        self._drafting = None if draft is None else self._plan_of(ModelDrafter(draft.cached_lm()))
        self._num_steps = 0

    def _plan_of(self, drafter: Drafter) -> Plan:
        return Plan(self.target.cached_lm(), drafter, RULES["speculative_sampling"], self.sampling, STEP_K)

    def jobs(self, most_tokens: int) -> list[Callable[[], Sequence[Reading]]]:
        """One round. Reading memory empties the caches, so what follows it is a step, which warms up by itself."""
        verify = [lambda n=n: self._verify(n) for n in range(1, most_tokens + 1)]
        batch = [lambda b=b, n=n: self._batch(b, n) for b in BATCHES for n in BATCH_TOKENS]
        return [self._read, *[self._step] * STEPS_PER_ROUND, *verify, *batch]

    def _timed(self, action: Callable[[], object]) -> float:
        """Milliseconds until the device has finished it."""
        _finish(self.device)
        begun = time.perf_counter()
        action()
        _finish(self.device)
        return (time.perf_counter() - begun) * 1e3

    def _verify(self, num_tokens: int) -> Sequence[Reading]:
        """One more token of the text and the draft behind it, as the engine's verify phase."""
        draft = chain(self._next_ids(num_tokens - 1))

        @torch.inference_mode()
        def verify() -> Tensor:
            return self.sampling.probs(self.lm.forward(self.ids, draft))

        verify()  # as in a run, where the target has just read what came before
        return [(_Series("verify", num_tokens), self._timed(verify))]

    def _next_ids(self, count: int) -> list[int]:
        """What follows the context: its own beginning again."""
        return [self.ids[i % len(self.ids)] for i in range(count)]

    def _step(self) -> Sequence[Reading]:
        """A step of its own kind each: one that drafts, if there is a draft model, and one that does not."""
        plain_rest, _ = self._second_step(self._plain)
        if self._drafting is None:
            return [(DRAFT, 0.0), (OVERHEAD, plain_rest), (PLAIN, plain_rest)]
        rest, draft_ms = self._second_step(self._drafting)
        return [(DRAFT, draft_ms), (OVERHEAD, rest), (PLAIN, plain_rest)]

    def _second_step(self, plan: Plan) -> tuple[float, float]:
        """Of a run's second step, which like all that follow finds the context read: the milliseconds outside both
        models, and those of one drafted token."""
        self._num_steps += 1
        steps = speculate(self.ids, lambda: plan, Seeded(self._num_steps), max_new_tokens=2 * (STEP_K + 1))
        next(steps)
        made = []
        whole = self._timed(lambda: made.append(next(steps)))
        step, timing = made[0], made[0].timing
        steps.close()
        drafting = timing.draft_ms if len(step.draft) else 0.0
        return max(0.0, whole - timing.verify_ms - drafting), drafting / max(1, len(step.draft))

    @cached_property
    def _context_cache(self):
        """The model's own cache after the context of one text."""
        ids = torch.tensor([self.ids], device=self.device)
        return self.target.model(ids, use_cache=True).past_key_values

    @torch.inference_mode()
    def _batch(self, batch: int, num_tokens: int) -> Sequence[Reading]:
        """A plain forward of the model over a batch, every text with the context's cache of its own."""
        cache = copy.deepcopy(self._context_cache)
        cache.batch_repeat_interleave(batch)
        ids = torch.tensor([self._next_ids(num_tokens)] * batch, device=self.device)
        ms = self._timed(lambda: self.target.model(ids, past_key_values=cache, use_cache=True))
        return [(_Series("batch", num_tokens, batch), ms)]

    @cached_property
    def _large(self) -> Tensor:
        num_bytes = READ_BYTES
        if self.device.type == "cuda":
            num_bytes = min(READ_BYTES_CUDA, torch.cuda.mem_get_info(self.device)[0] // 4)
        return torch.ones(num_bytes // 4, dtype=torch.float32, device=self.device)

    def _read(self) -> Sequence[Reading]:
        large = self._large
        return [(READ, self._timed(large.sum))]

    @property
    def num_read_bytes(self) -> int:
        return self._large.nbytes


def _finish(device: torch.device) -> None:
    """Waits for the device; the CPU has always finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _summary(timer: _Timer, samples: dict[_Series, list[float]], most_tokens: int) -> Costs:
    ms = {series: statistics.median(values) for series, values in samples.items()}
    verify = [_Series("verify", n) for n in range(1, most_tokens + 1)]
    model, about = timer.target.model, environment(timer.device)
    return Costs(
        target=timer.target.name,
        draft=None if timer.draft is None else timer.draft.name,
        context_length=len(timer.ids),
        device=str(about["device_name"]),
        threads=int(about["threads"]),
        dtype=timer.target.info.dtype,
        draft_ms=ms[DRAFT],
        verify_ms=tuple(ms[series] for series in verify),
        overhead_ms=ms[OVERHEAD],
        plain_overhead_ms=ms[PLAIN],
        batch=tuple(BatchCost(b, n, ms[_Series("batch", n, b)]) for b in BATCHES for n in BATCH_TOKENS),
        weight_bytes=weight_bytes(model),
        bandwidth_gb_s=timer.num_read_bytes / ms[READ] / 1e6,
        bandwidth_bytes=timer.num_read_bytes,
        spread=statistics.median(_spread(samples[series]) for series in verify),
    )


def _spread(values: Sequence[float]) -> float:
    """The distance between the quartiles over the median; 0 for a single value."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def weight_bytes(model: torch.nn.Module) -> int:
    """The bytes of weights that one forward reads: all of them, but of a separate input table only single rows."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(stored_bytes(parameter) for parameter in model.parameters())  # a shared table is listed once
    return total if table is head else total - stored_bytes(table)
