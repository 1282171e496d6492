"""FairLock: first come, first served, for any number of runs that share one engine."""

from __future__ import annotations

import threading
from collections import deque


class Ticket:
    """A place in the line. `ready` when its holder may go; give it back with `FairLock.leave`."""

    __slots__ = ("ready",)

    def __init__(self) -> None:
        self.ready = threading.Event()


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

    def ahead(self, ticket: Ticket) -> int:
        """How many must go before this ticket may; 0 when it may now."""
        with self._guard:
            place = self._line.index(ticket) if ticket in self._line else 0
        return max(0, place + 1 - self._capacity)

    def __len__(self) -> int:
        """Holders and waiting ones together."""
        return len(self._line)

    def _admit(self) -> None:
        for place, ticket in enumerate(self._line):
            if place >= self._capacity:
                return
            ticket.ready.set()
