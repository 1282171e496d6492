"""The recorded runs that come with specviz, each read when first asked for. Loads no model."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from specviz.errors import SpecvizError
from specviz.settings import assets_dir
from specviz.trace.file import Trace, load_trace

FIRST_VISIT = "first-visit"
"""The name of the run that others build on."""
WELCOME = "real-function"
"""The name of the run that a first visit sees: a real model, without its weights."""
_load = cache(load_trace)


@dataclass(frozen=True, slots=True)
class ShippedRun:
    """A recorded run that comes with specviz."""

    name: str
    title: str
    about: str  # one plain sentence
    request: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The fields that differ from the page's first request."""
    broken: str | None = None  # the name of a wrong rule that judges instead of the request's own


def shipped_runs() -> Mapping[str, ShippedRun]:
    """The recorded runs by name, in the order of the list. Raises SpecvizError where the list cannot be read."""
    return _read_list(assets_dir() / "traces")


def shipped_trace(name: str) -> Trace:
    """The trace of the run of this name; do not change it. Raises SpecvizError."""
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
