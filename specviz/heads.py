"""Draft heads: what is trained on top of a target's states (Medusa, EAGLE), read from a checkpoint's folder.

A load report names the keys that were used, the ones that nothing uses and the ones that are missing: a half-loaded
head only looks like a bad one.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from .errors import SpecvizError
from .fetch import Progress, unwatched
from .models import Library, LoadedModel


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Names of tensors: of the checkpoint and used, of the checkpoint and not used, lacking in it."""

    used: tuple[str, ...]
    unused: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class LoadedHeads:
    """Heads ready to draft for one target, on its device and in its number format."""

    name: str
    kind: str
    module: nn.Module
    report: LoadReport


def load_heads(
    library: Library | None, name: str, kind: str, target: LoadedModel, report: Progress = unwatched
) -> LoadedHeads:
    """Heads of that kind by catalogue name, folder or hub id. Raises SpecvizError, also for another target's heads."""
    raise SpecvizError(f"{name} cannot be loaded: heads of the kind {kind} are not known")
