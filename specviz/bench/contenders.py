"""Contenders side by side: specviz with and without a draft, and transformers' own generate with and without one.

All run in one process, in rounds on every prompt. A task is the prompt's own text up to an end token, as a run's is, or
a number of tokens whatever they are. On models of a few million parameters a ratio measures the overhead of the
frameworks more than the method.
"""

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import product

import torch
from transformers import StoppingCriteriaList

from specviz import trace
from specviz.analysis.rounds import ONE_RUN, SpeedComparison, Timings, log_median, turns
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import StepResult, speculate
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import clock
from specviz.models.generation import settings_for, without_settings
from specviz.models.pool import LoadedModel
from specviz.session.recorder import Recorder
from specviz.session.setup import Setup
from specviz.trace.counters import Counters

BASELINE = "none"
PEER = "generate, assistant_model"


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Means over the steps of one generation after the first."""

    number: int  # of steps
    drafted: float
    emitted: float
    draft_ms: float
    verify_ms: float
    rest_ms: float
    alpha: float = 0.0  # the acceptance rate: the paper's alpha, measured

    @property
    def total_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.rest_ms


@dataclass(frozen=True, slots=True)
class TimedGeneration:
    """One generation of one contender. The decode rate leaves out the first step, which reads the prompt."""

    contender: str
    kind: str
    prompt: str
    temperature: float
    num_tokens: int
    seconds: float
    num_first: int  # tokens of the first step
    first_seconds: float  # until the first step had ended
    target_calls: int
    record_share: float | None = None  # of the time, for recording; None where nothing was recorded
    tokens: tuple[int, ...] = ()
    steps: StepMeans | None = None
    round: int = 1  # of the bench, from 1
    cpu_seconds: float = 0.0  # of all threads, over the whole generation

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def decode_tokens_per_s(self) -> float:
        """The rate after the first step; where one step wrote everything, the rate of the whole generation."""
        if self.num_tokens == self.num_first:
            return self.tokens_per_s
        return (self.num_tokens - self.num_first) / (self.seconds - self.first_seconds)


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    kind: str
    name: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BenchTask:
    """The task that every contender is given."""

    prompt: BenchPrompt
    sampling: Sampling
    seed: int
    num_tokens: int
    ends: bool = False  # whether the text ends at an end token: then num_tokens is the most

    def eos_ids(self, target: LoadedModel) -> frozenset[int]:
        return target.text.eos_ids if self.ends else frozenset()


Contender = Callable[[BenchTask], TimedGeneration]


def specviz_contender(
    setup: Setup,
    k: int,
    label: str | None = None,
    rule: str | None = None,
    is_recorded: bool = True,
) -> Contender:
    """A contender that runs the engine with its recorder, as the page does, or without it.

    label: its name in the table; by default the method's. rule: by default the method's, too.
    """
    target = setup.target
    judge = setup.rule(rule)
    name = f"specviz, {label or setup.method.name}"

    def generate(job: BenchTask) -> TimedGeneration:
        plan = setup.plan(judge, job.sampling, k)
        recorder = Recorder(target.text)
        settings = setup.settings(plan)
        text = list(job.prompt.ids)
        records = []
        seen = []
        calls = 0
        steps = speculate(
            job.prompt.ids,
            lambda: plan,
            Seeded(job.seed),
            max_new_tokens=job.num_tokens,
            eos_ids=job.eos_ids(target),
        )
        followed = recorder.follow(steps, settings) if is_recorded else _unrecorded(steps)
        started = clock()
        for step, record in followed:
            text += step.tokens
            calls += step.target_work.calls
            records.append(record)
            seen.append((clock(), len(text)))
        more = _recorded_facts(records[1:]) if is_recorded else {}
        return make_sample(name, job, text, seen, started, target_calls=calls, **more)

    return generate


def _unrecorded(steps: Iterator[StepResult]) -> Iterator[tuple[StepResult, None]]:
    for step in steps:
        yield step, None


def _recorded_facts(later: Sequence[trace.Step]) -> dict[str, float | StepMeans | None]:
    """The fields of a TimedGeneration that come from the records of the steps after the first."""
    timings = [step.timing for step in later]
    record_ms = sum(timing.record_ms for timing in timings)
    total_ms = sum(timing.total_ms for timing in timings)
    record_share = record_ms / max(total_ms, 1e-9)
    if not later:
        return {"record_share": record_share}
    draft_ms = statistics.fmean(timing.draft_ms for timing in timings)
    verify_ms = statistics.fmean(timing.verify_ms for timing in timings)
    working_ms = statistics.fmean(timing.working_ms for timing in timings)
    counters = reduce(Counters.add, later, Counters())
    means = StepMeans(
        number=len(later),
        drafted=statistics.fmean(len(step.draft) for step in later),
        emitted=statistics.fmean(len(step.emitted) for step in later),
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        rest_ms=max(0.0, working_ms - (draft_ms + verify_ms)),
        alpha=counters.statuses["accepted"] / max(1, counters.num_judged),
    )
    return {"record_share": record_share, "steps": means}


def make_sample(
    contender: str,
    job: BenchTask,
    text: Sequence[int],
    seen: Sequence[tuple[float, int]],
    started: float,
    **more: object,
) -> TimedGeneration:
    """The generation that a text and its times make.

    text: the prompt and what follows. seen: when each call of the target had ended, and the length of the text then.
    """
    first_at, first_length = seen[0]
    last_at, length = seen[-1]
    num_prompt = len(job.prompt.ids)
    return TimedGeneration(
        contender=contender,
        kind=job.prompt.kind,
        prompt=job.prompt.name,
        temperature=job.sampling.temperature,
        num_tokens=length - num_prompt,
        seconds=last_at - started,
        num_first=first_length - num_prompt,
        first_seconds=first_at - started,
        tokens=tuple(text[num_prompt:]),
        **{"target_calls": len(seen), **more},
    )


def transformers_contender(target: LoadedModel, draft: LoadedModel | None, k: int) -> Contender:
    """A contender that runs transformers' generate with the job's own sampling, whatever the models' files ask for.

    With a draft it has a constant K and no confidence threshold, as specviz drafts.
    """
    name = "generate" if draft is None else PEER
    bare = without_settings(target.model)
    assistant = {} if draft is None else {"assistant_model": _assistant(draft, k)}

    def generate(job: BenchTask) -> TimedGeneration:
        seen: list[tuple[float, int]] = []  # when each forward had ended, and the length then

        def watch(ids: torch.Tensor, scores: object, **rest: object) -> torch.Tensor:
            seen.append((clock(), ids.shape[1]))
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # never stops

        settings = settings_for(job.sampling, job.num_tokens, job.eos_ids(target))
        torch.manual_seed(job.seed)
        ids = torch.tensor([job.prompt.ids], device=target.model.device)
        started = clock()
        stopping = StoppingCriteriaList([watch])
        generated = bare.generate(
            ids, generation_config=settings, stopping_criteria=stopping, **assistant
        )
        return make_sample(name, job, generated[0].tolist(), seen, started)

    return generate


def _assistant(draft: LoadedModel, k: int) -> torch.nn.Module:
    """The draft model with the same weights, set up to draft K tokens however sure it is."""
    assistant = without_settings(draft.model)
    assistant.generation_config.update(
        num_assistant_tokens=k,
        num_assistant_tokens_schedule="constant",
        assistant_confidence_threshold=0.0,
    )
    return assistant


def run_bench(
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    *,
    temperatures: Sequence[float] = (0.0, 1.0),
    num_tokens: int = 64,
    repeats: int = 3,
) -> Iterator[TimedGeneration]:
    """Yields samples as they are measured: a round for every repeat, prompt and temperature.

    In a round every contender runs twice. A first round warms up and is not reported. A text ends at an end token: what
    follows would be another text, of any kind.
    """
    jobs = [BenchTask(prompts[0], Sampling(temperatures[-1]), 0, min(num_tokens, 16))]
    for repeat, prompt, temperature in product(range(repeats), prompts, temperatures):
        jobs.append(BenchTask(prompt, Sampling(temperature), repeat, num_tokens, ends=True))
    for turn in turns(len(contenders), len(jobs) - 1):
        started = time.process_time()
        sample = contenders[turn.contender](jobs[turn.round])
        if turn.round:
            yield replace(sample, round=turn.round, cpu_seconds=time.process_time() - started)


def measure_lines(
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    about: Sequence[str],
    num_tokens: int,
    repeats: int,
    temperatures: Sequence[float] = (0.0, 1.0),
) -> Generator[str, None, list[TimedGeneration]]:
    """Measures and returns the samples; yields lines on what is measured, and in the end on how steady the machine was.

    about: lines on what is measured; the first gets the amounts.
    """
    yield f"{about[0]}, {len(prompts)} prompts x {repeats} repeats x up to {num_tokens} tokens"
    yield from about[1:]
    started = time.perf_counter()
    measured = run_bench(
        contenders, prompts, temperatures=temperatures, num_tokens=num_tokens, repeats=repeats
    )
    samples = list(measured)
    seconds = time.perf_counter() - started
    yield f"{len(samples)} runs in {seconds:.0f} s; {describe_steadiness(samples)}\n"
    return samples


@dataclass(frozen=True, slots=True)
class ContenderRow:
    """One line of the table. Speeds are in tokens/s."""

    contender: str
    temperature: float
    whole: float  # the median speed of whole generations
    decode: float  # the median speed of decoding, over prompts
    decode_low: float  # its lower quartile
    decode_high: float  # its upper quartile
    cpu_ms: float  # of all threads, per token of a whole generation, the median
    tokens_per_call: float
    to_baseline: SpeedComparison | None  # by prompt; None to itself
    to_peer: SpeedComparison | None  # likewise
    record_share: float | None

    @property
    def rates(self) -> str:
        """The speed of decoding with its quartiles, as a cell of a table."""
        return f"{self.decode:.0f} ({self.decode_low:.0f}-{self.decode_high:.0f})"


def summarise(samples: Sequence[TimedGeneration]) -> list[ContenderRow]:
    """The rows of the table by temperature and contender, from at least two prompts."""
    keys = sorted({(sample.temperature, sample.contender) for sample in samples})
    return [_row(samples, temperature, contender) for temperature, contender in keys]


def _row(samples: Sequence[TimedGeneration], temperature: float, contender: str) -> ContenderRow:
    samples = [sample for sample in samples if sample.temperature == temperature]
    ours = [sample for sample in samples if sample.contender == contender]
    times = _by_prompt(ours, timings_of(ours).quicker(contender))
    rates = [1 / statistics.median(prompt_times) for prompt_times in times]
    low, decode, high = statistics.quantiles(rates, n=4)
    shares = [sample.record_share for sample in ours if sample.record_share is not None]
    return ContenderRow(
        contender=contender,
        temperature=temperature,
        whole=statistics.median(sample.tokens_per_s for sample in ours),
        decode=decode,
        decode_low=low,
        decode_high=high,
        cpu_ms=statistics.median(1e3 * sample.cpu_seconds / sample.num_tokens for sample in ours),
        tokens_per_call=tokens_per_call(ours),
        to_baseline=compare_by_prompt(samples, contender, f"specviz, {BASELINE}"),
        to_peer=compare_by_prompt(samples, contender, PEER),
        record_share=statistics.median(shares) if shares else None,
    )


def compare_by_prompt(
    samples: Sequence[TimedGeneration], ours: str, others: str
) -> SpeedComparison | None:
    """Our decoding speed over another contender's, by prompt, at one temperature; None where one of them did not run.

    Against no draft in the same engine, it never exceeds our tokens per target call.
    """
    both = [sample for sample in samples if sample.contender in (ours, others)]
    if len({sample.contender for sample in both}) < 2:
        return None
    most = math.inf
    if others == f"specviz, {BASELINE}" and ours.startswith("specviz, "):
        most = tokens_per_call([sample for sample in both if sample.contender == ours])
    timings = timings_of(both)
    by_prompt = _by_prompt(both, timings.ratios(ours, others))
    ratios = tuple(log_median(prompt_ratios) for prompt_ratios in by_prompt)
    return SpeedComparison(ratios, timings.spread, most=most)


def tokens_per_call(samples: Sequence[TimedGeneration]) -> float:
    """The tokens per target call of all these runs together."""
    num_tokens = sum(sample.num_tokens for sample in samples)
    return num_tokens / sum(sample.target_calls for sample in samples)


def describe_steadiness(samples: Sequence[TimedGeneration]) -> str:
    """Words for how far two turns of one contender on one prompt lay apart."""
    spread = timings_of(samples).spread
    busy = "; this machine was too busy: repeat when it is idle" if spread >= ONE_RUN else ""
    return f"the slower of two runs of one contender took {spread:.0%} more time (median){busy}"


def timings_of(
    samples: Sequence[TimedGeneration],
    time_of: Callable[[TimedGeneration], float] = lambda sample: 1 / sample.decode_tokens_per_s,
) -> Timings[str]:
    """The times by contender. time_of: seconds of a sample, by default per token of decoding."""
    timings: Timings[str] = Timings()
    for sample in samples:
        timings.add(sample.contender, sample.round, time_of(sample))
    return timings


def _by_prompt(
    samples: Sequence[TimedGeneration], values: Mapping[int, float]
) -> list[list[float]]:
    """The values of the rounds, those of one prompt together."""
    prompts = {sample.round: sample.prompt for sample in samples}
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for number, value in values.items():
        groups[prompts[number]].append(value)
    return list(groups.values())
