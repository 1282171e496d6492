"""Turns the signals that end a program into an exception: at once, or only while a stream makes its next event."""

import errno
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FrameType
from typing import Any, NoReturn, TypeVar

Event = TypeVar("Event")
Handler = Any  # for signal.signal: a function or one of the numbers SIG_DFL, SIG_IGN
NUMBERS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
AGAIN_S = 0.05
USUAL = (signal.SIG_DFL, signal.default_int_handler)
"""The handlers that may be replaced; a signal that is ignored, as under nohup, stays ignored."""


class Ended(KeyboardInterrupt):
    """An exception: a signal asked the program to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number  # of the signal


class _Raiser:
    """A handler that raises Ended."""

    def __init__(self) -> None:
        self.latest: int | None = None  # the number of the latest signal

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if multiprocessing.parent_process() is None:
            self.latest = number
            raise Ended(number)
        # A process that was forked from a command ends like any other.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _replace(handler: Handler) -> dict[int, Handler]:
    """Sets the handler of these signals, and returns the old handlers by the signal's number."""
    if threading.current_thread() is not threading.main_thread():  # no other may set them
        return {}
    replaced = {}
    for number in NUMBERS:
        old = signal.getsignal(number)
        if old in USUAL or isinstance(old, _Raiser):
            replaced[number] = signal.signal(number, handler)
    return replaced


def _restore(handlers: dict[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def signals_raised() -> Iterator[None]:
    """Makes each of these signals raise Ended inside, also where a library raises its own KeyboardInterrupt for it."""
    raiser = _Raiser()
    hook = sys.unraisablehook
    before = _replace(raiser)
    sys.unraisablehook = partial(_send_again, hook)
    try:
        yield
    except KeyboardInterrupt:
        if raiser.latest is None:
            raise
        raise Ended(raiser.latest) from None
    finally:
        sys.unraisablehook = hook
        _restore(before)


def _send_again(hook: Callable[[Any], object], lost: Any) -> None:
    """Sends a signal again that came while an object was deleted: no exception can leave there."""
    if not isinstance(lost.exc_value, Ended):
        hook(lost)
        return
    later = threading.Timer(AGAIN_S, os.kill, (os.getpid(), lost.exc_value.number))
    later.daemon = True
    later.start()


def exit_code(end: KeyboardInterrupt) -> int:
    """The exit code for a signal, as shells have it: 128 + its number."""
    return 128 + getattr(end, "number", signal.SIGINT)


def leave(code: int) -> NoReturn:
    """Ends the program at once, even while its threads compute."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    os._exit(code)


def say(words: str) -> None:
    """Prints words on standard error, which a hangup may have closed."""
    with suppress(OSError):
        print(words, file=sys.stderr, flush=True)


class Endings:
    """A context manager that takes these signals; the first one counts."""

    def __init__(self) -> None:
        self._before: dict[int, Handler] = {}
        self._first: int | None = None  # the number of the first signal
        self._may_raise = False

    def over(self, events: Generator[Event, None, None]) -> Iterator[Event]:
        """Yields the events; a signal raises Ended inside their generator, at the latest before the next event."""
        while True:
            try:
                self._may_raise = True
                event = next(events) if self._first is None else events.throw(Ended(self._first))
            except StopIteration:
                return
            finally:
                self._may_raise = False
            yield event

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self._first is None:
            self._first = number
            if self._may_raise:
                raise Ended(number)

    def __enter__(self) -> "Endings":
        self._before = _replace(self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        _restore(self._before)
        if isinstance(error, OSError) and error.errno == errno.EIO and self._first is None:
            # A hangup may close the terminal before its signal comes.
            self._first = getattr(signal, "SIGHUP", None)
        if self._first is not None and (kind is None or issubclass(kind, OSError)):
            raise Ended(self._first) from None
