"""A shard, from prompts to tables: texts are drawn from the target or taken as given, then every model reads them once.

Of the lab only this, `token_stats`, `generate` and `probes` hold models. A function of its shard alone, so
that it can run in any process; rows that cannot be used come back with the reason.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from specviz.alignment import model_identity as identity
from specviz.alignment.ahead import Draft, Proposer, measure_ahead
from specviz.alignment.generate import sample
from specviz.alignment.tables import shard_tables as tables
from specviz.alignment.token_stats import Numbers, measure_texts
from specviz.alignment.types import (
    AnalysedText,
    Columns,
    PromptRow,
    RefusedRow,
    RowText,
    Shard,
    ShardTables,
)
from specviz.analysis import whatif
from specviz.decoding.device import is_out_of_memory
from specviz.decoding.draws import seed_of
from specviz.decoding.sampling import Sampling
from specviz.decoding.turns import give_way
from specviz.errors import SpecvizError
from specviz.models.chat import as_lines, has_chat_form, render_answer, render_chat
from specviz.models.pool import LoadedModel, ModelPool
from specviz.models.score import TextIds
from specviz.request import Request
from specviz.session.active_setup import text_of
from specviz.session.workbench import workbench

MIN_TOKENS = 2
OPTIONS_UNUSED = "chat options do not count for prompts that are read without the chat template"
READ_TOKENS, READ_TOKENS_CUDA = (
    1024,
    16_384,
)  # of all texts that are read at once, unless one alone is longer
Item = TypeVar("Item")
Result = TypeVar("Result")


def analyse(shard: Shard, pool: ModelPool | None = None) -> ShardTables:
    """All about the shard's rows. library: of the models, by default this process's own. Raises SpecvizError for a
    model that cannot be used, and where memory does not suffice for a single text."""
    pool = pool or workbench().pool
    target, drafts = load(shard, pool)
    return analyse_texts(shard, target, drafts, *texts_of(shard, target))


def load(shard: Shard, pool: ModelPool) -> tuple[LoadedModel, tuple[Draft, ...]]:
    return identity.load(
        shard.models or identity.identify((shard.request.target, *shard.drafts), pool), pool
    )


def texts_of(
    shard: Shard, target: LoadedModel
) -> tuple[list[RowText], tuple[RefusedRow, ...], tuple[str, ...]]:
    """The rows with their texts, in order; the rows that cannot be used; warnings."""
    rows: list[RowText] = []
    refused: list[RefusedRow] = []
    for row in shard.rows:
        options = {
            **shard.request.chat_options,
            **row.chat_options,
        }  # the row's own go before the job's
        try:
            rows.append(_encode(replace(row, chat_options=options), shard.request, target))
        except SpecvizError as error:
            refused.append(RefusedRow(row.line, str(error)))
    as_text = any(row.messages and not has_chat_form(target.tokenizer) for row in shard.rows)
    lines = f"{target.name} has no chat template: messages were written as plain lines, “User: …”"
    is_unused = any(each.row.chat_options and not each.is_chat for each in rows)
    warnings = [
        words for words, is_true in ((lines, as_text), (OPTIONS_UNUSED, is_unused)) if is_true
    ]
    return _add_texts(rows, shard, target), tuple(refused), tuple(warnings)


def _encode(row: PromptRow, request: Request, target: LoadedModel) -> RowText:
    """Raises SpecvizError with what is wrong; it goes on after "line 7"."""
    prompt, is_chat = _prompt_of(row, request, target)
    is_given = isinstance(row.prompt, tuple)
    prompt_ids = row.prompt if is_given else tuple(target.text.encode(prompt, special=not is_chat))
    if is_given and (largest := max(prompt_ids)) >= target.info.vocab_size:
        raise SpecvizError(f"the prompt has ids that {target.name} does not know (got {largest})")
    given = _answer_of(row, target) if row.answer is not None and is_chat else row.completion
    ids = tuple(target.text.encode(given, special=False)) if isinstance(given, str) else given
    _check_length(len(prompt_ids), ids, target)
    return RowText(
        row, prompt, is_chat, prompt_ids, ids, ids is None or _is_own_text(row, request, target)
    )


def _prompt_of(row: PromptRow, request: Request, target: LoadedModel) -> tuple[str, bool]:
    """The text that the target reads, and whether it is in its chat form; ids are read as they are."""
    if isinstance(row.prompt, tuple):
        return text_of(target.text, row.prompt), False
    is_rendered = has_chat_form(target.tokenizer)
    if (names := row.only_for_templates) and not (request.chat and is_rendered):
        needed = "use --chat (chat=True)" if is_rendered else f"{target.name} has none"
        raise SpecvizError(f"has {names}, which only a chat template writes: {needed}")
    if row.messages is None and not request.chat:
        return row.prompt, False
    if row.messages and not is_rendered:
        return as_lines(row.asked()), False
    return render_chat(target.tokenizer, row.asked(), row.chat_options, row.tools), True


def _answer_of(row: PromptRow, target: LoadedModel) -> str:
    """The text of an answer with reasoning or tool calls, in the target's chat form."""
    return render_answer(
        target.tokenizer, row.asked(), row.answer.to_dict(), row.chat_options, row.tools
    )


