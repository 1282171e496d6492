"""FairLock: first come, first served, for any number of runs that share one engine."""

from __future__ import annotations

import threading
from collections import deque
from itertools import islice


class Ticket:
    """A place in the line. `ready` when its holder may go; give it back with `FairLock.leave`."""

    __slots__ = ("is_aside", "ready")

    def __init__(self) -> None:
        self.ready = threading.Event()
        self.is_aside = False


class FairLock:
    """At most `capacity` holders at a time, in the order in which they joined. Tickets belong to no thread."""

    def __init__(self, capacity: int = 1) -> None:
        self._capacity = capacity
        self._line: deque[Ticket] = deque()
        self._guard = threading.Lock()

    def join(self) -> Ticket:
        ticket = Ticket()
        with self._guard:
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
        """How many must go before this ticket may; 0 when it may now."""
        with self._guard:
            place = self._line.index(ticket) if ticket in self._line else 0
        return max(0, place + 1 - self._capacity)

    def __len__(self) -> int:
        """Holders and waiting ones together."""
        return len(self._line)

    def _admit(self) -> None:
        num_free = self._capacity - sum(ticket.ready.is_set() for ticket in self._line)
        waiting = (ticket for ticket in self._line if not (ticket.is_aside or ticket.ready.is_set()))
        for ticket in islice(waiting, num_free):
            ticket.ready.set()
