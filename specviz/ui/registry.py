"""The registry of views: which session looks at which view. It knows no Gradio.

All views together have one budget of bytes. Beyond it the visitor who takes most of it loses first: his least recently
used views, those on nobody's stage first, unfinished runs last. A run without a browser waits a while, without working;
then it is stopped, and its trace stays.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from specviz.errors import SpecvizError
from specviz.session.run import Run
from specviz.trace import Trace
from specviz.trace.first_difference import should_be_one_text
from specviz.trace.shipped import shipped_trace
from specviz.ui.view import GRACE_S, View, view_of
from specviz.ui.visitors import has_cookie, network_of, visitor_of
from specviz.views.explore.feed import SO_FAR, Feed
from specviz.views.learn.lesson import SHIPPED

MOST_VIEWS = 128
MOST_BYTES = 512 << 20
MOST_BROUGHT = 16
"""Views that a visitor's browser has brought back and that are on no stage. It can bring each of them again."""
MOST_RUNS = 4
"""Runs and jobs of one browser at a time."""
MOST_CALLS = 8
"""Jobs of one visitor at a time. Without a cookie, all programs of one address are one visitor."""
NETWORK_SHARE = 0.75
"""The share of all places that one network may take, so that others always find one. Beyond it, as in a class behind
one address, each of its browsers may still wait for a first place, by turns with all others."""
RUN_LIMIT = 128
"""Streams at once. Each waits for its turn at the engine, which is fair; this only bounds threads."""
PATIENCE_S = 4.0
"""Seconds that a reloaded page waits until the server has noticed that the page before it is gone."""


