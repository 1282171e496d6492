"""The command `bench`: loads the models, runs the contenders over our own prompts, writes the table README shows."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from specviz.analysis.rounds import Timings, turns
from specviz.bench.contenders import (
    BASELINE,
    Contender,
    Prompt,
    Row,
    run_bench,
    specviz_contender,
    steadiness,
    step_overhead_ms,
    summarise,
    transformers_contender,
)
from specviz.decoding.cached_lm import CachedLM
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.library import Library, LoadedModel, check_pair
from specviz.models.memory import environment
from specviz.prompts import prompts_file
from specviz.session.setup import gather

MIN_PROMPTS = 8
CONTEXTS = (100, 4000)


def lines(*, target: str, draft: str, k: Sequence[int], num_tokens: int, repeats: int) -> Iterator[str]:
    """Says what is measured, then measures, then gives the table as Markdown.

    One K is compared with transformers' own generate; several are compared with each other and with no draft.
    """
    library = Library()
    loaded, small = library.load(target), library.load(draft, as_draft=True)
    check_pair(loaded, small)
    prompts = prompts_for(loaded)
    check_lengths(prompts, max(k), num_tokens, min(model.info.context_limit for model in (loaded, small)))
    contenders = _contenders(loaded, small, k)
    amounts = f"{len(prompts)} prompts x {repeats} repeats x {num_tokens} tokens"
    yield f"{loaded.name} + {small.name}, K = {', '.join(map(str, k))}, {amounts}"
    yield ", ".join(f"{name} {value}" for name, value in environment(loaded.model.device).items())
    started = time.perf_counter()
    samples = list(run_bench(contenders, prompts, num_tokens=num_tokens, repeats=repeats))
    yield f"{len(samples)} generations in {time.perf_counter() - started:.0f} s; {steadiness(samples)}\n"
    yield from _table(summarise(samples))


def _contenders(target: LoadedModel, draft: LoadedModel, k: Sequence[int]) -> list[Contender]:
    alone, drafted = gather(METHODS["none"], {}, target, None), gather(METHODS["draft_model"], {}, target, draft)
    if len(k) > 1:
        ours = [specviz_contender(drafted, each, label=f"draft_model, K = {each}") for each in k]
        return [specviz_contender(alone, k[0]), *ours]
    return [
        specviz_contender(alone, k[0]),
        specviz_contender(drafted, k[0]),
        transformers_contender(target, None, k[0]),
        transformers_contender(target, draft, k[0]),
    ]


def prompts_for(target: LoadedModel) -> list[Prompt]:
    """The bundled prompts as this model reads them."""
    kinds = prompts_file()["kinds"]
    prompts = [
        Prompt(kind["name"], f"{kind['name']}: {prompt['name']}", tuple(target.text.encode(prompt["text"])))
        for kind in kinds
        for prompt in kind["prompts"]
    ]
    assert len(prompts) >= MIN_PROMPTS, "the bench needs prompts of several kinds"
    return prompts


def check_lengths(prompts: list[Prompt], k: int, num_tokens: int, limit: int) -> None:
    room = limit - max(len(prompt.ids) for prompt in prompts)
    if not k + 1 < num_tokens <= room:
        raise SpecvizError(
            f"num_tokens must be more than k + 1 = {k + 1}, as the first step does not count, and at most {room}, "
            f"which is what both models have room for (got {num_tokens})"
        )


def _table(rows: list[Row]) -> Iterator[str]:
    heads = ("T", "contender", "tokens/s, decoding (quartiles)", "tokens/s, whole", "tokens per target call")
    yield f"| {' | '.join((*heads, 'vs none', 'vs assisted', 'recording'))} |"
    yield "|---|---|---|---|---|---|---|---|"
    for row in rows:
        decode = f"{row.decode:.0f} ({row.decode_low:.0f}-{row.decode_high:.0f})"
        itself = "1.00x" if row.contender == f"specviz, {BASELINE}" else "-"
        ratios = [str(row.to_baseline or itself), str(row.to_peer or "-")]
        share = "-" if row.record_share is None else f"{100 * row.record_share:.1f} %"
        cells = [f"{row.temperature:g}", row.contender, decode, f"{row.whole:.0f}", f"{row.tokens_per_call:.2f}"]
        yield f"| {' | '.join([*cells, *ratios, share])} |"


def overhead(rounds: int = 5) -> str:
    """What a step costs outside the models' forwards at two lengths of context, on a tiny random Llama."""
    target, draft = (_tiny_llama(layers, seed) for seed, layers in enumerate((2, 1)))
    timings: Timings[int] = Timings()
    for turn in turns(len(CONTEXTS), rounds):
        lms = (CachedLM(model, model.config.max_position_embeddings) for model in (target, draft))
        ms = step_overhead_ms(*lms, context=CONTEXTS[turn.contender])
        timings.add(CONTEXTS[turn.contender], turn.round, ms)
    words = ", ".join(f"{timings.median(context):.3f} ms at context {context}" for context in CONTEXTS)
    ratio = timings.compare(*CONTEXTS).ratio
    return f"step overhead outside both models' forwards: {words}; ratio {ratio:.2f}"


def _tiny_llama(layers: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=8192,
        eos_token_id=None,
    )
    return LlamaForCausalLM(config).eval()
