"""TokenText: bytes, text and label of each id of a transformers tokenizer; IncrementalText: ids to text, one by one.

The bytes of an id depend on the id alone, so the texts of emitted tokens join to exactly the generated text, and an
incomplete character is found.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import SpecvizError
from specviz.trace import Token

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

MAX_CHARACTERS = 1_000_000
MOST_IDS = 1 << 23
MOST_TOKENIZER_BYTES = 256 << 20
MOST_GROWTH = 100
"""How many times as long a text may become before it is cut into tokens; those in use make it up to 3 times so."""
_SPACE = "▁"  # how sentencepiece writes a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPED = re.compile("[\udc80-\udcff]+")


class PanicError(SpecvizError):
    """The tokenizers library broke off in the midst of its work, as it does on some damaged tokenizers."""


@contextmanager
def no_panic(words: str = "") -> Iterator[None]:
    """Makes a PanicError of a panic of the tokenizers library, which is no Exception: no other handler would see it,
    and a thread would end without a word. words: what stands before the reason."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), "")
        raise PanicError(f"{words}the tokenizers library broke off: {reason:.200}") from error


def check_tokenizer(file: Path, name: str) -> None:
    """SpecvizError for a tokenizer.json, if there is one, that would take forever or grow a text without bound."""
    if not file.is_file():
        return
    if file.stat().st_size > MOST_TOKENIZER_BYTES:
        raise SpecvizError(
            f"{name} has a tokenizer.json of more than {MOST_TOKENIZER_BYTES >> 20} MB"
        )
    steps: list[dict[str, Any]] = []
    json.loads(file.read_bytes(), object_hook=lambda part: steps.append(part) or part)
    if (growth := math.prod(max(1, _growth(step)) for step in steps)) > MOST_GROWTH:
        raise SpecvizError(f"{name} has a tokenizer that may make a text {growth:,} times as long")


