"""Whether one model can draft for another: ids, special tokens, chat forms and contexts side by side, and a verdict.

Reads tokenizers and configurations, never weights. The verdict agrees with `models.check_pair`: a pair that it takes
can be drafted directly. For other pairs the diagnosis names the methods that work, and how to ask for them.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from transformers import PreTrainedConfig

from specviz.alignment.causes.chat_forms import chat_words
from specviz.alignment.causes.files import differences, folder_of
from specviz.errors import SpecvizError
from specviz.models.catalog import without_format
from specviz.models.files.hub import find, ignore_progress
from specviz.models.folder import ModelFolder, context_limit, limit_words
from specviz.models.gguf import fetch_model
from specviz.models.pool import LoadedModel
from specviz.models.tokens import TokenText, differing_ids
from specviz.settings import settings
from specviz.views.words import label, percent

MOST_IDS = 4_000_000  # no vocabulary is larger; a damaged one may claim to be
MOST_SHOWN = 10


@dataclass(frozen=True, slots=True)
class NamedId:
    """A token id with the label of its token."""

    id: int
    label: str


@dataclass(frozen=True, slots=True)
class PairSide:
    """A model of the pair."""

    name: str
    text: TokenText = field(compare=False, repr=False)
    table: int
    """The number of rows of its embedding. Rows beyond num_ids are padding."""
    context_limit: int
    limit_words: str
    """What narrows its context; empty: nothing."""
    config: PreTrainedConfig = field(compare=False, repr=False)
    folder: Path | None = None
    """The folder of its files; None for a model in memory."""

    @property
    def num_ids(self) -> int:
        """The number of ids up to the last one that has a token."""
        return self.text.num_ids

    @property
    def texts(self) -> frozenset[bytes]:
        """The bytes of the ordinary tokens."""
        ordinary = set(range(self.num_ids)) - set(self.text.special_ids)
        return frozenset(map(self.text.bytes_of, ordinary)) - {b""}

    def list_ids(self, ids: Sequence[int]) -> tuple[NamedId, ...]:
        return tuple(NamedId(token, label(self.text.label(token))) for token in ids)


@dataclass(frozen=True, slots=True)
class Special:
    """The special tokens of one kind in both models."""

    kind: str
    target: tuple[NamedId, ...]
    draft: tuple[NamedId, ...]
    matters: bool
    """Whether the difference changes what is drafted or accepted."""
    words: str

    @property
    def differs(self) -> bool:
        return self.target != self.draft


@dataclass(frozen=True, slots=True)
class MethodAdvice:
    """A method of drafting, and whether it works for this pair."""

    name: str
    works: bool
    command: str
    """The options that ask for it."""
    words: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Two tokenizers compared."""

    target: PairSide
    draft: PairSide
    num_same: int
    """Ids of the same bytes in both."""
    num_differing: int
    """Ids of other bytes, which forbid to draft directly."""
    differing: tuple[tuple[NamedId, NamedId], ...]
    """The first of these ids, target and draft."""
    num_other_special: int
    """Ids that are special in both and differ, which is allowed."""
    num_only_target: int
    """Ids that the draft lacks."""
    num_only_draft: int
    """Ids that the target lacks."""
    num_common_texts: int
    """Ordinary tokens of the same bytes, under any id."""
    num_target_texts: int
    """Ordinary tokens of the target."""
    num_draft_texts: int
    """Ordinary tokens of the draft."""
    special: tuple[Special, ...]
    chat: str
    ways: tuple[MethodAdvice, ...]
    notes: tuple[str, ...]
    settings: tuple[str, ...]
    """The draft's settings that are not the target's and may matter. Sound drafts may have some."""

    @property
    def is_direct(self) -> bool:
        return self.num_differing == 0


def examine(
    target: str | LoadedModel, draft: str | LoadedModel, *, allow_any: bool | None = None
) -> Diagnosis:
    """Compares a pair: catalogue names, folders, hub ids or loaded models. Raises SpecvizError for an unknown model.

    allow_any: whether names beyond the catalogue and downloads are allowed; None: as the settings say.
    """
    if allow_any is None:
        allow_any = settings().commands_take_any_model
    ours = _read_side(target, allow_any)
    theirs = _read_side(draft, allow_any)
    differing = differing_ids(ours.text, theirs.text, most=MOST_IDS)
    shown = differing[:MOST_SHOWN]
    examples = zip(ours.list_ids(shown), theirs.list_ids(shown), strict=True)
    ids = _compare_ids(ours, theirs)
    our_texts = ours.texts
    their_texts = theirs.texts
    num_common = len(our_texts & their_texts)
    return Diagnosis(
        target=ours,
        draft=theirs,
        num_same=ids["same"],
        num_differing=len(differing),
        differing=tuple(examples),
        num_other_special=ids["other"] - len(differing),
        num_only_target=ids["only target"],
        num_only_draft=ids["only draft"],
        num_common_texts=num_common,
        num_target_texts=len(our_texts),
        num_draft_texts=len(their_texts),
        special=tuple(_compare_special(ours, theirs)),
        chat=chat_words(ours.text.tokenizer, theirs.text.tokenizer),
        ways=_advise(len(differing), num_common, len(their_texts)),
        notes=tuple(_notes(ours, theirs)),
        settings=tuple(differences(theirs.config, ours.config, theirs.folder).values()),
    )


