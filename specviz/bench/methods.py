"""The command `bench methods`: every method against no draft on one target, by kind of prompt, and why it loses.

A method that cannot draft for this target is left out with the reason. The words hold measured times only.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import product

from specviz import __version__
from specviz.analysis.rounds import WORDS, SpeedComparison
from specviz.bench.contenders import (
    BASELINE,
    BenchPrompt,
    BenchTask,
    ContenderRow,
    StepMeans,
    TimedGeneration,
    compare_by_prompt,
    measure_lines,
    specviz_contender,
    summarise,
    tokens_per_call,
)
from specviz.bench.report import check_lengths, describe_environment, prompts_for, table
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.params import split_names
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models.memory import environment
from specviz.models.pool import LoadedModel, ModelPool
from specviz.session.setup import Setup, gather

ALL = "all"
_TRIAL_TOKENS = 4
_OUTCOMES = {"faster": "gains", "slower": "loses", "even": "breaks even"}
_FEW = 1.3  # tokens per step; with fewer, even a cheap step would not help


@dataclass(frozen=True, slots=True)
class KindRow:
    """One method on one kind of prompt."""

    kind: str
    tokens_per_call: float
    to_baseline: SpeedComparison | None


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method at one temperature."""

    method: str
    rule: str
    lossless: bool
    whole: ContenderRow  # over all prompts
    kinds: tuple[KindRow, ...]
    steps: StepMeans  # medians over its generations
    why: str  # words for why it is faster or slower


