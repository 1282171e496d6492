"""Pieces of plain text with what the target says at each of their places, for drafts that shall do more than chat."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.zoo.data.corpus import documents
from specviz.zoo.for_target.store import NewText, enough_of, stored_tokens, write_shard
from specviz.zoo.for_target.teacher import distributions_of

_PIECES, _LONGEST, _SHORTEST = 256, 256, 8  # of a shard; in tokens
_AT_ONCE = 32  # pieces
_CHARACTERS = 8 * _LONGEST


def write_plain_text(
    target: LoadedModel, corpus: Path, files: str, folder: Path, num_tokens: int, seed: int = 0
) -> None:
    """Shards until they hold so many tokens; the last piece is whole.

    files: which of the corpus's `.txt.xz` files, as a pattern.
    """
    names = sorted(
        path.relative_to(corpus).with_suffix("")
        for path in corpus.rglob(files)
        if path.suffix == ".xz"
    )
    texts = [text for name in names for text in documents(corpus, str(name))]
    if not texts:
        raise SpecvizError(f"the folder {corpus.name!r} has no text in files named {files!r}")
    number, total = 0, 0
    while total < num_tokens:
        shard = folder / f"{number:05}"
        left = num_tokens - total
        if (held := stored_tokens(shard, left)) is None:
            generator = random.Random(f"{seed} {number}")
            drawn = (_piece(target, generator.choice(texts), generator) for _ in range(_PIECES))
            read = _read(target, (piece for piece in drawn if len(piece) >= _SHORTEST))
            pieces, is_cut = enough_of(read, left)
            write_shard(shard, pieces, 0, target.info.vocab_size, is_cut=is_cut)
            held = sum(len(piece.answer) for piece in pieces)
        number, total = number + 1, total + held
        print(f"{number} shards, {total:,} of {num_tokens:,} tokens", flush=True)


def _read(target: LoadedModel, pieces: Iterator[tuple[int, ...]]) -> Iterator[NewText]:
    """Yields the pieces with what the target says, some read at once."""
    while some := list(islice(pieces, _AT_ONCE)):
        for piece, distribution in zip(some, distributions_of(target, some), strict=True):
            yield NewText((), piece, distribution)


def _piece(target: LoadedModel, text: str, generator: random.Random) -> tuple[int, ...]:
    """A piece of the text, from its beginning or from one of its words on."""
    start = generator.choice((0, text.find(" ", generator.randrange(len(text))) + 1))
    return tuple(
        target.tokenizer(text[start : start + _CHARACTERS], add_special_tokens=False).input_ids[
            :_LONGEST
        ]
    )
