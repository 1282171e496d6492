"""Pieces of plain text with what the target says at each of their places, for drafts that shall do more than chat."""

import random
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel
from specviz.zoo.data.corpus import documents
from specviz.zoo.for_target.store import read_texts, write_shard
from specviz.zoo.for_target.teacher import distributions_of

_PIECES, _LONGEST, _SHORTEST = 256, 256, 8  # of a shard; in tokens
_CHARACTERS = 8 * _LONGEST


def write_plain_text(
    target: LoadedModel, corpus: Path, files: str, folder: Path, num_tokens: int, seed: int = 0
) -> None:
    """Shards until they hold so many tokens. files: which of the corpus's `.txt.xz` files, as a pattern."""
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
        if not shard.exists():
            generator = random.Random(f"{seed} {number}")
            pieces = [_piece(target, generator.choice(texts), generator) for _ in range(_PIECES)]
            long = [piece for piece in pieces if len(piece) >= _SHORTEST]
            distributions = distributions_of(target, long)
            rows = [
                ((), piece, distribution)
                for piece, distribution in zip(long, distributions, strict=True)
            ]
            write_shard(shard, rows, 0, target.info.vocab_size)
        number, total = number + 1, total + sum(len(text.answer) for text in read_texts([shard]))
        print(f"{number} shards, {total:,} of {num_tokens:,} tokens", flush=True)


def _piece(target: LoadedModel, text: str, generator: random.Random) -> tuple[int, ...]:
    """A piece of the text, from its beginning or from one of its words on."""
    start = generator.choice((0, text.find(" ", generator.randrange(len(text))) + 1))
    return tuple(
        target.tokenizer(text[start : start + _CHARACTERS], add_special_tokens=False).input_ids[
            :_LONGEST
        ]
    )
