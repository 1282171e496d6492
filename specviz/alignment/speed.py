"""The command `bench align`: tokens per second of the lab's batches and of recorded speculative runs, in rounds.

Both do the same prompts at the same settings in one process.
"""

import time
from collections.abc import Iterator, Sequence
from functools import partial

from specviz.alignment import shard as shards
from specviz.alignment.types import PromptRow, Shard
from specviz.analysis.rounds import Timings, turns
from specviz.bench.contenders import BenchPrompt, BenchTask, Contender, specviz_contender
from specviz.bench.report import describe_environment, prompts_for, table
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.setup import gather

K = 4
RECORDED = "speculative runs, recorded"
ANALYSED = "texts that exist: one pass per model, all tables"
WITH_DRAWING = "the same, with the texts first drawn from the target"


def lines(*, target: str, draft: str, num_tokens: int, repeats: int) -> Iterator[str]:
    """Says what is measured, then measures, then gives the table as Markdown. Raises SpecvizError."""
    pool = ModelPool()
    loaded, small = pool.load(target), pool.load(draft, as_draft=True)
    prompts = prompts_for(loaded)
    amounts = (
        f"{len(prompts)} prompts x {repeats} rounds x up to {num_tokens} tokens, K = {K}, T = 1"
    )
    yield f"{loaded.name} + {small.name}, {amounts}"
    yield describe_environment(loaded)
    contender = specviz_contender(gather(METHODS["draft_model"], {}, loaded, small), K)
    request = Request(
        prompt="any", target=loaded.name, max_new_tokens=num_tokens, num_speculative_tokens=K
    ).validate()
    texts = [
        loaded.tokenizer.decode(list(prompt.ids), skip_special_tokens=True) for prompt in prompts
    ]
    rows = tuple(PromptRow(i, i + 1, prompts[i].name, prompt=text) for i, text in enumerate(texts))
    shard = Shard(request, (small.name,), rows, {})
    contenders = (
        partial(_time_recorded, contender, prompts, num_tokens),
        lambda seed: _time_lab(shard, pool),
    )
    timings: Timings[str] = Timings()
    for turn in turns(len(contenders), repeats):
        for name, seconds in contenders[turn.contender](turn.round).items():
            timings.add(name, turn.round, seconds)
    ratios = {
        RECORDED: "-",
        **{words: timings.compare(words, RECORDED) for words in (ANALYSED, WITH_DRAWING)},
    }
    rows = ([words, f"{1 / timings.median(words):,.0f}", ratio] for words, ratio in ratios.items())
    yield from table(("", "tokens/s", "times the recorded"), rows)


def _time_recorded(
    contender: Contender, prompts: Sequence[BenchPrompt], num_tokens: int, seed: int
) -> dict[str, float]:
    """Seconds per token."""
    samples = [contender(BenchTask(prompt, Sampling(), seed, num_tokens)) for prompt in prompts]
    return {
        RECORDED: sum(sample.seconds for sample in samples)
        / sum(sample.num_tokens for sample in samples)
    }


def _time_lab(shard: Shard, pool: ModelPool) -> dict[str, float]:
    """Seconds per token of the lab's batches, without and with drawing the texts."""
    begun = time.perf_counter()
    target, drafts = shards.load(shard, pool)
    written, _, _ = shards.texts_of(shard, target)
    drawn = time.perf_counter()
    shards.analyse_texts(shard, target, drafts, written)
    ended = time.perf_counter()
    size = sum(len(text.ids) for text in written)
    return {ANALYSED: (ended - drawn) / size, WITH_DRAWING: (ended - begun) / size}
