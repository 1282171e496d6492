"""Measured costs of a pair on this machine: a drafted token, one target forward over 1..33 tokens, a step's rest.

`measure_costs` times everything, several drafts too, in the same rounds, so that a busy moment affects all alike.
`theory.step_ms` predicts the time of a step from these numbers.
"""

import copy
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
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
from specviz.drafters.method import Method
from specviz.drafters.params import SizeParam
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.files.hub import is_here
from specviz.models.memory import environment
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.quantisation import stored_bytes
from specviz.request import RunSettings
from specviz.rules import RULES
from specviz.session.setup import Setup, gather, models_in_params
from specviz.session.workbench import workbench
from specviz.trace.values import Count, Items, Name, Number, Record, require

CONTEXT = 128
MOST_TOKENS = 33
ROUNDS = 5
SIZE_ROUNDS = 3
BATCHES = (1, 2, 4, 8)
BATCH_TOKENS = (1, 5, 9)  # nothing drafted, K = 4 and K = 8
STEP_K = 4
STEPS_PER_TURN = 3
READ_BYTES = 512 << 20  # large enough to measure the memory, not a cache
READ_BYTES_CUDA = 2 << 30
FIRST_ID = 3
PAUSE_S = 0.25  # between two results
APART = 1.3
"""Repeated times that lie further apart were disturbed; so was a forward that much slower than one over more tokens."""


@dataclass(frozen=True, slots=True)
class BatchCost(Record):
    """Milliseconds of one forward over `tokens` new tokens of each of `batch` texts, their contexts cached."""

    batch: Count
    tokens: Count
    ms: Number


@dataclass(frozen=True, slots=True)
class Costs(Record):
    """The measured costs of a pair; times are medians in milliseconds."""

    target: Name
    draft: Name | None
    context_length: Count
    device: Name
    threads: Count
    dtype: Name
    draft_ms: Number  # one drafted token, drawing included; 0 without a draft model
    verify_ms: Items[Number]
    """Entry n - 1: one target forward over n new tokens, its probabilities included."""
    overhead_ms: Number  # a step's time outside drafting and verifying, recording left out
    plain_overhead_ms: Number  # likewise for a step that drafts nothing
    batch: Items[BatchCost]
    weight_bytes: Count  # what one forward must read
    bandwidth_gb_s: Number
    bandwidth_bytes: Count
    spread: Number  # how wide the middle half of repeated timings is, relative to their median
    verify_between_ms: Items[tuple[Number, Number]] | None = None
    """The interval of each of verify_ms, where it is known."""

    @property
    def doubt(self) -> str:
        """Words for why these times carry no advice; empty where they do."""
        slowest = accumulate(self.verify_ms, max)
        drop = max(before / ms for before, ms in zip(slowest, self.verify_ms, strict=True))
        intervals = self.verify_between_ms or ((1.0, 1.0),)
        apart = statistics.median(high / low for low, high in intervals)
        if self.spread > ONE_RUN:
            busy = f"the middle half of the repeated timings spans {self.spread:.0%} of the median"
        elif apart > APART:
            busy = (
                f"the slowest round of a target pass took {apart:.1f} times as long as the fastest"
            )
        elif drop > APART:
            busy = f"one target pass took {drop:.1f} times as long as a pass over more tokens"
        else:
            return ""
        return f"This machine was too busy: {busy}. Measure the costs again when it is idle."

    @property
    def floor_ms(self) -> float:
        """The time to read all weights once at the measured bandwidth (the roofline's flat part)."""
        return self.weight_bytes / (self.bandwidth_gb_s * 1e6)

    @property
    def floor_share(self) -> float:
        """The share of a one-token forward that this time explains; above 1 where a cache holds weights."""
        return self.floor_ms / self.verify_ms[0]

    def verify_growth(self, batch: int, tokens: int) -> float:
        """The cost of `tokens` tokens per text in forwards over one token per text, at this batch size."""
        times = {(cost.batch, cost.tokens): cost.ms for cost in self.batch}
        return times[batch, tokens] / times[batch, 1]

    def check(self) -> None:
        """Checks that all are times, and that the batch table has every pair of its sizes once, in order."""
        sizes = [(cost.batch, cost.tokens) for cost in self.batch]
        batches = sorted({cost.batch for cost in self.batch})
        tokens = sorted({1, *(cost.tokens for cost in self.batch)})
        words = f"must list every batch and number of tokens (got {sizes})"
        require(not sizes or sizes == list(product(batches, tokens)), "batch", words)
        are_times = self.verify_ms and min(self.verify_ms) > 0 and self.bandwidth_gb_s > 0
        require(are_times, "verify_ms", "must be times")
        if self.verify_between_ms is None:
            return
        is_whole = len(self.verify_between_ms) == len(self.verify_ms)
        require(is_whole, "verify_between_ms", "must be one interval for each of verify_ms")
        least = min(min(between) for between in self.verify_between_ms)
        require(least > 0, "verify_between_ms", "must be times")


