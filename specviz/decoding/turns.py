"""Turns at the engine: they decide who goes next, and let others go first during long work.

One engine does the work of all visitors, and whoever works there has a turn. Between two forwards of long work,
`give_way` ends the turn if others wait, and then waits for the next one. So no work holds the engine for long, however
deep in the code it is done. `clock` stands still meanwhile. Without a turn, as in a script, they change nothing.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count

from specviz.errors import SpecvizError

PIECE_S = 0.1
"""The longest that a piece of work lasts before its next pause ends it."""
LOOK_S = 0.25
"""The time between two looks at whether somebody still wants the work that waits."""
ENDED = "nobody waits for this any more: it was ended"
MOST_REMEMBERED = 1_000
"""Visitors without work at the engine that are remembered with their last turn."""


class Unwanted(SpecvizError):
    """Nobody waits for this work any more."""


class _Abandoned(BaseException):
    """Unwanted, inside the work: no handler of errors may take it for a failure of the work itself."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The person who asked for a piece of work."""

    visitor: str = ""  # a name; turns are shared fairly between names
    has_left: Callable[[], bool] = lambda: False
    keeps_rows: bool = False
    """Whether the visitor is one person, whose next run may have the rows of this one's prompt."""


NOBODY = Asker()


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the line. Give it back with `FairQueue.leave`."""

    visitor: str
    number: int
    ready: threading.Event = field(default_factory=threading.Event)  # set when its holder may go
    is_aside: bool = False  # lets others go first


@dataclass(frozen=True, slots=True)
class Pieces:
    """Statistics of the pieces that work was done in so far."""

    number: int = 0
    longest_s: float = 0.0  # the longest that others waited for one
    longest_cpu_s: float = 0.0  # of its own thread's processor time

    def add(self, seconds: float, cpu_s: float) -> Pieces:
        """The statistics with one more piece."""
        return Pieces(self.number + 1, max(self.longest_s, seconds), max(self.longest_cpu_s, cpu_s))


class FairQueue:
    """A line that admits at most `capacity` ticket holders at a time. Tickets belong to no thread.

    The visitor with the fewest places goes next; among equals, the one who has waited longest since a turn. A visitor's
    oldest ticket goes first.
    """

    def __init__(self, capacity: int = 1) -> None:
        self._capacity = capacity
        self._line: list[Ticket] = []  # in the order in which they joined
        self._last_turn: dict[str, int] = {}  # by visitor
        self._numbers = count(1)
        self._guard = threading.Lock()
        self.pieces = Pieces()
        self.last_long_s = 0.0
        """The time that the turn before took, if it was one of long work."""

    def join(self, visitor: str = "") -> Ticket:
        """Joins the line."""
        with self._guard:
            ticket = Ticket(visitor, next(self._numbers))
            self._line.append(ticket)
            self._admit()
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Ends a turn or gives up a place; leaving twice is harmless."""
        with self._guard:
            if ticket in self._line:
                self._line.remove(ticket)
            self._admit()

    def step_aside(self, ticket: Ticket) -> bool:
        """Keeps the place but lets others go first until `step_back`; False if it is this ticket's turn already."""
        with self._guard:
            ticket.is_aside = not ticket.ready.is_set()
            return ticket.is_aside

    def step_back(self, ticket: Ticket) -> None:
        """Ends `step_aside`."""
        with self._guard:
            ticket.is_aside = False
            self._admit()

    def ahead(self, ticket: Ticket) -> int:
        """How many must go before this ticket may, as things stand; 0 when it may now."""
        with self._guard:
            holders = [other for other in self._line if other.ready.is_set()]
            waiting = [other for other in self._line if not other.ready.is_set()]
            order = holders + self._in_order(waiting)
            place = order.index(ticket) if ticket in order else 0
        return max(0, place + 1 - self._capacity)

    @property
    def num_waiting(self) -> int:
        """How many could go now if there were enough places."""
        line = tuple(self._line)
        return sum(not (ticket.is_aside or ticket.ready.is_set()) for ticket in line)

    def note_piece(self, seconds: float, cpu_s: float) -> None:
        """Adds a piece of work to the statistics."""
        with self._guard:
            self.pieces = self.pieces.add(seconds, cpu_s)

    def __len__(self) -> int:
        """How many hold a place or wait."""
        return len(self._line)

    def _in_order(self, waiting: Iterable[Ticket]) -> list[Ticket]:
        """The waiting tickets, the next one first: each visitor's oldest, then each visitor's second.

        Places that a visitor holds count as his first ones.
        """
        num_before = Counter(ticket.visitor for ticket in self._line if ticket.ready.is_set())
        keys: dict[Ticket, tuple[int, int, int]] = {}
        for ticket in waiting:
            visitor = ticket.visitor
            last_turn = self._last_turn.get(visitor, 0)
            keys[ticket] = (num_before[visitor], last_turn, ticket.number)
            num_before[visitor] += 1
        return sorted(keys, key=keys.__getitem__)

    def _admit(self) -> None:
        num_free = self._capacity - sum(ticket.ready.is_set() for ticket in self._line)
        waiting = [
            ticket for ticket in self._line if not (ticket.is_aside or ticket.ready.is_set())
        ]
        for ticket in self._in_order(waiting)[: max(0, num_free)]:
            self._last_turn[ticket.visitor] = next(self._numbers)
            ticket.ready.set()
        if len(self._last_turn) > MOST_REMEMBERED:
            here = {ticket.visitor for ticket in self._line}
            for visitor in self._last_turn.keys() - here:
                del self._last_turn[visitor]


