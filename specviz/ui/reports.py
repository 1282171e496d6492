"""The pages of sections: who looks at what, which piece of work goes on, and how it takes turns at the engine.

A page makes its sections; here they are kept per browser session, so that leaving a page and coming back changes
nothing, and sent as JSON. One piece of work at a time per session; it can be stopped between two turns.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import SpecvizError
from specviz.session import Workbench
from specviz.trace import Trace
from specviz.ui.registry import Registry

Props = dict[str, Any]
MOST_SESSIONS = 500


@dataclass(frozen=True, slots=True)
class Place:
    """What is looked at on the stage: a run, and the step and token that are pinned there, if any."""

    run: str | None = None
    step: int | None = None
    ref: str | None = None

    @classmethod
    def told(cls, data: Any) -> Place:
        """What the browser said, as far as it can be a place at all."""
        given = data if isinstance(data, dict) else {}
        run, ref = (given.get(name) if isinstance(given.get(name), str) else None for name in ("run", "ref"))
        step = given.get("step")
        return cls(run, step if type(step) is int and step >= 0 else None, ref)


@dataclass(frozen=True, slots=True)
class Look:
    """A place with the trace that it is in; `trace` is None where nothing has been run."""

    place: Place
    trace: Trace | None


Work = Iterator[Props]
"""A section that grows: every value is the whole section."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page. `key`: what its contents depend on; the same key, the same section. `begin`: the section
    before anything is pressed. `acts`: what its buttons do, by name, with the section's values."""

    name: str
    key: Callable[[Look], object]
    begin: Callable[[Look], Props]
    acts: Mapping[str, Callable[[Look, Mapping[str, str]], Work]] = field(default_factory=dict)
    opening: Callable[[Look], Work] | None = None  # work that begins by itself when the section is new


class _Desk:
    """What one browser session sees of one page."""

    def __init__(self) -> None:
        self.keys: dict[str, object] = {}
        self.shown: dict[str, Props] = {}
        self.stop = threading.Event()
        self._working = threading.Lock()

    def claim(self) -> bool:
        if is_free := self._working.acquire(blocking=False):
            self.stop.clear()
        return is_free

    def free(self) -> None:
        self._working.release()


class Report:
    """One page of sections, for all browser sessions."""

    def __init__(self, sections: Sequence[Section], registry: Registry, bench: Workbench) -> None:
        self._sections = {section.name: section for section in sections}
        self._registry, self._bench = registry, bench
        self._desks: dict[str, _Desk] = {}

    def look(self, session: str, data: Mapping[str, Any]) -> Iterator[str]:
        """The whole page for what is looked at now; what depends on nothing that has changed stays as it was."""
        desk, look = self._desk(session), self._seen(data)
        fresh = [section for section in self._sections.values() if desk.keys.get(section.name) != section.key(look)]
        for section in fresh:
            desk.keys[section.name], desk.shown[section.name] = section.key(look), section.begin(look)
        yield _message([desk.shown[name] for name in self._sections], order=list(self._sections))
        for section in fresh:
            if section.opening is not None:
                yield from self._work(desk, section.name, section.opening(look))

    def act(self, session: str, data: Mapping[str, Any]) -> Iterator[str]:
        """What a button of a section does. Raises SpecvizError."""
        desk, look = self._desk(session), self._seen(data)
        section = self._sections.get(str(data.get("section")))
        action = section and section.acts.get(str(data.get("do")))
        if action is None:
            raise SpecvizError("this page has no such button any more: load it again")
        yield from self._work(desk, section.name, action(look, _texts(data.get("values"))))

    def halt(self, session: str) -> None:
        """Ends the work that goes on, after its present turn."""
        if (desk := self._desks.get(session)) is not None:
            desk.stop.set()

    def leave(self, session: str) -> None:
        self.halt(session)
        self._desks.pop(session, None)

    def _desk(self, session: str) -> _Desk:
        while len(self._desks) >= MOST_SESSIONS and session not in self._desks:
            self._desks.pop(next(iter(self._desks)), None)
        return self._desks.setdefault(session, _Desk())

    def _seen(self, data: Mapping[str, Any]) -> Look:
        place = Place.told(data.get("place"))
        view = self._registry.get(place.run)
        return Look(place, None if view is None or view.trace.header is None else view.trace)

    def _work(self, desk: _Desk, name: str, work: Work) -> Iterator[str]:
        if not desk.claim():
            raise SpecvizError("one piece of work at a time: wait for the one that goes on, or stop it")
        try:
            for props in self._in_turns(work, desk.stop):
                desk.shown[name] = props
                yield _message([props], busy=name)
            yield _message([desk.shown[name]])
        except SpecvizError:
            yield _message([desk.shown[name]])
            raise
        finally:
            desk.free()

    def _in_turns(self, work: Work, stop: threading.Event) -> Work:
        """Each step of the work has the engine for itself; between two of them others have their turn."""
        try:
            while not stop.is_set():
                ticket = self._bench.engine.join()
                try:
                    ticket.ready.wait()
                    props = next(work, None)
                finally:
                    self._bench.engine.leave(ticket)
                if props is None:
                    return
                yield props
        finally:
            work.close()


def _texts(values: Any) -> dict[str, str]:
    given = values if isinstance(values, dict) else {}
    return {str(name): value for name, value in given.items() if isinstance(value, str)}


def whole_number(values: Mapping[str, str], name: str, low: int, high: int) -> int:
    """One of a section's values. Raises SpecvizError."""
    text, what = values.get(name, ""), name.replace("_", " ")
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not low <= int(text) <= high:
        raise SpecvizError(f"{what} must be a whole number from {low:,} to {high:,} (got {text!r:.40})")
    return int(text)


def one_of(values: Mapping[str, str], name: str, allowed: Sequence[str]) -> str:
    """One of a section's values. Raises SpecvizError."""
    text = values.get(name, "")
    if text not in allowed:
        raise SpecvizError(f"{name} must be one of {', '.join(allowed)} (got {text!r:.100})")
    return text


def _message(sections: Sequence[Props], *, order: Sequence[str] | None = None, busy: str | None = None) -> str:
    message: Props = {"sections": list(sections), "busy": busy}
    if order is not None:
        message["order"] = list(order)
    text = json.dumps(message, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")  # Gradio looks for script tags in texts