@dataclass(frozen=True, slots=True)
class Measured:
    """How far measuring has come, in timed pieces."""

    done: int
    total: int
    doing: str
    costs: tuple[Costs, ...] = ()  # one per draft, once all is done


class _Series(NamedTuple):
    """The name of a list of timings."""

    what: str
    tokens: int = 1
    batch: int = 1
    draft: str | None = None


Reading = tuple[_Series, float]
PLAIN = _Series("overhead")
READ = _Series("read")


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
    """Times forwards over 1..most_tokens tokens behind `context_length` tokens, real steps, batches and memory.

    Without drafts there is one result, which has none. Raises SpecvizError where the context does not fit, and where
    two models do not share a vocabulary.
    """
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
    reported = -PAUSE_S
    for turn in turns(len(jobs), rounds):
        if time.perf_counter() - reported > PAUSE_S:
            words = f"round {turn.round} of {rounds}" if turn.round else "warming up"
            yield Measured(turn.done, turn.total, words)
            reported = time.perf_counter()
        for series, ms in jobs[turn.contender]():
            timings.add(series, turn.round, ms)
        give_way()
    names = [draft.name for draft in drafts] or [None]
    found = tuple(_summary(timer, timings, most_tokens, name) for name in names)
    yield Measured(turn.total, turn.total, "done", found)


def batch_growth(
    target: LoadedModel, tokens: int = BATCH_TOKENS[1], rounds: int = FEWEST
) -> dict[int, SpeedComparison]:
    """How many times as long `tokens` new tokens of each text take as one, by the smallest and largest of BATCHES."""
    timer = _Timer(target, (), CONTEXT)
    batches = (BATCHES[0], BATCHES[-1])
    sizes = list(product(batches, (1, tokens)))
    timings: Timings[tuple[int, int]] = Timings()
    for turn in turns(len(sizes), rounds):
        batch, num_tokens = sizes[turn.contender]
        _, ms = timer.forward_batch(batch, num_tokens)[0]
        timings.add((batch, num_tokens), turn.round, ms)
        give_way()
    return {batch: timings.compare((batch, 1), (batch, tokens)) for batch in batches}


def measure_tree_sizes(
    pool: ModelPool, target: LoadedModel, draft: LoadedModel | None, rounds: int = SIZE_ROUNDS
) -> Iterator[None]:
    """Times the steps of the methods that choose the size of their trees, and puts the times into the pool's step_ms.

    A method that cannot draft for this target, or whose models are not on this machine, is left out. Nothing is put
    there where the machine was too busy.
    """
    setups: dict[str, Setup] = {}
    sizes: dict[str, SizeParam] = {}
    for name, method in METHODS.items():
        for param in method.params:
            if isinstance(param, SizeParam) and _is_at_hand(method, target.name):
                with suppress(SpecvizError):
                    setups[name] = gather(method, {}, target, draft, pool)
                    sizes[name] = param
    context_length = min(CONTEXT, longest_context(target, ()))
    if not setups or context_length < 1:
        return
    timer = _Timer(target, (), context_length)
    rule = RULES["speculative_sampling"]
    jobs = []
    for name, setup in setups.items():
        plan = setup.plan(rule, timer.sampling, STEP_K)
        jobs.append(partial(timer.beside_pass, name, plan))
    all_sizes = sorted({size for param in sizes.values() for size in param.per_call})
    jobs += [partial(timer.verify, size + 1) for size in all_sizes]
    timings: Timings[_Series] = Timings()
    for turn in turns(len(jobs), rounds):
        for series, ms in jobs[turn.contender]():
            timings.add(series, turn.round, ms)
        yield
    if timings.spread > ONE_RUN:
        return
    for name, param in sizes.items():
        rest_ms = _least(timings, _Series(name))
        pool.step_ms[name, target.name] = {
            size: rest_ms + _least(timings, _Series("verify", size + 1)) for size in param.per_call
        }


