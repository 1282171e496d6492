"""Draft heads: what is trained on top of a target's states (Medusa, EAGLE), read from a checkpoint's folder.

Two runs with the same target share them. A load report names the keys that were used, the ones that nothing needs and
the ones that are missing: a half-loaded head only looks like a bad one, so that one is refused, and so is a head of a
layout with more tensors than its reader knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from specviz.drafters.eagle import heads as eagle_heads
from specviz.drafters.medusa import heads as medusa_heads
from specviz.errors import SpecvizError
from specviz.models.catalog import without_format
from specviz.models.checkpoint import Attached, LoadReport, list_keys, read_tensors
from specviz.models.hub import Progress, fetch_heads, find, head_files, ignore_progress
from specviz.models.library import Library, LoadedModel
from specviz.models.memory import is_out_of_memory
from specviz.settings import settings

Reader = Callable[[Mapping[str, object], Mapping[str, Tensor], LoadedModel], tuple[nn.Module, LoadReport]]

KINDS: Mapping[str, Reader] = {"medusa": medusa_heads.read, "eagle": eagle_heads.read}
"""Kind -> what makes heads for a target from the settings and the tensors of their checkpoint."""
_MOST_CONFIG_BYTES = 2**20
IDLE: Mapping[str, str] = {"medusa": medusa_heads.IDLE, "eagle": eagle_heads.IDLE}
"""Kind -> a pattern of the tensors that its files may hold and that nothing needs."""
_attached = Attached()


@dataclass(frozen=True, slots=True, eq=False)
class LoadedHeads:
    """Heads ready to draft for one target, on its device and in its number format."""

    name: str
    kind: str
    module: nn.Module
    report: LoadReport


def load_heads(
    library: Library | None, name: str, kind: str, target: LoadedModel, report: Progress = ignore_progress
) -> LoadedHeads:
    """Heads of that kind by catalogue name, folder or hub id. Raises SpecvizError, also for another target's heads.

    library: only asked whether names beyond the catalogue are allowed; None: the settings are.
    """
    if kind not in KINDS:
        raise SpecvizError(f"heads must be of the kind {' or '.join(KINDS)} (got {kind!r:.40})")
    if without_format(name) != name:
        raise SpecvizError(f"draft heads are held as their file holds them: leave out the ending (got {name!r:.100})")
    allow_any = settings().allow_any_model if library is None else library.allow_any
    source = find(name, allow_any=allow_any)
    key = (kind, source.key)
    if (known := _attached.find(target.model, key)) is not None:
        return known
    folder, _ = fetch_heads(source, may_download=allow_any, on_progress=report)
    return _attached.get(target.model, key, lambda: _load(folder, source.name, kind, target, report))


def _load(folder: Path, name: str, kind: str, target: LoadedModel, report: Progress) -> LoadedHeads:
    report(f"loading {name}", None)
    try:
        state = read_tensors(head_files(folder, name))
        module, keys = KINDS[kind](_config(folder), state, target)
    except SpecvizError as error:
        raise SpecvizError(f"{name} cannot draft for {target.name}: {error}") from error
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise SpecvizError(f"there is not enough memory for {name} beside {target.name}") from error
    if keys.missing:
        raise SpecvizError(f"{name} is incomplete: it lacks {list_keys(keys.missing)}, so it was not loaded")
    if unknown := [key for key in keys.unused if not re.fullmatch(IDLE[kind], key)]:
        raise SpecvizError(
            f"{name} holds {list_keys(unknown)} that specviz has no use for: it is of another layout, so it was not "
            "loaded"
        )
    report(f"loaded {name}" + (f"; nothing needs {list_keys(keys.unused)} in its file" if keys.unused else ""), 1.0)
    return LoadedHeads(name, kind, module, keys)


def _config(folder: Path) -> Mapping[str, object]:
    file = folder / "config.json"
    try:
        if file.stat().st_size > _MOST_CONFIG_BYTES:
            raise SpecvizError(f"config.json must not exceed {_MOST_CONFIG_BYTES} bytes (got {file.stat().st_size})")
        config = json.loads(file.read_text("utf-8"))
    except FileNotFoundError as error:
        raise SpecvizError("it has no config.json") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SpecvizError("its config.json is damaged") from error
    if not isinstance(config, dict):
        raise SpecvizError(f"its config.json must hold an object (got {type(config).__name__})")
    return config