class Turn:
    """The turns of one piece of work at a queue of one place, with a context for each: `with turn.at(ticket)`."""

    def __init__(self, queue: FairQueue, asker: Asker = NOBODY, *, is_short: bool = False) -> None:
        """is_short: the work ends its turns by itself, after little."""
        self._queue = queue
        self._asker = asker
        self._is_short = is_short
        self._ticket: Ticket | None = None
        self._since = 0.0
        self._cpu_since = 0.0
        self._before_s = 0.0
        self.waited_s = 0.0
        """The total time for which this work has let others go first."""

    def wait(self) -> Ticket:
        """Waits for a ticket that is ready. Raises Unwanted if the asker leaves meanwhile."""
        self._refuse_nesting()
        ticket = self._queue.join(self._asker.visitor)
        try:
            while not ticket.ready.wait(LOOK_S):
                if self._asker.has_left():
                    raise Unwanted(ENDED)
        except BaseException:
            self._queue.leave(ticket)
            raise
        return ticket

    def at(self, ticket: Ticket) -> Turn:
        """This turn with a ticket that is ready, to enter; leaving it gives the ticket back."""
        self._refuse_nesting()
        self._ticket = ticket
        return self

    def __enter__(self) -> Turn:
        _turn.set(self)
        self._begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        _turn.set(None)
        self._end()
        if kind is _Abandoned:
            raise Unwanted(ENDED) from None

    def give_way(self) -> None:
        """Ends this turn if others wait, and waits for the next one; see the function."""
        if self._asker.has_left():
            raise _Abandoned
        if time.perf_counter() - self._since < PIECE_S:
            return
        if self._queue.num_waiting:
            with self.aside():
                return
        self._note()
        self._begin()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Gives the engine to others meanwhile, then waits for the next turn."""
        self._end()
        self._ticket = None
        left = time.perf_counter()
        _turn.set(None)
        try:
            yield
        finally:
            try:
                self._ticket = self.wait()
            except Unwanted:
                raise _Abandoned from None
            finally:
                _turn.set(self)
                self.waited_s += time.perf_counter() - left
                self._begin()

    @property
    def is_over(self) -> bool:
        """Whether this turn has taken half as long as the long work before it: until then more may fit into it."""
        return 2 * (time.perf_counter() - self._since) > self._before_s

    def _begin(self) -> None:
        self._since = time.perf_counter()
        self._cpu_since = time.thread_time()
        self._before_s = self._queue.last_long_s

    def _note(self) -> None:
        seconds = time.perf_counter() - self._since
        self._queue.note_piece(seconds, time.thread_time() - self._cpu_since)
        self._queue.last_long_s = 0.0 if self._is_short else seconds

    def _end(self) -> None:
        if self._ticket is not None:  # None: nobody waited for the next one
            self._note()
            self._queue.leave(self._ticket)

    def _refuse_nesting(self) -> None:
        if _turn.get() is not None:
            raise RuntimeError(
                "work that has a turn may not wait for another one: two such would never end"
            )


_turn: ContextVar[Turn | None] = ContextVar("turn", default=None)


def give_way() -> None:
    """Lets others who wait for the engine go first, between two forwards of long work.

    Work that nobody wants any more ends here, and whoever holds its turn gets Unwanted.
    """
    if (turn := _turn.get()) is not None:
        turn.give_way()


@contextmanager
def aside() -> Iterator[None]:
    """Gives the engine to others while the work waits for something else, such as a model that is loaded."""
    turn = _turn.get()
    with nullcontext() if turn is None else turn.aside():
        yield


def waited_s() -> float:
    """The total time for which the work that has the turn has let others go first."""
    turn = _turn.get()
    return 0.0 if turn is None else turn.waited_s


def clock() -> float:
    """The seconds that work is timed by: time.perf_counter(), but it stands still while work lets others go first.

    Between two results of a work it goes on.
    """
    return time.perf_counter() - waited_s()
