"""What every browser session sees of one page of sections, and what a tab finds that comes back as another session,
after a reload or a lost connection.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable
from typing import Any

from specviz.ui.reports.section import Look, Place, Props
from specviz.views import blocks

MOST_SESSIONS = 500
TAB = re.compile(r"[0-9a-f]{32}")
KEPT_S = 600.0  # how long a tab that has left may come back


class Turn:
    """One stay at a desk: the sections that it has touched, and what is said aloud at its end."""

    def __init__(self) -> None:
        self.touched: dict[str, None] = {}  # in order
        self.say = ""


class Desk:
    """What one browser session sees of one page."""

    def __init__(self) -> None:
        self.look = Look(Place(), None)
        self.keys: dict[str, object] = {}
        self.shown: dict[str, Props] = {}
        self.due: list[str] = []  # sections whose opening work is still to be done
        self.stop = threading.Event()
        self.busy: str | None = None  # the section that is being worked at
        self.renewing = threading.Lock()  # two looks at once: the second finds what the first has begun
        self.left_at: float | None = None
        self._turn: Turn | None = None
        self._guard = threading.Lock()

    def again(self, opening: Collection[str]) -> Desk:
        """The same for a session that takes this one's place; what went on is left where it was, and what had begun by
        itself (the sections of `opening`) begins anew."""
        desk = Desk()
        desk.look, desk.due = self.look, list(self.due)
        desk.keys, desk.shown = dict(self.keys), {name: at_rest(props) for name, props in self.shown.items()}
        if self.busy in opening:
            desk.keys.pop(self.busy, None)
        return desk

    def claim(self) -> Turn | None:
        """What `free` takes to give the desk back; None where another piece of work has it."""
        with self._guard:
            if self._turn is not None:
                return None
            self._turn = Turn()
            self.stop.clear()
            return self._turn

    def free(self, turn: Turn) -> None:
        with self._guard:
            if self._turn is turn:
                self._turn = self.busy = None


class Desks:
    """The desks of one page by session. opening: the sections whose work begins by itself."""

    def __init__(self, opening: Iterable[str]) -> None:
        self._opening = frozenset(opening)
        self._sessions: dict[str, Desk] = {}
        self._tabs: dict[str, Desk] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def known(self, session: str) -> Desk | None:
        return self._sessions.get(session)

    def at(self, session: str, tab: Any = None) -> Desk:
        """The desk of this session; of one that is new with what its tab had before, if it comes back soon enough. tab:
        what the browser calls it, a secret of its own."""
        if (desk := self._sessions.get(session)) is not None:
            return desk
        self._make_room()
        name = tab if isinstance(tab, str) and TAB.fullmatch(tab) else None
        before = self._tabs.pop(name, None)
        desk = self._sessions[session] = Desk() if before is None else before.again(self._opening)
        if name is not None:
            self._tabs[name] = desk
        return desk

    def leave(self, session: str) -> None:
        if (desk := self._sessions.pop(session, None)) is not None:
            desk.left_at = time.monotonic()

    def _make_room(self) -> None:
        """For one more session and one more tab."""
        latest = time.monotonic() - KEPT_S
        self._tabs = {tab: desk for tab, desk in self._tabs.items() if desk.left_at is None or desk.left_at > latest}
        for kept in (self._sessions, self._tabs):
            while len(kept) >= MOST_SESSIONS:
                kept.pop(next(iter(kept)), None)


def at_rest(props: Props) -> Props:
    """The section when nobody works at it: a bar that stands says in words where the work was left."""
    return {**props, "blocks": [_left(block) if block["kind"] == "progress" else block for block in props["blocks"]]}


def _left(bar: Props) -> Props:
    return {**blocks.words(f"Stopped at: {bar['words']}", small=True), "stopped": True}