def _check_length(num_prompt: int, ids: Sequence[int] | None, target: LoadedModel) -> None:
    limit = target.info.context_limit
    if not num_prompt:
        raise SpecvizError("the prompt has no tokens")
    if num_prompt + (MIN_TOKENS if ids is None else len(ids)) > limit:
        length = f"{num_prompt:,} tokens" + ("" if ids is None else f" and {len(ids):,} after it")
        raise SpecvizError(f"the prompt has {length}, and {target.name} reads at most {limit:,}")
    if ids is not None and len(ids) < MIN_TOKENS:
        raise SpecvizError(
            f"the completion must have at least {MIN_TOKENS} tokens (got {len(ids)})"
        )
    if ids is not None and max(ids) >= target.info.vocab_size:
        raise SpecvizError(
            f"the completion has ids that {target.name} does not know (got {max(ids)})"
        )


def _is_own_text(row: PromptRow, request: Request, target: LoadedModel) -> bool:
    """Whether the row says that its ids were sampled from this target at these settings; a text may split otherwise."""
    if row.told is None or isinstance(row.completion, str):
        return False
    wanted = {"target": target.name} | {name: getattr(request, name) for name in Request.SAMPLING}
    return {"top_k": 0, "top_p": 1.0} | dict(row.told) == wanted


def _add_texts(rows: Sequence[RowText], shard: Shard, target: LoadedModel) -> list[RowText]:
    """Every row with its text, in order; those without one get one from the target."""

    def draw(batch: Sequence[RowText]) -> list[RowText]:
        seeds = [seed_of(shard.request.seed, each.row.number) for each in batch]
        prompts = [each.prompt_ids for each in batch]
        drawn = sample(
            target, prompts, seeds, Sampling.of(shard.request), shard.request.max_new_tokens
        )
        return [
            replace(each, ids=text.ids, finish=text.finish)
            for each, text in zip(batch, drawn, strict=True)
        ]

    drawn = iter(in_batches(draw, [each for each in rows if each.ids is None], shard.batch))
    return [next(drawn) if each.ids is None else each for each in rows]


def in_batches(
    work: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item], batch: int
) -> list[Result]:
    """The results in order. Where memory runs out the batch is halved, down to one item at a time."""
    done: list[Result] = []
    while len(done) < len(items):
        try:
            done += work(items[len(done) : len(done) + batch])
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if batch == 1:
                raise SpecvizError(
                    "there is not enough memory for a single text; choose shorter ones"
                ) from error
            batch //= 2
    return done