def _least(timings: Timings[_Series], series: _Series) -> float:
    """The time of the quickest turn: other work on this machine only adds to it."""
    return min(timings.quicker(series).values())


def _is_at_hand(method: Method, target: str) -> bool:
    """Whether all models that the method's parameters name for this target are on this machine."""
    settings = RunSettings(target=target, method=method.name)
    try:
        return all(is_here(name) for _, name in models_in_params(settings))
    except SpecvizError:
        return False


def longest_context(
    target: LoadedModel, drafts: Sequence[LoadedModel], most_tokens: int = MOST_TOKENS
) -> int:
    """The longest context that leaves these models room for what is measured behind it."""
    limit = min(model.info.context_limit for model in (target, *drafts))
    return limit - max(most_tokens, 2 * (STEP_K + 1), *BATCH_TOKENS)


class _Timer:
    """Times one thing per call; the first call sets up what it needs and is not counted."""

    def __init__(
        self, target: LoadedModel, drafts: Sequence[LoadedModel], context_length: int
    ) -> None:
        self.target = target
        self.device = target.model.device
        self.sampling = Sampling()
        self.lm = target.cached_lm()
        size = min(model.info.vocab_size for model in (target, *drafts))
        self.ids = [FIRST_ID + i % (size - FIRST_ID) for i in range(context_length)]
        rule = RULES["speculative_sampling"]
        plain = gather(METHODS["none"], {}, target, None)
        self._plans = {None: plain.plan(rule, self.sampling, STEP_K)}  # by draft
        for draft in drafts:
            setup = gather(METHODS["draft_model"], {}, target, draft)
            self._plans[draft.name] = setup.plan(rule, self.sampling, STEP_K)
        self._num_steps = 0
        self._context = None  # a cache of the model's own kind behind the context of one text

    def jobs(self, most_tokens: int) -> list[Callable[[], Sequence[Reading]]]:
        """The calls that time something. Reading memory empties the caches; steps follow it, as they warm up alone."""
        jobs: list[Callable[[], Sequence[Reading]]] = [self._read_and_plain_steps]
        jobs += [partial(self._steps, draft) for draft in self._plans if draft is not None]
        jobs += [partial(self.verify, n) for n in range(1, most_tokens + 1)]
        jobs += [partial(self.forward_batch, b, n) for b, n in product(BATCHES, BATCH_TOKENS)]
        return jobs

    def _read_and_plain_steps(self) -> Sequence[Reading]:
        read_ms = self._time_ms(self.large.sum)
        return [(READ, read_ms), *self._steps(None)]

    def _time_ms(self, action: Callable[[], object]) -> float:
        """The milliseconds until the device has finished an action."""
        _finish(self.device)
        begun = clock()
        action()
        _finish(self.device)
        return (clock() - begun) * 1e3

    def verify(self, num_tokens: int) -> Sequence[Reading]:
        """Times one more token of the text and the draft behind it, as the engine's verify phase."""
        draft = chain(self._next_ids(num_tokens - 1))

        @torch.inference_mode()
        def read() -> Tensor:
            return self.sampling.probs(self.lm.forward(self.ids, draft))

        read()  # as in a run, where the target has just read what came before
        return [(_Series("verify", num_tokens), self._time_ms(read))]

    def _next_ids(self, count: int) -> list[int]:
        """The ids that follow the context: its own beginning again."""
        return list(islice(cycle(self.ids), count))

    def _steps(self, draft: str | None) -> Sequence[Reading]:
        """Medians of a few steps that draft with this model, or of steps that draft nothing."""
        steps = [self._second_step(self._plans[draft]) for _ in range(STEPS_PER_TURN)]
        rest_ms = statistics.median(rest for rest, _, _ in steps)
        readings = [(_Series("overhead", draft=draft), rest_ms)]
        if draft is not None:
            draft_ms = statistics.median(
                drafting / max(1, num_drafted) for _, drafting, num_drafted in steps
            )
            readings.append((_Series("draft", draft=draft), draft_ms))
        return readings

    def beside_pass(self, method: str, plan: Plan) -> Sequence[Reading]:
        """Times all of a step but the target's pass."""
        rest_ms, draft_ms, _ = self._second_step(plan)
        return [(_Series(method), rest_ms + draft_ms)]

    def _second_step(self, plan: Plan) -> tuple[float, float, int]:
        """The milliseconds of a run's second step outside both models, and of drafting; the number of drafted tokens.

        The second step, like all that follow, finds the context read.
        """
        self._num_steps += 1
        draws = Seeded(self._num_steps)
        steps = speculate(self.ids, lambda: plan, draws, max_new_tokens=2 * (STEP_K + 1))
        next(steps)
        results = []
        whole_ms = self._time_ms(lambda: results.append(next(steps)))
        steps.close()
        step = results[0]
        num_drafted = len(step.draft)
        draft_ms = step.timing.draft_ms if num_drafted else 0.0
        rest_ms = max(0.0, whole_ms - step.timing.verify_ms - draft_ms)
        return rest_ms, draft_ms, num_drafted

    @torch.inference_mode()
    def forward_batch(self, batch: int, num_tokens: int) -> Sequence[Reading]:
        """Times a plain forward of the model over a batch, in which every text has its own cache of the context."""
        model = self.target.model
        if self._context is None:
            self._context = empty_cache(model)
            read_behind(model, torch.tensor([self.ids], device=self.device), self._context)
        cache = copy.deepcopy(self._context)
        cache.reorder_cache(torch.zeros(batch, dtype=torch.long, device=self.device))
        ids = torch.tensor([self._next_ids(num_tokens)] * batch, device=self.device)
        ms = self._time_ms(lambda: model(ids, **asked_of(model, cache)))
        return [(_Series("batch", num_tokens, batch), ms)]

    @cached_property
    def large(self) -> Tensor:
        """The tensor that is read to measure the memory's bandwidth."""
        num_bytes = READ_BYTES
        if self.device.type == "cuda":
            num_bytes = min(READ_BYTES_CUDA, torch.cuda.mem_get_info(self.device)[0] // 4)
        return torch.ones(num_bytes // 4, dtype=torch.float32, device=self.device)


def _finish(device: torch.device) -> None:
    """Waits for the device; the CPU has always finished."""
    if device.type == "cuda":
        # Waiting for the whole device would spoil a graph that is recorded.
        torch.cuda.current_stream(device).synchronize()
    elif device.type == "mps":
        torch.mps.synchronize()


def _summary(
    timer: _Timer, timings: Timings[_Series], most_tokens: int, draft: str | None
) -> Costs:
    verify = []
    for n in range(1, most_tokens + 1):
        verify.append(list(timings.quicker(_Series("verify", n)).values()))
    low, middle, high = np.percentile(verify, (25, 50, 75), axis=1)
    batch = []
    for size, tokens in product(BATCHES, BATCH_TOKENS):
        batch.append(BatchCost(size, tokens, timings.median(_Series("batch", tokens, size))))
    about = environment(timer.device)
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
        batch=tuple(batch),
        weight_bytes=weight_bytes(timer.target.model),
        bandwidth_gb_s=timer.large.nbytes / timings.median(READ) / 1e6,
        bandwidth_bytes=timer.large.nbytes,
        spread=float(np.median((high - low) / middle)),
        verify_between_ms=tuple(map(interval, verify)),
    )


def weight_bytes(model: torch.nn.Module) -> int:
    """The bytes of weights that one forward reads: all, but a separate input table, which it reads by single rows."""
    table = model.get_input_embeddings().weight
    head = model.get_output_embeddings().weight
    # A table that both share is listed once.
    total = sum(stored_bytes(parameter) for parameter in model.parameters())
    return total if table is head else total - stored_bytes(table)
