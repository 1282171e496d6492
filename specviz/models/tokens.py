"""TokenText: the bytes, text and label of each id of a transformers tokenizer. IncrementalText: the text of ids that
come one by one.

An id has the same bytes everywhere. So the texts of emitted tokens join to exactly the generated text, and an
incomplete character is found.
"""

from __future__ import annotations

import base64
import codecs
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
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
"""How many times as long a tokenizer may make a text before it splits it; tokenizers in use make it up to 3 times."""
_SPACE = "▁"  # how sentencepiece writes a space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_ESCAPED = re.compile("[\udc80-\udcff]+")


class PanicError(SpecvizError):
    """An error for a crash inside the tokenizers library, which some damaged tokenizers cause."""


@contextmanager
def no_panic(words: str = "") -> Iterator[None]:
    """Turns a panic of the tokenizers library into a PanicError. words: stand before the reason.

    A panic is no Exception: no other handler would see it, and a thread would end silently.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        reason = next(iter(str(error).splitlines()), "")
        raise PanicError(f"{words}the tokenizers library broke off: {reason:.200}") from error


def check_tokenizer(file: Path, name: str) -> None:
    """Raises SpecvizError for a tokenizer.json that would take forever or grow a text without bound."""
    if not file.is_file():
        return
    if file.stat().st_size > MOST_TOKENIZER_BYTES:
        raise SpecvizError(
            f"{name} has a tokenizer.json of more than {MOST_TOKENIZER_BYTES >> 20} MB"
        )
    growth = 1

    def multiply_growth(part: dict[str, Any]) -> dict[str, Any]:
        nonlocal growth
        growth *= max(1, _growth(part))
        return part

    json.loads(file.read_bytes(), object_hook=multiply_growth)
    if growth > MOST_GROWTH:
        raise SpecvizError(f"{name} has a tokenizer that may make a text {growth:,} times as long")


def _growth(step: Mapping[str, Any]) -> int:
    """How many times as long this step of a tokenizer may make a text."""
    match step:
        case {"type": "Replace", "pattern": {"String": str(plain)}, "content": str(content)} if (
            plain
        ):
            return -(-len(content) // len(plain))
        case {"type": "Replace", "content": str(content)}:
            return 1 + len(content)  # an expression may match between any two characters
        case {"type": "Precompiled", "precompiled_charsmap": str(packed)}:
            # the size of a search tree, the tree, the texts that it leads to
            table = base64.b64decode(packed)
            tree_size = int.from_bytes(table[:4], "little")
            texts = table[4 + tree_size :].split(b"\0")
            return max(map(len, texts))
    return 1


class TokenText:
    """The texts of one tokenizer's ids.

    eos_ids: the model's ids that end a text, beside the tokenizer's. num_rows: the rows of the model's embedding, if
    there is a model; it reads no id beyond them.
    """

    @no_panic()
    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        eos_ids: Iterable[int] = (),
        num_rows: int | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self._num_rows = num_rows
        own_eos = tokenizer.eos_token_id
        own_ids = [own_eos] if isinstance(own_eos, int) else own_eos
        self.eos_ids = frozenset(eos_ids) | frozenset(own_ids or ())
        self.num_ids = 1 + max(tokenizer.get_vocab().values(), default=-1)
        if self.num_ids > MOST_IDS:
            raise SpecvizError(
                f"a vocabulary has at most {MOST_IDS:,} ids (got the id {self.num_ids - 1:,})"
            )
        added = tokenizer.added_tokens_decoder
        added_special = {token for token, content in added.items() if content.special}
        self.special_ids = frozenset(tokenizer.all_special_ids) | added_special
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
        """The id's text and None, or its text with U+FFFD and its bytes as hex if they are not whole characters."""
        raw = self.bytes_of(token)
        return raw.decode("utf-8", "replace"), _hex_of_halves(raw)

    def label(self, token: int) -> str:
        """The text for a table row: bytes that are no character as <F0 9F>, an id without a token as <id 7>."""
        if token not in self._labels:
            text = self.bytes_of(token).decode("utf-8", "surrogateescape")
            self._labels[token] = _ESCAPED.sub(_spell_bytes, text) or f"<id {token}>"
        return self._labels[token]

    def incremental(self) -> IncrementalText:
        return IncrementalText(self)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text. special: adds the tokenizer's start token, which a chat-rendered text has already."""
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
        # a fast tokenizer sets its truncation on every call: one thread at a time
        with self._encoding, no_panic():
            try:
                encoding = self.tokenizer(text, add_special_tokens=special, verbose=False)
                ids = list(encoding.input_ids)
            except Exception as error:  # the library has no error class for it
                raise SpecvizError(
                    f"the tokenizer cannot split this text: {error!s:.200}"
                ) from error
        if self._num_rows is not None:
            self._check_rows(ids, self._num_rows)
        return ids

    def _check_rows(self, ids: Iterable[int], num_rows: int) -> None:
        for token in ids:
            if token >= num_rows:
                raise SpecvizError(
                    f"the text has the token {self.label(token)!r} (id {token:,}), which this model cannot read: "
                    f"its embedding has rows for the ids below {num_rows:,}, as it was not resized when the token "
                    "was added; take the token out of the text"
                )

    def words_of_lacking_rows(self) -> str:
        """The words for the tokenizer's tokens that the model cannot read; empty if it reads all."""
        if self._num_rows is None or self.num_ids <= self._num_rows:
            return ""
        beyond = [token for token in range(self._num_rows, self.num_ids) if self.bytes_of(token)]
        if not beyond:
            return ""
        names = ", ".join(f"{self.label(token)!r} (id {token:,})" for token in beyond[:3])
        return f"{len(beyond):,} of its tokens have no row in the embedding and cannot be read: {names}"

    @cached_property
    def sha(self) -> str:
        """A hash of every id's bytes and whether it is special: equal for interchangeable vocabularies."""
        digest = hashlib.sha256()
        for token in range(self.num_ids):
            raw = self.bytes_of(token)
            head = b"%d %d " % (len(raw), token in self.special_ids)
            digest.update(head + raw)
        return digest.hexdigest()[:16]


