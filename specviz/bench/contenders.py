"""Contenders side by side: specviz with and without a draft, and transformers' own generate with and without one.

All run in one process, in rounds on every prompt, on equal token counts with end tokens ignored. On models of a few
million parameters a ratio measures the frameworks' overhead more than the method.
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
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import clock
from specviz.models.generation import settings_for, without_settings
from specviz.models.pool import LoadedModel
from specviz.session.recorder import Recorder
from specviz.session.setup import Setup
from specviz.trace.counters import Counters

BASELINE, PEER = "none", "generate, assistant_model"


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Of one generation's steps after the first: how many, what they drafted and emitted, where their time went, and
    which share of the judged tokens was kept (the paper's alpha, measured)."""

    number: int
    drafted: float
    emitted: float
    draft_ms: float
    verify_ms: float
    rest_ms: float
    alpha: float = 0.0

    @property
    def total_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.rest_ms


@dataclass(frozen=True, slots=True)
class TimedGeneration:
    """One generation of one contender. Seconds; the decode rate leaves out the first step, which reads the prompt.
    round: its number in the bench, from 1. cpu_seconds: of all threads, over the whole of it."""

    contender: str
    kind: str
    prompt: str
    temperature: float
    num_tokens: int
    seconds: float
    num_first: int
    first_seconds: float
    target_calls: int
    record_share: float | None = None
    tokens: tuple[int, ...] = ()
    steps: StepMeans | None = None
    round: int = 1
    cpu_seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self.num_tokens / self.seconds

    @property
    def decode_tokens_per_s(self) -> float:
        """Where one step wrote everything, the rate of the whole, reading included."""
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
    """What every contender is asked for."""

    prompt: BenchPrompt
    sampling: Sampling
    seed: int
    num_tokens: int


Contender = Callable[[BenchTask], TimedGeneration]


def specviz_contender(
    setup: Setup,
    k: int,
    label: str | None = None,
    rule: str | None = None,
    is_recorded: bool = True,
) -> Contender:
    """The engine with its recorder, as the page runs them, or alone. label: its name in the table, by default the
    method's; rule: by default the method's too."""
    target, judge, name = setup.target, setup.rule(rule), f"specviz, {label or setup.method.name}"

    def generate(job: BenchTask) -> TimedGeneration:
        plan = setup.plan(judge, job.sampling, k)
        recorder, settings, text = Recorder(target.text), setup.settings(plan), list(job.prompt.ids)
        records, seen, calls = [], [], 0
        steps = speculate(
            job.prompt.ids, lambda: plan, Seeded(job.seed), max_new_tokens=job.num_tokens
        )
        started = clock()
        for step, record in (
            recorder.follow(steps, settings) if is_recorded else ((step, None) for step in steps)
        ):
            text += step.tokens
            calls += step.target_work.calls
            records.append(record)
            seen.append((clock(), len(text)))
        more = _recorded(records[1:]) if is_recorded else {}
        return make_sample(name, job, text, seen, started, target_calls=calls, **more)

    return generate


def _recorded(later: Sequence[trace.Step]) -> dict[str, float | StepMeans | None]:
    """What the records of the steps after the first say of their time."""
    timings = [each.timing for each in later]
    record_ms, total_ms = (
        sum(getattr(each, name) for each in timings) for name in ("record_ms", "total_ms")
    )
    share = record_ms / max(total_ms, 1e-9)
    if not later:
        return {"record_share": share}
    sizes = zip(*((len(each.draft), len(each.emitted)) for each in later), strict=True)
    times = zip(
        *((each.draft_ms, each.verify_ms, each.working_ms) for each in timings), strict=True
    )
    *means, working_ms = map(statistics.fmean, (*sizes, *times))
    made = reduce(Counters.add, later, Counters())
    alpha = made.statuses["accepted"] / max(1, made.num_judged)
    return {
        "record_share": share,
        "steps": StepMeans(len(later), *means, max(0.0, working_ms - sum(means[2:])), alpha),
    }


def make_sample(
    contender: str,
    job: BenchTask,
    text: Sequence[int],
    seen: Sequence[tuple[float, int]],
    started: float,
    **more: object,
) -> TimedGeneration:
    """text: the prompt and what follows. seen: when each call of the target had ended, and the text's length then."""
    (first_at, first_length), (last_at, length) = seen[0], seen[-1]
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
    """transformers' generate with the job's own sampling, whatever the models' files ask for; with a draft at constant
    K and no confidence threshold, as specviz drafts."""
    name = "generate" if draft is None else PEER
    bare = without_settings(target.model)
    assistant = {} if draft is None else {"assistant_model": _assistant(draft, k)}

    def generate(job: BenchTask) -> TimedGeneration:
        seen: list[
            tuple[float, int]
        ] = []  # when each forward's tokens had arrived, and how many there were

        def watch(ids: torch.Tensor, scores: object, **rest: object) -> torch.Tensor:
            seen.append((clock(), ids.shape[1]))
            return torch.zeros(len(ids), dtype=torch.bool, device=ids.device)  # never stops

        settings = settings_for(job.sampling, job.num_tokens)
        torch.manual_seed(job.seed)
        ids = torch.tensor([job.prompt.ids], device=target.model.device)
        started = clock()
        stopping = StoppingCriteriaList([watch])
        out = bare.generate(
            ids, generation_config=settings, stopping_criteria=stopping, **assistant
        )
        return make_sample(name, job, out[0].tolist(), seen, started)

    return generate


