"""Undos of what a draft model reads: too long a prompt, a start token too many or too few, another chat format, another
way to split a text."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from specviz.alignment.causes.chat_forms import chat_difference, render
from specviz.alignment.causes.reading import Family, Reading, Undo
from specviz.alignment.types import RowText
from specviz.checks.scoring import can_read
from specviz.models.pool import LoadedModel
from specviz.models.score import TextIds

WINDOWS = (2048, 1024, 512, 256, 128, 64, 32)
Form = tuple[str, str]
"""The kind of a cause and its cure."""


def families(
    draft: LoadedModel, target: LoadedModel, halves: Sequence[Sequence[RowText]]
) -> Iterator[Family]:
    """The undos of texts. halves: the texts of each half, as the target reads them."""
    texts = [text for half in halves for text in half]
    longest = max(len(text.prompt_ids) for text in texts)
    for size in WINDOWS:
        if size < longest:
            yield (shortened(size),)
    yield from _starts(draft, target, texts)
    forms = [[_prompt_forms(draft, target, text) for text in half] for half in halves]
    names: dict[Form, None] = {}  # an ordered set
    for half in forms:
        for of_text in half:
            names |= dict.fromkeys(of_text)
    for kind, cure in names:
        yield (Undo(kind, cure, partial(_take_forms, forms=forms, name=(kind, cure))),)


def shortened(size: int) -> Undo:
    """The prompts without all but their last tokens."""
    tokens = "token" if size == 1 else f"{size:,} tokens"
    cure = f"only the last {tokens} of each prompt to read"
    return _of_texts("long prompts", cure, partial(_shorten, size=size))


def _of_texts(kind: str, cure: str, change: Callable[[TextIds], TextIds]) -> Undo:
    return Undo(
        kind, cure, lambda reading: replace(reading, texts=[change(text) for text in reading.texts])
    )


def _shorten(text: TextIds, size: int) -> TextIds:
    """The text with the first token and the last ones of its prompt."""
    with_first = [*text.prompt[:1], *text.prompt[-size:]]
    return TextIds(with_first[-len(text.prompt) :], text.ids)


def _starts(draft: LoadedModel, target: LoadedModel, texts: Sequence[RowText]) -> Iterator[Family]:
    """The start token of either model before every text, or left out where every text begins with it."""
    for bos in dict.fromkeys((draft.tokenizer.bos_token_id, target.tokenizer.bos_token_id)):
        if bos is None or bos >= draft.info.vocab_size:
            continue
        name = f"the start token {draft.text.label(bos)} (id {bos})"
        if all(text.prompt_ids[0] == bos and len(text.prompt_ids) > 1 for text in texts):
            change = partial(_without, bos=bos)
            yield (_of_texts("start", f"{name} left out", change),)
        elif all(len(text.prompt_ids) + len(text.ids) < draft.info.context_limit for text in texts):
            yield (_of_texts("start", f"{name} before every text", partial(_behind, bos=bos)),)


def _without(text: TextIds, bos: int) -> TextIds:
    """The text without this start token, if it still has it."""
    has_it = text.prompt[0] == bos and len(text.prompt) > 1
    return TextIds(text.prompt[1:], text.ids) if has_it else text


def _behind(text: TextIds, bos: int) -> TextIds:
    return text if text.prompt[0] == bos else TextIds([bos, *text.prompt], text.ids)


# ---- other forms of prompts ------------------------------------------------------------------------------------------


def _take_forms(
    reading: Reading, forms: Sequence[Sequence[Mapping[Form, TextIds]]], name: Form
) -> Reading:
    """The texts behind this form of their prompts; a text without it stays."""
    changed = []
    for form, text in zip(forms[reading.half], reading.texts, strict=False):
        changed.append(form.get(name, text))
    return replace(reading, texts=changed)


def _prompt_forms(draft: LoadedModel, target: LoadedModel, text: RowText) -> dict[Form, TextIds]:
    """The text behind other forms of its prompt, by kind and cure.

    Left out are forms that equal the prompt, and those that the draft cannot read.
    """
    split_again = "each prompt split by the draft's own tokenizer"
    prompts = {("tokenizer", split_again): _split_again(draft, target, text)}
    row = text.row
    if not isinstance(row.prompt, tuple):
        contents = [message.content for message in row.messages or ()]
        bare = "\n\n".join(contents) or row.prompt
        if bare != text.prompt:
            prompts["template", "the bare text of each prompt"] = draft.text.encode(bare)
        for whose, model in (("the draft's", draft), ("the target's", target)):
            rendered = render(model.tokenizer, row.asked(), row.chat_options, row.tools) or ""
            ids = draft.text.encode(rendered, special=rendered == bare)
            prompts["template", f"the prompts in {whose} chat format"] = ids
    forms = {}
    for name, ids in prompts.items():
        if ids and ids != list(text.prompt_ids) and can_read(draft, [*ids, *text.ids]):
            forms[name] = TextIds(ids, text.ids)
    return forms


def _split_again(draft: LoadedModel, target: LoadedModel, text: RowText) -> list[int]:
    """The prompt's ids by the draft's tokenizer, behind the same start.

    Empty where the target's tokenizer does not give the prompt's own ids.
    """
    target_ids = target.text.encode(text.prompt, special=False)
    draft_ids = draft.text.encode(text.prompt, special=False)
    start = text.prompt_ids[: -len(target_ids)]
    is_targets = [*start, *target_ids] == list(text.prompt_ids)
    return [*start, *draft_ids] if is_targets else []


def differences(
    target: LoadedModel, draft: LoadedModel, texts: Sequence[RowText]
) -> dict[str, str]:
    """What differs between the two tokenizers on these texts, in words by kind of cause."""
    found = {}
    if any(text.is_chat for text in texts):
        chat_words = chat_difference(target.tokenizer, draft.tokenizer)
        if chat_words:
            found["template"] = chat_words
    parts = []  # prompts and answers
    for text in texts:
        parts += [text.prompt, text.text]
    apart = []
    for part in parts:
        target_ids = target.text.encode(part, special=False)
        draft_ids = draft.text.encode(part, special=False)
        if target_ids != draft_ids:
            apart.append((target_ids, draft_ids))
    if apart:
        found["tokenizer"] = (
            f"its tokenizer splits {len(apart):,} of {len(parts):,} prompts and answers otherwise than the target's: "
            f"{_split_words(target, *apart[0])}"
        )
    return found


def _split_words(target: LoadedModel, target_ids: Sequence[int], draft_ids: Sequence[int]) -> str:
    """The tokens of both sides from the first difference on, in the target's labels."""
    place = 0
    for at, (target_id, draft_id) in enumerate(zip(target_ids, draft_ids, strict=False)):
        if target_id != draft_id:
            place = at
            break
    target_has = _join_labels(target, target_ids[place : place + 3])
    draft_has = _join_labels(target, draft_ids[place : place + 3])
    return f"where the target has {target_has}, it has {draft_has}"


def _join_labels(target: LoadedModel, ids: Sequence[int]) -> str:
    return ", ".join(target.text.label(token) for token in ids)
