"""Text on disk -> token files -> batches; a batch is a function of (seed, step) alone: resuming needs no data position.

Text: `.txt.xz` files whose documents are separated by `<|endoftext|>`. Tokens: one flat uint16 array per source and
split, every document preceded by the end-of-text token, beside the positions where documents start."""

import json
import lzma
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from specviz.errors import SpecvizError
from specviz.zoo.config import CONFIGS

END_OF_TEXT = "<|endoftext|>"
ENCODE_BATCH = 512


@dataclass(frozen=True, slots=True)
class Source:
    """A named body of text: paths below the corpus folder (without `.xz`), where it comes from and its licence."""

    name: str
    train: str
    valid: str | None
    origin: str
    licence: str


def load_sources() -> dict[str, Source]:
    rows = json.loads((CONFIGS / "sources.json").read_text(encoding="utf-8"))
    return {row["name"]: Source(**row) for row in rows}


def documents(corpus: Path, relative: str) -> Iterator[str]:
    """The stripped, non-empty documents of one text file."""
    path = corpus / f"{relative}.xz"
    if not path.is_file():
        raise SpecvizError(f"the corpus folder {corpus.name!r} has no {relative}.xz; pass the right one with --corpus")
    text = lzma.decompress(path.read_bytes()).decode("utf-8")
    return (piece for part in text.split(END_OF_TEXT) if (piece := part.strip("\n")))


def write_tokens(texts: Iterator[str], tokenizer: Tokenizer, stem: Path) -> int:
    """Encode `texts` into `<stem>.npy` (tokens) and `<stem>.starts.npy`; returns the number of tokens."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    pieces = [np.array([end, *ids], dtype=np.uint16) for ids in encoded(texts, tokenizer)]
    lengths = np.array([len(piece) for piece in pieces])
    stem.parent.mkdir(parents=True, exist_ok=True)
    np.save(stem.with_suffix(".starts.npy"), np.cumsum(lengths) - lengths)
    np.save(stem.with_suffix(".npy"), np.concatenate(pieces))
    return int(lengths.sum())


def encoded(texts: Iterator[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    while batch := list(islice(texts, ENCODE_BATCH)):
        yield from (encoding.ids for encoding in tokenizer.encode_batch(batch))


def prepare(corpus: Path, work: Path, tokenizer: Tokenizer, sources: Mapping[str, Source]) -> None:
    """Tokenise every source once; what is already there is kept."""
    for source in sources.values():
        for split, relative in (("train", source.train), ("valid", source.valid)):
            stem = tokens_stem(work, source.name, split)
            if relative and not stem.with_suffix(".npy").exists():
                print(f"{source.name} {split}: {write_tokens(documents(corpus, relative), tokenizer, stem):,} tokens")


def tokens_stem(work: Path, source: str, split: str) -> Path:
    return work / "tokens" / f"{source}-{split}"


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One source's tokens (memory-mapped) and where its documents start."""

    tokens: np.ndarray  # [T] uint16
    starts: np.ndarray  # [D] int64, where each document's end-of-text token stands

    @classmethod
    def open(cls, work: Path, source: str, split: str) -> "TokenFile":
        stem = tokens_stem(work, source, split)
        if not stem.with_suffix(".npy").exists():
            raise SpecvizError(f"no tokens of {source!r} ({split}) in the work folder; run `prepare` first")
        return cls(np.load(stem.with_suffix(".npy"), mmap_mode="r"), np.load(stem.with_suffix(".starts.npy")))

    def window(self, start: int, length: int) -> np.ndarray:
        """`length` tokens from `start`, wrapping round at the end of the file."""
        return np.take(self.tokens, np.arange(start, start + length), mode="wrap").astype(np.int64)


class Batches:
    """Training windows drawn by the mixture; half begin with a document's first word, half anywhere."""

    def __init__(self, files: Mapping[str, TokenFile], mixture: Mapping[str, float], seed: int) -> None:
        self.files = [files[name] for name in mixture]
        self.shares = np.array(list(mixture.values())) / sum(mixture.values())
        self.seed = seed

    def batch(self, step: int, batch_size: int, length: int) -> np.ndarray:
        """[batch_size, length] token ids, always the same ones for the same (seed, step)."""
        generator = np.random.default_rng((self.seed, step))
        return np.stack([self._window(generator, length) for _ in range(batch_size)])

    def _window(self, generator: np.random.Generator, length: int) -> np.ndarray:
        file = self.files[generator.choice(len(self.files), p=self.shares)]
        if generator.random() < 0.5:
            start = file.starts[generator.integers(len(file.starts))] + 1
        else:
            start = generator.integers(len(file.tokens))
        return file.window(int(start), length)


def valid_windows(file: TokenFile, length: int, count: int) -> np.ndarray:
    """[<= count, length] held-out windows, evenly spread and not overlapping."""
    available = max(1, len(file.tokens) // length)
    picks = np.unique(np.linspace(0, available - 1, min(count, available)).astype(np.int64))
    return np.stack([file.window(int(pick) * length, length) for pick in picks])
