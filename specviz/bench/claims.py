"""What introductions promise, tried on the pairs that are here, and the cases in which a draft does not help.

Each pair runs beside its target alone, in rounds, on prompts of every kind; whole answers count, the reading of the
prompt among them.
"""

import statistics
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from specviz.analysis.costs import batch_growth
from specviz.analysis.rounds import FEWEST, Comparison, Timings, interval
from specviz.analysis.theory import least_alpha
from specviz.bench.contenders import BASELINE, Sample, run_bench
from specviz.bench.methods import describe_why, median_steps
from specviz.bench.report import prompts_for
from specviz.bench.speed import ALONE, ASKED, alone_and_asked
from specviz.bench.waits import Held, memory
from specviz.models.catalog import MODELS, REAL, default_pair
from specviz.models.hub import is_here
from specviz.request import Request
from specviz.session.record import activate
from specviz.session.workbench import Workbench

NUM_PROMPTS, NUM_TOKENS, FEW_TOKENS = FEWEST, 48, 4
RUNS = 4 * NUM_PROMPTS  # each side twice on every prompt
GOOD_RATE, SMALL_SHARE, HOT = 100.0, 0.1, 1.5
MARKS = {True: "\N{CHECK MARK}", False: "\N{BALLOT X}", None: "\N{EN DASH}"}


class Reading(NamedTuple):
    """What was measured, and whether the claim holds there; None: it is open."""

    text: str
    holds: bool | None

    def __str__(self) -> str:
        return f"{MARKS[self.holds]} {self.text}"


Table = tuple[list[str], list[list[str | Reading]]]


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
class Trial:
    """A case, measured. asked, alone: the quicker run of each prompt. answer, first: how many times as soon the whole
    answer and its first token come with the draft. why: in measured times. growth: see `costs.batch_growth`."""

    case: Case
    asked: tuple[Sample, ...]
    alone: tuple[Sample, ...]
    answer: Comparison
    first: Comparison
    why: str
    held: tuple[Held, ...]
    growth: Mapping[int, Comparison]

    @property
    def alphas(self) -> list[float]:
        return [sample.steps.alpha for sample in self.asked if sample.steps]

    @property
    def cost_ratios(self) -> list[float]:
        """The paper's c on each prompt: a drafted token over a target call for one token."""
        steps = ((asked.steps, alone.steps) for asked, alone in zip(self.asked, self.alone, strict=True))
        return [own.draft_ms / own.drafted / plain.verify_ms for own, plain in steps if own and plain and own.drafted]


@dataclass(frozen=True, slots=True)
class Finding:
    """done, total: how far measuring has come; doing: what is measured. tables: heads and rows so far."""

    done: int
    total: int
    doing: str = ""
    tables: tuple[Table, ...] = ()


def measure_claims(bench: Workbench) -> Iterator[Finding]:
    """The claims for every pair that is here. One run per result; the caller holds the engine while it asks for the
    next. Raises SpecvizError."""
    return _try_all(pairs(), claims_table, bench)


def measure_poor_cases(bench: Workbench) -> Iterator[Finding]:
    """Where a draft does not help, and why; as `measure_claims`."""
    return _try_all(poor_cases(), poor_table, bench)


def _try_all(
    cases: Sequence[Case], tabulate: Callable[[Sequence[Trial]], Table], bench: Workbench
) -> Iterator[Finding]:
    trials: list[Trial] = []
    so_far = Finding(0, RUNS * len(cases))
    for case in cases:
        trials.append((yield from _try(case, bench, replace(so_far, doing=case.name))))
        so_far = replace(so_far, done=so_far.done + RUNS, tables=(tabulate(trials),))
    yield so_far


