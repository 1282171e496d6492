"""The command `bench --align`: tokens per second of the lab's batches beside those of recorded speculative runs.

Both do the same prompts at the same settings in one process, warmed up and in turn; medians over rounds, and the ratio
as the median of the rounds' ratios.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..bench import Contender, Job, Prompt, specviz_contender
from ..bench_report import prompts_for
from ..crew import gather
from ..drafters import METHODS
from ..machine import environment
from ..models import Library
from ..request import Request
from ..sampling import Sampling
from . import shard as shards
from .rows import PromptRow, Shard

K = 4
WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Round:
    """Tokens per second: recorded by runs, analysed in batches, and the same with the texts' drawing counted."""

    recorded: float
    analysed: float
    with_drawing: float


def lines(*, target: str, draft: str, num_tokens: int, repeats: int) -> Iterator[str]:
    """Says what is measured, then measures, then gives the table as Markdown. Raises SpecvizError."""
    library = Library()
    loaded, small = library.load(target), library.load(draft, as_draft=True)
    prompts = prompts_for(loaded)
    amounts = f"{len(prompts)} prompts x {repeats} rounds x up to {num_tokens} tokens, K = {K}, T = 1"
    yield f"{loaded.name} + {small.name}, {amounts}"
    yield ", ".join(f"{name} {value}" for name, value in environment(loaded.model.device).items())
    contender = specviz_contender(gather(METHODS["draft_model"], {}, loaded, small), K)
    request = Request(prompt="any", target=loaded.name, max_new_tokens=num_tokens).checked()
    rows = tuple(PromptRow(i, i + 1, prompt.name, prompt=_text(prompt, loaded)) for i, prompt in enumerate(prompts))
    shard = Shard(request, (small.name,), rows, K, {})
    contender(Job(prompts[0], Sampling(), 0, WARM_UP_TOKENS))
    shards.analyse(shard, library)
    rounds = [_round(contender, prompts, num_tokens, shard, library, turn) for turn in range(repeats)]
    yield from _table(rounds)


def _text(prompt: Prompt, model) -> str:
    return model.tokenizer.decode(list(prompt.ids), skip_special_tokens=True)


def _round(
    contender: Contender, prompts: Sequence[Prompt], num_tokens: int, shard: Shard, library: Library, turn: int
) -> Round:
    samples = [contender(Job(prompt, Sampling(), turn, num_tokens)) for prompt in prompts]
    recorded = sum(sample.num_tokens for sample in samples) / sum(sample.seconds for sample in samples)
    begun = time.perf_counter()
    target, drafts = shards.load(shard, library)
    written, _, _ = shards.texts_of(shard, target)
    drawn = time.perf_counter()
    shards.judged(shard, target, drafts, written)
    ended = time.perf_counter()
    size = sum(len(text.ids) for text in written)
    return Round(recorded, size / (ended - drawn), size / (ended - begun))


def _table(rounds: Sequence[Round]) -> Iterator[str]:
    yield "| | tokens/s | times the recorded |"
    yield "|---|---|---|"
    for name, words in (
        ("recorded", "speculative runs, recorded"),
        ("analysed", "texts that exist: one pass per model, all tables"),
        ("with_drawing", "the same, the texts drawn from the target first"),
    ):
        rate = statistics.median(getattr(each, name) for each in rounds)
        ratio = statistics.median(getattr(each, name) / each.recorded for each in rounds)
        yield f"| {words} | {rate:,.0f} | {ratio:.1f}x |"
