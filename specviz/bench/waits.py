"""What a draft costs before it saves anything: the wait for the first token and for the answer after a short and a long
prompt, and the memory that it holds; both beside the target alone. The draft's reading of the prompt is on the clock.
"""

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, islice
from types import BuiltinFunctionType, FunctionType, ModuleType

import torch

from specviz.analysis.rounds import FEWEST, Comparison, Timings, turns
from specviz.bench.contenders import Job, Prompt, specviz_contender
from specviz.bench.report import table
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.prompts import prompts_file
from specviz.request import Request
from specviz.session.active_setup import ActiveSetup
from specviz.session.record import activate
from specviz.session.setup import gather
from specviz.session.workbench import Workbench, workbench

PROMPTS, CONTEXTS = (16, 512), (100, 2048)  # tokens, as far as both models have room
NUM_TOKENS = 32
ALONE, DRAFTED = 0, 1
_NO_HOLDERS = (type, ModuleType, FunctionType, BuiltinFunctionType, str, bytes)


@dataclass(frozen=True, slots=True)
class Wait:
    """Medians in milliseconds, without and with the draft, and how many times as fast it is with the draft."""

    num_prompt: int
    first_ms: tuple[float, float]
    answer_ms: tuple[float, float]
    first: Comparison
    answer: Comparison


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of weights and caches once so many tokens have been read; what both use counts as the target's."""

    context: int
    target: int
    draft: int


@dataclass(frozen=True, slots=True)
class Price:
    """done, total: runs made; the rest stands when they are equal."""

    done: int
    total: int
    waits: tuple[Wait, ...] = ()
    held: tuple[Held, ...] = ()


def measure_waits(request: Request, bench: Workbench) -> Generator[Price, None, None]:
    """One run per result; the caller holds the engine while it asks for the next. Raises SpecvizError."""
    active = activate(request.validate(), bench.library)
    _, tokens = active.prompt()
    alone = gather(METHODS["none"], {}, active.target, None)
    k, rule = request.num_speculative_tokens, active.plan.rule.name
    contenders = specviz_contender(alone, k), specviz_contender(active.setup, k, rule=rule)
    lengths, waits, done = _fitting(active, PROMPTS, NUM_TOKENS), [], 0
    total = len(lengths) * len(contenders) * (1 + 2 * FEWEST)
    for length in lengths:
        job = Job(_prompt(tokens, length), active.plan.sampling, request.seed, NUM_TOKENS)
        first, answer = Timings(), Timings()
        for turn in turns(len(contenders), FEWEST):
            yield Price(done, total)
            sample, done = contenders[turn.contender](job), done + 1
            first.add(turn.contender, turn.round, 1e3 * sample.first_seconds)
            answer.add(turn.contender, turn.round, 1e3 * sample.seconds)
        medians = (tuple(each.median(who) for who in (ALONE, DRAFTED)) for each in (first, answer))
        waits.append(Wait(length, *medians, *(each.compare(DRAFTED, ALONE) for each in (first, answer))))
    held = [_held(active, tokens, each) for each in _fitting(active, CONTEXTS, k + 2)]
    yield Price(total, total, tuple(waits), tuple(held))


def _fitting(active: ActiveSetup, lengths: Sequence[int], room: int) -> list[int]:
    """These lengths as far as `room` more tokens fit into both models, each once."""
    most = min(model.info.context_limit for model in active.setup.models) - room
    if most < 1:
        raise SpecvizError(f"the models read too few tokens to measure: {room} must fit behind the prompt")
    return list(dict.fromkeys(min(length, most) for length in lengths))


def _prompt(tokens: Sequence[int], length: int) -> Prompt:
    return Prompt("", "", tuple(islice(cycle(tokens), length)))


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


def wait_table(price: Price) -> tuple[tuple[str, ...], list[list[str]]]:
    """Heads and rows, for the page and for the command."""
    heads = ("prompt, tokens", "first token, no draft", "with draft", "as fast", "answer, no draft", "with draft")
    rows = []
    for wait in price.waits:
        first, answer = ([f"{ms:.0f} ms" for ms in pair] for pair in (wait.first_ms, wait.answer_ms))
        rows.append([f"{wait.num_prompt}", *first, str(wait.first), *answer, str(wait.answer)])
    return (*heads, "as fast"), rows


def held_table(price: Price) -> tuple[tuple[str, ...], list[list[str]]]:
    """Heads and rows, for the page and for the command."""
    heads = ("context, tokens", "target holds", "draft holds more", "of the target's")
    cells = ((held.context, held.target / 1e6, held.draft / 1e6, held.draft / held.target) for held in price.held)
    return heads, [[f"{n}", f"{large:.1f} MB", f"{more:.1f} MB", f"{share:.0%}"] for n, large, more, share in cells]


def lines(*, target: str, draft: str, k: int) -> Iterator[str]:
    """What the command `bench --waits` prints: for the first bundled prompt, cut or repeated to each length."""
    prompt = prompts_file()["kinds"][0]["prompts"][0]["text"]
    request = Request(prompt=prompt, target=target, draft=draft, num_speculative_tokens=k, temperature=0.0)
    yield f"{target} + {draft}, K = {k}, T = 0, answers of {NUM_TOKENS} tokens, medians of {FEWEST} rounds\n"
    *_, price = measure_waits(request, workbench())
    yield from table(*wait_table(price))
    yield ""
    yield from table(*held_table(price))
