"""Turns at the engine: who goes next, where long work lets others go first, and a clock that stands still meanwhile.

One engine does the work of all visitors. Whoever works there has a turn; between two forwards of long work `give_way`
ends it, where others wait, and waits for the next one. So no piece of work holds the engine for long, however deep in
the code it is made. Without a turn, as in a script, both functions do nothing.
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
"""How long a piece of work may last before its next pause ends it."""
LOOK_S = 0.25
"""Between two looks at whether somebody still wants what waits for its turn."""
ENDED = "nobody waits for this any more: it was ended"
MOST_REMEMBERED = 1_000
"""Visitors without work at the engine whose last turn is still known."""


class Unwanted(SpecvizError):
    """Nobody waits for this work any more."""


class _Abandoned(BaseException):
    """The same inside the work, where no handler of errors may take it for a failure of the work itself."""


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asked for a piece of work: the visitor's name, by which turns are shared, and whether he has left."""

    visitor: str = ""
    has_left: Callable[[], bool] = lambda: False


NOBODY = Asker()


@dataclass(slots=True, eq=False)
class Ticket:
    """A place in the line. `ready` when its holder may go; give it back with `FairQueue.leave`."""

    visitor: str
    number: int
    ready: threading.Event = field(default_factory=threading.Event)
    is_aside: bool = False


@dataclass(frozen=True, slots=True)
class Pieces:
    """The pieces that work was done in so far. longest_s: what others waited for; longest_cpu_s: what the longest took
    of the processor's time, in its own thread."""

    number: int = 0
    longest_s: float = 0.0
    longest_cpu_s: float = 0.0

    def add(self, seconds: float, cpu_s: float) -> Pieces:
        return Pieces(self.number + 1, max(self.longest_s, seconds), max(self.longest_cpu_s, cpu_s))


class FairQueue:
    """At most `capacity` holders at a time. Next is the visitor with the fewest places, and of those with as many the
    one whose last turn is longest ago; his oldest ticket goes first. Tickets belong to no thread."""

    def __init__(self, capacity: int = 1) -> None:
        self._capacity = capacity
        self._line: list[Ticket] = []  # in the order in which they joined
        self._last_turn: dict[str, int] = {}  # by visitor
        self._numbers = count(1)
        self._guard = threading.Lock()
        self.pieces = Pieces()
        self.last_long_s = (
            0.0  # how long the turn before the present one took, if it was one of long work
        )

    def join(self, visitor: str = "") -> Ticket:
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
        with self._guard:
            ticket.is_aside = False
            self._admit()

    def ahead(self, ticket: Ticket) -> int:
        """How many must go before this ticket may, as things stand; 0 when it may now."""
        with self._guard:
            holders = [each for each in self._line if each.ready.is_set()]
            order = [
                *holders,
                *self._in_order(each for each in self._line if not each.ready.is_set()),
            ]
            place = order.index(ticket) if ticket in order else 0
        return max(0, place + 1 - self._capacity)

    @property
    def num_waiting(self) -> int:
        """How many could go now if there were places enough."""
        return sum(not (ticket.is_aside or ticket.ready.is_set()) for ticket in tuple(self._line))

    def note_piece(self, seconds: float, cpu_s: float) -> None:
        with self._guard:
            self.pieces = self.pieces.add(seconds, cpu_s)

    def __len__(self) -> int:
        """Holders and waiting ones together."""
        return len(self._line)

    def _in_order(self, waiting: Iterable[Ticket]) -> list[Ticket]:
        """The next one first: of every visitor the oldest, then of every visitor the second. Those that are held count
        before any that waits."""
        num_before = Counter(ticket.visitor for ticket in self._line if ticket.ready.is_set())
        keys: dict[Ticket, tuple[int, int, int]] = {}
        for ticket in waiting:
            keys[ticket] = (
                num_before[ticket.visitor],
                self._last_turn.get(ticket.visitor, 0),
                ticket.number,
            )
            num_before[ticket.visitor] += 1
        return sorted(keys, key=keys.__getitem__)

    def _admit(self) -> None:
        num_free = self._capacity - sum(ticket.ready.is_set() for ticket in self._line)
        waiting = self._in_order(
            each for each in self._line if not (each.is_aside or each.ready.is_set())
        )
        for ticket in waiting[: max(0, num_free)]:
            self._last_turn[ticket.visitor] = next(self._numbers)
            ticket.ready.set()
        if len(self._last_turn) > MOST_REMEMBERED:
            here = {ticket.visitor for ticket in self._line}
            self._last_turn = {
                visitor: turn for visitor, turn in self._last_turn.items() if visitor in here
            }


class Turn:
    """The turns of one piece of work at a queue of one place, with a context for each: `with turn.at(ticket)`."""

    def __init__(self, queue: FairQueue, asker: Asker = NOBODY, *, is_short: bool = False) -> None:
        """is_short: the work ends its turns by itself, after little."""
        self._queue, self._asker, self._is_short = queue, asker, is_short
        self._ticket: Ticket | None = None
        self._since = self._cpu_since = self._before_s = 0.0
        self.waited_s = 0.0
        """How long this work has let others go first, all in all."""

    def wait(self) -> Ticket:
        """A ticket whose turn it is. Raises Unwanted if the asker leaves meanwhile."""
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
        """Others have the engine meanwhile; the work then waits for its next turn."""
        self._end()
        self._ticket, left = None, time.perf_counter()
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
        """Whether half of the time has passed that long work had before this turn: until then more may fit into it."""
        return 2 * (time.perf_counter() - self._since) > self._before_s

    def _begin(self) -> None:
        self._since, self._cpu_since = time.perf_counter(), time.thread_time()
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
    """A pause between two forwards of long work: others who wait for the engine go first. Work that nobody wants any
    more ends here; whoever holds its turn gets Unwanted."""
    if (turn := _turn.get()) is not None:
        turn.give_way()


@contextmanager
def aside() -> Iterator[None]:
    """Waits for something else than the engine, such as a model that is loaded: others have the engine meanwhile."""
    turn = _turn.get()
    with nullcontext() if turn is None else turn.aside():
        yield


def waited_s() -> float:
    """How long the work that has the turn has let others go first, all in all."""
    turn = _turn.get()
    return 0.0 if turn is None else turn.waited_s


def clock() -> float:
    """Seconds, as time.perf_counter(), that stand still while work lets others go first: what it is timed by. Between
    two results of a work they go on."""
    return time.perf_counter() - waited_s()
