"""Turns a shard of prompts into tables: draws texts from the target or takes given ones, then every model reads them.

The result depends on the shard alone, so any process can make it. Rows that cannot be used come back with the reason.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np

from specviz.alignment import model_identity as identity
from specviz.alignment.ahead import Draft, Proposer, measure_ahead
from specviz.alignment.generate import sample
from specviz.alignment.states.target import StatesTarget
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
READ_TOKENS = 1024  # of all texts that are read at once, unless one alone is longer
READ_TOKENS_CUDA = 16_384
Item = TypeVar("Item")
Result = TypeVar("Result")


def analyse(shard: Shard, pool: ModelPool | None = None) -> ShardTables:
    """Makes the tables of a shard. pool: of the models, by default this process's own.

    Raises SpecvizError for a model that cannot be used, and where memory does not suffice for a single text.
    """
    pool = pool or workbench().pool
    target, drafts = load(shard, pool)
    texts, refused, warnings = texts_of(shard, target)
    return analyse_texts(shard, target, drafts, texts, refused, warnings)


def load(shard: Shard, pool: ModelPool) -> tuple[LoadedModel, tuple[Draft, ...]]:
    """Loads the target and the drafts of a shard."""
    names = (shard.request.target, *shard.drafts)
    return identity.load(shard.models or identity.identify(names, pool), pool)


def texts_of(
    shard: Shard, target: LoadedModel
) -> tuple[list[RowText], tuple[RefusedRow, ...], tuple[str, ...]]:
    """The rows with their texts, in order; the rows that cannot be used; warnings."""
    rows: list[RowText] = []
    refused: list[RefusedRow] = []
    for row in shard.rows:
        options = {**shard.request.chat_options, **row.chat_options}  # the row's own win
        try:
            rows.append(_encode(replace(row, chat_options=options), shard.request, target))
        except SpecvizError as error:
            refused.append(RefusedRow(row.line, str(error)))
    warnings = []
    if any(row.messages for row in shard.rows) and not has_chat_form(target.tokenizer):
        warnings.append(
            f"{target.name} has no chat template: messages were written as plain lines, “User: …”"
        )
    if any(row_text.row.chat_options and not row_text.is_chat for row_text in rows):
        warnings.append(OPTIONS_UNUSED)
    return _add_texts(rows, shard, target), tuple(refused), tuple(warnings)


def _encode(row: PromptRow, request: Request, target: LoadedModel) -> RowText:
    """Encodes a row. The words of its SpecvizError go on after "line 7"."""
    prompt, is_chat = _prompt_of(row, request, target)
    if isinstance(row.prompt, tuple):
        prompt_ids = row.prompt
        largest = max(prompt_ids)
        if largest >= target.info.vocab_size:
            raise SpecvizError(
                f"the prompt has ids that {target.name} does not know (got {largest})"
            )
    else:
        prompt_ids = tuple(target.text.encode(prompt, special=not is_chat))
    ids = row.completion
    if row.answer is not None and is_chat:
        ids = _answer_of(row, target)
    if isinstance(ids, str):
        ids = tuple(target.text.encode(ids, special=False))
    if isinstance(target, StatesTarget):
        ids = target.states.complete(prompt_ids, ids)
    check_length(len(prompt_ids), ids, target.name, target.info.context_limit)
    if ids is not None and max(ids) >= target.info.vocab_size:
        raise SpecvizError(
            f"the completion has ids that {target.name} does not know (got {max(ids)})"
        )
    is_exact = ids is None or is_own_text(row, request, target.name)
    return RowText(row, prompt, is_chat, prompt_ids, ids, is_exact)


def _prompt_of(row: PromptRow, request: Request, target: LoadedModel) -> tuple[str, bool]:
    """The text that the target reads, and whether that is its chat form. Prompts of ids are read as they are."""
    if isinstance(row.prompt, tuple):
        return text_of(target.text, row.prompt), False
    has_template = has_chat_form(target.tokenizer)
    needs_template = row.only_for_templates
    if needs_template and not (request.chat and has_template):
        needed = "use --chat (chat=True)" if has_template else f"{target.name} has none"
        raise SpecvizError(f"has {needs_template}, which only a chat template writes: {needed}")
    if row.messages is None and not request.chat:
        return row.prompt, False
    if row.messages and not has_template:
        return as_lines(row.asked()), False
    return render_chat(target.tokenizer, row.asked(), row.chat_options, row.tools), True


def _answer_of(row: PromptRow, target: LoadedModel) -> str:
    """The text of an answer with reasoning or tool calls, in the target's chat form."""
    return render_answer(
        target.tokenizer, row.asked(), row.answer.to_dict(), row.chat_options, row.tools
    )


