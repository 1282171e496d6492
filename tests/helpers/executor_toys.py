"""Small pieces of work for executors to do, importable by name in any process."""

import os
import signal
from pathlib import Path

from specviz.errors import SpecvizError


def square(number):
    return number, number * number


def refuse_seven(number):
    if number == 7:
        raise SpecvizError("seven is refused")
    return number


def die_once(mark, number):
    """Kills its own process the first time that it is asked for 5."""
    if number == 5:
        try:
            Path(mark).touch(exist_ok=False)
        except FileExistsError:
            return number, number * number
        os.kill(os.getpid(), signal.SIGKILL)
    return number, number * number


def die_always(number):
    os.kill(os.getpid(), signal.SIGKILL)


def whose(number):
    return os.getpid()
