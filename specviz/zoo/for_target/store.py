"""Texts with what the target says at each of their places, in folders on disk: computed once, read in every epoch.

A shard is a folder. `index.jsonl`, a line per text: "p" and "g", the ids of its prompt and of what the target wrote;
"start" and "n", the rows of its places in the other files; of the lab's rows also "t", the temperature of the
probabilities, and "w", the weights of the answer's places. The other files hold a row per place, without a header:
`top_ids.u16` (`.u32` for a larger vocabulary) and `top_logp.f16` [TOP], the likeliest next tokens with their
log-probabilities; `states.bf16` [C], the layers' states side by side, where a head is to learn from them. The last
token of a text has no row. The places that all texts begin with have rows in `prefix.safetensors` instead."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
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
_CUT = "cut"
"""A file in a shard that ends before the last of its texts, because enough tokens were written."""
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


@dataclass(frozen=True, slots=True, eq=False)
class NewText:
    """A text to store: ids of its prompt and of what follows it, and what the target says at the text's last places."""

    prompt: Sequence[int]
    answer: Sequence[int]
    distribution: StoredDistribution
    temperature: float = 1.0
    weights: Sequence[float] | None = None  # of the answer's places


@dataclass(frozen=True, slots=True)
class StoredText:
    """A text of a shard: ids of its prompt and of what follows it, and its first row and number of rows there."""

    shard: "StoredShard"
    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    start: int
    num_rows: int
    temperature: float  # of the stored probabilities
    weights: tuple[float, ...] | None  # of the answer's places; None: all alike

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
            StoredText(
                self,
                tuple(row["p"]),
                tuple(row["g"]),
                row["start"],
                row["n"],
                row.get("t", 1.0),
                tuple(row["w"]) if "w" in row else None,
            )
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
    texts: Sequence[NewText],
    first: int,
    vocab_size: int,
    *,
    is_cut: bool = False,
) -> None:
    """Writes a whole shard or none. first: how many places they all begin with. is_cut: whether texts are left out."""
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
            for text in texts:
                distribution = text.distribution
                row = {
                    "start": start,
                    "n": len(distribution.ids) - first,
                    "p": list(text.prompt),
                    "g": list(text.answer),
                }
                if text.temperature != 1:
                    row["t"] = text.temperature
                if text.weights is not None:
                    row["w"] = list(text.weights)
                index.write(json.dumps(row, separators=(",", ":")) + "\n")
                distribution.ids[first:].numpy().astype(kind).tofile(ids)
                distribution.log_probs[first:].half().numpy().tofile(log_probs)
                start += row["n"]
        _write_states(
            partial,
            [text.distribution.states for text in texts if text.distribution.states is not None],
            first,
        )
        if is_cut:
            (partial / _CUT).touch()


def enough_of(texts: Iterable[NewText], num_tokens: int) -> tuple[list[NewText], bool]:
    """The first texts whose answers hold so many tokens, and whether that ended the list."""
    taken: list[NewText] = []
    for text in texts:
        taken.append(text)
        num_tokens -= len(text.answer)
        if num_tokens <= 0:
            return taken, True
    return taken, False


def stored_tokens(shard: Path, num_tokens: int) -> int | None:
    """How many tokens the answers of a shard hold; None where it has to be written, as one that is cut too early."""
    if not shard.exists():
        return None
    total = sum(len(text.answer) for text in StoredShard(shard).texts)
    return None if total < num_tokens and (shard / _CUT).exists() else total


def _write_states(folder: Path, states: Sequence[Tensor], first: int) -> None:
    if states:
        save_file({"states": states[0][:first].bfloat16().contiguous()}, folder / _PREFIX)
        with (folder / _STATES).open("wb") as file:
            for each in states:
                each[first:].bfloat16().contiguous().view(torch.int16).numpy().tofile(file)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Texts side by side, padded on the right: L the longest's tokens but one, places without a row weigh 0.

    tokens [B, L+1]; ids and log_probs [B, L, TOP], at the temperatures [B, 1, 1]; weights [B, L]; is_answer [B, L]:
    where the next token is of the answer; states [B, L, C], or None where they are not stored.
    """

    tokens: Tensor
    ids: Tensor
    log_probs: Tensor
    temperatures: Tensor
    weights: Tensor
    is_answer: Tensor
    states: Tensor | None

    def split(self, size: int) -> Iterator["Batch"]:
        """Batches of at most `size` of these texts."""
        for start in range(0, len(self.tokens), size):
            parts = (getattr(self, field.name) for field in fields(self))
            yield Batch(*(None if part is None else part[start : start + size] for part in parts))


def make_batch(
    texts: Sequence[StoredText], *, with_states: bool, place_weight: float = 0.0
) -> Batch:
    """A batch of these texts. with_states: whether stored states are wanted, which counts if all texts have them.

    place_weight: how much of an answer's weight is that of its places, from 0 to 1.
    """
    count, length = len(texts), max(len(text.tokens) for text in texts) - 1
    tokens, weights = torch.zeros(count, length + 1, dtype=torch.long), torch.zeros(count, length)
    is_answer = torch.zeros(count, length, dtype=torch.bool)
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
        answer = slice(max(0, len(text.prompt) - 1), own.stop)
        is_answer[row, answer] = True
        weights[row, answer] = 1
        if text.weights is not None:
            weights[row, answer] += place_weight * (torch.tensor(text.weights) - 1)
    has_states = with_states and all(text.shard.has_states for text in texts)
    states = [text.shard.states(text) for text in texts] if has_states else None
    return Batch(
        tokens,
        ids,
        log_probs,
        torch.tensor([text.temperature for text in texts])[:, None, None],
        weights,
        is_answer,
        states and torch.nn.utils.rnn.pad_sequence(states, batch_first=True),
    )
