"""Text -> token files -> batches; a batch is a function of (seed, step) alone: resuming needs no data position.

Text: `.txt.xz` files whose documents are separated by `<|endoftext|>`, or the generator of arithmetic. Tokens: one flat
uint16 array per tokenizer, source and split, every document preceded by the end-of-text token, beside the positions
where documents start."""

import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from specviz.errors import SpecvizError
from specviz.zoo import arithmetic
from specviz.zoo.config import CONFIGS

END_OF_TEXT = "<|endoftext|>"
ENCODE_BATCH = 512
ARITHMETIC = "arithmetic"
SPLITS = ("train", "valid")
RUN_WORDS = 13
MOST_OVERLAP = 0.05


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """A named body of text: paths below the corpus folder (without `.xz`), where it comes from and its licence.

    `train` and `valid` are None where there is no such text, or where the text is generated. `domain`: the column
    of the measured tables that its held-out text counts towards."""

    name: str
    domain: str
    train: str | None
    valid: str | None
    origin: str
    licence: str

    @property
    def is_held_out(self) -> bool:
        """Whether there is held-out text of it."""
        return self.valid is not None or self.name == ARITHMETIC

    def texts(self, corpus: Path, split: str) -> Iterator[str] | None:
        """The documents of "train" or "valid" as they lie in the corpus; None where there are none."""
        if self.name == ARITHMETIC:
            return arithmetic.problems(split)
        relative = self.train if split == "train" else self.valid
        return documents(corpus, relative) if relative else None


def load_sources() -> dict[str, CorpusSource]:
    rows = json.loads((CONFIGS / "sources.json").read_text(encoding="utf-8"))
    return {row["name"]: CorpusSource(**row) for row in rows}


def documents(corpus: Path, relative: str) -> Iterator[str]:
    """The stripped, non-empty documents of one text file."""
    path = corpus / f"{relative}.xz"
    if not path.is_file():
        raise SpecvizError(
            f"the corpus folder {corpus.name!r} has no {relative}.xz; pass the right one with --corpus"
        )
    text = lzma.decompress(path.read_bytes()).decode("utf-8")
    return (piece for part in text.split(END_OF_TEXT) if (piece := part.strip("\n")))


def held_out(
    corpus: Path, source: CorpusSource, sources: Iterable[CorpusSource]
) -> Iterator[str] | None:
    """A source's held-out documents without those that training has seen: the training text of `sources` has more
    than MOST_OVERLAP of their runs of words. None where there are none; raises SpecvizError when none is left.

    Generated problems share their worked steps with others by design and differ by their numbers: all are kept."""
    texts = source.texts(corpus, "valid")
    if texts is None:
        return None
    known = given_away(corpus, tuple(sources))
    kept = [text for text in texts if overlap(text, known) <= MOST_OVERLAP]
    if not kept:
        raise SpecvizError(
            f"{source.valid} holds nothing out: training text has over {MOST_OVERLAP:.0%} of each document"
        )
    return iter(kept)


@cache
def given_away(corpus: Path, sources: tuple[CorpusSource, ...]) -> frozenset[str]:
    """The runs of words that the held-out and the training files of `sources` have in common."""
    held = frozenset(
        run
        for text in file_texts(corpus, [source.valid for source in sources])
        for run in runs(text)
    )
    training = file_texts(corpus, [source.train for source in sources])
    return frozenset().union(*(held.intersection(runs(text)) for text in training))


def file_texts(corpus: Path, files: Iterable[str | None]) -> Iterator[str]:
    return (text for file in files if file for text in documents(corpus, file))


def overlap(text: str, known: frozenset[str]) -> float:
    """The share of the text's runs of words that are `known`."""
    found = [run in known for run in runs(text)]
    return sum(found) / len(found)


def runs(text: str) -> Iterator[str]:
    """Every RUN_WORDS words that follow each other; a shorter text is one run."""
    words = text.split()
    return (
        " ".join(words[start : start + RUN_WORDS])
        for start in range(max(1, len(words) - RUN_WORDS + 1))
    )


