"""Reads files of hidden states as vLLM's ExampleHiddenStatesConnector writes them, one safetensors file per request.

A file holds `token_ids` [T] and `hidden_states` [T, L, H]: L states behind every token, before the final norm, in the
order in which the target runs its layers. It does not say which layers these are. Files are not trusted.
"""

import hashlib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from specviz.alignment.prompts import PromptSet, from_values
from specviz.alignment.prompts.rows import MOST_ID
from specviz.alignment.summary import natural_key
from specviz.errors import SpecvizError

STATES, IDS = "hidden_states", "token_ids"
FORMATS = ("BF16", "F16", "F32")
SAMPLED = 4096  # bytes of a file, twice, that its fingerprint is made of
WHOLE_TEXTS = "whole texts of stored states"
"""The format of a PromptSet whose rows say nothing of where a prompt ends."""
_DAMAGED = (SafetensorError, OSError, ValueError, KeyError)


@dataclass(frozen=True, slots=True, eq=False)
class StoredText:
    """A text whose states are stored."""

    file: Path
    ids: Tensor  # [T]
    num_layers: int
    width: int


def open_texts(folder: Path) -> tuple[StoredText, ...]:
    """The texts of a folder, in natural order of the files' names. Reads no states. Raises SpecvizError."""
    files = sorted(folder.glob("*.safetensors"), key=lambda file: natural_key(file.name))
    if not files:
        raise SpecvizError(
            f"{folder.name!r:.80} holds no states: --states must name a folder of safetensors files with {STATES} and "
            f"{IDS} (files of other formats may run code and are not opened)"
        )
    return tuple(map(_open, files))


def _open(file: Path) -> StoredText:
    try:
        with safe_open(file, framework="pt") as tensors:
            names = set(tensors.keys())
            if not {STATES, IDS} <= names:
                raise SpecvizError(
                    f"{file.name} holds no stored states: it must have the tensors {STATES} and {IDS} (got "
                    f"{', '.join(sorted(names))!r:.80})"
                )
            part = tensors.get_slice(STATES)
            shape, dtype = part.get_shape(), part.get_dtype()
            ids = tensors.get_tensor(IDS)
    except _DAMAGED as error:
        raise SpecvizError(f"{file.name} is damaged, or not written to its end") from error
    if ids.ndim != 1 or ids.is_floating_point() or len(shape) != 3 or shape[0] != len(ids):
        raise SpecvizError(
            f"{file.name} must hold {IDS} [tokens] as whole numbers and {STATES} [tokens, layers, width] (got "
            f"{list(ids.shape)!s:.40} and {shape!s:.60})"
        )
    if dtype not in FORMATS:
        raise SpecvizError(f"{STATES} in {file.name} must be {', '.join(FORMATS)} (got {dtype})")
    return StoredText(file, ids.long(), *shape[1:])


def whole_texts(folder: Path) -> PromptSet:
    """The texts of a folder as rows. Everything behind a text's first token is its completion."""
    rows = []
    for text in open_texts(folder):
        first, *rest = text.ids.tolist() or [0]
        rows.append({"id": text.file.stem[:MOST_ID], "prompt": [first], "completion": rest})
    return replace(from_values(rows), name="", format=WHOLE_TEXTS)


class StoredStates:
    """The states of some texts, found by their ids."""

    def __init__(self, texts: Sequence[StoredText], layers: tuple[int, ...]) -> None:
        """layers: of the states in every file, in their order, numbered as in `Drafter.hidden_layers`."""
        self.layers = layers
        self.content = _hash(texts, layers)
        """A hash of the layers, the ids, and some of the numbers of every file."""
        self._texts = texts
        self._last = texts[0]

    def complete(self, prompt: Sequence[int], ids: Sequence[int] | None) -> tuple[int, ...]:
        """The ids of a row's text: its own, or what follows its prompt in the one file that begins with it.

        Raises SpecvizError where no file holds the text, or several might.
        """
        if ids is not None:
            self._find(torch.tensor([*prompt, *ids]))
            return tuple(ids)
        begin = torch.tensor(prompt)
        found = {
            tuple(text.ids[len(prompt) :].tolist())
            for text in self._texts
            if torch.equal(text.ids[: len(prompt)], begin)
        }
        if not found:
            raise SpecvizError(
                f"no file of states begins with its prompt of {len(prompt):,} tokens"
            )
        if len(found) > 1:
            raise SpecvizError(
                f"{len(found):,} files of states begin with the prompt: give the text's token_ids as well"
            )
        (rest,) = found
        if not rest:
            raise SpecvizError(
                "its file of states ends where the prompt does: ask vLLM for the output's states as well "
                "(kv_transfer_params: include_output_tokens)"
            )
        return rest

    def rows(self, ids: Tensor, begin: int) -> Tensor:
        """The states [n, L, H] behind a text's tokens from place `begin` on. ids: the text's beginning.

        vLLM stores no state behind the last token that it writes. There stands nan, as nothing is read from it.
        Raises SpecvizError for a text that is not stored, and for states that are no numbers.
        """
        text = self._find(ids)
        try:
            with safe_open(text.file, framework="pt") as tensors:
                states = tensors.get_slice(STATES)[begin : len(ids)]
        except _DAMAGED as error:
            raise SpecvizError(f"{text.file.name} is damaged, or was removed") from error
        if not states.isfinite().all():
            raise SpecvizError(
                f"{STATES} in {text.file.name} hold nan or infinite numbers: store this text again, or remove the file"
            )
        lacking = len(ids) - begin - len(states)
        behind = states.new_full((lacking, *states.shape[1:]), torch.nan)
        return torch.cat([states, behind])

    def _find(self, ids: Tensor) -> StoredText:
        """The text that begins with these ids; the last of them may be one behind its end. Raises SpecvizError."""
        for text in (self._last, *self._texts):
            stored = text.ids
            if len(ids) <= len(stored) + 1 and torch.equal(ids[: len(stored)], stored[: len(ids)]):
                self._last = text
                return text
        raise SpecvizError("no file of states holds its text")


def _hash(texts: Iterable[StoredText], layers: tuple[int, ...]) -> str:
    digest = hashlib.sha256(repr(layers).encode())
    for text in texts:
        size = text.file.stat().st_size
        digest.update(f"{text.file.name} {size}".encode())
        digest.update(text.ids.numpy().tobytes())
        with text.file.open("rb") as stream:
            for place in (size // 2, max(0, size - SAMPLED)):
                stream.seek(place)
                digest.update(stream.read(SAMPLED))
    return digest.hexdigest()


def check_texts(
    texts: Iterable[StoredText], layers: Collection[int], width: int, vocab_size: int, target: str
) -> None:
    """Raises SpecvizError for a text with states of other layers or another width than the target's, or unknown ids."""
    for text in texts:
        if text.num_layers != len(layers):
            raise SpecvizError(
                f"{text.file.name} holds {text.num_layers} states a token, and --state-layers names {len(layers)}"
            )
        if text.width != width:
            raise SpecvizError(
                f"the states in {text.file.name} are {text.width} wide, those of {target} {width}: they are another "
                "model's"
            )
        known = (text.ids >= 0) & (text.ids < vocab_size)
        if not known.all():
            raise SpecvizError(
                f"{text.file.name} has ids that {target} does not know (got {int(text.ids[~known][0])})"
            )