def _compare_ids(target: PairSide, draft: PairSide) -> Counter[str]:
    """How many ids have the same bytes in both, other bytes, or bytes in one model alone."""
    counts = Counter()
    for token in range(max(target.num_ids, draft.num_ids)):
        target_bytes = target.text.bytes_of(token)
        draft_bytes = draft.text.bytes_of(token)
        if not target_bytes and not draft_bytes:
            continue
        if target_bytes == draft_bytes:
            counts["same"] += 1
        elif not draft_bytes:
            counts["only target"] += 1
        elif not target_bytes:
            counts["only draft"] += 1
        else:
            counts["other"] += 1
    return counts


def _read_side(model: str | LoadedModel, allow_any: bool) -> PairSide:
    if isinstance(model, str):
        side = _read_folder(model, allow_any)
    else:
        words = limit_words(model.model.config)
        info = model.info
        folder = folder_of(model)
        config = model.model.config
        side = PairSide(
            model.name, model.text, info.vocab_size, info.context_limit, words, config, folder
        )
    if side.num_ids > MOST_IDS:
        raise SpecvizError(
            f"{side.name} has ids up to {side.num_ids:,}; at most {MOST_IDS:,} can be compared"
        )
    return side


def _read_folder(name: str, allow_any: bool) -> PairSide:
    source = find(without_format(name), allow_any=allow_any)
    folder, _ = fetch_model(
        source, may_download=allow_any, on_progress=ignore_progress, weights=False
    )
    files = ModelFolder(folder, source.name)
    config = files.config()
    tokenizer = files.tokenizer()
    return PairSide(
        name=source.name,
        text=TokenText(tokenizer, files.eos_ids(config)),
        table=config.get_text_config(decoder=True).vocab_size,
        context_limit=context_limit(config, tokenizer),
        limit_words=limit_words(config),
        config=config,
        folder=folder,
    )


def _start_ids(model: PairSide) -> list[int]:
    """The ids that the tokenizer puts before a text."""
    bare = model.text.encode("a", special=False)
    whole = model.text.encode("a")
    for place in range(len(whole)):
        if whole[place : place + len(bare)] == bare:
            return whole[:place]
    return []


def _end_ids(model: PairSide) -> list[int]:
    return sorted(model.text.eos_ids)


def _id_of(model: PairSide, name: str) -> list[int]:
    """The id under this attribute of the tokenizer; empty where there is none."""
    token = getattr(model.text.tokenizer, name, None)
    return [token] if isinstance(token, int) else []


SPECIAL = (  # kind, how its ids are found, whether a difference of the texts matters, and why
    ("before a text", _start_ids, True,
     "the draft reads what the target's tokenizer puts before a text; it may have been trained with something else"),
    ("end", _end_ids, True,
     "texts end differently: only the target's end tokens end a text, and the draft seldom proposes them"),
    ("start (bos)", partial(_id_of, name="bos_token_id"), False, "only what the tokenizer puts before a text is read"),
    ("padding (pad)", partial(_id_of, name="pad_token_id"), False, "padding is masked"),
    ("unknown (unk)", partial(_id_of, name="unk_token_id"), False, "only the target's tokenizer splits the text"),
)  # fmt: skip


def _compare_special(target: PairSide, draft: PairSide) -> Iterator[Special]:
    for kind, ids_of, matters_if_other, why in SPECIAL:
        target_ids = target.list_ids(ids_of(target))
        draft_ids = draft.list_ids(ids_of(draft))
        target_texts = sorted(token.label for token in target_ids)
        draft_texts = sorted(token.label for token in draft_ids)
        matters = False
        if target_ids == draft_ids:
            words = "the same"
        elif target_texts == draft_texts:
            words = "the same text under another id"
        else:
            matters = matters_if_other
            words = f"matters: {why}" if matters else f"does not matter: {why}"
        yield Special(kind, target_ids, draft_ids, matters, words)


def _advise(num_differing: int, num_common: int, num_draft_texts: int) -> tuple[MethodAdvice, ...]:
    """The methods of drafting for this pair, working or not."""
    direct = "every id that both have means the same text"
    if num_differing:
        direct = f"{num_differing:,} ids mean other texts"
    share = percent(num_common / num_draft_texts) if num_draft_texts else "none"
    shared = f"{num_common:,} texts ({share} of the draft's) are tokens of both: only those could be drafted"
    again = "the target's tokenizer splits the draft's text again: always possible"
    shared_command = "--method cross_vocabulary --param way=shared"
    return (
        MethodAdvice("direct", not num_differing, "--method draft_model", direct),
        MethodAdvice("re-encoding", True, "--method cross_vocabulary", again),
        MethodAdvice("shared vocabulary", num_common > 0, shared_command, shared),
    )


def _notes(target: PairSide, draft: PairSide) -> Iterator[str]:
    for model in (target, draft):
        if model.limit_words:
            yield f"{model.name}: {model.limit_words}"
    if draft.context_limit < target.context_limit:
        reads = f"the target reads {target.context_limit:,}"
        yield f"beyond {draft.context_limit:,} tokens the draft proposes nothing; {reads}"
    lacking = target.num_ids - draft.table
    if lacking > 0:
        yield (
            f"the draft's table ends {lacking:,} ids before the target's tokens do. Agreement cannot exceed 1 less "
            "the target's probability of those tokens. After one of them, the draft proposes nothing more"
        )
