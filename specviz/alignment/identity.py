"""Who the models of a job are: their shown names, and a hash of weights, dtype, tokenizer and configuration.

Found out where the shards run, so that no other process needs the models; `OnModels` makes them known there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..models import LoadedModel, check_pair
from ..session import workbench

VALUES_PER_TABLE = 64  # of each weight table; training changes nearly all of them


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    content: str
    num_ids: int


def introduce(wanted: tuple[Any, ...]) -> tuple[Identity, ...]:
    """The target and its drafts, loaded once each. Raises SpecvizError for one that cannot draft for the first."""
    library = workbench().library
    target = library.load(wanted[0])
    found = [_identity(target)]
    for each in wanted[1:]:
        draft = library.load(each, as_draft=True)
        check_pair(target, draft)
        found.append(_identity(draft))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class OnModels:
    """Work for any process: loads what was asked for by its own name or folder, so that shown names mean it there."""

    wanted: tuple[Any, ...]
    work: Callable[[Any], Any]

    def __call__(self, item: Any) -> Any:
        for each in self.wanted:
            workbench().library.load(each)
        return self.work(item)


def _identity(loaded: LoadedModel) -> Identity:
    told = (loaded.text.sha, loaded.tokenizer.chat_template, sorted(loaded.text.eos_ids), loaded.info.context_limit)
    digest = hashlib.sha256(f"{told!r} {loaded.model.config.to_json_string()}".encode())
    for name, table in loaded.model.named_parameters():
        flat = table.detach().flatten()
        some = flat[:: max(1, len(flat) // VALUES_PER_TABLE)][:VALUES_PER_TABLE].float().cpu()
        digest.update(f"{name} {tuple(table.shape)} {table.dtype}".encode() + some.numpy().tobytes())
    num_ids = min(loaded.info.vocab_size, loaded.text.num_ids)
    return Identity(loaded.name, digest.hexdigest()[:16], num_ids)
