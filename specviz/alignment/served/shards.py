"""Turns a shard of prompts into tables where target and drafts are servers: each reads every text once.

The target's server splits and writes the texts, or the rows hold them. Several requests run at once.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import TypeVar

import numpy as np

from specviz.alignment.generate import CONTEXT, EOS, LENGTH
from specviz.alignment.served.endpoint import DRAFTS, TARGETS, Endpoint, ServerError
from specviz.alignment.served.numbers import Told, draft_columns, target_columns
from specviz.alignment.served.top_rows import TopRows, rows_of
from specviz.alignment.shard import check_length, describe, is_own_text
from specviz.alignment.tables.shard_tables import build_tables
from specviz.alignment.token_stats import Numbers
from specviz.alignment.types import (
    KS,
    WIDEST,
    AnalysedText,
    Asking,
    Bounds,
    ModelIdentity,
    PromptRow,
    Range,
    RefusedRow,
    RowText,
    Shard,
    ShardTables,
    is_vague,
)
from specviz.decoding.draws import seed_of
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.request import MAX_ID, has_one_law
from specviz.views.words import percent

MOST_UNLIKE = 0.05  # of the ids that both servers name, whose texts may differ
FEWEST_NAMED = 20  # ids that both name, before their texts are compared
Item = TypeVar("Item")
Result = TypeVar("Result")


def identify_served(asked: tuple[Asking, Sequence[str]]) -> tuple[ModelIdentity, ...]:
    """Asks each address which model it serves: the target's first. Raises SpecvizError for a server that is no use.

    Models of one name are numbered, so that no address is stored.
    """
    asking, urls = asked
    if len(set(urls[1:])) < len(urls) - 1:
        raise SpecvizError("each draft's address must be named once")
    with _open(asking, urls) as endpoints:
        models = [endpoint.model for endpoint in endpoints]
        identities = []
        for place, (endpoint, url) in enumerate(zip(endpoints, urls, strict=True)):
            name = endpoint.model
            if models.count(name) > 1:
                name = f"{name} ({1 + models[:place].count(name)})"
            identities.append(endpoint.identity(name, url))
    return tuple(identities)


@contextmanager
def _open(asking: Asking, urls: Sequence[str]) -> Iterator[list[Endpoint]]:
    """The servers behind these addresses, the target's first."""
    with ExitStack() as stack:
        endpoints = []
        for place, url in enumerate(urls):
            endpoint = Endpoint(url, DRAFTS if place else TARGETS, asking.timeout_s)
            stack.callback(endpoint.close)
            endpoints.append(endpoint)
        yield endpoints


def analyse_served(shard: Shard) -> ShardTables:
    """Makes the tables of a shard. Raises SpecvizError for a server that fails, lies or tells too little."""
    with _open(shard.asking, [model.wanted for model in shard.models]) as endpoints:
        for endpoint, model in zip(endpoints, shard.models, strict=True):
            if endpoint.identity(model.name, "").content != model.content:
                raise ServerError(
                    f"{endpoint} serves another model than when this job began; start it again in another folder"
                )
        results = _each(partial(_analyse_row, endpoints, shard), shard.rows, shard.batch)
    refused = tuple(result for result in results if isinstance(result, RefusedRow))
    analysed = [result for result in results if isinstance(result, AnalysedText)]
    made = build_tables(analysed, shard, refused)
    _refuse_vague(made, shard)
    return made


def _each(work: Callable[[Item], Result], items: Sequence[Item], at_once: int) -> list[Result]:
    """The results in order.

    When one fails, or the caller is stopped, nothing more begins, and nobody waits for a server that still has a
    question: the threads end with the process.
    """
    waiting: SimpleQueue[tuple[int, Item]] = SimpleQueue()
    done: SimpleQueue[tuple[int, Result | BaseException]] = SimpleQueue()
    for numbered in enumerate(items):
        waiting.put(numbered)

    def run() -> None:
        while True:
            try:
                place, item = waiting.get_nowait()
            except Empty:
                return
            try:
                done.put((place, work(item)))
            except BaseException as error:
                done.put((place, error))

    for _ in range(min(at_once, len(items))):
        threading.Thread(target=run, daemon=True).start()
    results: dict[int, Result] = {}
    try:
        while len(results) < len(items):
            place, result = done.get()
            if isinstance(result, BaseException):
                raise result
            results[place] = result
    finally:
        with suppress(Empty):
            while True:
                waiting.get_nowait()
    return [results[place] for place in range(len(items))]


def _analyse_row(
    endpoints: Sequence[Endpoint], shard: Shard, row: PromptRow
) -> AnalysedText | RefusedRow:
    try:
        return _analyse_text(endpoints, shard, _text_of(endpoints[0], shard, row))
    except ServerError:
        raise
    except SpecvizError as error:
        return RefusedRow(row.line, str(error))


def _analyse_text(endpoints: Sequence[Endpoint], shard: Shard, written: RowText) -> AnalysedText:
    """What every server tells of a text. Raises SpecvizError where one refuses this text."""
    target, *drafts = endpoints
    sampling = Sampling.of(shard.request)
    num_top = shard.asking.num_top
    rows = target.read(written.prompt_ids, written.ids, num_top)
    numbers: list[Numbers] = [target_columns(Told.of(rows, sampling))]
    texts = dict(rows.texts)
    for draft in drafts:
        own = _read_by_draft(draft, written, num_top)
        _check_same_tokens(target, rows, draft, own)
        count = len(own.tokens)
        columns = draft_columns(Told.of(rows.first(count), sampling), Told.of(own, sampling))
        numbers.append(_pad(columns, len(written.ids) - count))
        texts = own.texts | texts
    return describe(written, numbers, _Texts(texts), shard.drafts)


