"""The command `bench --methods`: every method against no draft on one target, by kind of prompt, and why it loses.

A method that cannot draft for this target is left out with the reason. The words hold measured times only.
"""

import json
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields
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
_FEW = 1.3  # tokens per step, so few that no cheap step would help


@dataclass(frozen=True, slots=True)
class KindRow:
    """One method on one kind of prompt."""

    kind: str
    tokens_per_call: float
    to_baseline: SpeedComparison | None


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One method at one temperature, over all prompts and by kind. steps: medians over its generations."""

    method: str
    rule: str
    lossless: bool
    whole: ContenderRow
    kinds: tuple[KindRow, ...]
    steps: StepMeans
    why: str


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
    """Says what is measured and what is left out, then measures, then gives a table per temperature as Markdown."""
    pool = ModelPool()
    loaded = pool.load(target)
    prompts = prompts_for(loaded)
    check_lengths(prompts, k, num_tokens, loaded.info.context_limit)
    setups, left_out = load_setups(chosen_methods(methods), pool, loaded, draft, k, prompts[0])
    about = [
        f"{loaded.name}, K = {k} where a method has no depth of its own",
        describe_environment(loaded),
    ]
    about += (f"left out: {name}: {reason}" for name, reason in left_out.items())
    contenders = [specviz_contender(setup, k, name) for name, setup in setups.items()]
    samples = yield from measure_lines(contenders, prompts, about, num_tokens, repeats)
    rows = rows_of(setups, samples)
    yield from _tables(rows)
    if save is not None:
        made = {
            "specviz": __version__,
            "target": loaded.name,
            "k": k,
            "num_tokens": num_tokens,
            "repeats": repeats,
        }
        made["environment"] = environment(loaded.model.device)
        made["methods"] = {
            name: {"params": dict(setup.params), "draft": setup.draft and setup.draft.name}
            for name, setup in setups.items()
        }
        made["left_out"] = [{"method": name, "reason": reason} for name, reason in left_out.items()]
        made["rows"] = [
            asdict(row) | {"whole": _as_json(row.whole), "kinds": [*map(_as_json, row.kinds)]}
            for row in rows
        ]
        save(json.dumps(made, indent=1, allow_nan=False))


def chosen_methods(methods: Sequence[str]) -> list[str]:
    """What was asked, no draft first; a method may have parameters behind colons. SpecvizError for an unknown one."""
    asked = [name for each in methods for name in split_names(each)]
    if unknown := [name for name in asked if name != ALL and name.partition(":")[0] not in METHODS]:
        raise SpecvizError(
            f"a method must be {ALL} or one of {', '.join(METHODS)} (got {unknown[0]!r:.80})"
        )
    return list(dict.fromkeys((BASELINE, *(METHODS if ALL in asked else asked))))


def load_setups(
    names: Sequence[str],
    pool: ModelPool,
    target: LoadedModel,
    draft: str,
    k: int,
    prompt: BenchPrompt,
) -> tuple[dict[str, Setup], dict[str, str]]:
    """Each method with its parameters and the models that suit it, and by name why others cannot draft: a few tokens
    after the prompt are written to see what a model lacks."""
    setups, left_out = {}, {}
    for name in names:
        plain, *pairs = name.split(":")
        method, small = METHODS[plain], None
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
    """By temperature, the methods in the order of `setups`; no draft must be among the contenders."""
    whole = {(row.temperature, row.contender): row for row in summarise(samples)}
    pairs = product(sorted({sample.temperature for sample in samples}), setups)
    return [
        _row(name, setups[name], whole[temperature, f"specviz, {name}"], samples)
        for temperature, name in pairs
    ]


def _row(
    name: str, setup: Setup, whole: ContenderRow, samples: Sequence[TimedGeneration]
) -> MethodRow:
    here = [sample for sample in samples if sample.temperature == whole.temperature]
    steps, plain = (
        median_steps(here, contender) for contender in (whole.contender, f"specviz, {BASELINE}")
    )
    kinds = tuple(
        _kind_row(kind, here, whole.contender)
        for kind in dict.fromkeys(sample.kind for sample in here)
    )
    rule = setup.rule(None)
    why = "" if whole.to_baseline is None else describe_why(whole.to_baseline, steps, plain)
    return MethodRow(name, rule.name, rule.lossless, whole, kinds, steps, why)


def median_steps(samples: Sequence[TimedGeneration], contender: str) -> StepMeans:
    """The median of every number over this contender's generations that had more than one step."""
    means = [
        astuple(each.steps)
        for each in samples
        if each.contender == contender and each.steps is not None
    ]
    return StepMeans(
        *map(statistics.median, zip(*means or [[0.0] * len(fields(StepMeans))], strict=True))
    )


