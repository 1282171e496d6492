"""The command `bench align`: tokens per second of the lab's batches and of recorded speculative runs, in rounds.

Both take the same prompts at the same settings in one process.
"""

import time
from collections.abc import Iterator, Sequence

from specviz.alignment import shard as shards
from specviz.alignment.types import PromptRow, Shard
from specviz.analysis.rounds import Timings, turns
from specviz.bench.contenders import BenchPrompt, BenchTask, Contender, specviz_contender
from specviz.bench.report import describe_environment, prompts_for, table
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.models.pool import LoadedModel, ModelPool
from specviz.request import Request
from specviz.session.setup import gather

K = 4
RECORDED = "speculative runs, recorded"
ANALYSED = "texts that exist: one pass per model, all tables"
WITH_DRAWING = "the same, with the texts first drawn from the target"


def lines(*, target: str, draft: str, num_tokens: int, repeats: int) -> Iterator[str]:
    """Says what is measured, measures it, then gives the table as Markdown. Raises SpecvizError."""
    pool = ModelPool()
    target_model = pool.load(target)
    draft_model = pool.load(draft, as_draft=True)
    prompts = prompts_for(target_model)
    amounts = (
        f"{len(prompts)} prompts x {repeats} rounds x up to {num_tokens} tokens, K = {K}, T = 1"
    )
    yield f"{target_model.name} + {draft_model.name}, {amounts}"
    yield describe_environment(target_model)
    setup = gather(METHODS["draft_model"], {}, target_model, draft_model)
    recorded = specviz_contender(setup, K)
    shard = _shard(target_model, draft_model, prompts, num_tokens)
    timings: Timings[str] = Timings()
    for turn in turns(2, repeats):
        if turn.contender == 0:
            seconds = _time_recorded(recorded, prompts, num_tokens, turn.round)
        else:
            seconds = _time_lab(shard, pool)
        for name, seconds_per_token in seconds.items():
            timings.add(name, turn.round, seconds_per_token)
    rows = []
    for name in (RECORDED, ANALYSED, WITH_DRAWING):
        ratio = "-" if name == RECORDED else timings.compare(name, RECORDED)
        rows.append([name, f"{1 / timings.median(name):,.0f}", ratio])
    yield from table(("", "tokens/s", "times the recorded"), rows)


def _shard(
    target: LoadedModel, draft: LoadedModel, prompts: Sequence[BenchPrompt], num_tokens: int
) -> Shard:
    """The prompts as the lab takes them."""
    request = Request(
        prompt="any", target=target.name, max_new_tokens=num_tokens, num_speculative_tokens=K
    ).validate()
    rows = []
    for i, prompt in enumerate(prompts):
        text = target.tokenizer.decode(list(prompt.ids), skip_special_tokens=True)
        rows.append(PromptRow(i, i + 1, prompt.name, prompt=text))
    return Shard(request, (draft.name,), tuple(rows), {})


def _time_recorded(
    contender: Contender, prompts: Sequence[BenchPrompt], num_tokens: int, seed: int
) -> dict[str, float]:
    """Seconds per token of recorded runs."""
    tasks = [BenchTask(prompt, Sampling(), seed, num_tokens, ends=True) for prompt in prompts]
    samples = [contender(task) for task in tasks]
    seconds = sum(sample.seconds for sample in samples)
    return {RECORDED: seconds / sum(sample.num_tokens for sample in samples)}


def _time_lab(shard: Shard, pool: ModelPool) -> dict[str, float]:
    """Seconds per token of the lab's batches, without and with drawing the texts."""
    started = time.perf_counter()
    target, drafts = shards.load(shard, pool)
    texts, _, _ = shards.texts_of(shard, target)
    drawn = time.perf_counter()
    shards.analyse_texts(shard, target, drafts, texts)
    ended = time.perf_counter()
    num_tokens = sum(len(text.ids) for text in texts)
    return {
        ANALYSED: (ended - drawn) / num_tokens,
        WITH_DRAWING: (ended - started) / num_tokens,
    }