def check_length(num_prompt: int, ids: Sequence[int] | None, name: str, limit: int) -> None:
    """Refuses a text that is empty, or longer than the target of this name reads. ids: of what follows the prompt."""
    if not num_prompt:
        raise SpecvizError("the prompt has no tokens")
    if ids is None:
        num_after = MIN_TOKENS
        length = f"{num_prompt:,} tokens"
    else:
        num_after = len(ids)
        length = f"{num_prompt:,} tokens and {num_after:,} after it"
    if num_prompt + num_after > limit:
        raise SpecvizError(f"the prompt has {length}, and {name} reads at most {limit:,}")
    if num_after < MIN_TOKENS:
        raise SpecvizError(
            f"the completion must have at least {MIN_TOKENS} tokens (got {num_after})"
        )


def is_own_text(row: PromptRow, request: Request, target: str) -> bool:
    """Whether the row says that its ids were sampled from the target of this name at these settings.

    A text does not count: the target may split it into other tokens than were sampled.
    """
    if row.told is None or isinstance(row.completion, str):
        return False
    asked = {"target": target} | {name: getattr(request, name) for name in Request.SAMPLING}
    return Request.FILTERS | dict(row.told) == asked


def _add_texts(rows: Sequence[RowText], shard: Shard, target: LoadedModel) -> list[RowText]:
    """Draws a text from the target for every row without one; returns all rows in order."""
    sampling = Sampling.of(shard.request)
    max_new_tokens = shard.request.max_new_tokens

    def draw(batch: Sequence[RowText]) -> list[RowText]:
        seeds = [seed_of(shard.request.seed, row_text.row.number) for row_text in batch]
        prompts = [row_text.prompt_ids for row_text in batch]
        texts = sample(target, prompts, seeds, sampling, max_new_tokens)
        return [
            replace(row_text, ids=text.ids, finish=text.finish)
            for row_text, text in zip(batch, texts, strict=True)
        ]

    without_text = [row_text for row_text in rows if row_text.ids is None]
    drawn = iter(in_batches(draw, without_text, shard.batch))
    return [next(drawn) if row_text.ids is None else row_text for row_text in rows]


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
    """The target's numbers, then each draft's, for every text.

    Every model reads once. Drafts that are no models read one text at a time.
    """
    texts = [TextIds(row_text.prompt_ids, row_text.ids) for row_text in written]
    models = [draft for draft in drafts if isinstance(draft, LoadedModel)]
    proposers = [draft for draft in drafts if isinstance(draft, Proposer)]

    def measure(few: Sequence[TextIds]) -> list[list[Numbers]]:
        return measure_texts(target, models, few, sampling)

    read = read_in_groups(measure, texts, target, batch)
    if not proposers:
        return read

    def measure_one(batch_of_one: Sequence[TextIds]) -> list[list[Numbers]]:
        drafters = [proposer.drafter() for proposer in proposers]
        return [measure_ahead(target, drafters, batch_of_one[0], sampling)]

    measured = []
    for of_text, ahead in zip(read, in_batches(measure_one, texts, 1), strict=True):
        of_target, *of_models = of_text
        of_models = iter(of_models)
        of_proposers = iter(ahead)
        in_order = [of_target]
        for draft in drafts:
            is_model = isinstance(draft, LoadedModel)
            in_order.append(next(of_models if is_model else of_proposers))
        measured.append(in_order)
    return measured


