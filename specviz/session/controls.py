"""Controls: what a person may change while tokens flow; read at the start of every step.

One small fixed record of numbers and indices in a buffer that the caller may supply, so that it can also lie in memory
shared with a worker process. Names are looked up in lists that both sides hold.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.rules import RULES

LIVE = ("k", "temperature", "top_k", "top_p", "method", "rule", "draft", "target")
REFUSABLE = ("method", "rule", "draft", "target")
_INDEXED = ("method", "rule", "target", "draft", "pace")
PACES = {"slow": 1.0, "reading": 0.25, "full": 0.0}  # seconds from one step to the next


@dataclass(frozen=True, slots=True)
class ControlValues:
    """One reading of the controls. rule None: the method's own."""

    k: int
    temperature: float
    top_k: int
    top_p: float
    method: str
    rule: str | None
    target: str
    draft: str | None
    pace: str
    paused: bool
    stopped: bool


class Controls:
    """Live settings of one run. `targets` and `drafts` are the names on offer; `buffer` holds `Controls.SIZE` bytes."""

    _RECORD = struct.Struct("<qdqdqqqqq??")
    SIZE = _RECORD.size

    def __init__(
        self,
        request: Request,
        targets: Sequence[str] = (),
        drafts: Sequence[str] = (),
        pace: str = "full",
        buffer: bytearray | memoryview | None = None,
    ) -> None:
        self._request = request
        self._names = {
            "method": list(METHODS),
            "rule": [None, *RULES],
            "target": list(dict.fromkeys([request.target, *targets])),
            "draft": list(dict.fromkeys([request.draft, *drafts])),
            "pace": list(PACES),
        }
        self._buffer = buffer if buffer is not None else bytearray(self.SIZE)
        self._guard = threading.Lock()
        self._write(
            ControlValues(
                request.k,
                request.temperature,
                request.top_k,
                request.top_p,
                request.method,
                self._known("rule", request.rule),
                request.target,
                request.draft,
                self._known("pace", pace),
                paused=False,
                stopped=False,
            )
        )

    def values(self) -> ControlValues:
        with self._guard:
            return self._read()

    def _read(self) -> ControlValues:
        k, temperature, top_k, top_p, *indices, paused, stopped = self._RECORD.unpack_from(self._buffer)
        names = [self._names[kind][index] for kind, index in zip(_INDEXED, indices, strict=True)]
        return ControlValues(k, temperature, top_k, top_p, *names, paused=paused, stopped=stopped)

    def _write(self, values: ControlValues) -> None:
        indices = [self._names[kind].index(getattr(values, kind)) for kind in _INDEXED]
        numbers = (values.k, values.temperature, values.top_k, values.top_p)
        self._RECORD.pack_into(self._buffer, 0, *numbers, *indices, values.paused, values.stopped)

    def set(self, name: str, value: object) -> None:
        """Changes one setting from the next step on. Raises SpecvizError and changes nothing if it may not."""
        self.change(**{name: value})

    def change(self, **values: object) -> None:
        """Changes several settings at once: no step sees some of them without the others. Raises like `set`."""
        checked = {name: self._checked(name, value) for name, value in values.items()}
        with self._guard:
            self._write(replace(self._read(), **checked))

    def _checked(self, name: str, value: object) -> object:
        if name in ("k", "temperature", "top_k", "top_p"):
            return getattr(replace(self._request, **{name: value}).checked(), name)
        if name in ("paused", "stopped"):
            return bool(value)
        if name in self._names:
            return self._known(name, value)
        raise ValueError(f"no such control: {name!r}")

    def restore(self, values: ControlValues, refused: ControlValues) -> None:
        """Takes back the model names and the method of a refused change, unless they have changed again since."""
        with self._guard:
            now = self._read()
            names = [name for name in REFUSABLE if getattr(now, name) == getattr(refused, name)]
            self._write(replace(now, **{name: getattr(values, name) for name in names}))

    def offer(self, kind: str, name: str) -> None:
        """Adds a model name that may be chosen from now on."""
        if name not in self._names[kind]:
            self._names[kind].append(name)

    def _known(self, kind: str, value: object) -> str | None:
        if value not in self._names[kind]:
            allowed = ", ".join(str(name) for name in self._names[kind] if name is not None)
            raise SpecvizError(f"{kind} must be one of {allowed} (got {value!r})")
        return value
