"""Controls: the settings that a person may change while tokens flow. A run reads them at the start of every step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Protocol

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import RunSettings
from specviz.rules import RULES

PACES = {"slow": 1.0, "normal": 0.6, "full": 0.0}  # seconds from one step to the next
_LIVE = {item.name for item in fields(RunSettings)} - {"params"}  # these follow the method
_FLAGS = ("paused", "stopped", "cancelled")


@dataclass(frozen=True, slots=True)
class ControlState:
    """A reading of the controls."""

    settings: RunSettings
    pace: str
    paused: bool = False
    stopped: bool = False
    cancelled: bool = False  # the models that are being loaded are no longer wanted


class Store(Protocol):
    """A place for one ControlState, under a lock."""

    def hold(self) -> AbstractContextManager:
        """Locks the state while it is read or changed."""

    def read(self) -> ControlState: ...

    def write(self, state: ControlState) -> None: ...


class LocalStore:
    """A store for the threads of this process."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._lock = threading.Lock()

    def hold(self) -> AbstractContextManager:
        return self._lock

    def read(self) -> ControlState:
        return self._state

    def write(self, state: ControlState) -> None:
        self._state = state


class Controls:
    """The live settings of one run."""

    def __init__(
        self,
        settings: RunSettings,
        targets: Sequence[str] = (),
        drafts: Sequence[str] = (),
        pace: str = "full",
        store: Store | None = None,
    ) -> None:
        """settings: those that the run begins with. targets, drafts: names on offer beside the run's own.

        store: a place that holds a state already, for instance one that processes share. None: the state lies in this
        process and begins with `settings` and `pace`.
        """
        self._first = settings
        self._offered = {
            "method": list(METHODS),
            "rule": [None, *RULES],
            "target": list(dict.fromkeys([settings.target, *targets])),
            "draft": list(dict.fromkeys([settings.draft, *drafts])),
            "pace": list(PACES),
        }
        self._check("rule", settings.rule)
        self._check("pace", pace)
        self._store = store or LocalStore(ControlState(settings, pace))

    @property
    def settings(self) -> RunSettings:
        return self.read().settings

    def read(self) -> ControlState:
        """The state as it is now."""
        with self._store.hold():
            return self._store.read()

    def set(self, name: str, value: object) -> None:
        """Changes one setting from the next step on. Raises SpecvizError and changes nothing if it may not."""
        self.change(**{name: value})

    def change(self, **values: object) -> None:
        """Changes several settings at once: no step sees some of them without the others. Raises like `set`."""
        checked = {name: self._check(name, value) for name, value in values.items()}
        live = {name: checked.pop(name) for name in _LIVE & checked.keys()}
        with self._store.hold():
            state = self._store.read()
            self._write(replace(state, settings=replace(state.settings, **live), **checked))

    def restore(self, settings: RunSettings, refused: RunSettings) -> None:
        """Takes back the model names, method and rule of a refused change, unless they have changed again since."""
        with self._store.hold():
            state = self._store.read()
            before = {}
            for name in RunSettings.NAMES:
                if getattr(state.settings, name) == getattr(refused, name):
                    before[name] = getattr(settings, name)
            self._write(replace(state, settings=replace(state.settings, **before)))

    def offer(self, kind: str, name: str) -> None:
        """Adds a model name that may be chosen from now on."""
        if name not in self._offered[kind]:
            self._offered[kind].append(name)

    def _write(self, state: ControlState) -> None:
        """Stores a state with its method's parameters: the run's first ones, or another method's defaults."""
        is_first_method = state.settings.method == self._first.method
        params = self._first.params if is_first_method else {}
        self._store.write(replace(state, settings=replace(state.settings, params=params)))

    def _check(self, name: str, value: object) -> object:
        """The value as it is stored. Raises SpecvizError, or ValueError for an unknown control."""
        if name in self._offered:
            offered = self._offered[name]
            if value not in offered:
                allowed = ", ".join(str(choice) for choice in offered if choice is not None)
                raise SpecvizError(f"{name} must be one of {allowed} (got {value!r})")
            return value
        if name in _LIVE:
            checked = replace(self._first, **{name: value}).validate()
            return getattr(checked, name)
        if name in _FLAGS:
            return bool(value)
        raise ValueError(f"no such control: {name!r}")