class Registry:
    """The views of all sessions, and the jobs of all visitors. Thread-safe; every method is a few dictionary
    operations."""

    def __init__(
        self, most_views: int = MOST_VIEWS, most_bytes: int = MOST_BYTES, grace_s: float = GRACE_S
    ) -> None:
        self._most_views = most_views
        self._most_bytes = most_bytes
        self._grace_s = grace_s
        self._lock = threading.Lock()
        self._views: OrderedDict[str, View] = OrderedDict()  # the least recently used first
        self._current: dict[str, View] = {}
        self._jobs: Counter[str] = Counter()  # by visitor
        # sessions whose unfinished run was forgotten, until they were told
        self._lost: set[str] = set()

    def add_run(self, session: str, run: Run) -> View:
        """Makes `run` the session's current view; what the session ran before is stopped."""
        view = View(run.id, Feed(run.id), run.trace, run, SO_FAR, twin=self._find_twin)
        return self.show(view, session)

    def keep(self, trace: Trace) -> View:
        """Stores a view of a loaded trace that is nobody's current one."""
        return self.show(view_of(trace), None)

    def bring(self, view: View, visitor: str) -> View:
        """Stores a view that the visitor's browser has brought back; few of them stay."""
        view.is_brought = True
        view.owner = visitor
        return self.show(view, None)

    def require_place(self, session: str, most: int) -> None:
        """Raises SpecvizError where the session's visitor, or his network, has as many runs and jobs as he may.

        most: runs and jobs of all visitors together.
        """
        with self._lock:
            self._check_quota(visitor_of(session), most, but=session)

    @contextmanager
    def job(self, session: str, most: int) -> Iterator[None]:
        """Counts a job of this session, or of a visitor without one, as one of its visitor's runs while it goes on.
        Raises SpecvizError as `require_place`."""
        visitor = visitor_of(session)
        with self._lock:
            self._check_quota(visitor, most, but=session)
            self._jobs[visitor] += 1
        try:
            yield
        finally:
            with self._lock:
                self._jobs -= Counter({visitor: 1})

    def _check_quota(self, visitor: str, most: int, but: str | None = None) -> None:
        """Raises SpecvizError where the visitor finds no place. but: a session that counts without its own run."""
        working = list(self._jobs.elements())  # one visitor per run or job
        for session, view in self._current.items():
            if session != but and (view.is_live or view.is_measured):
                working.append(visitor_of(session))
        num_own = working.count(visitor)
        most_own = MOST_RUNS if has_cookie(visitor) else most
        if num_own >= most_own or self._jobs[visitor] >= MOST_CALLS:
            raise SpecvizError(
                f"{num_own} of your runs and jobs go on already: stop one of them, or let it end"
            )
        network = network_of(visitor)
        num_of_network = sum(network_of(name) == network for name in working)
        places = RUN_LIMIT if has_cookie(visitor) and num_own == 0 else most
        if num_of_network >= max(1, int(NETWORK_SHARE * places)):
            raise SpecvizError(
                "too many runs from your network go on just now: try again in a moment"
            )

    def find_recorded(self, name: str) -> View:
        """The one view of a recorded run that comes with specviz, which all visitors share. Raises SpecvizError."""
        trace = shipped_trace(name)
        view_id = f"{SHIPPED}{name}"
        return self.get(view_id) or view_of(trace, view_id)

    def show(self, view: View, session: str | None) -> View:
        """Stores a view and makes it the session's current one; with None, nobody's."""
        with self._lock:
            view.grace_s = self._grace_s
            self._views[view.id] = view
            self._views.move_to_end(view.id)
            if session is not None and not view.owner and not view.id.startswith(SHIPPED):
                view.owner = visitor_of(session)
            previous = self._current.get(session)
            if session is not None:
                self._current[session] = view
                self._lost.discard(session)
            leaving = self._forget()
            if previous is not None:
                leaving.append(previous)
        for old in leaving:
            old.stop()
        return view

    def _find_twin(self, view: View) -> Trace | None:
        """The newest other run, among those that are over, with a text that should be the same."""
        with self._lock:
            newest_first = reversed(self._views.values())
            others = [other for other in newest_first if other is not view and other.feed.is_over]
        for other in others:
            if should_be_one_text(view.trace, other.trace):
                return other.trace
        return None

    def _forget(self) -> list[View]:
        """Takes out views until the rest fits, and returns them. The newest view and those that stream stay."""
        shown = {view.id for view in self._current.values()}
        forgotten = self._forget_brought(shown)
        sizes = {view.id: view.num_bytes for view in self._views.values()}
        while len(self._views) > self._most_views or sum(sizes.values()) > self._most_bytes:
            view = self._least_needed(sizes, shown)
            if view is None:
                break
            forgotten.append(self._views.pop(view.id))
            del sizes[view.id]
        still_current = {}
        for session, view in self._current.items():
            if view.id in self._views:
                still_current[session] = view
            elif view.is_live:
                self._lost.add(session)
        self._current = still_current
        return forgotten

    def _forget_brought(self, shown: set[str]) -> list[View]:
        """Takes out what each visitor has brought beyond MOST_BROUGHT, and returns it. What is shown stays."""
        forgotten = []
        num_brought = Counter[str]()
        for view in reversed(list(self._views.values())):
            if view.is_brought and view.id not in shown:
                num_brought[view.owner] += 1
                if num_brought[view.owner] > MOST_BROUGHT:
                    forgotten.append(self._views.pop(view.id))
        return forgotten

    def _least_needed(self, sizes: dict[str, int], shown: set[str]) -> View | None:
        """The view to forget next; None where only the newest view and those that stream are left."""
        shares: Counter[str] = Counter()
        for view in self._views.values():
            shares[view.owner] += sizes[view.id] / self._most_bytes + 1 / self._most_views

        def need(view: View) -> tuple[int, bool, bool]:
            # by eighths of the budget: among those who take little, only time decides
            return -int(8 * shares[view.owner]), view.id in shown, view.is_live

        idle = [view for view in list(self._views.values())[:-1] if view.idle.is_set()]
        return min(idle, key=need, default=None)

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
        """Notes that a browser went away. Its run waits for it to come back and is then stopped; its trace stays."""
        with self._lock:
            view = self._current.pop(session, None)
            self._lost.discard(session)
            is_watched = view in self._current.values()
        if view is not None and not is_watched:
            view.linger()

    def adopt(self, session: str, view_id: object, patience_s: float = PATIENCE_S) -> View | None:
        """Gives a page that was reloaded what it had before: an ended view at once, a live one when it is free.

        None for what is not known, for a run that another page still works with, and if this page has begun another
        run.
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
        """Makes the view the session's current one, if it has none. Returns whether the view was free for it."""
        with self._lock:
            is_watched = any(
                other is view and name != session for name, other in self._current.items()
            )
            is_free = view.idle.is_set() and not is_watched
            is_bound = is_free or not view.is_live
            if is_bound:
                self._current.setdefault(session, view)
        if is_bound:
            view.stay()
        return is_bound

    def num_running(self) -> int:
        return sum(not view.idle.is_set() for view in list(self._views.values()))
