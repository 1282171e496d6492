"""Measured costs of a pair on this machine: a drafted token, one target forward over 1..33 tokens, a step's rest.

`measure_costs` times everything, several drafts too, in the same rounds, so that a busy moment meets all alike. What a
step takes by these numbers is `theory.step_ms`.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, cycle, islice, product
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specviz.analysis.rounds import FEWEST, ONE_RUN, SpeedComparison, Timings, interval, turns
from specviz.decoding.draft import chain
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.forward.transformers_forward import asked_of, empty_cache, read_behind
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import clock, give_way
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.memory import environment
from specviz.models.pool import LoadedModel
from specviz.models.quantisation import stored_bytes
from specviz.rules import RULES
from specviz.session.setup import gather
from specviz.session.workbench import workbench
from specviz.trace.values import Count, Items, Name, Number, Record, require

CONTEXT = 128
MOST_TOKENS = 33
ROUNDS = 5
BATCHES = (1, 2, 4, 8)
BATCH_TOKENS = (1, 5, 9)  # nothing drafted, K = 4 and K = 8
STEP_K = 4
STEPS_PER_TURN = 3
READ_BYTES, READ_BYTES_CUDA = 512 << 20, 2 << 30  # to measure the memory, not a cache
FIRST_ID = 3
PAUSE_S = 0.25  # between two results
APART = 1.3  # repeated times, or a forward and one over more tokens, that lie further apart were disturbed


@dataclass(frozen=True, slots=True)
class BatchCost(Record):
    """Milliseconds of one forward over `tokens` new tokens of each of `batch` texts, their contexts cached."""

    batch: Count
    tokens: Count
    ms: Number


@dataclass(frozen=True, slots=True)
class Costs(Record):
    """Medians in milliseconds. verify_ms[n - 1]: one target forward over n new tokens, its probabilities included.

    draft_ms: one drafted token, drawing included (0 without a draft model). overhead_ms: a step's time outside drafting
    and verifying, recording left out; plain_overhead_ms: that of a step that drafts nothing. weight_bytes: what one
    forward must read. spread: the middle half of repeated timings, relative. verify_between_ms: the interval of each
    of verify_ms, where it is known.
    """

    target: Name
    draft: Name | None
    context_length: Count
    device: Name
    threads: Count
    dtype: Name
    draft_ms: Number
    verify_ms: Items[Number]
    overhead_ms: Number
    plain_overhead_ms: Number
    batch: Items[BatchCost]
    weight_bytes: Count
    bandwidth_gb_s: Number
    bandwidth_bytes: Count
    spread: Number
    verify_between_ms: Items[tuple[Number, Number]] | None = None

    @property
    def doubt(self) -> str:
        """Why these times carry no advice, in words; empty where they do."""
        longest = accumulate(self.verify_ms, max)
        drop = max(before / ms for before, ms in zip(longest, self.verify_ms, strict=True))
        apart = statistics.median(
            [high / low for low, high in self.verify_between_ms or ((1.0, 1.0),)]
        )
        if self.spread <= ONE_RUN and max(drop, apart) <= APART:
            return ""
        busy = f"one target pass took {drop:.1f} times as long as a pass over more tokens"
        if apart > APART:
            busy = (
                f"the slowest round of a target pass took {apart:.1f} times as long as the fastest"
            )
        if self.spread > ONE_RUN:
            busy = f"the middle half of the repeated timings spans {self.spread:.0%} of the median"
        return f"This machine was too busy: {busy}. Measure the costs again when it is idle."

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
        whole = [
            (b, n)
            for b in sorted({b for b, _ in sizes})
            for n in sorted({1, *(n for _, n in sizes)})
        ]
        require(
            not sizes or sizes == whole,
            "batch",
            f"must list every batch and number of tokens (got {sizes})",
        )
        require(
            self.verify_ms and min(self.verify_ms) > 0 and self.bandwidth_gb_s > 0,
            "verify_ms",
            "must be times",
        )
        is_whole = self.verify_between_ms is None or len(self.verify_between_ms) == len(
            self.verify_ms
        )
        require(is_whole, "verify_between_ms", "must be one interval for each of verify_ms")
        require(
            min(map(min, self.verify_between_ms or [(1.0,)])) > 0,
            "verify_between_ms",
            "must be times",
        )


@dataclass(frozen=True, slots=True)
class Measured:
    """How far measuring has come, in timed pieces; `costs`, one per draft, with the last one."""

    done: int
    total: int
    doing: str
    costs: tuple[Costs, ...] = ()


class _Series(NamedTuple):
    """What a list of timings is about."""

    what: str
    tokens: int = 1
    batch: int = 1
    draft: str | None = None


Reading = tuple[_Series, float]
PLAIN, READ = _Series("overhead"), _Series("read")


def costs(target=None, draft=None, context_length: int = CONTEXT) -> Costs:
    """Measures a pair and returns when done, after some seconds. Nothing else should run meanwhile.

    target, draft: as in `run`; by default the bundled pair, and no draft for a target of your own. Raises SpecvizError.
    """
    pool = workbench().pool
    loaded = pool.load(target or catalog.default_pair()[0])
    draft = draft or catalog.bundled_draft(loaded.name)
    drafts = [] if draft is None else [pool.load(draft, as_draft=True)]
    *_, last = measure_costs(loaded, drafts, context_length=context_length)
    return last.costs[0]


def measure_costs(
    target: LoadedModel,
    drafts: Sequence[LoadedModel],
    *,
    context_length: int = CONTEXT,
    most_tokens: int = MOST_TOKENS,
    rounds: int = ROUNDS,
) -> Iterator[Measured]:
    """Times forwards over 1..most_tokens tokens behind `context_length` tokens, real steps, batches and memory; without
    drafts for the one result that has none. SpecvizError where the context does not fit and where two models do not
    share a vocabulary."""
    if most_tokens < 1 or rounds < 1:
        raise ValueError(f"most_tokens and rounds must be >= 1 (got {most_tokens} and {rounds})")
    longest = longest_context(target, drafts, most_tokens)
    if not 1 <= context_length <= longest:
        raise SpecvizError(
            f"the context length must be from 1 to {longest:,} tokens, so that these models have room for the "
            f"measured tokens (got {context_length:,})"
        )
    timer = _Timer(target, drafts, context_length)
    jobs = timer.jobs(most_tokens)
    timings: Timings[_Series] = Timings()
    told = -PAUSE_S
    for turn in turns(len(jobs), rounds):
        if time.perf_counter() - told > PAUSE_S:
            words = f"round {turn.round} of {rounds}" if turn.round else "warming up"
            yield Measured(turn.done, turn.total, words)
            told = time.perf_counter()
        for series, ms in jobs[turn.contender]():
            timings.add(series, turn.round, ms)
        give_way()
    names = [draft.name for draft in drafts] or [None]
    yield Measured(
        turn.total,
        turn.total,
        "done",
        tuple(_summary(timer, timings, most_tokens, each) for each in names),
    )


def batch_growth(
    target: LoadedModel, tokens: int = BATCH_TOKENS[1], rounds: int = FEWEST
) -> dict[int, SpeedComparison]:
    """By the smallest and largest of BATCHES: how many times as long `tokens` new tokens of each text take as one."""
    timer, sizes = _Timer(target, (), CONTEXT), [*product((BATCHES[0], BATCHES[-1]), (1, tokens))]
    timings: Timings[tuple[int, int]] = Timings()
    for turn in turns(len(sizes), rounds):
        ((_, ms),) = timer.forward_batch(*sizes[turn.contender])
        timings.add(sizes[turn.contender], turn.round, ms)
        give_way()
    return {batch: timings.compare((batch, 1), (batch, tokens)) for batch, _ in sizes}


def longest_context(
    target: LoadedModel, drafts: Sequence[LoadedModel], most_tokens: int = MOST_TOKENS
) -> int:
    """The longest context that leaves these models room for what is measured behind it."""
    limit = min(model.info.context_limit for model in (target, *drafts))
    return limit - max(most_tokens, 2 * (STEP_K + 1), *BATCH_TOKENS)


class _Timer:
    """Times one thing per call; what a call needs is set up by its first one, which is not counted."""

    def __init__(
        self, target: LoadedModel, drafts: Sequence[LoadedModel], context_length: int
    ) -> None:
        self.target = target
        self.device = target.model.device
        self.sampling = Sampling()
        self.lm = target.cached_lm()
        size = min(model.info.vocab_size for model in (target, *drafts))
        self.ids = [FIRST_ID + i % (size - FIRST_ID) for i in range(context_length)]
        setups = {None: gather(METHODS["none"], {}, target, None)}
        setups |= {
            draft.name: gather(METHODS["draft_model"], {}, target, draft) for draft in drafts
        }
        rule = RULES["speculative_sampling"]
        self._plans = {
            name: setup.plan(rule, self.sampling, STEP_K) for name, setup in setups.items()
        }  # by draft
        self._num_steps = 0
        self._context = None  # a cache of the model's own kind behind the context of one text

    def jobs(self, most_tokens: int) -> list[Callable[[], Sequence[Reading]]]:
        """All that is timed. Reading memory empties the caches, so steps follow it, which warm up by themselves."""
        reading, *drafting = [lambda name=name: self._steps(name) for name in self._plans]
        verify = [lambda n=n: self._verify(n) for n in range(1, most_tokens + 1)]
        batch = [lambda b=b, n=n: self.forward_batch(b, n) for b in BATCHES for n in BATCH_TOKENS]
        return [
            lambda: [(READ, self._time_ms(self.large.sum)), *reading()],
            *drafting,
            *verify,
            *batch,
        ]

    def _time_ms(self, action: Callable[[], object]) -> float:
        """Milliseconds until the device has finished it."""
        _finish(self.device)
        begun = clock()
        action()
        _finish(self.device)
        return (clock() - begun) * 1e3

    def _verify(self, num_tokens: int) -> Sequence[Reading]:
        """One more token of the text and the draft behind it, as the engine's verify phase."""
        draft = chain(self._next_ids(num_tokens - 1))

        @torch.inference_mode()
        def verify() -> Tensor:
            return self.sampling.probs(self.lm.forward(self.ids, draft))

        verify()  # as in a run, where the target has just read what came before
        return [(_Series("verify", num_tokens), self._time_ms(verify))]

    def _next_ids(self, count: int) -> list[int]:
        """What follows the context: its own beginning again."""
        return list(islice(cycle(self.ids), count))

    def _steps(self, draft: str | None) -> Sequence[Reading]:
        """Medians of a few steps that draft with this model, or of steps that draft nothing."""
        steps = [self._second_step(self._plans[draft]) for _ in range(STEPS_PER_TURN)]
        rest, draft_ms = map(statistics.median, zip(*steps, strict=True))
        drafting = [] if draft is None else [(_Series("draft", draft=draft), draft_ms)]
        return [*drafting, (_Series("overhead", draft=draft), rest)]

    def _second_step(self, plan: Plan) -> tuple[float, float]:
        """Of a run's second step, which like all that follow finds the context read: the milliseconds outside both
        models, and those of one drafted token."""
        self._num_steps += 1
        steps = speculate(
            self.ids, lambda: plan, Seeded(self._num_steps), max_new_tokens=2 * (STEP_K + 1)
        )
        next(steps)
        made = []
        whole = self._time_ms(lambda: made.append(next(steps)))
        step, timing = made[0], made[0].timing
        steps.close()
        drafting = timing.draft_ms if len(step.draft) else 0.0
        return max(0.0, whole - timing.verify_ms - drafting), drafting / max(1, len(step.draft))

    @torch.inference_mode()
    def forward_batch(self, batch: int, num_tokens: int) -> Sequence[Reading]:
        """A plain forward of the model over a batch, every text with the context's cache of its own."""
        if self._context is None:
            self._context = empty_cache(self.target.model)
            read_behind(
                self.target.model, torch.tensor([self.ids], device=self.device), self._context
            )
        cache = copy.deepcopy(self._context)
        cache.batch_repeat_interleave(batch)
        ids = torch.tensor([self._next_ids(num_tokens)] * batch, device=self.device)
        ms = self._time_ms(lambda: self.target.model(ids, **asked_of(self.target.model, cache)))
        return [(_Series("batch", num_tokens, batch), ms)]

    @cached_property
    def large(self) -> Tensor:
        """What is read to measure the memory's bandwidth."""
        num_bytes = READ_BYTES
        if self.device.type == "cuda":
            num_bytes = min(READ_BYTES_CUDA, torch.cuda.mem_get_info(self.device)[0] // 4)
        return torch.ones(num_bytes // 4, dtype=torch.float32, device=self.device)


def _finish(device: torch.device) -> None:
    """Waits for the device; the CPU has always finished."""
    if device.type == "cuda":
        torch.cuda.current_stream(
            device
        ).synchronize()  # of the whole device it would spoil a graph that is recorded
    elif device.type == "mps":
        torch.mps.synchronize()


def _summary(
    timer: _Timer, timings: Timings[_Series], most_tokens: int, draft: str | None
) -> Costs:
    verify = [
        list(timings.quicker(_Series("verify", n)).values()) for n in range(1, most_tokens + 1)
    ]
    low, middle, high = np.percentile(verify, (25, 50, 75), axis=1)
    model, about = timer.target.model, environment(timer.device)
    return Costs(
        target=timer.target.name,
        draft=draft,
        context_length=len(timer.ids),
        device=str(about["device_name"]),
        threads=int(about["threads"]),
        dtype=timer.target.info.dtype,
        draft_ms=0.0 if draft is None else timings.median(_Series("draft", draft=draft)),
        verify_ms=tuple(map(statistics.median, verify)),
        overhead_ms=timings.median(_Series("overhead", draft=draft)),
        plain_overhead_ms=timings.median(PLAIN),
        batch=tuple(
            BatchCost(b, n, timings.median(_Series("batch", n, b)))
            for b in BATCHES
            for n in BATCH_TOKENS
        ),
        weight_bytes=weight_bytes(model),
        bandwidth_gb_s=timer.large.nbytes / timings.median(READ) / 1e6,
        bandwidth_bytes=timer.large.nbytes,
        spread=float(np.median((high - low) / middle)),
        verify_between_ms=tuple(map(interval, verify)),
    )


def weight_bytes(model: torch.nn.Module) -> int:
    """The bytes of weights that one forward reads: all of them, but of a separate input table only single rows."""
    table, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    total = sum(
        stored_bytes(parameter) for parameter in model.parameters()
    )  # a shared table is listed once
    return total if table is head else total - stored_bytes(table)
