"""The pages of sections: who looks at what, which piece of work goes on, and how it takes turns at the engine.

A page makes its sections; here they are kept per browser session, so that leaving a page and coming back changes
nothing, and sent as JSON. One piece of work at a time per session; it can be stopped between two turns.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from specviz.errors import SpecvizError
from specviz.session import Workbench
from specviz.trace import Settings, Trace
from specviz.ui.registry import Registry

Props = dict[str, Any]
MOST_SESSIONS = 500
NEVER = object()


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

    @property
    def settings(self) -> Settings | None:
        """Those of the newest step; None before there is one."""
        return self.trace.steps[-1].settings if self.trace is not None and self.trace.steps else None


Work = Generator[Props, None, None]
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
        self.busy: str | None = None  # the section that is being worked at
        self._guard = threading.Lock()

    def claim(self, name: str) -> bool:
        with self._guard:
            if is_free := self.busy is None:
                self.busy = name
                self.stop.clear()
        return is_free

    def free(self) -> None:
        with self._guard:
            self.busy = None


class Report:
    """One page of sections, for all browser sessions."""

    def __init__(self, sections: Sequence[Section], registry: Registry, bench: Workbench) -> None:
        self._sections = {section.name: section for section in sections}
        self._registry, self._bench = registry, bench
        self._desks: dict[str, _Desk] = {}

    def look(self, session: str, data: Mapping[str, Any]) -> Iterator[str]:
        """The whole page for what is looked at now; what depends on nothing that has changed stays as it was."""
        desk, look = self._desk(session), self._seen(data)
        opening = [section for section in self._begun(desk, look) if section.opening is not None]
        whole = [desk.shown[name] for name in self._sections]
        if opening and desk.claim(opening[0].name):
            yield _message(whole, order=list(self._sections), busy=desk.busy)
            yield from self._work(desk, look, [(section.name, section.opening(look)) for section in opening])
            return
        for section in opening:  # another time, when nothing else is being worked at
            desk.keys.pop(section.name)
        yield _message(whole, order=list(self._sections), busy=desk.busy)

    def act(self, session: str, data: Mapping[str, Any]) -> Iterator[str]:
        """What a button of a section does. Raises SpecvizError."""
        desk, look = self._desk(session), self._seen(data)
        section = self._sections.get(str(data.get("section")))
        action = section and section.acts.get(str(data.get("do")))
        if action is None:
            raise SpecvizError("this page has no such button any more: load it again")
        if not desk.claim(section.name):
            yield _message([], busy=desk.busy)
            raise SpecvizError("one piece of work at a time: wait for the one that goes on, or stop it")
        if section.name not in desk.shown:  # a page from before this server was started, or one long forgotten
            self._begun(desk, look)
        yield from self._work(desk, look, [(section.name, action(look, _texts(data.get("values"))))])

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

    def _work(self, desk: _Desk, look: Look, works: Sequence[tuple[str, Work]]) -> Iterator[str]:
        """Drives each section's work in turn; the desk has been claimed for them, and is free in the end."""
        names = [name for name, _ in works]
        try:
            for name, work in works:
                for props in self._bench.in_turns(work):
                    desk.shown[name] = props
                    yield _message([props], busy=name)
                    if desk.stop.is_set():
                        break
        except SpecvizError:
            desk.free()
            yield self._settled(desk, look, names)
            raise
        finally:
            desk.free()
        yield self._settled(desk, look, names)

    def _settled(self, desk: _Desk, look: Look, names: Sequence[str]) -> str:
        """These sections as they have become, and those that depend on what was found."""
        found = {name: desk.shown[name] for name in names}
        others = [section.name for section in self._begun(desk, look) if section.name not in names]
        desk.shown |= found
        return _message([desk.shown[name] for name in (*names, *others)])

    def _begun(self, desk: _Desk, look: Look) -> list[Section]:
        """The sections whose contents depend on something else than before, begun anew."""
        sections = self._sections.values()
        fresh = [section for section in sections if desk.keys.get(section.name, NEVER) != section.key(look)]
        for section in fresh:
            desk.keys[section.name], desk.shown[section.name] = section.key(look), section.begin(look)
        return fresh


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
