"""Can one model draft for another? Their ids, special tokens, chat forms and contexts, side by side, and a verdict.

Reads tokenizers and configurations, never weights. The verdict is `models.check_pair`'s own: a pair that it takes can
be drafted directly. For the others it says which other ways there are and how to ask for them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import takewhile
from typing import Any, Protocol

from specviz.errors import SpecvizError
from specviz.models.catalog import without_format
from specviz.models.chat import NO_OPTIONS, has_chat_form, render_chat
from specviz.models.files.hub import find, ignore_progress
from specviz.models.folder import ModelFolder, context_limit, limit_words
from specviz.models.gguf import fetch_model
from specviz.models.pool import LoadedModel
from specviz.models.tokens import TokenText, differing_ids
from specviz.settings import settings
from specviz.views.words import label, percent

MOST_IDS = 4_000_000  # no vocabulary is larger; a damaged one may claim to be
MOST_SHOWN = 10
SHOWN_CHARACTERS = 24  # before and after the first difference
USER = {"role": "user", "content": "What is two and two?"}
ANSWER = {"role": "assistant", "content": "Four."}
DIALOGUES = (
    ("one question", (USER,)),
    ("a system message and a question", ({"role": "system", "content": "Answer briefly."}, USER)),
    (
        "a question, an answer and a question",
        (USER, ANSWER, {"role": "user", "content": "And three?"}),
    ),
)


@dataclass(frozen=True, slots=True)
class NamedId:
    id: int
    label: str


@dataclass(frozen=True, slots=True)
class PairSide:
    """One of the two models. table: the rows of its embedding, where any beyond num_ids are padding. limit_words: what
    narrows its context, if anything."""

    name: str
    text: TokenText = field(compare=False, repr=False)
    table: int
    context_limit: int
    limit_words: str

    @property
    def num_ids(self) -> int:
        """Ids up to the last that has a token."""
        return self.text.num_ids

    @property
    def texts(self) -> frozenset[bytes]:
        """The bytes of the ordinary tokens."""
        ordinary = (token for token in range(self.num_ids) if token not in self.text.special_ids)
        return frozenset(map(self.text.bytes_of, ordinary)) - {b""}

    def list_ids(self, ids: Sequence[int]) -> tuple[NamedId, ...]:
        return tuple(NamedId(token, label(self.text.label(token))) for token in ids)


@dataclass(frozen=True, slots=True)
class Special:
    """The special tokens of a kind in both models. matters: whether the difference changes what is drafted or kept."""

    kind: str
    target: tuple[NamedId, ...]
    draft: tuple[NamedId, ...]
    matters: bool
    words: str

    @property
    def differs(self) -> bool:
        return self.target != self.draft


@dataclass(frozen=True, slots=True)
class MethodAdvice:
    """A way to draft. works: for this pair. command: what asks for it."""

    name: str
    works: bool
    command: str
    words: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Two tokenizers compared. num_same: ids of the same bytes in both; differing: the first ids of other bytes.

    num_other_special: ids that are special in both and differ, which is allowed. num_only_*: ids that the other one
    lacks. num_common_texts: ordinary tokens of the same bytes under whatever id; num_*_texts: ordinary tokens at all.
    """

    target: PairSide
    draft: PairSide
    num_same: int
    num_differing: int
    differing: tuple[tuple[NamedId, NamedId], ...]
    num_other_special: int
    num_only_target: int
    num_only_draft: int
    num_common_texts: int
    num_target_texts: int
    num_draft_texts: int
    special: tuple[Special, ...]
    chat: str
    ways: tuple[MethodAdvice, ...]
    notes: tuple[str, ...]

    @property
    def is_direct(self) -> bool:
        return self.num_differing == 0


