"""What introductions promise, tried on the pairs that are here, and the cases in which a draft does not help.

Each pair runs beside its target alone, on prompts of every kind; whole answers count, with the reading of the prompt.
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

NUM_PROMPTS, NUM_TOKENS, FEW_TOKENS = FEWEST, 48, 4
RUNS = 4 * NUM_PROMPTS  # each side twice on every prompt
GOOD_RATE, SMALL_SHARE, HOT = 100.0, 0.1, 1.5
MARKS = {True: "\N{CHECK MARK}", False: "\N{BALLOT X}", None: "\N{EN DASH}"}


class ClaimReading(NamedTuple):
    """What was measured, and whether the claim holds there; None: it is open."""

    text: str
    holds: bool | None

    def __str__(self) -> str:
        return f"{MARKS[self.holds]} {self.text}"


@dataclass(frozen=True, slots=True)
class Case:
    """What is tried. without: a kind of prompt that is left out; in_full: memory and batches are measured as well."""

    name: str
    target: str
    draft: str
    temperature: float = 0.0
    num_tokens: int = NUM_TOKENS
    without: str = ""
    in_full: bool = False


@dataclass(frozen=True, slots=True)
class ClaimCase:
    """A case, measured. asked, alone: the quicker run of each prompt. answer, first: how many times as soon the whole
    answer and its first token come with the draft. why: in measured times. growth: see `costs.batch_growth`."""

    case: Case
    asked: tuple[TimedGeneration, ...]
    alone: tuple[TimedGeneration, ...]
    answer: SpeedComparison
    first: SpeedComparison
    why: str
    held: tuple[Held, ...]
    growth: Mapping[int, SpeedComparison]

    @property
    def alphas(self) -> list[float]:
        return [sample.steps.alpha for sample in self.asked if sample.steps]

    @property
    def cost_ratios(self) -> list[float]:
        """The paper's c on each prompt: a drafted token over a target call for one token."""
        steps = (
            (asked.steps, alone.steps) for asked, alone in zip(self.asked, self.alone, strict=True)
        )
        return [
            own.draft_ms / own.drafted / plain.verify_ms
            for own, plain in steps
            if own and plain and own.drafted
        ]


def measure_claims(bench: Workbench) -> Iterator[BenchProgress]:
    """The claims for every pair that is here, one run per result; the caller holds the engine. SpecvizError."""
    return _try_all(pairs(), claims_table, bench)


def measure_poor_cases(bench: Workbench) -> Iterator[BenchProgress]:
    """Where a draft does not help, and why; as `measure_claims`."""
    return _try_all(poor_cases(), poor_table, bench)


def _try_all(
    cases: Sequence[Case], table: Callable[[Sequence[ClaimCase]], Table], bench: Workbench
) -> Iterator[BenchProgress]:
    trials: list[ClaimCase] = []
    so_far = BenchProgress(0, RUNS * len(cases))
    for case in cases:
        trials.append((yield from _try(case, bench, replace(so_far, doing=case.name))))
        so_far = replace(so_far, done=so_far.done + RUNS, tables=(table(trials),))
    yield so_far


def _try(
    case: Case, bench: Workbench, so_far: BenchProgress
) -> Generator[BenchProgress, None, ClaimCase]:
    yield so_far
    sampling = {"temperature": case.temperature, "max_new_tokens": case.num_tokens}
    active = activate(
        Request(prompt=case.name, target=case.target, draft=case.draft, **sampling), bench.pool
    )
    prompts = [each for each in prompts_for(active.target) if each.kind != case.without]
    prompts = prompts[:: len(prompts) // NUM_PROMPTS][:NUM_PROMPTS]  # of every kind
    samples: list[TimedGeneration] = []
    options = {"temperatures": (case.temperature,), "num_tokens": case.num_tokens, "repeats": 1}
    for sample in run_bench(alone_and_asked(active), prompts, **options):
        samples.append(sample)
        yield replace(so_far, done=so_far.done + len(samples))
    names = f"specviz, {active.setup.method.name}", f"specviz, {BASELINE}"
    most = tokens_per_call([each for each in samples if each.contender == names[0]])
    answer = timings_of(samples, attrgetter("seconds")).compare(*names, most=most)
    first = timings_of(samples, attrgetter("first_seconds")).compare(*names)
    slow_first = sorted(samples, key=lambda each: (each.round, -each.seconds))
    asked, alone = (
        {s.round: s for s in slow_first if s.contender == name}.values() for name in names
    )
    why = describe_why(answer, *(median_steps(samples, name) for name in names))
    ms = (1e3 * statistics.median(each.first_seconds for each in side) for side in (asked, alone))
    why += "; the first token comes after {:.0f} ms, alone after {:.0f}".format(*ms)
    held = memory(active, prompts[0].ids) if case.in_full else ()
    growth = batch_growth(active.target) if case.in_full else {}
    return ClaimCase(case, tuple(asked), tuple(alone), answer, first, why, held, growth)


def pairs() -> list[Case]:
    """The bundled pair, also at the cost dial's depths, and the real one where it is on this machine."""
    known = (
        MODELS[default_pair()[0]],
        *(each for each in MODELS.values() if each.dial),
        MODELS[REAL],
    )
    here = (each for each in known if each.is_bundled or is_here(each.name))
    return [Case(each.name, each.name, each.drafts[0], in_full=True) for each in here]


def poor_cases() -> list[Case]:
    """A pair that drafting suits; then the same with one thing changed."""
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
    """What introductions say, and which; what it takes; what this trial says of it."""
    rates, alone = ([each.tokens_per_s for each in side] for side in (trial.asked, trial.alone))
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
    shares = [each.draft / each.target for each in trial.held]
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
    low, high = between
    return True if low >= goal else False if high < goal else None


def _compare_with(goal: float, found: SpeedComparison) -> ClaimReading:
    return ClaimReading(found.span, _reaches(found.between, goal) if found.is_possible else None)


def _needed(speedup: float, trial: ClaimCase) -> str:
    """The alpha that the formula asks for at the trial's own c."""
    alpha = (
        least_alpha(speedup, statistics.median(trial.cost_ratios)) if trial.cost_ratios else None
    )
    return "none suffices" if alpha is None else f"{alpha:.2f}"


def span(values: Sequence[float], spelling: str = ".2f") -> str:
    """The median with its interval."""
    if not values:
        return "-"
    return "{:{f}} ({:{f}} to {:{f}})".format(
        statistics.median(values), *interval(values), f=spelling
    )


def claims_table(trials: Sequence[ClaimCase]) -> Table:
    """A row for each claim and what belongs to it, a column for each pair."""
    said = zip(*map(claims_of, trials), strict=True)
    rows = [[*same[0][:2], *(cell for _, _, cell in same)] for same in said]
    return ["they say", "it takes", *(trial.case.name for trial in trials)], rows


def poor_table(trials: Sequence[ClaimCase]) -> Table:
    """A row for each case."""
    rows = [
        [
            each.case.name,
            _compare_with(1, each.answer),
            span(each.alphas),
            span(each.cost_ratios),
            each.why,
        ]
        for each in trials
    ]
    return ["case", "whole answer, times as soon", "alpha", "c", "why"], rows