def _growth(step: Mapping[str, Any]) -> int:
    """By how much this step may make a text longer, at most."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(plain)}, "content": str(content)} if (
            plain
        ):
            return -(-len(content) // len(plain))
        case {"type": "Replace", "content": str(content)}:
            return 1 + len(content)  # an expression may match between any two characters
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            table = base64.b64decode(
                packed
            )  # the size of a search tree, the tree, the texts that it leads to
            return max(map(len, table[4 + int.from_bytes(table[:4], "little") :].split(b"\0")))
    return 1


class TokenText:
    """The texts of one tokenizer's ids. eos_ids: the model's ids that end a text, beside the tokenizer's own. num_rows:
    of the model's embedding, where a model belongs to it: it reads no id beyond them."""

    @no_panic()
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Iterable[int] = (),
        num_rows: int | None = None,
    ) -> None:
        self.tokenizer, self._num_rows = tokenizer, num_rows
        own = tokenizer.eos_token_id
        self.eos_ids = frozenset(eos_ids) | frozenset([own] if isinstance(own, int) else own or ())
        self.num_ids = 1 + max(tokenizer.get_vocab().values(), default=-1)
        if self.num_ids > MOST_IDS:
            raise SpecvizError(
                f"a vocabulary has at most {MOST_IDS:,} ids (got the id {self.num_ids - 1:,})"
            )
        added = {
            token for token, content in tokenizer.added_tokens_decoder.items() if content.special
        }
        self.special_ids = frozenset(tokenizer.all_special_ids) | added
        self._to_bytes = _piece_reader(tokenizer)
        self._known: dict[int, bytes] = {}
        self._labels: dict[int, str] = {}
        self._encoding = threading.Lock()

    def bytes_of(self, token: int) -> bytes:
        """The bytes that this id adds to a text; none for an id without a token (a padded table has such ids)."""
        if token not in self._known:
            self._known[token] = self._read(token)
        return self._known[token]

    @no_panic()
    def _read(self, token: int) -> bytes:
        piece = self.tokenizer.convert_ids_to_tokens(token) if 0 <= token < self.num_ids else None
        if not isinstance(piece, str):
            return b""
        return _utf8(piece) if token in self.special_ids else self._to_bytes(token, piece)

    def piece(self, token: int) -> tuple[str, str | None]:
        """(text, None), or (text with U+FFFD, hex) when the id's own bytes are not whole characters."""
        raw = self.bytes_of(token)
        return raw.decode("utf-8", "replace"), _hex_of_halves(raw)

    def label(self, token: int) -> str:
        """The text for a table row: bytes that are no character as <F0 9F>, an id without a token as <id 7>."""
        if token not in self._labels:
            text = self.bytes_of(token).decode("utf-8", "surrogateescape")
            names = _ESCAPED.sub(
                lambda part: f"<{part[0].encode(errors='surrogateescape').hex(' ').upper()}>", text
            )
            self._labels[token] = names or f"<id {token}>"
        return self._labels[token]

    def incremental(self) -> IncrementalText:
        return IncrementalText(self)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text. special: with the tokenizer's own start token, which a chat-rendered text has already."""
        if len(text) > MAX_CHARACTERS:
            raise SpecvizError(
                f"the text is too long: at most {MAX_CHARACTERS:,} characters (got {len(text):,})"
            )
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"U+{ord(text[error.start]):04X}"
            raise SpecvizError(
                f"the text has half a character ({half}), which no tokenizer reads"
            ) from error
        with (
            self._encoding,
            no_panic(),
        ):  # a fast tokenizer sets its truncation on every call: one thread at a time
            try:
                ids = list(
                    self.tokenizer(text, add_special_tokens=special, verbose=False).input_ids
                )
            except Exception as error:  # the library's are of no kind of their own
                raise SpecvizError(
                    f"the tokenizer cannot split this text: {error!s:.200}"
                ) from error
        if self._num_rows is not None and (
            beyond := [token for token in ids if token >= self._num_rows]
        ):
            raise SpecvizError(
                f"the text has the token {self.label(beyond[0])!r} (id {beyond[0]:,}), which this model cannot read: "
                f"its embedding has rows for the ids below {self._num_rows:,}, as it was not resized when the token "
                "was added; take the token out of the text"
            )
        return ids

    def words_of_lacking_rows(self) -> str:
        """Which of the tokenizer's tokens the model cannot read; empty where it reads all."""
        if self._num_rows is None or self.num_ids <= self._num_rows:
            return ""
        beyond = [token for token in range(self._num_rows, self.num_ids) if self.bytes_of(token)]
        names = ", ".join(f"{self.label(token)!r} (id {token:,})" for token in beyond[:3])
        return (
            f"{len(beyond):,} of its tokens have no row in the embedding and cannot be read: {names}"
            if names
            else ""
        )

    @cached_property
    def sha(self) -> str:
        """A hash of every id's bytes and whether it is special: equal for interchangeable vocabularies."""
        digest = hashlib.sha256()
        for token in range(self.num_ids):
            raw = self.bytes_of(token)
            digest.update(b"%d %d " % (len(raw), token in self.special_ids) + raw)
        return digest.hexdigest()[:16]


class IncrementalText:
    """Ids in, texts out: "" while a character is incomplete, U+FFFD for bytes that can never become one."""

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> Token:
        raw = self._text.bytes_of(token)
        return Token(token, self._decoder.decode(raw), _hex_of_halves(raw))


class Watch:
    """Whether one of these ends (bytes) has come since the place where the watch began, which is the first token."""

    def __init__(self, text: TokenText, *ends: bytes) -> None:
        self._text, self._ends, self._most = text, ends, max(map(len, ends))
        self._tail = b""

    def begin(self, tokens: Sequence[int]) -> None:
        """Behind these tokens; an end may have begun in them."""
        tail = b"".join(map(self._text.bytes_of, tokens[-self._most :]))
        self._tail = b"" if tail.endswith(self._ends) else self._shorten(tail)

    def ends_with(self, token: int) -> bool:
        written = self._tail + self._text.bytes_of(token)
        self._tail = self._shorten(written)
        return any(end in written for end in self._ends)

    def _shorten(self, raw: bytes) -> bytes:
        return raw[max(0, len(raw) - self._most + 1) :]


