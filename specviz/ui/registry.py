"""Who looks at what: browser session -> its current view, view id -> view. Knows no Gradio.

The least recently used views are forgotten, those on nobody's stage first, unfinished runs last. A run whose browser
left waits a while for it to come back, without working; then it is stopped, and its trace stays.
"""

import threading
import time
from collections import OrderedDict

from specviz.session.run import Run
from specviz.trace.file import Trace
from specviz.trace.first_difference import should_be_one_text
from specviz.trace.recorded import recorded_trace
from specviz.ui.view import GRACE_S, View, view_of
from specviz.views.explore.feed import SO_FAR, Feed
from specviz.views.learn.lesson import SHIPPED

MOST_VIEWS = 128
MOST_STEPS = 10_000
"""In all views together; a step with its records and its props takes about 25 kB."""
MOST_BROUGHT = 16
"""Views that browsers have brought back and that are on no stage: a browser brings one again when it needs it."""
PATIENCE_S = 4.0
"""How long a page that was reloaded waits until the server has noticed that the page before it is gone."""


class Registry:
    """Thread-safe; every method is a few dictionary operations."""

    def __init__(self, most_views: int = MOST_VIEWS, most_steps: int = MOST_STEPS, grace_s: float = GRACE_S) -> None:
        self._most_views, self._most_steps = most_views, most_steps
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._views: OrderedDict[str, View] = OrderedDict()  # the least recently used first
        self._current: dict[str, View] = {}
        self._lost: set[str] = set()  # sessions whose unfinished run was forgotten, until they were told

    def add_run(self, session: str, run: Run) -> View:
        """Make `run` the session's current view; what the session ran before is stopped."""
        return self.show(View(run.id, Feed(run.id), run.trace, run, SO_FAR, twin=self._find_twin), session)

    def add_trace(self, session: str, trace: Trace) -> View:
        """Make a loaded trace the session's current view."""
        return self.show(view_of(trace), session)

    def keep(self, trace: Trace, *, is_brought: bool = False) -> View:
        """A view of a loaded trace that is nobody's current one; of those that browsers brought back few are kept."""
        view = view_of(trace)
        view.is_brought = is_brought
        return self.show(view, None)

    def find_recorded(self, name: str) -> View:
        """The one view of a recorded run that comes with specviz, which all visitors share. Raises SpecvizError."""
        trace, view_id = recorded_trace(name), f"{SHIPPED}{name}"
        return self.get(view_id) or view_of(trace, view_id)

    def show(self, view: View, session: str | None) -> View:
        """Keep a view and make it the session's current one; with None, nobody's."""
        with self._lock:
            view.grace_s = self._grace_s
            self._views[view.id] = view
            self._views.move_to_end(view.id)
            previous = self._current.get(session)
            if session is not None:
                self._current[session] = view
                self._lost.discard(session)
            leaving = [*self._forget(), *([previous] if previous else [])]
        for old in leaving:
            old.stop()
        return view

    def _find_twin(self, view: View) -> Trace | None:
        """The newest other run, among those that are over, whose text should be the same."""
        with self._lock:
            views = [other for other in reversed(self._views.values()) if other is not view and other.feed.is_over]
        return next((other.trace for other in views if should_be_one_text(view.trace, other.trace)), None)

    def _forget(self) -> list[View]:
        """Takes out views until the rest fits; the newest and those that stream stay. Returns those taken out."""
        shown = {view.id for view in self._current.values()}
        brought = [view for view in self._views.values() if view.is_brought and view.id not in shown]
        forgotten = [self._views.pop(old.id) for old in brought[:-MOST_BROUGHT]]
        num_steps = sum(len(view.feed) for view in self._views.values())
        idle = [view for view in list(self._views.values())[:-1] if view.idle.is_set()]
        for old in sorted(idle, key=lambda view: (view.id in shown, view.is_live)):
            if len(self._views) <= self._most_views and num_steps <= self._most_steps:
                break
            forgotten.append(self._views.pop(old.id))
            num_steps -= len(old.feed)
        gone = {session: view for session, view in self._current.items() if view.id not in self._views}
        self._lost.update(session for session, view in gone.items() if view.is_live)
        self._current = {session: view for session, view in self._current.items() if session not in gone}
        return forgotten

    def has_lost(self, session: str) -> bool:
        """Whether the session's unfinished run was forgotten; says so once."""
        with self._lock:
            is_lost = session in self._lost
            self._lost.discard(session)
        return is_lost

    def current(self, session: str) -> View | None:
        return self._current.get(session)

    def get(self, view_id: object) -> View | None:
        """The view with this id, now the most recently used; anything that is not a known id gives None."""
        with self._lock:
            view = self._views.get(view_id) if isinstance(view_id, str) else None
            if view is not None:
                self._views.move_to_end(view_id)
            return view

    def leave(self, session: str) -> None:
        """A browser went away: its run waits for it to come back and is then stopped; its trace stays."""
        with self._lock:
            view = self._current.pop(session, None)
            self._lost.discard(session)
            is_watched = view in self._current.values()
        if view is not None and not is_watched:
            view.linger()

    def adopt(self, session: str, view_id: object, patience_s: float = PATIENCE_S) -> View | None:
        """Give a page that was reloaded what it had before: an ended view at once, a live one when it is free.

        None for what is not known, for a run that another page still works with, and if this one has begun another.
        """
        deadline = time.monotonic() + patience_s
        while (view := self.get(view_id)) is not None:
            if self._bind(session, view):
                return view if self.current(session) is view else None
            if time.monotonic() > deadline:
                return None
            time.sleep(0.05)
        return None

    def _bind(self, session: str, view: View) -> bool:
        with self._lock:
            is_watched = any(each is view and name != session for name, each in self._current.items())
            is_free = view.idle.is_set() and not is_watched
            if is_bound := is_free or not view.is_live:
                self._current.setdefault(session, view)
        if is_bound:
            view.stay()
        return is_bound

    def num_running(self) -> int:
        return sum(not view.idle.is_set() for view in list(self._views.values()))
