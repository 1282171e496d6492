"""Texts with what the target says at each of their places, in folders on disk: computed once, read in every epoch.

A shard is a folder. `index.jsonl`, a line per text: "p" and "g", the ids of its prompt and of what the target wrote;
"start" and "n", the rows of its places in the other files. Those hold a row per place, without a header:
`top_ids.u16` (`.u32` for a larger vocabulary) and `top_logp.f16` [TOP], the likeliest next tokens with their
log-probabilities; `states.bf16` [C], the layers' states side by side, where a head is to learn from them. The last
token of a text has no row. The places that all texts begin with have rows in `prefix.safetensors` instead."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from specviz.errors import SpecvizError
from specviz.zoo.training.export import replacing

TOP = 64
"""How many of the likeliest tokens are kept of a place: in its own dialogues 92 % of the probability for SmolLM2."""
HELD_OUT_SHARE = 32
"""One dialogue of so many is held out."""
PROMPT_WEIGHT = 0.25
"""What a place within a prompt counts in training; one whose next token is of the answer counts 1."""
_INDEX, _STATES, _LOG_PROBS, _PREFIX = (
    "index.jsonl",
    "states.bf16",
    "top_logp.f16",
    "prefix.safetensors",
)
_IDS = {"top_ids.u16": np.uint16, "top_ids.u32": np.uint32}


@dataclass(frozen=True, slots=True, eq=False)
class StoredDistribution:
    """What the target says behind each of the first n - 1 tokens of a text of n.

    ids [n-1, TOP] and log_probs [n-1, TOP]: the likeliest next tokens, the likeliest first. states [n-1, C]: those that
    a head reads, or None.
    """

    ids: Tensor
    log_probs: Tensor
    states: Tensor | None = None

    @classmethod
    def joined(cls, distributions: Sequence["StoredDistribution"]) -> "StoredDistribution":
        """The distributions of these texts' places, one text behind the other."""
        states = [
            distribution.states for distribution in distributions if distribution.states is not None
        ]
        ids = torch.cat([distribution.ids for distribution in distributions])
        log_probs = torch.cat([distribution.log_probs for distribution in distributions])
        return cls(ids, log_probs, torch.cat(states) if states else None)

    def at(self, place: int) -> "StoredDistribution":
        """The distribution of one of these places."""
        own = slice(place, place + 1)
        return StoredDistribution(
            self.ids[own], self.log_probs[own], None if self.states is None else self.states[own]
        )


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text of a shard: ids of its prompt and of what follows it, and its first row and number of rows there."""

    shard: "StoredShard"
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    start: int
    num_rows: int

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.answer

    @property
    def first(self) -> int:
        """The first place that has a row."""
        return len(self.tokens) - 1 - self.num_rows

    @property
    def is_held_out(self) -> bool:
        """Whether no training may read it: a matter of its prompt alone, so that equal questions stay together."""
        ids = np.array(self.prompt or self.answer, dtype=np.uint32)
        return (
            int.from_bytes(hashlib.blake2b(ids.tobytes(), digest_size=8).digest(), "big")
            % HELD_OUT_SHARE
            == 0
        )


class StoredShard:
    """The texts of one folder whose rows are all there: of a shard that is still being written, those so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ids, kind = next(
            (folder / name, kind) for name, kind in _IDS.items() if (folder / name).exists()
        )
        self._kind = kind

    @property
    def has_states(self) -> bool:
        return (self._folder / _STATES).exists()

    @cached_property
    def texts(self) -> list[StoredText]:
        rows = self._ids.stat().st_size // (TOP * self._kind().itemsize)
        lines = (self._folder / _INDEX).read_text(encoding="utf-8").split("\n")[:-1]  # whole lines
        found = (json.loads(line) for line in lines)
        made = (
            StoredText(self, tuple(row["p"]), tuple(row["g"]), row["start"], row["n"])
            for row in found
        )
        return [text for text in made if text.start + text.num_rows <= rows]

    def ids(self, text: StoredText) -> np.ndarray:
        """[num_rows, TOP]"""
        return self._rows(self._ids, self._kind, TOP, text).astype(np.int64)

    def log_probs(self, text: StoredText) -> np.ndarray:
        """[num_rows, TOP]"""
        return self._rows(self._folder / _LOG_PROBS, np.float16, TOP, text).astype(np.float32)

    def states(self, text: StoredText) -> Tensor:
        """[n-1, C] float32, the prefix's among them."""
        width = self._prefix.shape[1]
        rows = torch.from_numpy(self._rows(self._folder / _STATES, np.int16, width, text)).view(
            torch.bfloat16
        )
        return torch.cat([self._prefix[: text.first], rows]).float()

    @cached_property
    def _prefix(self) -> Tensor:
        return load_file(self._folder / _PREFIX)["states"]

    def _rows(self, file: Path, kind: type, width: int, text: StoredText) -> np.ndarray:
        size = width * kind().itemsize
        shape = (text.num_rows, width)
        return np.fromfile(
            file, kind, count=text.num_rows * width, offset=text.start * size
        ).reshape(shape)