def write_tokens(texts: Iterator[str], tokenizer: Tokenizer, stem: Path) -> int:
    """Encode `texts` into `<stem>.npy` (tokens) and `<stem>.starts.npy`; returns the number of tokens."""
    end = tokenizer.token_to_id(END_OF_TEXT)
    pieces = [np.array([end, *ids], dtype=np.uint16) for ids in encode_texts(texts, tokenizer)]
    lengths = np.array([len(piece) for piece in pieces])
    stem.parent.mkdir(parents=True, exist_ok=True)
    save_array(stem.with_suffix(".starts.npy"), np.cumsum(lengths) - lengths)
    save_array(stem.with_suffix(".npy"), np.concatenate(pieces))
    return int(lengths.sum())


def save_array(path: Path, array: np.ndarray) -> None:
    """The file is complete or absent, never half."""
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        np.save(file, array)
    partial.replace(path)


def encode_texts(texts: Iterator[str], tokenizer: Tokenizer) -> Iterator[list[int]]:
    while batch := list(islice(texts, ENCODE_BATCH)):
        yield from (encoding.ids for encoding in tokenizer.encode_batch(batch))


def prepare(
    corpus: Path, folder: Path, tokenizer: Tokenizer, sources: Collection[CorpusSource]
) -> None:
    """Tokenise every source once into `folder`; what is already there is kept."""
    for source in sources:
        for split in SPLITS:
            stem = tokens_stem(folder, source.name, split)
            if stem.with_suffix(".npy").exists():
                continue
            texts = (
                source.texts(corpus, split)
                if split == "train"
                else held_out(corpus, source, sources)
            )
            if texts is not None:
                print(
                    f"{source.name} {split}: {write_tokens(texts, tokenizer, stem):,} tokens",
                    flush=True,
                )


def tokens_stem(folder: Path, source: str, split: str) -> Path:
    return folder / f"{source}-{split}"


@dataclass(frozen=True, slots=True)
class TokenFile:
    """One source's tokens (memory-mapped) and where its documents start."""

    tokens: np.ndarray  # [T] uint16
    starts: np.ndarray  # [D] int64, where each document's end-of-text token stands

    @classmethod
    def open(cls, folder: Path, source: str, split: str) -> "TokenFile":
        stem = tokens_stem(folder, source, split)
        if not stem.with_suffix(".npy").exists():
            raise SpecvizError(
                f"no tokens of {source!r} ({split}) in the work folder; run `python -m specviz.zoo tokenizers` first"
            )
        return cls(
            np.load(stem.with_suffix(".npy"), mmap_mode="r"),
            np.load(stem.with_suffix(".starts.npy")),
        )

    def window(self, start: int, length: int) -> np.ndarray:
        """`length` tokens from `start`, wrapping round at the end of the file."""
        return np.take(self.tokens, np.arange(start, start + length), mode="wrap").astype(np.int64)


class Batches:
    """Training windows drawn by the mixture; half begin with a document's first word, half anywhere."""

    def __init__(
        self, files: Mapping[str, TokenFile], mixture: Mapping[str, float], seed: int
    ) -> None:
        self.files = [files[name] for name in mixture]
        self.shares = np.array(list(mixture.values())) / sum(mixture.values())
        self.seed = seed

    def batch(self, step: int, batch_size: int, length: int) -> np.ndarray:
        """[batch_size, length] token ids, always the same ones for the same (seed, step)."""
        generator = np.random.default_rng((self.seed, step))
        return np.stack([self._window(generator, length) for _ in range(batch_size)])

    def openings(self, generator: np.random.Generator, count: int, length: int) -> np.ndarray:
        """[count, length] token ids: how documents begin, drawn by the mixture."""
        return np.stack(
            [self._opening(self._file(generator), generator, length) for _ in range(count)]
        )

    def _window(self, generator: np.random.Generator, length: int) -> np.ndarray:
        file = self._file(generator)
        if generator.random() < 0.5:
            return self._opening(file, generator, length)
        return file.window(int(generator.integers(len(file.tokens))), length)

    def _file(self, generator: np.random.Generator) -> TokenFile:
        return self.files[generator.choice(len(self.files), p=self.shares)]

    def _opening(self, file: TokenFile, generator: np.random.Generator, length: int) -> np.ndarray:
        return file.window(int(file.starts[generator.integers(len(file.starts))]) + 1, length)


def valid_windows(file: TokenFile, length: int, count: int) -> np.ndarray:
    """[<= count, length] held-out windows, evenly spread and not overlapping."""
    available = max(1, len(file.tokens) // length)
    picks = np.unique(np.linspace(0, available - 1, min(count, available)).astype(np.int64))
    return np.stack([file.window(int(pick) * length, length) for pick in picks])
