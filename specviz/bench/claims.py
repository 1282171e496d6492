"""Measures what introductions promise on the pairs that are here, and the cases in which a draft does not help.

Each pair runs beside its target alone, on prompts of every kind. Whole answers count, with the reading of the prompt.
"""

import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

from specviz.analysis.costs import batch_growth
from specviz.analysis.rounds import FEWEST, SpeedComparison, interval
from specviz.analysis.theory import least_alpha
from specviz.bench.contenders import (
    BASELINE,
    TimedGeneration,
    run_bench,
    timings_of,
    tokens_per_call,
)
from specviz.bench.methods import describe_why, median_steps
from specviz.bench.report import BenchProgress, Table, prompts_for
from specviz.bench.speed import alone_and_asked
from specviz.bench.waits import Held, memory
from specviz.models.catalog import MODELS, REAL, default_pair
from specviz.models.files.hub import is_here
from specviz.request import Request
from specviz.session.whole_run import activate
from specviz.session.workbench import Workbench

NUM_PROMPTS = FEWEST
NUM_TOKENS = 48
FEW_TOKENS = 4
RUNS = 4 * NUM_PROMPTS  # each side twice on every prompt
GOOD_RATE = 100.0  # tokens/s
SMALL_SHARE = 0.1  # of memory
HOT = 1.5  # a high temperature
MARKS = {True: "\N{CHECK MARK}", False: "\N{BALLOT X}", None: "\N{EN DASH}"}


class ClaimReading(NamedTuple):
    """What was measured about a claim."""

    text: str
    holds: bool | None  # whether the claim holds here; None: it is open

    def __str__(self) -> str:
        return f"{MARKS[self.holds]} {self.text}"


@dataclass(frozen=True, slots=True)
class Case:
    """A pair and the settings that are tried."""

    name: str
    target: str
    draft: str
    temperature: float = 0.0
    num_tokens: int = NUM_TOKENS
    without: str = ""  # a kind of prompt that is left out
    in_full: bool = False  # memory and batches are measured as well


@dataclass(frozen=True, slots=True)
class ClaimCase:
    """A case that was measured."""

    case: Case
    asked: tuple[TimedGeneration, ...]  # the quicker run of each prompt, with the draft
    alone: tuple[TimedGeneration, ...]  # likewise, without it
    answer: SpeedComparison  # how many times as soon the whole answer comes with the draft
    first: SpeedComparison  # likewise for its first token
    why: str  # words with measured times
    held: tuple[Held, ...]
    growth: Mapping[int, SpeedComparison]  # see costs.batch_growth

    @property
    def alphas(self) -> list[float]:
        return [sample.steps.alpha for sample in self.asked if sample.steps]

    @property
    def cost_ratios(self) -> list[float]:
        """The paper's c on each prompt: the time of a drafted token over a target call for one token."""
        ratios = []
        for asked, alone in zip(self.asked, self.alone, strict=True):
            if asked.steps and alone.steps and asked.steps.drafted:
                draft_ms = asked.steps.draft_ms / asked.steps.drafted
                ratios.append(draft_ms / alone.steps.verify_ms)
        return ratios


def measure_claims(bench: Workbench) -> Iterator[BenchProgress]:
    """Measures the claims for every pair that is here, one run per result. The caller holds the engine."""
    return _try_all(pairs(), claims_table, bench)


def measure_poor_cases(bench: Workbench) -> Iterator[BenchProgress]:
    """Measures where a draft does not help, and why, as `measure_claims` does."""
    return _try_all(poor_cases(), poor_table, bench)


def _try_all(
    cases: Sequence[Case], table: Callable[[Sequence[ClaimCase]], Table], bench: Workbench
) -> Iterator[BenchProgress]:
    trials: list[ClaimCase] = []
    so_far = BenchProgress(0, RUNS * len(cases))
    for case in cases:
        trial = yield from _try(case, bench, replace(so_far, doing=case.name))
        trials.append(trial)
        so_far = replace(so_far, done=so_far.done + RUNS, tables=(table(trials),))
    yield so_far