def read_texts(folders: Iterable[Path]) -> Iterator[StoredText]:
    """The texts of all shards in or below these folders. SpecvizError for a folder without any."""
    for folder in folders:
        found = sorted(
            path.parent for path in folder.rglob(_INDEX) if not path.parent.name.startswith(".")
        )
        if not found:
            raise SpecvizError(
                f"{folder.name!r} holds no texts; write some with `dialogues` or `text` first"
            )
        for shard in found:
            yield from StoredShard(shard).texts


def write_shard(
    folder: Path,
    texts: Sequence[tuple[Sequence[int], Sequence[int], StoredDistribution]],
    first: int,
    vocab_size: int,
) -> None:
    """Writes a whole shard or none, from (prompt, answer, distribution) per text.

    first: how many places they all begin with.
    """
    name, kind = next(
        (name, kind) for name, kind in _IDS.items() if vocab_size <= np.iinfo(kind).max + 1
    )
    with replacing(folder) as partial:
        partial.mkdir(parents=True)
        with (
            (partial / _INDEX).open("w", encoding="utf-8") as index,
            (partial / name).open("wb") as ids,
            (partial / _LOG_PROBS).open("wb") as log_probs,
        ):
            start = 0
            for prompt, answer, distribution in texts:
                row = {
                    "start": start,
                    "n": len(distribution.ids) - first,
                    "p": list(prompt),
                    "g": list(answer),
                }
                index.write(json.dumps(row, separators=(",", ":")) + "\n")
                distribution.ids[first:].numpy().astype(kind).tofile(ids)
                distribution.log_probs[first:].half().numpy().tofile(log_probs)
                start += row["n"]
        _write_states(
            partial,
            [distribution.states for *_, distribution in texts if distribution.states is not None],
            first,
        )


def _write_states(folder: Path, states: Sequence[Tensor], first: int) -> None:
    if states:
        save_file({"states": states[0][:first].bfloat16().contiguous()}, folder / _PREFIX)
        with (folder / _STATES).open("wb") as file:
            for each in states:
                each[first:].bfloat16().contiguous().view(torch.int16).numpy().tofile(file)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Texts side by side, padded on the right: L the longest's tokens but one, places without a row weigh 0.

    tokens [B, L+1]; ids and log_probs [B, L, TOP]; weights [B, L]; states [B, L, C] or None.
    """

    tokens: Tensor
    ids: Tensor
    log_probs: Tensor
    weights: Tensor
    states: Tensor | None


def make_batch(texts: Sequence[StoredText], *, with_states: bool) -> Batch:
    count, length = len(texts), max(len(text.tokens) for text in texts) - 1
    tokens, weights = torch.zeros(count, length + 1, dtype=torch.long), torch.zeros(count, length)
    ids, log_probs = (
        torch.zeros(count, length, TOP, dtype=torch.long),
        torch.full((count, length, TOP), -torch.inf),
    )
    for row, text in enumerate(texts):
        own = slice(text.first, len(text.tokens) - 1)
        tokens[row, : own.stop + 1] = torch.tensor(text.tokens)
        ids[row, own] = torch.from_numpy(text.shard.ids(text))
        log_probs[row, own] = torch.from_numpy(text.shard.log_probs(text))
        weights[row, own] = PROMPT_WEIGHT
        weights[row, max(0, len(text.prompt) - 1) : own.stop] = 1
    states = [text.shard.states(text) for text in texts] if with_states else None
    return Batch(
        tokens,
        ids,
        log_probs,
        weights,
        states and torch.nn.utils.rnn.pad_sequence(states, batch_first=True),
    )
