"""The signals that end a program, as an exception: at once, or only while the next event of a stream is made."""

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
Handler = Any  # what signal.signal takes: a function or one of the numbers SIG_DFL, SIG_IGN
NUMBERS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
AGAIN_S = 0.05
USUAL = (
    signal.SIG_DFL,
    signal.default_int_handler,
)  # what is ignored, as under nohup, stays ignored


class Ended(KeyboardInterrupt):
    """A signal asked the program to end; number: the signal's."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class _Raiser:
    """A handler that raises Ended; came: the latest signal."""

    def __init__(self) -> None:
        self.came: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if multiprocessing.parent_process() is None:
            self.came = number
            raise Ended(number)
        signal.signal(
            number, signal.SIG_DFL
        )  # a process that was forked from a command ends as any other
        os.kill(os.getpid(), number)


def _replace(handler: Handler) -> dict[int, Handler]:
    """Sets the handler of these signals; gives back those that were there."""
    if threading.current_thread() is not threading.main_thread():  # no other may set them
        return {}
    before = {number: signal.getsignal(number) for number in NUMBERS}
    usual = [
        number for number, each in before.items() if each in USUAL or isinstance(each, _Raiser)
    ]
    return {number: signal.signal(number, handler) for number in usual}


def _restore(handlers: dict[int, Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler)


@contextmanager
def signals_raised() -> Iterator[None]:
    """While inside, each of these signals raises Ended, also where a library puts its own KeyboardInterrupt for it."""
    raiser, hook = _Raiser(), sys.unraisablehook
    before, sys.unraisablehook = _replace(raiser), partial(_send_again, hook)
    try:
        yield
    except KeyboardInterrupt:
        if raiser.came is None:
            raise
        raise Ended(raiser.came) from None
    finally:
        sys.unraisablehook = hook
        _restore(before)


def _send_again(hook: Callable[[Any], object], lost: Any) -> None:
    """For sys.unraisablehook: a signal that came while an object was deleted, where no exception can go up."""
    if not isinstance(lost.exc_value, Ended):
        hook(lost)
        return
    later = threading.Timer(AGAIN_S, os.kill, (os.getpid(), lost.exc_value.number))
    later.daemon = True
    later.start()


def exit_code(end: KeyboardInterrupt) -> int:
    """128 + the number of the signal, as shells tell it."""
    return 128 + getattr(end, "number", signal.SIGINT)


def leave(code: int) -> NoReturn:
    """Ends the program at once, while threads of it compute."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()
    os._exit(code)


def say(words: str) -> None:
    """On standard error, which a hangup may have taken."""
    with suppress(OSError):
        print(words, file=sys.stderr, flush=True)


class Endings:
    """A context manager that takes these signals; the first one counts."""

    def __init__(self) -> None:
        self._before: dict[int, Handler] = {}
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
        self._before = _replace(self._take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: object
    ) -> None:
        _restore(self._before)
        if isinstance(error, OSError) and error.errno == errno.EIO and self._came is None:
            self._came = getattr(
                signal, "SIGHUP", None
            )  # a hangup may take the terminal before its signal comes
        if self._came is not None and (kind is None or issubclass(kind, OSError)):
            raise Ended(self._came) from None
