"""The recorded runs that come with specviz: what each is, and its trace, read when first asked for. Loads no model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError
from specviz.settings import assets_dir
from specviz.trace.file import Trace, load_trace

FIRST_VISIT, WELCOME = "first-visit", "real-eagle"
"""The run that others build on, and the one that a first visit sees: a real model, without its weights."""
_load = cache(load_trace)


@dataclass(frozen=True, slots=True)
class ShippedRun:
    """about: one plain sentence. request: the fields that differ from the page's first request. broken: the name of a
    wrong rule that judges instead of the request's own."""

    name: str
    title: str
    about: str
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    broken: str | None = None


def shipped_runs() -> Mapping[str, ShippedRun]:
    """All recorded runs by name, in the order of the list. Raises SpecvizError where the list cannot be read."""
    return _read_list(assets_dir() / "traces")


def shipped_trace(name: str) -> Trace:
    """The trace of that name, not to be changed. Raises SpecvizError."""
    if name not in shipped_runs():
        raise SpecvizError(
            f"a recorded run must be one of {', '.join(shipped_runs())} (got {name!r:.100})"
        )
    return _load(shipped_file(name))


def shipped_file(name: str) -> Path:
    return assets_dir() / "traces" / f"{name}.jsonl.gz"


@cache
def _read_list(folder: Path) -> Mapping[str, ShippedRun]:
    try:
        entries = json.loads((folder / "traces.json").read_text("utf-8"))
        return {entry["name"]: ShippedRun(**entry) for entry in entries}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SpecvizError(
            f"the list of recorded runs in {folder.name} cannot be read ({error})"
        ) from None