def _kind_row(kind: str, samples: Sequence[TimedGeneration], contender: str) -> KindRow:
    here = [sample for sample in samples if sample.kind == kind]
    own = [sample for sample in here if sample.contender == contender]
    return KindRow(
        kind, tokens_per_call(own), compare_by_prompt(here, contender, f"specviz, {BASELINE}")
    )


def describe_why(found: SpeedComparison, steps: StepMeans, plain: StepMeans) -> str:
    """In words: what a step costs in plain steps, part by part, and how many tokens it writes for that; on a machine
    too busy to measure it, only that."""
    if found.verdict in ("noisy", "impossible"):
        return WORDS[found.verdict]
    verdict = _OUTCOMES.get(found.verdict, WORDS[found.verdict])
    drafting, checking, rest, whole = (
        part / plain.total_ms
        for part in (steps.draft_ms, steps.verify_ms, steps.rest_ms, steps.total_ms)
    )
    c = (
        steps.draft_ms / steps.drafted / plain.verify_ms
        if steps.drafted and plain.verify_ms
        else 0.0
    )
    words = (
        f"{verdict}: a step writes {steps.emitted:.2f} tokens in the time of {whole:.2f} plain steps: drafting "
        f"{steps.draft_ms:.1f} ms = {drafting:.2f} (c = {c:.2f} per token), checking {steps.drafted + 1:.1f} tokens "
        f"{steps.verify_ms:.1f} ms = {checking:.2f}, the rest {steps.rest_ms:.1f} ms = {rest:.2f}"
    )
    if verdict != "loses":
        return words
    if steps.emitted < _FEW:
        return f"{words}; few of its tokens are accepted"
    grown = {
        "drafting": drafting,
        "checking many tokens": checking - plain.verify_ms / plain.total_ms,
        "work outside both models": rest - plain.rest_ms / plain.total_ms,
    }
    return f"{words}; {max(grown, key=grown.__getitem__)} costs most"


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
        yield from table(
            heads, (_cells(row) for row in rows if row.whole.temperature == temperature)
        )
        yield ""


def _cells(row: MethodRow) -> list[str]:
    ratios = [kind.to_baseline.span if kind.to_baseline else "1.00x" for kind in row.kinds]
    kinds = (
        f"{kind.tokens_per_call:.2f}, {ratio}"
        for kind, ratio in zip(row.kinds, ratios, strict=True)
    )
    numbers = (
        f"{row.whole.tokens_per_call:.2f}",
        row.whole.rates,
        str(row.whole.to_baseline or "1.00x"),
    )
    return [
        row.method if row.lossless else f"{row.method} (lossy)",
        *numbers,
        *kinds,
        row.why or "-",
    ]


def _as_json(row: ContenderRow | KindRow) -> dict[str, object]:
    """The row with its ratio as a number, the ratio's interval and its verdict; null where that ratio cannot be."""
    found = row.to_baseline
    if found is None:
        return asdict(row) | {"to_baseline": 1.0}
    ratio, between = (found.ratio, found.between) if found.is_possible else (None, None)
    return asdict(row) | {"to_baseline": ratio, "between": between, "verdict": found.verdict}