def _read(
    target: LoadedModel,
    drafts: Sequence[Draft],
    written: Sequence[RowText],
    sampling: Sampling,
    batch: int,
) -> list[list[Numbers]]:
    """Of each text the target's numbers, then each draft's. One pass of every model; texts of similar length are read
    together, for little padding. Drafts that are no models read one text at a time."""
    texts = [TextIds(each.prompt_ids, each.ids) for each in written]
    models, others = (
        [own for own in drafts if isinstance(own, kind)] for kind in (LoadedModel, Proposer)
    )
    read = _read_models(target, models, texts, sampling, batch)
    if not others:
        return read
    more = in_batches(
        lambda few: [measure_ahead(target, [own.drafter() for own in others], few[0], sampling)],
        texts,
        1,
    )
    found = []
    for own, ahead in zip(read, more, strict=True):
        of_models, of_others = iter(own[1:]), iter(ahead)
        found.append(
            [
                own[0],
                *(
                    next(of_models if isinstance(each, LoadedModel) else of_others)
                    for each in drafts
                ),
            ]
        )
    return found


def _read_models(
    target: LoadedModel,
    drafts: Sequence[LoadedModel],
    texts: Sequence[TextIds],
    sampling: Sampling,
    batch: int,
) -> list[list[Numbers]]:
    most = READ_TOKENS_CUDA if target.model.device.type == "cuda" else READ_TOKENS
    found: dict[int, list[Numbers]] = {}
    for places in _group_by_length(texts, batch, most):
        some = [texts[place] for place in places]
        read = in_batches(lambda few: measure_texts(target, drafts, few, sampling), some, len(some))
        found |= dict(zip(places, read, strict=True))
    return [found[place] for place in range(len(texts))]


def _group_by_length(texts: Sequence[TextIds], batch: int, most_tokens: int) -> Iterator[list[int]]:
    """Places of texts of similar length: at most `batch` at once, and `most_tokens` with padding, or one text alone."""
    group: list[int] = []
    for place in sorted(range(len(texts)), key=lambda place: len(texts[place])):
        if group and (len(group) == batch or (len(group) + 1) * len(texts[place]) > most_tokens):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def analyse_texts(
    shard: Shard,
    target: LoadedModel,
    drafts: Sequence[Draft],
    texts: Sequence[RowText],
    refused: tuple[RefusedRow, ...] = (),
    warnings: tuple[str, ...] = (),
) -> ShardTables:
    """The tables of texts that exist."""
    numbers = _read(target, drafts, texts, Sampling.of(shard.request), shard.batch)
    found = []
    for pair in zip(texts, numbers, strict=True):
        give_way()
        found.append(_describe(*pair, target, shard))
    return tables.build_tables(found, shard, refused, warnings)


def _describe(
    text: RowText, numbers: Sequence[Numbers], target: LoadedModel, shard: Shard
) -> AnalysedText:
    (of_target, *of_drafts), ids, places = numbers, text.ids, np.arange(len(text.ids))
    from_prompt = [
        text.prompt_ids[-1],
        *ids,
    ]  # the prompt's last token tells whether a sentence begins
    classes = tables.classify(
        _labels(target, from_prompt), from_prompt, target.text.special_ids, target.text.num_ids
    )
    tokens = {
        "place": places,
        "context": len(text.prompt_ids) + places,  # tokens before each token
        "token": np.asarray(ids, dtype=np.int32),
        "text": _labels(target, ids),
        "class": classes[1:],
        "class_before": classes[:-1],
        "most_likely_text": _labels(target, of_target["most_likely"]),
        **of_target,
    }
    drafts = [_draft_columns(own, tokens["p"], target) for own in of_drafts]
    shown = ids[:-1] if ids[-1] in target.text.eos_ids else ids
    written = replace(text, text=text_of(target.text, shown))
    return AnalysedText(written, tokens, dict(zip(shard.drafts, drafts, strict=True)))


def _draft_columns(numbers: Numbers, p: np.ndarray, target: LoadedModel) -> Columns:
    keep = np.where(numbers["readable"], whatif.acceptance_chances(p, numbers["q"]), 0.0)
    return numbers | {
        "keep": keep,
        "draft_most_likely_text": _labels(target, numbers["draft_most_likely"]),
    }


def _labels(target: LoadedModel, ids: Sequence[int]) -> list[str]:
    return [target.text.label(int(token)) for token in ids]