def lines(
    *,
    methods: Sequence[str],
    target: str,
    draft: str,
    k: int,
    num_tokens: int,
    repeats: int,
    save: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Measures the methods; yields lines on what is measured and left out, then a Markdown table per temperature."""
    pool = ModelPool()
    loaded = pool.load(target)
    prompts = prompts_for(loaded)
    check_lengths(prompts, k, num_tokens, loaded.info.context_limit)
    setups, left_out = load_setups(chosen_methods(methods), pool, loaded, draft, k, prompts[0])
    about = [
        f"{loaded.name}, K = {k} where a method has no depth of its own",
        describe_environment(loaded),
    ]
    about += [f"left out: {name}: {reason}" for name, reason in left_out.items()]
    contenders = [specviz_contender(setup, k, name) for name, setup in setups.items()]
    samples = yield from measure_lines(contenders, prompts, about, num_tokens, repeats)
    rows = rows_of(setups, samples)
    yield from _tables(rows)
    if save is not None:
        values = {
            "specviz": __version__,
            "target": loaded.name,
            "k": k,
            "num_tokens": num_tokens,
            "repeats": repeats,
            "environment": environment(loaded.model.device),
            "methods": {name: _setup_as_json(setup) for name, setup in setups.items()},
            "left_out": [{"method": name, "reason": left_out[name]} for name in left_out],
            "rows": [_method_as_json(row) for row in rows],
        }
        save(json.dumps(values, indent=1, allow_nan=False))


def chosen_methods(methods: Sequence[str]) -> list[str]:
    """The methods that were asked for, no draft first; a method may have parameters behind colons.

    Raises SpecvizError for an unknown one.
    """
    asked: list[str] = []
    for names in methods:
        asked += split_names(names)
    for name in asked:
        if name != ALL and name.partition(":")[0] not in METHODS:
            raise SpecvizError(
                f"a method must be {ALL} or one of {', '.join(METHODS)} (got {name!r:.80})"
            )
    chosen = METHODS if ALL in asked else asked
    return list(dict.fromkeys((BASELINE, *chosen)))


def load_setups(
    names: Sequence[str],
    pool: ModelPool,
    target: LoadedModel,
    draft: str,
    k: int,
    prompt: BenchPrompt,
) -> tuple[dict[str, Setup], dict[str, str]]:
    """Each method with its parameters and the models that suit it, and by name the reason why others cannot draft.

    A few tokens are written after the prompt to see what a model lacks.
    """
    setups = {}
    left_out = {}
    for name in names:
        method_name, *pairs = name.split(":")
        method = METHODS[method_name]
        small = None
        try:
            if "draft" in method.roles:
                foreign = catalog.drafts_for(target.name, foreign=True) if method.foreign else ()
                small = pool.load(foreign[0] if foreign else draft, as_draft=True)
            setup = gather(method, method.read(pairs), target, small, pool)
            specviz_contender(setup, k)(BenchTask(prompt, Sampling(), 0, _TRIAL_TOKENS))
            setups[name] = setup
        except SpecvizError as error:
            left_out[name] = str(error)
    return setups, left_out


def rows_of(setups: Mapping[str, Setup], samples: Sequence[TimedGeneration]) -> list[MethodRow]:
    """The rows by temperature, then in the order of `setups`; no draft must be among the contenders."""
    whole = {(row.temperature, row.contender): row for row in summarise(samples)}
    temperatures = sorted({sample.temperature for sample in samples})
    rows = []
    for temperature, name in product(temperatures, setups):
        rows.append(_row(name, setups[name], whole[temperature, f"specviz, {name}"], samples))
    return rows


def _row(
    name: str, setup: Setup, whole: ContenderRow, samples: Sequence[TimedGeneration]
) -> MethodRow:
    here = [sample for sample in samples if sample.temperature == whole.temperature]
    steps = median_steps(here, whole.contender)
    plain = median_steps(here, f"specviz, {BASELINE}")
    kinds = dict.fromkeys(sample.kind for sample in here)
    kind_rows = tuple(_kind_row(kind, here, whole.contender) for kind in kinds)
    rule = setup.rule(None)
    why = "" if whole.to_baseline is None else describe_why(whole.to_baseline, steps, plain)
    return MethodRow(name, rule.name, rule.lossless, whole, kind_rows, steps, why)


def median_steps(samples: Sequence[TimedGeneration], contender: str) -> StepMeans:
    """The median of every number over this contender's generations that had more than one step; 0 without any."""
    ours = [sample for sample in samples if sample.contender == contender]
    means = [sample.steps for sample in ours if sample.steps is not None]
    medians = {}
    for item in fields(StepMeans):
        values = [getattr(mean, item.name) for mean in means]
        medians[item.name] = statistics.median(values) if values else 0.0
    return StepMeans(**medians)


def _kind_row(kind: str, samples: Sequence[TimedGeneration], contender: str) -> KindRow:
    here = [sample for sample in samples if sample.kind == kind]
    per_call = tokens_per_call([sample for sample in here if sample.contender == contender])
    to_baseline = compare_by_prompt(here, contender, f"specviz, {BASELINE}")
    return KindRow(kind, per_call, to_baseline)


def describe_why(found: SpeedComparison, steps: StepMeans, plain: StepMeans) -> str:
    """Words for what a step costs in plain steps, part by part, and how many tokens it writes for that.

    Where the machine was too busy to measure it, they say only that.
    """
    if found.verdict in ("noisy", "impossible"):
        return WORDS[found.verdict]
    verdict = _OUTCOMES.get(found.verdict, WORDS[found.verdict])
    drafting = steps.draft_ms / plain.total_ms
    checking = steps.verify_ms / plain.total_ms
    rest = steps.rest_ms / plain.total_ms
    c = 0.0
    if steps.drafted and plain.verify_ms:
        c = steps.draft_ms / steps.drafted / plain.verify_ms
    words = (
        f"{verdict}: a step writes {steps.emitted:.2f} tokens in the time of {steps.total_ms / plain.total_ms:.2f} "
        "plain steps: drafting "
        f"{steps.draft_ms:.1f} ms = {drafting:.2f} (c = {c:.2f} per token), checking {steps.drafted + 1:.1f} tokens "
        f"{steps.verify_ms:.1f} ms = {checking:.2f}, the rest {steps.rest_ms:.1f} ms = {rest:.2f}"
    )
    if verdict != "loses":
        return words
    if steps.emitted < _FEW:
        return f"{words}; few of its tokens are accepted"
    added_costs = {
        "drafting": drafting,
        "checking many tokens": checking - plain.verify_ms / plain.total_ms,
        "work outside both models": rest - plain.rest_ms / plain.total_ms,
    }
    return f"{words}; {max(added_costs, key=added_costs.__getitem__)} costs most"


def _tables(rows: Sequence[MethodRow]) -> Iterator[str]:
    kinds = [row.kind for row in rows[0].kinds]
    heads = (
        "method",
        "tokens per target call",
        "tokens/s, decoding (quartiles)",
        "vs none",
        *kinds,
        "why",
    )
    for temperature in dict.fromkeys(row.whole.temperature for row in rows):
        yield f"T = {temperature:g}; per kind of prompt: tokens per target call, speed over no draft\n"
        here = [row for row in rows if row.whole.temperature == temperature]
        yield from table(heads, [_cells(row) for row in here])
        yield ""


def _cells(row: MethodRow) -> list[str]:
    kinds = []
    for kind in row.kinds:
        ratio = kind.to_baseline.span if kind.to_baseline else "1.00x"
        kinds.append(f"{kind.tokens_per_call:.2f}, {ratio}")
    return [
        row.method if row.lossless else f"{row.method} (lossy)",
        f"{row.whole.tokens_per_call:.2f}",
        row.whole.rates,
        str(row.whole.to_baseline or "1.00x"),
        *kinds,
        row.why or "-",
    ]


def _setup_as_json(setup: Setup) -> dict[str, object]:
    draft = None if setup.draft is None else setup.draft.name
    return {"params": dict(setup.params), "draft": draft}


def _method_as_json(row: MethodRow) -> dict[str, object]:
    kinds = [_as_json(kind) for kind in row.kinds]
    return {**asdict(row), "whole": _as_json(row.whole), "kinds": kinds}


def _as_json(row: ContenderRow | KindRow) -> dict[str, object]:
    """The row with its ratio as a number, the ratio's interval and its verdict; null where that ratio cannot be."""
    values = asdict(row)
    comparison = row.to_baseline
    if comparison is None:
        values["to_baseline"] = 1.0
        return values
    is_possible = comparison.is_possible
    values["to_baseline"] = comparison.ratio if is_possible else None
    values["between"] = comparison.between if is_possible else None
    values["verdict"] = comparison.verdict
    return values