# ---- texts -----------------------------------------------------------------------------------------------------------


def _text_of(target: Endpoint, shard: Shard, row: PromptRow) -> RowText:
    """The row with its text. The words of its SpecvizError go on after "line 7"."""
    request = shard.request
    row = replace(row, chat_options={**request.chat_options, **row.chat_options})
    prompt_ids, prompt, is_chat = _prompt_of(target, row, is_chat=request.chat)
    ids = row.completion
    if row.answer is not None and is_chat:
        raise SpecvizError(
            "has an answer with reasoning or tool calls, which only the chat template can write: give its token ids"
        )
    if isinstance(ids, str):
        ids = target.tokenize(ids, special=False)
    limit = _limit(target)
    check_length(len(prompt_ids), ids, target.model, limit)
    if ids is not None:
        is_exact = is_own_text(row, request, target.model)
        text = target.text_of(ids)
        return RowText(row, prompt, is_chat, prompt_ids, ids, is_exact, text=text)
    most = min(request.max_new_tokens, limit - len(prompt_ids))
    sampling = Sampling.of(request)
    ids, has_ended = target.write(prompt_ids, sampling, seed_of(request.seed, row.number), most)
    if not ids:
        raise SpecvizError("got no token from the target's server")
    finish = LENGTH if most == request.max_new_tokens else CONTEXT
    shown = ids
    if has_ended:
        finish = EOS
        shown = ids[:-1]
    text = target.text_of(shown) if shown else ""
    is_exact = has_one_law({name: getattr(request, name) for name in request.SAMPLING})
    return RowText(row, prompt, is_chat, prompt_ids, ids, is_exact, finish, text)


def _prompt_of(
    target: Endpoint, row: PromptRow, *, is_chat: bool
) -> tuple[tuple[int, ...], str, bool]:
    """The ids that the target reads, their text, and whether that is its chat form."""
    if isinstance(row.prompt, tuple):
        return row.prompt, target.text_of(row.prompt), False
    if row.messages is None and not is_chat:
        return target.tokenize(row.prompt, special=True), row.prompt, False
    ids = target.tokenize_chat(row.asked(), row.chat_options, row.tools)
    return ids, target.text_of(ids), True


def _limit(endpoint: Endpoint) -> int:
    """The most tokens that the server reads of a text, as one is written behind it."""
    return (endpoint.context_limit or MAX_ID) - 1


# ---- what the servers tell -------------------------------------------------------------------------------------------


def _read_by_draft(draft: Endpoint, written: RowText, num_top: int) -> TopRows:
    """What the draft's server tells of the places that it has room for."""
    count = min(len(written.ids), max(0, _limit(draft) - len(written.prompt_ids)))
    if not count:
        return rows_of((), (), ())
    return draft.read(written.prompt_ids, written.ids[:count], num_top)


def _pad(columns: Numbers, num_places: int) -> Numbers:
    """The columns with places behind them that the draft does not read."""
    padded = {}
    for name, values in columns.items():
        if isinstance(values, Bounds):
            ranges = [getattr(values, item.name) for item in fields(Bounds)]
            values = Bounds(
                *(
                    Range(*(np.pad(side, (0, num_places)) for side in (own.low, own.high)))
                    for own in ranges
                )
            )
        elif name != "confidence":
            values = np.pad(values, (0, num_places))
        padded[name] = values
    return padded


def _check_same_tokens(target: Endpoint, rows: TopRows, draft: Endpoint, own: TopRows) -> None:
    """Raises SpecvizError where the two servers name other texts for the same ids: then no id can be compared."""
    both = rows.texts.keys() & own.texts.keys()
    unlike = [token for token in both if _bare(rows.texts[token]) != _bare(own.texts[token])]
    if len(both) >= FEWEST_NAMED and len(unlike) > MOST_UNLIKE * len(both):
        token = min(unlike)
        raise ServerError(
            f"{target.model} and {draft.model} number their tokens differently: id {token} is "
            f"{rows.texts[token]!r:.60} to the one and {own.texts[token]!r:.60} to the other, as are {len(unlike):,} "
            f"of the {len(both):,} ids that both name"
        )


def _bare(text: str) -> str:
    """A token's text without what servers spell differently: spaces, and characters that are not whole."""
    return text.strip(" ▁Ġ\ufffd")


@dataclass(frozen=True, slots=True)
class _Texts:
    """The texts of ids as servers spell them."""

    texts: dict[int, str]
    special_ids: frozenset[int] = frozenset()
    num_ids: int = MAX_ID  # not known; no id counts as late

    def label(self, token: int) -> str:
        return self.texts.get(token) or f"<id {token}>"


def _refuse_vague(made: ShardTables, shard: Shard) -> None:
    """Raises SpecvizError where a draft's tokens per target call at the job's K are not known closely enough."""
    k = shard.request.num_speculative_tokens
    for name, rows in made.bounds.groupby("draft"):
        fewest = np.stack(rows["calls_low"]).sum(0)[k - KS[0]]
        most = np.stack(rows["calls_high"]).sum(0)[k - KS[0]]
        if is_vague(fewest, most):
            num_tokens = made.prompts.loc[made.prompts["draft"] == name, "num_tokens"].sum()
            raise SpecvizError(
                f"the likeliest {shard.asking.num_top} tokens of each place say too little at these settings: {name} "
                f"with K={k} makes between {num_tokens / most:.2f} and {num_tokens / fewest:.2f} tokens per target "
                f"call. These are more than {percent(WIDEST)} apart, so no number is given. Use temperature 1, where "
                "they say everything, or more of them: --logprobs, and --max-logprobs where vLLM is started"
            )