class IncrementalText:
    """The text of ids that come one by one.

    It gives "" while a character is incomplete, and U+FFFD for bytes that can never become one.
    """

    def __init__(self, text: TokenText) -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> Token:
        raw = self._text.bytes_of(token)
        return Token(token, self._decoder.decode(raw), _hex_of_halves(raw))


class Watch:
    """A watch for ends (bytes) in a growing text. It starts at the first token, or where `begin` puts it."""

    def __init__(self, text: TokenText, *ends: bytes) -> None:
        self._text = text
        self._ends = ends
        self._most = max(map(len, ends))
        self._tail = b""

    def begin(self, tokens: Sequence[int]) -> None:
        """Starts after these tokens. An end may have begun in them."""
        tail = b"".join(map(self._text.bytes_of, tokens[-self._most :]))
        self._tail = b"" if tail.endswith(self._ends) else self._shorten(tail)

    def ends_with(self, token: int) -> bool:
        """Adds a token. Whether it completes one of the ends."""
        text = self._tail + self._text.bytes_of(token)
        self._tail = self._shorten(text)
        return any(end in text for end in self._ends)

    def _shorten(self, raw: bytes) -> bytes:
        return raw[max(0, len(raw) - self._most + 1) :]


@lru_cache(maxsize=64)
def differing_ids(target: TokenText, draft: TokenText, most: int = 3) -> tuple[int, ...]:
    """The first ids that are ordinary tokens of both vocabularies with different bytes; () if the two agree.

    Ids that only one vocabulary has, and ids that are special in both, may differ.
    """
    if target.sha == draft.sha:
        return ()
    special = target.special_ids & draft.special_ids
    found: list[int] = []
    for token in range(min(target.num_ids, draft.num_ids)):
        if len(found) == most:
            break
        if token in special:
            continue
        target_bytes = target.bytes_of(token)
        draft_bytes = draft.bytes_of(token)
        if target_bytes and draft_bytes and target_bytes != draft_bytes:
            found.append(token)
    return tuple(found)


@lru_cache(maxsize=64)
def shared_ids(target: TokenText, draft: TokenText) -> tuple[tuple[int, int], ...]:
    """The pairs (target id, draft id) of tokens with equal bytes in both vocabularies; both are special, or neither.

    Each id is in one pair at most: among ids with equal bytes it is the last one, as byte pieces come first.
    """
    draft_ids = _by_bytes(draft)
    pairs: list[tuple[int, int]] = []
    for key, token in _by_bytes(target).items():
        if key in draft_ids:
            pairs.append((token, draft_ids[key]))
    return tuple(pairs)


def _by_bytes(text: TokenText) -> dict[tuple[bytes, bool], int]:
    """The ids by their bytes and whether they are special."""
    ids: dict[tuple[bytes, bool], int] = {}
    for token in range(text.num_ids):
        raw = text.bytes_of(token)
        if raw:
            ids[raw, token in text.special_ids] = token
    return ids


def encode_after(text: TokenText, before: bytes, added: bytes) -> list[int]:
    """The ids whose bytes are exactly `added`, whole characters, after a text that ends with `before`.

    They come from encoding both together, if a token begins where `added` does; else from `added` alone. [] if neither
    gives these bytes.
    """
    more = added.decode("utf-8")
    for start in (before.decode("utf-8", "ignore"), ""):
        ids = text.encode(start + more, special=False)
        missing = added
        place = len(ids)
        while missing and place:
            raw = text.bytes_of(ids[place - 1])
            if not raw or not missing.endswith(raw):
                break
            missing = missing[: -len(raw)]
            place -= 1
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


def _spell_bytes(escaped: re.Match[str]) -> str:
    """The bytes that a decoder could not read, as <F0 9F>."""
    return f"<{escaped[0].encode(errors='surrogateescape').hex(' ').upper()}>"


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
            # an added token may hold characters outside the alphabet: it is plain text
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
        if after.startswith(before):
            return _utf8(after[len(before) :])
        return _utf8(decode([token]))

    return added_to_anchor


def _from_sentencepiece(_: int, piece: str) -> bytes:
    match = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else _utf8(piece.replace(_SPACE, " "))