def examine(
    target: str | LoadedModel, draft: str | LoadedModel, *, allow_any: bool | None = None
) -> Diagnosis:
    """The diagnosis of a pair: catalogue names, folders, hub ids or loaded models. allow_any: whether names beyond the
    catalogue and downloads are allowed; None: the settings say it. SpecvizError for an unknown model."""
    allow_any = settings().commands_take_any_model if allow_any is None else allow_any
    ours, theirs = (_read(each, allow_any) for each in (target, draft))
    differing = differing_ids(ours.text, theirs.text, most=MOST_IDS)
    examples = zip(
        ours.list_ids(differing[:MOST_SHOWN]), theirs.list_ids(differing[:MOST_SHOWN]), strict=True
    )
    num_ids = max(ours.num_ids, theirs.num_ids)
    pairs = [(ours.text.bytes_of(token), theirs.text.bytes_of(token)) for token in range(num_ids)]
    our_texts, their_texts = ours.texts, theirs.texts
    num_common = len(our_texts & their_texts)
    return Diagnosis(
        target=ours,
        draft=theirs,
        num_same=sum(a == b != b"" for a, b in pairs),
        num_differing=len(differing),
        differing=tuple(examples),
        num_other_special=sum(b"" != a != b != b"" for a, b in pairs) - len(differing),
        num_only_target=sum(a != b == b"" for a, b in pairs),
        num_only_draft=sum(b != a == b"" for a, b in pairs),
        num_common_texts=num_common,
        num_target_texts=len(our_texts),
        num_draft_texts=len(their_texts),
        special=tuple(_special(ours, theirs)),
        chat=_chat_words(ours.text.tokenizer, theirs.text.tokenizer),
        ways=_ways(len(differing), num_common, len(their_texts)),
        notes=tuple(_notes(ours, theirs)),
    )


def _read(model: str | LoadedModel, allow_any: bool) -> PairSide:
    if isinstance(model, str):
        found = _read_folder(model, allow_any)
    else:
        words = limit_words(model.model.config)
        found = PairSide(
            model.name, model.text, model.info.vocab_size, model.info.context_limit, words
        )
    if found.num_ids > MOST_IDS:
        raise SpecvizError(
            f"{found.name} has ids up to {found.num_ids:,}; at most {MOST_IDS:,} can be compared"
        )
    return found


def _read_folder(name: str, allow_any: bool) -> PairSide:
    source = find(without_format(name), allow_any=allow_any)
    folder, _ = fetch_model(
        source, may_download=allow_any, on_progress=ignore_progress, weights=False
    )
    files = ModelFolder(folder, source.name)
    config, tokenizer = files.config(), files.tokenizer()
    text, vocab_size = (
        TokenText(tokenizer, files.eos_ids(config)),
        config.get_text_config(decoder=True).vocab_size,
    )
    return PairSide(
        source.name, text, vocab_size, context_limit(config, tokenizer), limit_words(config)
    )


def _starts(text: TokenText) -> list[int]:
    """The ids that the tokenizer puts before a text."""
    bare, whole = text.encode("a", special=False), text.encode("a")
    places = (place for place in range(len(whole)) if whole[place : place + len(bare)] == bare)
    return whole[: next(places, 0)]


def _own(model: PairSide, name: str) -> list[int]:
    token = getattr(model.text.tokenizer, name, None)
    return [token] if isinstance(token, int) else []


SPECIAL = (  # kind, how its ids are found, whether a difference of the texts matters, and why
    ("before a text", lambda model: _starts(model.text), True,
     "the draft reads what the target's tokenizer puts before a text; it may have been trained with something else"),
    ("end", lambda model: sorted(model.text.eos_ids), True,
     "texts end differently: only the target's end tokens end a text, and the draft seldom proposes them"),
    ("start (bos)", partial(_own, name="bos_token_id"), False, "only what the tokenizer puts before a text is read"),
    ("padding (pad)", partial(_own, name="pad_token_id"), False, "padding is masked"),
    ("unknown (unk)", partial(_own, name="unk_token_id"), False, "only the target's tokenizer splits the text"),
)  # fmt: skip


def _special(*models: PairSide) -> Iterator[Special]:
    """models: the target and the draft."""
    for kind, ids_of, matters, why in SPECIAL:
        target, draft = ids = [model.list_ids(ids_of(model)) for model in models]
        texts = [sorted(item.label for item in side) for side in ids]
        if target == draft:
            yield Special(kind, target, draft, False, "the same")
        elif texts[0] == texts[1]:
            yield Special(kind, target, draft, False, "the same text under another id")
        else:
            yield Special(
                kind,
                target,
                draft,
                matters,
                f"{'matters' if matters else 'does not matter'}: {why}",
            )


