"""The waits and the memory that a draft costs, beside the target alone.

Waits: until the first token and until the whole answer, after a short and a long prompt. The draft's reading of the
prompt is on the clock.
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

PROMPTS = (16, 512)  # tokens, as far as both models have room
CONTEXTS = (100, 2048)  # likewise
NUM_TOKENS = 32
DOING = "short runs, alternating with and without the draft"
_NO_HOLDERS = (type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes)


@dataclass(frozen=True, slots=True)
class Wait:
    """The waits after a prompt of one length, in milliseconds; timings are by ALONE and ASKED."""

    num_prompt: int  # tokens of the prompt
    first: Timings[int]  # to the first token
    answer: Timings[int]  # to the whole answer
    tokens_per_call: float  # of the answers with the draft


@dataclass(frozen=True, slots=True)
class Held:
    """The bytes of weights and caches after a context of one length; shared bytes count as the target's."""

    context: int  # tokens that have been read
    target: int
    draft: int


def tables(waits: Sequence[Wait], held: Sequence[Held]) -> tuple[Table, Table]:
    """The table of waits, and the table of memory."""
    wait_heads = (
        "prompt, tokens",
        "first token, no draft",
        "with draft",
        "as fast",
        "answer, no draft",
        "with draft",
        "as fast",
    )
    wait_rows = []
    for wait in waits:
        answer = _cells(wait.answer, wait.tokens_per_call)
        wait_rows.append([f"{wait.num_prompt}", *_cells(wait.first), *answer])
    held_heads = ("context, tokens", "target holds", "draft holds more", "of the target's")
    held_rows = []
    for memory_held in held:
        target_mb = f"{memory_held.target / 1e6:.1f} MB"
        draft_mb = f"{memory_held.draft / 1e6:.1f} MB"
        share = f"{memory_held.draft / memory_held.target:.0%}"
        held_rows.append([f"{memory_held.context}", target_mb, draft_mb, share])
    return (wait_heads, wait_rows), (held_heads, held_rows)


def _cells(timings: Timings[int], most: float = math.inf) -> list[str]:
    """The medians without and with the draft, and their ratio."""
    alone = f"{timings.median(ALONE):.0f} ms"
    asked = f"{timings.median(ASKED):.0f} ms"
    return [alone, asked, str(timings.compare(ASKED, ALONE, most=most))]


def measure_waits(request: Request, bench: Workbench) -> Generator[BenchProgress, None, None]:
    """Measures with one run per result; the caller holds the engine while it asks for the next. Raises SpecvizError."""
    active = activate(request.validate(), bench.pool)
    _, tokens = active.prompt()
    contenders = alone_and_asked(active)
    lengths = _fitting(active, PROMPTS, NUM_TOKENS)
    waits = []
    for place, length in enumerate(lengths):
        job = BenchTask(_prompt(tokens, length), active.plan.sampling, request.seed, NUM_TOKENS)
        first = Timings()
        answer = Timings()
        asked_samples = []
        for turn in turns(len(contenders), FEWEST):
            total = len(lengths) * turn.total
            yield BenchProgress(place * turn.total + turn.done, total, DOING)
            sample = contenders[turn.contender](job)
            first.add(turn.contender, turn.round, 1e3 * sample.first_seconds)
            answer.add(turn.contender, turn.round, 1e3 * sample.seconds)
            if turn.contender == ASKED:
                asked_samples.append(sample)
        waits.append(Wait(length, first, answer, tokens_per_call(asked_samples)))
    yield BenchProgress(total, total, "", tables(waits, memory(active, tokens)))


def memory(active: ActiveSetup, tokens: Sequence[int]) -> tuple[Held, ...]:
    """The memory held after both CONTEXTS, which repeat these tokens. Raises SpecvizError."""
    contexts = _fitting(active, CONTEXTS, active.plan.k + 2)
    return tuple(_held(active, tokens, context) for context in contexts)


def _fitting(active: ActiveSetup, lengths: Sequence[int], room: int) -> list[int]:
    """The lengths, each once, shortened where `room` more tokens would not fit into both models."""
    most = min(model.info.context_limit for model in active.setup.models) - room
    if most < 1:
        raise SpecvizError(
            f"the models read too few tokens to measure: {room} must fit behind the prompt"
        )
    return list(dict.fromkeys(min(length, most) for length in lengths))


def _prompt(tokens: Sequence[int], length: int) -> BenchPrompt:
    return BenchPrompt("", "", tuple(islice(cycle(tokens), length)))


def _held(active: ActiveSetup, tokens: Sequence[int], context: int) -> Held:
    """The memory held after one real step behind a context, by readers that are made for it."""
    active.renew()
    plan = active.plan
    text = _prompt(tokens, context).ids
    with closing(speculate(text, lambda: plan, Seeded(0), max_new_tokens=plan.k + 1)) as steps:
        next(steps)
    target_bytes = _held_bytes(plan.target)
    all_bytes = _held_bytes(plan.target, plan.drafter)
    return Held(context, target_bytes, all_bytes - target_bytes)


def _held_bytes(*roots: object) -> int:
    """The bytes behind all tensors that these objects hold, shared storage once."""
    bytes_at: dict[int, int] = {}  # address -> bytes
    seen = set()
    pending = list(roots)
    while pending:
        holder = pending.pop()
        if id(holder) in seen or isinstance(holder, _NO_HOLDERS):
            continue
        seen.add(id(holder))
        if isinstance(holder, torch.Tensor):
            storage = holder.untyped_storage()
            bytes_at[storage.data_ptr()] = storage.nbytes()
        pending += gc.get_referents(holder)
    return sum(bytes_at.values())


def lines(*, target: str, draft: str, k: int) -> Iterator[str]:
    """Yields the lines of `bench waits`, for the first bundled prompt, shortened or repeated to each length."""
    prompt = prompts_file()["kinds"][0]["prompts"][0]["text"]
    request = Request(
        prompt=prompt, target=target, draft=draft, num_speculative_tokens=k, temperature=0.0
    )
    yield f"{target} + {draft}, K = {k}, T = 0, answers of {NUM_TOKENS} tokens, medians of {FEWEST} rounds\n"
    *_, last = measure_waits(request, workbench())
    (wait_heads, wait_rows), (held_heads, held_rows) = last.tables
    yield from table(wait_heads, wait_rows)
    yield ""
    yield from table(held_heads, held_rows)