@lru_cache(maxsize=64)
def differing_ids(target: TokenText, draft: TokenText, most: int = 3) -> tuple[int, ...]:
    """The first ids that are ordinary tokens of both vocabularies with different bytes; () if the two agree. Ids that
    only one of them has, and ids that are special in both, may differ."""
    if target.sha == draft.sha:
        return ()
    special = target.special_ids & draft.special_ids
    shared = (token for token in range(min(target.num_ids, draft.num_ids)) if token not in special)
    pairs = ((token, target.bytes_of(token), draft.bytes_of(token)) for token in shared)
    return tuple(
        islice((token for token, ours, theirs in pairs if ours and theirs and ours != theirs), most)
    )


@lru_cache(maxsize=64)
def shared_ids(target: TokenText, draft: TokenText) -> tuple[tuple[int, int], ...]:
    """(target's id, draft's id) of every token of both vocabularies with equal bytes; both ids are special, or neither.
    Each id is in one pair at most: of ids with equal bytes the last one, as byte pieces come first."""
    ours, theirs = _by_bytes(target), _by_bytes(draft)
    return tuple((token, theirs[key]) for key, token in ours.items() if key in theirs)


def _by_bytes(text: TokenText) -> dict[tuple[bytes, bool], int]:
    known = ((text.bytes_of(token), token) for token in range(text.num_ids))
    return {(raw, token in text.special_ids): token for raw, token in known if raw}


def encode_after(text: TokenText, before: bytes, added: bytes) -> list[int]:
    """Ids whose bytes are exactly `added`, whole characters, after a text that ends with `before`: from encoding both
    together, if a token begins where `added` does; else `added` alone; [] where neither gives these bytes."""
    more = added.decode("utf-8")
    for start in (before.decode("utf-8", "ignore"), ""):
        ids, missing = text.encode(start + more, special=False), added
        place = len(ids)
        while missing and place and missing.endswith(raw := text.bytes_of(ids[place - 1])) and raw:
            missing, place = missing[: -len(raw)], place - 1
        if not missing:
            return ids[place:]
    return []


def ends_whole(raw: bytes) -> bool:
    """Whether the bytes do not end inside a character."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(raw)
    return not decoder.getstate()[0]


def whole_start(raw: bytes) -> bytes:
    """The bytes in front of the first one that is not part of a whole character."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return raw[: error.start]
    return raw


def _utf8(text: str) -> bytes:
    return text.encode("utf-8", "replace")


def _hex_of_halves(raw: bytes) -> str | None:
    return None if whole_start(raw) == raw else raw.hex()


def _piece_reader(tokenizer: PreTrainedTokenizerBase) -> Callable[[int, str], bytes]:
    """The function (id, piece) -> bytes of this tokenizer, chosen by the parts of its decoder."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    state: dict[str, Any] = {} if decoder is None else json.loads(decoder.__getstate__())
    kinds = {part.get("type") for part in (state, *state.get("decoders", ()))}
    if "ByteLevel" in kinds:
        from transformers.convert_slow_tokenizer import bytes_to_unicode  # GPT-2's alphabet

        alphabet = {char: byte for byte, char in bytes_to_unicode().items()}

        def from_alphabet(_: int, piece: str) -> bytes:
            """An added token may hold characters outside the alphabet and is taken as plain text."""
            values = [alphabet.get(char) for char in piece]
            return _utf8(piece) if None in values else bytes(values)

        return from_alphabet
    if kinds & {"ByteFallback", "Metaspace"} or hasattr(tokenizer, "sp_model"):
        return _from_sentencepiece
    decode = partial(
        tokenizer.decode, skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    anchor = list(tokenizer("a", add_special_tokens=False).input_ids[-1:])
    before = decode(anchor)

    def added_to_anchor(token: int, _: str) -> bytes:
        """The bytes that an id adds to the decoded text of an ordinary token before it."""
        after = decode([*anchor, token])
        return _utf8(after[len(before) :] if after.startswith(before) else decode([token]))

    return added_to_anchor


def _from_sentencepiece(_: int, piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else _utf8(piece.replace(_SPACE, " "))