def read_in_groups(
    measure: Callable[[Sequence[TextIds]], list[Result]],
    texts: Sequence[TextIds],
    target: LoadedModel,
    batch: int,
) -> list[Result]:
    """What `measure` makes of each text, in order; texts of similar length are read together, for little padding."""
    most = READ_TOKENS_CUDA if target.model.device.type == "cuda" else READ_TOKENS
    measured: dict[int, Result] = {}
    for places in group_by_length(texts, batch, most):
        group = [texts[place] for place in places]
        measured |= zip(places, in_batches(measure, group, len(group)), strict=True)
    return [measured[place] for place in range(len(texts))]


def group_by_length(texts: Sequence[TextIds], batch: int, most_tokens: int) -> Iterator[list[int]]:
    """Yields the places of texts of similar length.

    A group has at most `batch` texts, and at most `most_tokens` with padding unless it is a single text.
    """
    group: list[int] = []
    for place in sorted(range(len(texts)), key=lambda place: len(texts[place])):
        num_padded = (len(group) + 1) * len(texts[place])
        if group and (len(group) == batch or num_padded > most_tokens):
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
    """Makes the tables of texts that exist."""
    numbers = _read(target, drafts, texts, Sampling.of(shard.request), shard.batch)
    analysed = []
    for text, numbers_of_text in zip(texts, numbers, strict=True):
        give_way()
        shown = text.ids[:-1] if text.ids[-1] in target.text.eos_ids else text.ids
        written = replace(text, text=text_of(target.text, shown))
        analysed.append(describe(written, numbers_of_text, target.text, shard.drafts))
    return tables.build_tables(analysed, shard, refused, warnings)


class Vocabulary(Protocol):
    """The ids of a tokenizer, as far as a table shows them."""

    special_ids: Collection[int]
    num_ids: int

    def label(self, token: int) -> str: ...


def describe(
    written: RowText, numbers: Sequence[Numbers], vocabulary: Vocabulary, drafts: Sequence[str]
) -> AnalysedText:
    """A text with its numbers: the target's, then those of each draft."""
    of_target, *of_drafts = numbers
    ids = written.ids
    places = np.arange(len(ids))
    # the prompt's last token tells whether a sentence begins
    from_prompt = [written.prompt_ids[-1], *ids]
    classes = tables.classify(
        _labels(vocabulary, from_prompt), from_prompt, vocabulary.special_ids, vocabulary.num_ids
    )
    tokens = {
        "place": places,
        "context": len(written.prompt_ids) + places,  # tokens before each token
        "token": np.asarray(ids, dtype=np.int32),
        "text": _labels(vocabulary, ids),
        "class": classes[1:],
        "class_before": classes[:-1],
        "most_likely_text": _labels(vocabulary, of_target["most_likely"]),
        **of_target,
    }
    columns = [_draft_columns(own, tokens["p"], vocabulary) for own in of_drafts]
    return AnalysedText(written, tokens, dict(zip(drafts, columns, strict=True)))


def _draft_columns(numbers: Numbers, p: np.ndarray, vocabulary: Vocabulary) -> Columns:
    columns = numbers | {
        "draft_most_likely_text": _labels(vocabulary, numbers["draft_most_likely"])
    }
    if "keep" not in numbers:
        acceptance = whatif.acceptance_chances(p, numbers["q"])
        columns["keep"] = np.where(numbers["readable"], acceptance, 0.0)
    return columns


def _labels(vocabulary: Vocabulary, ids: Sequence[int]) -> list[str]:
    return [vocabulary.label(int(token)) for token in ids]
