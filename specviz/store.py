"""The library of traces: names in order of use, forgetting the least recently used beyond a count or a size.

Thread-safe. Files of a folder are listed at once, read when first asked for, and never deleted: forgetting one frees
memory only.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.trace import Trace, dump_event, load_trace

SUFFIXES = (".jsonl", ".jsonl.gz")
MAX_NAME = 80
UNSAFE = re.compile(r"[^\w .()+-]+")


@dataclass(frozen=True, slots=True)
class Entry:
    """What a list of the library shows. num_bytes: the unpacked size, 0 while a file is not loaded."""

    name: str
    num_bytes: int
    path: Path | None = None


class Store:
    """At most `capacity` traces and `max_bytes` of their text in memory; the newest one always stays."""

    def __init__(self, capacity: int = 32, max_bytes: int = 256 << 20) -> None:
        if capacity < 1 or max_bytes < 1:
            raise ValueError(f"capacity and max_bytes must be >= 1 (got {capacity}, {max_bytes})")
        self._capacity, self._max_bytes = capacity, max_bytes
        self._lock = threading.RLock()
        self._entries: OrderedDict[str, Entry] = OrderedDict()  # least recently used first
        self._loaded: dict[str, Trace] = {}

    def add(self, trace: Trace, name: str = "run") -> str:
        """Keep a trace under `name`, made safe for a file and unique; returns the name it got."""
        num_bytes = _num_bytes(trace)
        with self._lock:
            unique = self._unique(safe_name(name))
            self._keep(Entry(unique, num_bytes), trace)
            return unique

    def add_folder(self, folder: str | Path) -> list[str]:
        """List a folder's trace files by their names, first name first in `list`; they are read when asked for."""
        paths = [path for path in Path(folder).glob("*.jsonl*") if path.name.endswith(SUFFIXES) and path.is_file()]
        with self._lock:
            names = []
            for path in sorted(paths, reverse=True):
                names.append(self._unique(safe_name(path.name.split(".jsonl")[0])))
                self._entries[names[-1]] = Entry(names[-1], 0, path)
            return names[::-1]

    def get(self, name: str) -> Trace:
        """The trace of that name, now the most recently used; SpecvizError if there is none."""
        with self._lock:
            entry = self._known(name)
            if name in self._loaded:
                self._entries.move_to_end(name)
                return self._loaded[name]
        trace = load_trace(entry.path)
        num_bytes = _num_bytes(trace)
        with self._lock:
            self._keep(Entry(name, num_bytes, entry.path), trace)
        return trace

    def list(self) -> tuple[Entry, ...]:
        """All entries, the most recently used first."""
        with self._lock:
            return tuple(reversed(self._entries.values()))

    def remove(self, name: str) -> None:
        """Take a trace off the list; a file it came from stays. SpecvizError if there is none."""
        with self._lock:
            self._known(name)
            del self._entries[name]
            self._loaded.pop(name, None)

    def save(self, name: str, folder: str | Path) -> Path:
        """Write a trace to `folder` as <name>.jsonl.gz; returns the path."""
        path = Path(folder) / f"{name}.jsonl.gz"
        self.get(name).save(path)
        return path

    def _known(self, name: str) -> Entry:
        if name not in self._entries:
            known = ", ".join(list(self._entries)[-5:]) or "none"
            raise SpecvizError(f"there is no run called {name!r:.100} (the latest: {known})")
        return self._entries[name]

    def _unique(self, name: str) -> str:
        number, unique = 1, name
        while unique in self._entries:
            number += 1
            unique = f"{name} ({number})"
        return unique

    def _keep(self, entry: Entry, trace: Trace) -> None:
        self._entries[entry.name] = entry
        self._entries.move_to_end(entry.name)
        self._loaded[entry.name] = trace
        for oldest in [name for name in self._entries if name in self._loaded][:-1]:
            size = sum(kept.num_bytes for kept in self._entries.values())
            if len(self._loaded) <= self._capacity and size <= self._max_bytes:
                return
            self._forget(oldest)

    def _forget(self, name: str) -> None:
        del self._loaded[name]
        path = self._entries[name].path
        if path is None:
            del self._entries[name]
        else:
            self._entries[name] = Entry(name, 0, path)


def _num_bytes(trace: Trace) -> int:
    return sum(len(dump_event(event).encode()) + 1 for event in trace.events())


def safe_name(name: str) -> str:
    """A name that is also a harmless file name: letters, digits and a few signs, no leading dot, not empty."""
    cleaned = UNSAFE.sub("-", name).strip(" .-")[:MAX_NAME].strip(" .-")
    return cleaned or "run"
