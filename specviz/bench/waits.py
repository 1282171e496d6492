"""What a draft costs before it saves anything: the wait for the first token and for the answer after a short and a long
prompt, and the memory that it holds; both beside the target alone. The draft's reading of the prompt is on the clock.
"""

import gc
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch

from specviz.analysis.rounds import FEWEST, Timings, turns
from specviz.bench.contenders import BenchPrompt, BenchTask, tokens_per_call
from specviz.bench.report import BenchProgress, Table, table
from specviz.bench.speed import ALONE, ASKED, alone_and_asked
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.errors import SpecvizError
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session.active_setup import ActiveSetup
from specviz.session.whole_run import activate
from specviz.session.workbench import Workbench, workbench

PROMPTS, CONTEXTS = (16, 512), (100, 2048)  # tokens, as far as both models have room
NUM_TOKENS = 32
DOING = "short runs, alternating with and without the draft"
_NO_HOLDERS = (type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes)


@dataclass(frozen=True, slots=True)
class Wait:
    """Milliseconds to the first token and to the whole answer, at the places ALONE and ASKED. tokens_per_call: of the
    answers with the draft."""

    num_prompt: int
    first: Timings[int]
    answer: Timings[int]
    tokens_per_call: float


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of weights and caches once so many tokens have been read; what both use counts as the target's."""

    context: int
    target: int
    draft: int


def tables(waits: Sequence[Wait], held: Sequence[Held]) -> tuple[Table, Table]:
    """Of the waits and of the memory."""
    heads = ("prompt, tokens", "first token, no draft", "with draft", "as fast")
    rows = [
        [f"{wait.num_prompt}", *_cells(wait.first), *_cells(wait.answer, wait.tokens_per_call)]
        for wait in waits
    ]
    sizes = (
        (each.context, each.target / 1e6, each.draft / 1e6, each.draft / each.target)
        for each in held
    )
    held_rows = [
        [f"{n}", f"{large:.1f} MB", f"{more:.1f} MB", f"{share:.0%}"]
        for n, large, more, share in sizes
    ]
    held_heads = ("context, tokens", "target holds", "draft holds more", "of the target's")
    return ((*heads, "answer, no draft", *heads[2:]), rows), (held_heads, held_rows)


def _cells(timings: Timings[int], most: float = math.inf) -> list[str]:
    medians = (f"{timings.median(each):.0f} ms" for each in (ALONE, ASKED))
    return [*medians, str(timings.compare(ASKED, ALONE, most=most))]


def measure_waits(request: Request, bench: Workbench) -> Generator[BenchProgress, None, None]:
    """One run per result; the caller holds the engine while it asks for the next. Raises SpecvizError."""
    active = activate(request.validate(), bench.pool)
    _, tokens = active.prompt()
    contenders, lengths, waits = alone_and_asked(active), _fitting(active, PROMPTS, NUM_TOKENS), []
    for place, length in enumerate(lengths):
        job = BenchTask(_prompt(tokens, length), active.plan.sampling, request.seed, NUM_TOKENS)
        first, answer, samples = Timings(), Timings(), ([], [])
        for turn in turns(len(contenders), FEWEST):
            yield BenchProgress(
                place * turn.total + turn.done, total := len(lengths) * turn.total, DOING
            )
            sample = contenders[turn.contender](job)
            first.add(turn.contender, turn.round, 1e3 * sample.first_seconds)
            answer.add(turn.contender, turn.round, 1e3 * sample.seconds)
            samples[turn.contender].append(sample)
        waits.append(Wait(length, first, answer, tokens_per_call(samples[ASKED])))
    yield BenchProgress(total, total, "", tables(waits, memory(active, tokens)))


def memory(active: ActiveSetup, tokens: Sequence[int]) -> tuple[Held, ...]:
    """At both CONTEXTS, which are read as these tokens over and over. Raises SpecvizError."""
    contexts = _fitting(active, CONTEXTS, active.plan.k + 2)
    return tuple(_held(active, tokens, each) for each in contexts)


def _fitting(active: ActiveSetup, lengths: Sequence[int], room: int) -> list[int]:
    """These lengths as far as `room` more tokens fit into both models, each once."""
    most = min(model.info.context_limit for model in active.setup.models) - room
    if most < 1:
        raise SpecvizError(
            f"the models read too few tokens to measure: {room} must fit behind the prompt"
        )
    return list(dict.fromkeys(min(length, most) for length in lengths))


def _prompt(tokens: Sequence[int], length: int) -> BenchPrompt:
    return BenchPrompt("", "", tuple(islice(cycle(tokens), length)))


def _held(active: ActiveSetup, tokens: Sequence[int], context: int) -> Held:
    """After one real step behind so many tokens, with readers of its own."""
    active.renew()
    plan, text = active.plan, _prompt(tokens, context).ids
    with closing(speculate(text, lambda: plan, Seeded(0), max_new_tokens=plan.k + 1)) as steps:
        next(steps)
    target, all_held = _storages(plan.target), _storages(plan.target, plan.drafter)
    return Held(context, sum(target.values()), sum(all_held.values()) - sum(target.values()))


def _storages(*roots: object) -> dict[int, int]:
    """Address -> bytes of the memory behind every tensor that these objects hold."""
    found, seen, left = {}, set(), list(roots)
    while left:
        holder = left.pop()
        if id(holder) in seen or isinstance(holder, _NO_HOLDERS):
            continue
        seen.add(id(holder))
        if isinstance(holder, torch.Tensor):
            storage = holder.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        left += gc.get_referents(holder)
    return found


def lines(*, target: str, draft: str, k: int) -> Iterator[str]:
    """What the command `bench --waits` prints: for the first bundled prompt, cut or repeated to each length."""
    prompt = prompts_file()["kinds"][0]["prompts"][0]["text"]
    request = Request(
        prompt=prompt, target=target, draft=draft, num_speculative_tokens=k, temperature=0.0
    )
    yield f"{target} + {draft}, K = {k}, T = 0, answers of {NUM_TOKENS} tokens, medians of {FEWEST} rounds\n"
    *_, found = measure_waits(request, workbench())
    waits, held = found.tables
    yield from [*table(*waits), "", *table(*held)]
