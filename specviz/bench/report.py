"""What the command `bench` prints, as Markdown: contenders on bundled prompts, a pair's costs."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from specviz.analysis.costs import CONTEXT, Costs, measure_costs
from specviz.bench.contenders import (
    BASELINE,
    BenchPrompt,
    Contender,
    ContenderRow,
    measure_lines,
    specviz_contender,
    summarise,
    transformers_contender,
)
from specviz.bench.libllama import compare, llama_contender
from specviz.drafters import METHODS
from specviz.errors import CannotTell, SpecvizError
from specviz.models.catalog import chats
from specviz.models.chat import render_chat
from specviz.models.generation import describe
from specviz.models.memory import environment
from specviz.models.pool import LoadedModel, ModelPool, check_pair
from specviz.prompts import prompts_file
from specviz.session.setup import gather

MIN_PROMPTS = 8
Table = tuple[Sequence[str], Sequence[Sequence[object]]]
"""Heads and rows, for the page and for a command."""
HEADS = (
    "T",
    "contender",
    "tokens/s, decoding (quartiles)",
    "tokens/s, whole",
    "CPU ms per token",
    "tokens per target call",
    "vs none",
    "vs assisted",
    "recording",
)
LENGTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33)  # new tokens in one target forward that have a row


@dataclass(frozen=True, slots=True)
class BenchProgress:
    """How far measuring has come."""

    done: int
    total: int
    doing: str = ""  # what is measured now
    tables: tuple[Table, ...] = ()  # what was found so far


def lines(
    *,
    target: str,
    draft: str,
    k: Sequence[int],
    num_tokens: int,
    repeats: int,
    has_llama: bool = False,
) -> Iterator[str]:
    """Measures a pair; yields lines on what is measured, then the table as Markdown.

    One K runs beside transformers' own generate, several beside each other. has_llama: one K runs greedily, also beside
    llama.cpp and without our recorder.
    """
    pool = ModelPool()
    loaded = pool.load(target)
    small = pool.load(draft, as_draft=True)
    check_pair(loaded, small)
    prompts = prompts_for(loaded)
    limit = min(loaded.info.context_limit, small.info.context_limit)
    check_lengths(prompts, max(k), num_tokens, limit)
    room = max(len(prompt.ids) for prompt in prompts) + num_tokens
    contenders = _contenders(loaded, small, k, room if has_llama else None)
    about = [
        f"{loaded.name} + {small.name}, K = {', '.join(map(str, k))}",
        describe_environment(loaded),
    ]
    for model in (loaded, small):
        words = describe(model.info.generation_config)
        if words:
            about.append(f"{model.name}: {words}")
    temperatures = (0.0,) if has_llama else (0.0, 1.0)
    samples = yield from measure_lines(
        contenders, prompts, about, num_tokens, repeats, temperatures
    )
    yield from table(HEADS, [_cells(row) for row in summarise(samples)])
    if has_llama:
        yield from compare("specviz, draft_model", loaded, prompts, samples)


def _contenders(
    target: LoadedModel, draft: LoadedModel, k: Sequence[int], room: int | None
) -> list[Contender]:
    """The contenders of a bench. room: the most tokens that llama.cpp is given; None without it."""
    alone = specviz_contender(gather(METHODS["none"], {}, target, None), k[0])
    drafted = gather(METHODS["draft_model"], {}, target, draft)
    if len(k) > 1:
        depths = [specviz_contender(drafted, n, label=f"draft_model, K = {n}") for n in k]
        return [alone, *depths]
    contenders = [
        alone,
        specviz_contender(drafted, k[0]),
        transformers_contender(target, None, k[0]),
        transformers_contender(target, draft, k[0]),
    ]
    if room:
        contenders += [
            specviz_contender(drafted, k[0], "draft_model, not recorded", is_recorded=False),
            llama_contender(target, draft, k[0], room),
        ]
    return contenders


def describe_environment(target: LoadedModel) -> str:
    return ", ".join(f"{name} {value}" for name, value in environment(target.model.device).items())


def prompts_for(target: LoadedModel) -> list[BenchPrompt]:
    """The bundled prompts as this model reads them: in its chat form, where it is a chat model on offer."""
    prompts = []
    for kind in prompts_file()["kinds"]:
        for prompt in kind["prompts"]:
            ids = tuple(_prompt_ids(target, prompt["text"]))
            prompts.append(BenchPrompt(kind["name"], f"{kind['name']}: {prompt['name']}", ids))
    assert len(prompts) >= MIN_PROMPTS, "the bench needs prompts of several kinds"
    return prompts


def _prompt_ids(target: LoadedModel, text: str) -> Sequence[int]:
    if chats(target.name):
        return target.text.encode(render_chat(target.tokenizer, text), special=False)
    return target.text.encode(text)


def check_lengths(prompts: list[BenchPrompt], k: int, num_tokens: int, limit: int) -> None:
    room = limit - max(len(prompt.ids) for prompt in prompts)
    if not k + 1 < num_tokens <= room:
        raise SpecvizError(
            f"num_tokens must be more than k + 1 = {k + 1}, as the first step does not count, and at most {room}, the "
            f"room in both models (got {num_tokens})"
        )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """The lines of a table in Markdown; a cell is written as `str` gives it."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for cells in rows:
        yield f"| {' | '.join(map(str, cells))} |"