def _try(
    case: Case, bench: Workbench, so_far: BenchProgress
) -> Generator[BenchProgress, None, ClaimCase]:
    yield so_far
    request = Request(
        prompt=case.name,
        target=case.target,
        draft=case.draft,
        temperature=case.temperature,
        max_new_tokens=case.num_tokens,
    )
    active = activate(request, bench.pool)
    prompts = [prompt for prompt in prompts_for(active.target) if prompt.kind != case.without]
    prompts = prompts[:: len(prompts) // NUM_PROMPTS][:NUM_PROMPTS]  # of every kind
    samples: list[TimedGeneration] = []
    options = {"temperatures": (case.temperature,), "num_tokens": case.num_tokens, "repeats": 1}
    for sample in run_bench(alone_and_asked(active), prompts, **options):
        samples.append(sample)
        yield replace(so_far, done=so_far.done + len(samples))
    with_draft = f"specviz, {active.setup.method.name}"
    plain = f"specviz, {BASELINE}"
    most = tokens_per_call([sample for sample in samples if sample.contender == with_draft])
    # Drawn texts may end at different tokens: the time of an answer counts per token.
    answer = timings_of(samples, lambda sample: 1 / sample.tokens_per_s).compare(
        with_draft, plain, most=most
    )
    first = timings_of(samples, attrgetter("first_seconds")).compare(with_draft, plain)
    asked = _quicker_runs(samples, with_draft)
    alone = _quicker_runs(samples, plain)
    why = describe_why(answer, median_steps(samples, with_draft), median_steps(samples, plain))
    why += f"; the first token comes after {_first_ms(asked):.0f} ms, alone after {_first_ms(alone):.0f}"
    held = memory(active, prompts[0].ids) if case.in_full else ()
    growth = batch_growth(active.target) if case.in_full else {}
    return ClaimCase(case, asked, alone, answer, first, why, held, growth)


def _quicker_runs(
    samples: Sequence[TimedGeneration], contender: str
) -> tuple[TimedGeneration, ...]:
    """The quicker of a contender's two runs in each round, in the order of rounds."""
    slow_first = sorted(samples, key=lambda sample: (sample.round, -sample.seconds))
    quicker = {sample.round: sample for sample in slow_first if sample.contender == contender}
    return tuple(quicker.values())


def _first_ms(samples: Sequence[TimedGeneration]) -> float:
    return 1e3 * statistics.median(sample.first_seconds for sample in samples)


def pairs() -> list[Case]:
    """The bundled pair, also at the cost dial's depths, and the real one where it is on this machine."""
    models = [MODELS[default_pair()[0]]]
    models += [model for model in MODELS.values() if model.dial]
    models.append(MODELS[REAL])
    cases = []
    for model in models:
        if model.is_bundled or is_here(model.name):
            cases.append(Case(model.name, model.name, model.drafts[0], in_full=True))
    return cases


def poor_cases() -> list[Case]:
    """A pair for which drafting pays; then the same with one thing changed."""
    target, draft = default_pair()
    good = Case("as it should be: a dear target and its own draft", f"{target}-x4", draft)
    return [
        good,
        replace(good, name=f"short output: {FEW_TOKENS} tokens", num_tokens=FEW_TOKENS),
        replace(
            good,
            name="mismatched draft: one for code, on other texts",
            draft=f"{draft}-code",
            without="code",
        ),
        replace(good, name=f"hot sampling: temperature {HOT}", temperature=HOT),
        replace(
            good,
            name="cheap target: the draft itself, with a tiny draft",
            target=draft,
            draft=f"{draft}-tiny",
        ),
    ]


# ---- the claims -----------------------------------------------------------------------------------------------------


_FORMULA = "alpha above {:.2f} and c below {:.2f}; the more of one, the less of the other"
_NEEDED = "of the formula, at this c"


def claims_of(trial: ClaimCase) -> Iterator[tuple[str, str, str | ClaimReading]]:
    """Yields (claim and who makes it, what it takes, what this trial says)."""
    rates = [sample.tokens_per_s for sample in trial.asked]
    alone = [sample.tokens_per_s for sample in trial.alone]
    yield "alpha", "the share of judged tokens that is accepted", span(trial.alphas)
    yield "c", "a drafted token over a target call", span(trial.cost_ratios)
    yield (
        "2 to 3 times faster (papers)",
        _FORMULA.format(1 / 2, 1 / 2),
        _compare_with(2, trial.answer),
    )
    yield "alpha for 2 times", _NEEDED, _needed(2, trial)
    yield (
        "up to 4 times faster (guides)",
        _FORMULA.format(3 / 4, 1 / 4),
        _compare_with(4, trial.answer),
    )
    yield "alpha for 4 times", _NEEDED, _needed(4, trial)
    reached = ClaimReading(span(rates, ".0f"), _reaches(interval(rates), GOOD_RATE))
    yield "over 100 tokens/s (guides)", "that much of the target alone, times the formula", reached
    yield "the target alone, tokens/s", "", span(alone, ".0f")
    yield "alpha for 100", _NEEDED, _needed(GOOD_RATE / statistics.median(alone), trial)
    none = "nothing gives it: first the draft reads the prompt as well. Only a whole answer can come sooner"
    yield "the first answer sooner (guides)", none, _compare_with(1, trial.first)
    shares = [held.draft / held.target for held in trial.held]
    more = ClaimReading(", ".join(f"{share:.0%}" for share in shares), max(shares) < SMALL_SHARE)
    yield (
        "less than 10 % more memory (guides)",
        "a small draft; short context, longest context",
        more,
    )
    one, many = trial.growth.values()
    yield "a check of 5 tokens, 1 text", "in passes over 1 token", one.span
    batches = ClaimReading(many.span, _reaches(one.between, many.between[1]))
    yield (
        "better use of batches (guides)",
        "the same check of 8 texts at once must cost no more",
        batches,
    )


def _reaches(between: tuple[float, float], goal: float) -> bool | None:
    """Whether an interval is beyond the goal; None where it holds the goal."""
    low, high = between
    if low < goal <= high:
        return None
    return low >= goal


def _compare_with(goal: float, comparison: SpeedComparison) -> ClaimReading:
    holds = _reaches(comparison.between, goal) if comparison.is_possible else None
    return ClaimReading(comparison.span, holds)


def _needed(speedup: float, trial: ClaimCase) -> str:
    """The alpha that the formula asks for at the trial's own c."""
    alpha = None
    if trial.cost_ratios:
        alpha = least_alpha(speedup, statistics.median(trial.cost_ratios))
    return "none suffices" if alpha is None else f"{alpha:.2f}"


def span(values: Sequence[float], spelling: str = ".2f") -> str:
    """The median with its interval."""
    if not values:
        return "-"
    low, high = interval(values)
    middle = statistics.median(values)
    return f"{middle:{spelling}} ({low:{spelling}} to {high:{spelling}})"


def claims_table(trials: Sequence[ClaimCase]) -> Table:
    """The table of claims: a row for each claim and each of its numbers, a column for each pair."""
    rows: list[list[object]] = [[claim, takes] for claim, takes, _ in claims_of(trials[0])]
    for trial in trials:
        for row, (_, _, reading) in zip(rows, claims_of(trial), strict=True):
            row.append(reading)
    return ["they say", "it takes", *(trial.case.name for trial in trials)], rows


def poor_table(trials: Sequence[ClaimCase]) -> Table:
    """The table of the cases in which a draft does not help: a row for each case."""
    rows = []
    for trial in trials:
        reading = _compare_with(1, trial.answer)
        alphas = span(trial.alphas)
        rows.append([trial.case.name, reading, alphas, span(trial.cost_ratios), trial.why])
    return ["case", "whole answer, times as soon", "alpha", "c", "why"], rows
