"""The signals that end a program, as an exception that comes only while the next event of a stream is made."""

import errno
import signal
import threading
from collections.abc import Generator, Iterator
from types import FrameType
from typing import TypeVar

Event = TypeVar("Event")
NUMBERS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
USUAL = (signal.SIG_DFL, signal.default_int_handler)  # what is ignored, as under nohup, stays ignored


class Ended(KeyboardInterrupt):
    """A signal asked the program to end; number: the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Endings:
    """A context manager that takes these signals; the first one counts."""

    def __init__(self) -> None:
        self._before: dict[int, object] = {}
        self._came: int | None = None
        self._may_raise = False

    def over(self, events: Generator[Event, None, None]) -> Iterator[Event]:
        """The events; a signal raises Ended inside their generator, one between two of them before the next."""
        while True:
            try:
                self._may_raise = True
                event = next(events) if self._came is None else events.throw(Ended(self._came))
            except StopIteration:
                return
            finally:
                self._may_raise = False
            yield event

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._came is None:
            self._came = number
            if self._may_raise:
                raise Ended(number)

    def __enter__(self) -> "Endings":
        if threading.current_thread() is threading.main_thread():  # no other may set them
            usual = [number for number in NUMBERS if signal.getsignal(number) in USUAL]
            self._before = {number: signal.signal(number, self._take) for number in usual}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if isinstance(error, OSError) and error.errno == errno.EIO and self._came is None:
            self._came = getattr(signal, "SIGHUP", None)  # a hangup may take the terminal before its signal comes
        if self._came is not None and (kind is None or issubclass(kind, OSError)):
            raise Ended(self._came) from None