def _cells(row: ContenderRow) -> list[str]:
    itself = "1.00x" if row.contender == f"specviz, {BASELINE}" else "-"
    share = "-" if row.record_share is None else f"{100 * row.record_share:.1f} %"
    return [
        f"{row.temperature:g}",
        row.contender,
        row.rates,
        f"{row.whole:.0f}",
        f"{row.cpu_ms:.1f}",
        f"{row.tokens_per_call:.2f}",
        str(row.to_baseline or itself),
        str(row.to_peer or "-"),
        share,
    ]


def cost_lines(
    *,
    target: str,
    draft: str | None,
    context_length: int = CONTEXT,
    save: Callable[[str], None] | None = None,
) -> Iterator[str]:
    """Measures the costs of a pair; yields lines on what is measured, then the tables. save: writes them as JSON.

    Raises SpecvizError, and in the end CannotTell where the machine was too busy.
    """
    pool = ModelPool()
    loaded = pool.load(target)
    drafts = [] if draft is None else [pool.load(draft, as_draft=True)]
    draft_name = drafts[0].name if drafts else "no draft"
    yield (
        f"{loaded.name} + {draft_name}, {context_length} tokens of context; nothing else should run meanwhile"
    )
    *_, last = measure_costs(loaded, drafts, context_length=context_length)
    costs = last.costs[0]
    yield from cost_tables(costs)
    if save is not None:
        save(json.dumps(costs.to_dict(), indent=1, ensure_ascii=False))
    if costs.doubt:
        raise CannotTell(costs.doubt)


def cost_tables(costs: Costs) -> Iterator[str]:
    yield f"{costs.device}, threads {costs.threads}, {costs.dtype}; medians, the middle half spans {costs.spread:.0%}\n"
    heads = ("new tokens in one target forward", "ms", "between", "relative to one token")
    lengths = [n for n in LENGTHS if n <= len(costs.verify_ms)]
    yield from table(heads, [_token_cells(costs, n) for n in lengths])
    yield ""
    yield from table(("what", "measured"), _cost_cells(costs))
    yield ""
    # Plain forwards over a batch, the contexts cached.
    lengths = sorted({cost.tokens for cost in costs.batch})
    heads = ("texts at once, milliseconds", *(f"new tokens each: {n}" for n in lengths))
    rows = []
    for batch in sorted({cost.batch for cost in costs.batch}):
        times = [f"{cost.ms:.2f}" for cost in costs.batch if cost.batch == batch]
        rows.append([f"{batch}", *times])
    yield from table(heads, rows)


def _token_cells(costs: Costs, n: int) -> list[str]:
    ms = costs.verify_ms[n - 1]
    between = "not known"
    if costs.verify_between_ms is not None:
        low, high = costs.verify_between_ms[n - 1]
        between = f"{low:.2f}-{high:.2f}"
    return [f"{n}", f"{ms:.2f}", between, f"{ms / costs.verify_ms[0]:.2f}"]


def _cost_cells(costs: Costs) -> Iterator[tuple[str, str]]:
    if costs.draft is not None:
        yield "one drafted token", f"{costs.draft_ms:.2f} ms"
        yield (
            "cost ratio c (drafted token / target forward)",
            f"{costs.draft_ms / costs.verify_ms[0]:.2f}",
        )
    yield "time per step outside both models", f"{costs.overhead_ms:.2f} ms"
    yield "the same without a draft", f"{costs.plain_overhead_ms:.2f} ms"
    yield (
        f"memory bandwidth (read of {costs.bandwidth_bytes / 1e6:.0f} MB)",
        f"{costs.bandwidth_gb_s:.1f} GB/s",
    )
    yield (
        f"floor: {costs.weight_bytes / 1e6:.1f} MB of weights at that bandwidth",
        f"{costs.floor_ms:.2f} ms",
    )
    yield "share of a one-token forward explained by the floor", f"{costs.floor_share:.0%}"
