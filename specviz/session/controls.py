"""Controls: what a person may change while tokens flow; read at the start of every step.

They lie as JSON in a block of memory under a lock. The block may be shared between processes: one of them generates,
for instance on a GPU, and another one has the sliders.
"""

from __future__ import annotations

import json
import struct
import threading
from collections.abc import Iterator, MutableSequence, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing.context import BaseContext
from multiprocessing.synchronize import Lock

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import RunSettings
from specviz.rules import RULES

PACES = {"slow": 1.0, "reading": 0.6, "full": 0.0}  # seconds from one step to the next
PATIENCE_S = 5.0
"""How long to wait for the block: it is held for microseconds, unless a process was killed that held it."""
_HEADER = struct.Struct("<QQ")  # number of changes so far, bytes of JSON that follow
_LIVE = {item.name for item in fields(RunSettings)} - {"params"}  # these follow the method
_FLAGS = ("paused", "stopped", "cancelled")


@dataclass(frozen=True, slots=True)
class Block:
    """The memory of one run's controls and its lock: this process's own, freed with them, unless `shared` made it."""

    memory: MutableSequence[int]
    lock: Lock | threading.Lock

    SIZE = 1 << 14

    @classmethod
    def shared(cls, context: BaseContext) -> Block:
        """One for several processes: an argument of a new process, or made before a process is forked."""
        return cls(context.RawArray("B", cls.SIZE), context.Lock())


@dataclass(frozen=True, slots=True)
class ControlState:
    """One reading of the controls. cancelled: what is being loaded is no longer wanted."""

    settings: RunSettings
    pace: str
    paused: bool = False
    stopped: bool = False
    cancelled: bool = False


class Controls:
    """The live settings of one run. `targets` and `drafts` are names on offer beside the run's own."""

    def __init__(
        self,
        settings: RunSettings | None,
        targets: Sequence[str] = (),
        drafts: Sequence[str] = (),
        pace: str = "full",
        block: Block | None = None,
    ) -> None:
        """settings: those that the run begins with; None: those that another process has put into the block."""
        self._block = block or Block(bytearray(Block.SIZE), threading.Lock())
        self._latest: tuple[int, ControlState | None] = (0, None)
        self._first = settings or self.settings
        self._offered = {
            "method": list(METHODS),
            "rule": [None, *RULES],
            "target": list(dict.fromkeys([self._first.target, *targets])),
            "draft": list(dict.fromkeys([self._first.draft, *drafts])),
            "pace": list(PACES),
        }
        if settings is not None:
            self._check("rule", settings.rule)
            self._write(ControlState(settings, self._check("pace", pace)))

    @property
    def settings(self) -> RunSettings:
        return self.read().settings

    def read(self) -> ControlState:
        with self._hold():
            return self._read()

    def set(self, name: str, value: object) -> None:
        """Changes one setting from the next step on. Raises SpecvizError and changes nothing if it may not."""
        self.change(**{name: value})

    def change(self, **values: object) -> None:
        """Changes several settings at once: no step sees some of them without the others. Raises like `set`."""
        values = {name: self._check(name, value) for name, value in values.items()}
        knobs = {name: values.pop(name) for name in _LIVE & values.keys()}
        with self._hold():
            state = self._read()
            self._write(replace(state, settings=replace(state.settings, **knobs), **values))

    def restore(self, settings: RunSettings, refused: RunSettings) -> None:
        """Takes back the model names, method and rule of a refused change, unless they have changed again since."""
        with self._hold():
            state = self._read()
            same = [
                name
                for name in RunSettings.NAMES
                if getattr(state.settings, name) == getattr(refused, name)
            ]
            before = {name: getattr(settings, name) for name in same}
            self._write(replace(state, settings=replace(state.settings, **before)))

    def offer(self, kind: str, name: str) -> None:
        """Adds a model name that may be chosen from now on."""
        if name not in self._offered[kind]:
            self._offered[kind].append(name)

    @contextmanager
    def _hold(self) -> Iterator[None]:
        if not self._block.lock.acquire(timeout=PATIENCE_S):
            raise SpecvizError(
                "this run can no longer be controlled: the process that generates was ended; run again"
            )
        try:
            yield
        finally:
            self._block.lock.release()

    def _read(self) -> ControlState:
        memory = self._block.memory
        version, size = _HEADER.unpack_from(memory)
        if version != self._latest[0]:
            values = json.loads(bytes(memory[_HEADER.size : _HEADER.size + size]))
            self._latest = (
                version,
                ControlState(**values | {"settings": RunSettings(**values["settings"])}),
            )
        return self._latest[1]

    def _write(self, state: ControlState) -> None:
        """`state` with the parameters that belong to its method: the run's first ones, or another method's defaults."""
        params = self._first.params if state.settings.method == self._first.method else {}
        values = asdict(replace(state, settings=replace(state.settings, params=params)))
        content = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode()
        if len(content) > Block.SIZE - _HEADER.size:
            raise SpecvizError(f"the settings of a run are too long (got {len(content):,} bytes)")
        version, _ = _HEADER.unpack_from(self._block.memory)
        _HEADER.pack_into(self._block.memory, 0, version + 1, len(content))
        self._block.memory[_HEADER.size : _HEADER.size + len(content)] = content

    def _check(self, name: str, value: object) -> object:
        """The value as it is held. Raises SpecvizError, ValueError for what is no control."""
        if name in self._offered:
            if value not in self._offered[name]:
                allowed = ", ".join(str(each) for each in self._offered[name] if each is not None)
                raise SpecvizError(f"{name} must be one of {allowed} (got {value!r})")
            return value
        if name in _LIVE:
            return getattr(replace(self._first, **{name: value}).validate(), name)
        if name in _FLAGS:
            return bool(value)
        raise ValueError(f"no such control: {name!r}")