def _try(case: Case, bench: Workbench, so_far: Finding) -> Generator[Finding, None, Trial]:
    yield so_far
    sampling = {"temperature": case.temperature, "max_new_tokens": case.num_tokens}
    active = activate(Request(prompt=case.name, target=case.target, draft=case.draft, **sampling), bench.library)
    prompts = [each for each in prompts_for(active.target) if each.kind != case.without]
    prompts = prompts[:: len(prompts) // NUM_PROMPTS][:NUM_PROMPTS]  # of every kind
    samples: list[Sample] = []
    options = {"temperatures": (case.temperature,), "num_tokens": case.num_tokens, "repeats": 1}
    for sample in run_bench(alone_and_asked(active), prompts, **options):
        samples.append(sample)
        yield replace(so_far, done=so_far.done + len(samples))
    answer, first = _compare(samples, "seconds"), _compare(samples, "first_seconds")
    slow_first = sorted(samples, key=lambda each: (each.round, -each.seconds))
    alone, asked = ({s.round: s for s in slow_first if _side(s) == side}.values() for side in (ALONE, ASKED))
    why = describe_why(answer, *(median_steps(samples, next(iter(side)).contender) for side in (asked, alone)))
    ms = (1e3 * statistics.median(each.first_seconds for each in side) for side in (asked, alone))
    why += "; the first token comes after {:.0f} ms, alone after {:.0f}".format(*ms)
    held = memory(active, prompts[0].ids) if case.in_full else ()
    growth = batch_growth(active.target) if case.in_full else {}
    return Trial(case, tuple(asked), tuple(alone), answer, first, why, held, growth)


def _side(sample: Sample) -> int:
    return ALONE if sample.contender == f"specviz, {BASELINE}" else ASKED


def _compare(samples: Sequence[Sample], name: str) -> Comparison:
    timings: Timings[int] = Timings()
    for sample in samples:
        timings.add(_side(sample), sample.round, getattr(sample, name))
    return timings.compare(ASKED, ALONE)


def pairs() -> list[Case]:
    """The bundled pair, also at the cost dial's depths, and the real one where it is on this machine."""
    known = (MODELS[default_pair()[0]], *(each for each in MODELS.values() if each.dial), MODELS[REAL])
    here = (each for each in known if each.is_bundled or is_here(each.name))
    return [Case(each.name, each.name, each.drafts[0], in_full=True) for each in here]


def poor_cases() -> list[Case]:
    """A pair that drafting suits; then the same with one thing changed."""
    target, draft = default_pair()
    good = Case("as it should be: a dear target and its own draft", f"{target}-x4", draft)
    return [
        good,
        replace(good, name=f"short output: {FEW_TOKENS} tokens", num_tokens=FEW_TOKENS),
        replace(good, name="mismatched draft: one for code, on other texts", draft=f"{draft}-code", without="code"),
        replace(good, name=f"hot sampling: temperature {HOT}", temperature=HOT),
        replace(good, name="cheap target: the draft itself, with a tiny draft", target=draft, draft=f"{draft}-tiny"),
    ]


# ---- the claims -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """says: what introductions say, and which; takes: what it needs; read: what a trial says of it."""

    says: str
    takes: str
    read: Callable[[Trial], Reading]


def _reaches(between: tuple[float, float], goal: float) -> bool | None:
    low, high = between
    return True if low >= goal else False if high < goal else None


def span(values: Sequence[float], spelling: str = ".2f") -> str:
    """The median with its interval."""
    return "{:{f}} ({:{f}}-{:{f}})".format(statistics.median(values), *interval(values), f=spelling) if values else "-"


def _needed(trial: Trial, speedup: float) -> str:
    """The alpha that the formula needs for this speed at the trial's own c."""
    if speedup <= 1:
        return "; the target alone is as fast"
    alpha = least_alpha(speedup, statistics.median(trial.cost_ratios)) if trial.cost_ratios else None
    return f"; at this c it takes {'more than any alpha' if alpha is None else f'alpha {alpha:.2f}'}"


def _read_speed(goal: float, trial: Trial) -> Reading:
    return Reading(trial.answer.span + _needed(trial, goal), _reaches(trial.answer.between, goal))


def _read_first(trial: Trial) -> Reading:
    words = f"first token {trial.first.span}, whole answer {trial.answer.span}"
    return Reading(words, _reaches(trial.first.between, 1.0))


def _read_memory(trial: Trial) -> Reading:
    shares = {each.context: each.draft / each.target for each in trial.held}
    words = (f"{share:.0%} at {context:,} tokens" for context, share in shares.items())
    return Reading(", ".join(words), max(shares.values()) < SMALL_SHARE)


def _read_rate(trial: Trial) -> Reading:
    rates, alone = ([each.tokens_per_s for each in side] for side in (trial.asked, trial.alone))
    words = f"{span(rates, '.0f')} tokens/s{_needed(trial, GOOD_RATE / statistics.median(alone))}"
    return Reading(words, _reaches(interval(rates), GOOD_RATE))


def _read_batches(trial: Trial) -> Reading:
    """Whether many texts at once leave as much idle as one does."""
    one, *_, many = trial.growth.values()
    words = (f"with {batch} at once {found.span}" for batch, found in trial.growth.items())
    return Reading(", ".join(words), _reaches(one.between, many.between[1]))


_FORMULA = "by the formula alpha above {:.2f} and c below {:.2f}; the more of one, the less of the other"
CLAIMS = (
    Claim("2 to 3 times faster (papers)", _FORMULA.format(1 / 2, 1 / 2), partial(_read_speed, 2.0)),
    Claim("up to 4 times faster (vendors' guides)", _FORMULA.format(3 / 4, 1 / 4), partial(_read_speed, 4.0)),
    Claim(
        "the first answer comes sooner (vendors' guides)",
        "the draft reads the prompt before the first token, which so comes later; the whole answer may come sooner",
        _read_first,
    ),
    Claim("less than 10 % more memory (vendors' guides)", "a draft below a tenth of the target", _read_memory),
    Claim("over 100 tokens/s (vendors' guides)", "what the target does alone, times the formula", _read_rate),
    Claim(
        "better use of batches (introductions)",
        "checking 5 tokens of each text, in passes over one: no more with many texts at once than with one",
        _read_batches,
    ),
)


def claims_table(trials: Sequence[Trial]) -> Table:
    """Heads and rows: alpha and c of each pair, then the claims."""
    measured = [
        ["alpha", "the share of judged tokens that is kept", *(span(each.alphas) for each in trials)],
        ["c", "a drafted token over a target call", *(span(each.cost_ratios) for each in trials)],
    ]
    rows = [[claim.says, claim.takes, *map(claim.read, trials)] for claim in CLAIMS]
    return ["they say", "it takes", *(trial.case.name for trial in trials)], measured + rows


def poor_table(trials: Sequence[Trial]) -> Table:
    return ["case", "whole answer, times as soon", "alpha", "c", "why"], [
        [each.case.name, Reading(each.answer.span, _reaches(each.answer.between, 1.0)), *measured, each.why]
        for each in trials
        for measured in [map(span, (each.alphas, each.cost_ratios))]
    ]