def _assistant(draft: LoadedModel, k: int) -> torch.nn.Module:
    """The same weights, which `generate` asks for K tokens, however sure of them they are."""
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
    """Samples as they are measured: a round for every repeat, prompt and temperature; each has two of a contender."""
    jobs = [
        BenchTask(prompts[0], Sampling(temperatures[-1]), 0, min(num_tokens, 16))
    ]  # to warm up, not reported
    each = product(range(repeats), prompts, map(Sampling, temperatures))
    jobs += [BenchTask(prompt, sampling, repeat, num_tokens) for repeat, prompt, sampling in each]
    for turn in turns(len(contenders), len(jobs) - 1):
        begun = time.process_time()
        sample = contenders[turn.contender](jobs[turn.round])
        if turn.round:
            yield replace(sample, round=turn.round, cpu_seconds=time.process_time() - begun)


def measure_lines(
    contenders: Sequence[Contender],
    prompts: Sequence[BenchPrompt],
    about: Sequence[str],
    num_tokens: int,
    repeats: int,
    temperatures: Sequence[float] = (0.0, 1.0),
) -> Generator[str, None, list[TimedGeneration]]:
    """Lines on what is measured, the first of `about` with the amounts; then, when all samples are there, how long that
    took and how steady the machine was. Returns the samples."""
    yield f"{about[0]}, {len(prompts)} prompts x {repeats} repeats x {num_tokens} tokens"
    yield from about[1:]
    started = time.perf_counter()
    samples = list(
        run_bench(
            contenders, prompts, temperatures=temperatures, num_tokens=num_tokens, repeats=repeats
        )
    )
    yield f"{len(samples)} runs in {time.perf_counter() - started:.0f} s; {describe_steadiness(samples)}\n"
    return samples


@dataclass(frozen=True, slots=True)
class ContenderRow:
    """One line of the table: tokens/s as median and quartiles over prompts, ratios by prompt; None to itself.
    cpu_ms: of all threads, per token of a whole generation, the median."""

    contender: str
    temperature: float
    whole: float
    decode: float
    decode_low: float
    decode_high: float
    cpu_ms: float
    tokens_per_call: float
    to_baseline: SpeedComparison | None
    to_peer: SpeedComparison | None
    record_share: float | None

    @property
    def rates(self) -> str:
        """Tokens/s of decoding, as a cell of a table."""
        return f"{self.decode:.0f} ({self.decode_low:.0f}-{self.decode_high:.0f})"


def summarise(samples: Sequence[TimedGeneration]) -> list[ContenderRow]:
    """Rows by temperature and contender, from at least two prompts."""
    return [
        _row(samples, *key)
        for key in sorted({(sample.temperature, sample.contender) for sample in samples})
    ]


def _row(samples: Sequence[TimedGeneration], temperature: float, contender: str) -> ContenderRow:
    samples = [sample for sample in samples if sample.temperature == temperature]
    every = [sample for sample in samples if sample.contender == contender]
    times = _by_prompt(every, timings_of(every).quicker(contender))
    low, decode, high = statistics.quantiles([1 / statistics.median(each) for each in times], n=4)
    shares = [sample.record_share for sample in every if sample.record_share is not None]
    return ContenderRow(
        contender=contender,
        temperature=temperature,
        whole=statistics.median(sample.tokens_per_s for sample in every),
        decode=decode,
        decode_low=low,
        decode_high=high,
        cpu_ms=statistics.median(1e3 * sample.cpu_seconds / sample.num_tokens for sample in every),
        tokens_per_call=tokens_per_call(every),
        to_baseline=compare_by_prompt(samples, contender, f"specviz, {BASELINE}"),
        to_peer=compare_by_prompt(samples, contender, PEER),
        record_share=statistics.median(shares) if shares else None,
    )


def compare_by_prompt(
    samples: Sequence[TimedGeneration], ours: str, others: str
) -> SpeedComparison | None:
    """Our decoding speed over another contender's, by prompt, at one temperature; None where not both of them ran.
    In one engine it is no more, against no draft, than our tokens per target call."""
    both = [sample for sample in samples if sample.contender in (ours, others)]
    if len({sample.contender for sample in both}) < 2:
        return None
    timings, own = timings_of(both), [sample for sample in both if sample.contender == ours]
    is_bounded = others == f"specviz, {BASELINE}" and ours.startswith("specviz, ")
    most = tokens_per_call(own) if is_bounded else math.inf
    return SpeedComparison(
        tuple(map(log_median, _by_prompt(both, timings.ratios(ours, others)))),
        timings.spread,
        most=most,
    )


def tokens_per_call(samples: Sequence[TimedGeneration]) -> float:
    """Tokens per target call of all these runs together."""
    return sum(each.num_tokens for each in samples) / sum(each.target_calls for each in samples)


def describe_steadiness(samples: Sequence[TimedGeneration]) -> str:
    """How far two turns of one contender on one prompt lay apart, in words."""
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
    """What each round gave, the rounds of one prompt together."""
    prompts = {sample.round: sample.prompt for sample in samples}
    groups: defaultdict[str, list[float]] = defaultdict(list)
    for number, value in values.items():
        groups[prompts[number]].append(value)
    return list(groups.values())