def _ways(num_differing: int, num_common: int, num_draft_texts: int) -> tuple[MethodAdvice, ...]:
    direct = (
        f"{num_differing:,} ids mean other texts"
        if num_differing
        else "every id that both have means the same text"
    )
    share = percent(num_common / num_draft_texts) if num_draft_texts else "none"
    shared = f"{num_common:,} texts ({share} of the draft's) are tokens of both: only those could be drafted"
    again = "the target's tokenizer splits the draft's text again: always possible"
    return (
        MethodAdvice("direct", not num_differing, "--method draft_model", direct),
        MethodAdvice("re-encoding", True, "--method cross_vocabulary", again),
        MethodAdvice(
            "shared vocabulary",
            num_common > 0,
            "--method cross_vocabulary --param way=shared",
            shared,
        ),
    )


def _notes(target: PairSide, draft: PairSide) -> Iterator[str]:
    for model in (target, draft):
        if model.limit_words:
            yield f"{model.name}: {model.limit_words}"
    if draft.context_limit < target.context_limit:
        limits = draft.context_limit, target.context_limit
        yield "beyond {:,} tokens the draft proposes nothing; the target reads {:,}".format(*limits)
    if (lacking := target.num_ids - draft.table) > 0:
        yield (
            f"the draft's table ends {lacking:,} ids before the target's tokens do. Agreement cannot exceed 1 less "
            "the target's probability of those tokens. After one of them, the draft proposes nothing more"
        )


# ---- chat forms: three dialogues by both tokenizers; templates are untrusted programs, and may fail ------------------


class Tokenizer(Protocol):
    """The part of a transformers tokenizer that is used here."""

    chat_template: Any

    def apply_chat_template(
        self, conversation: Sequence[dict[str, str]], **options: Any
    ) -> str: ...


def chat_difference(target: Tokenizer, draft: Tokenizer) -> str | None:
    """Where the two chat forms differ, in words; None where three dialogues render alike, or neither has a template."""
    ours, theirs = has_chat_form(target), has_chat_form(draft)
    if ours != theirs:
        has, lacks = ("target", "draft") if ours else ("draft", "target")
        return f"the {has} has a chat template and the {lacks} has none"
    differences = (_difference(name, messages, target, draft) for name, messages in DIALOGUES)
    return next(filter(None, differences), None)


def _chat_words(target: Tokenizer, draft: Tokenizer) -> str:
    if (difference := chat_difference(target, draft)) is not None:
        return f"differs: {difference}"
    if not has_chat_form(target):
        return "neither model has a chat template"
    is_one = target.chat_template == draft.chat_template
    return "the same template" if is_one else "two templates that render three dialogues alike"


def _difference(
    name: str, messages: Sequence[dict[str, str]], target: Tokenizer, draft: Tokenizer
) -> str | None:
    ours, theirs = render(target, messages), render(draft, messages)
    if ours == theirs:
        return None
    if ours is None or theirs is None:
        refuses = "target" if ours is None else "draft"
        return f"{name}: the {refuses}'s chat template refuses it, the other does not"
    place = len([*takewhile(lambda pair: pair[0] == pair[1], zip(ours, theirs, strict=False))])
    after = (
        f"after {_quote(ours[max(0, place - SHOWN_CHARACTERS) : place])} " if place else "at once "
    )
    ours, theirs = (_quote(text[place : place + SHOWN_CHARACTERS]) for text in (ours, theirs))
    return (
        f"{name}: {after}the target's chat format continues with {ours}, the draft's with {theirs}"
    )


def render(
    tokenizer: Tokenizer,
    messages: str | Sequence[Mapping[str, Any]],
    options: Mapping[str, bool | int | float | str] = NO_OPTIONS,
    tools: Sequence[Mapping[str, Any]] = (),
) -> str | None:
    """The messages, or one question, in the tokenizer's chat form; None where it has none or refuses them."""
    try:
        return render_chat(tokenizer, messages, options, tools)
    except SpecvizError:
        return None


def _quote(text: str) -> str:
    return f'"{label(text)}"' if text else "nothing"
