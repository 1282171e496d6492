"""What comes of hostile model folders: each is loaded, run for a few tokens, and its tokenizer compared with another.

A worker process tries one after the other, and is ended where a folder takes it too long. Whatever ends neither in
words nor in a run is a fault.
"""

from __future__ import annotations

import json
import os
import re
import resource
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from tests.chaos.damages import sound, spoil

ROOT = Path(__file__).parents[2]
MOST_CPU_S, MOST_S, MOST_MEMORY = 45, 120.0, 8 << 30
"""Of the worker, for one folder. Its trial has processes and limits of its own, and ends before."""
OUTCOMES = ("words", "ran", "bare", "traceback", "killed", "never came back")
"""bare: words for people that hold a library's own error."""
PYTHON = re.compile(
    r"failed: \w*(Error|Exception)\b|object (is not|has no|cannot)|NoneType|unsupported operand|not supported between|"
    r"keyword argument|invalid literal|_mismatched_sizes|Traceback|list index|negative (power|dimension)"
)
PLACED = re.compile(r"has a \S+ that cannot be (used|read): |chat template cannot render these messages: ")
"""Words that say which part is wrong: what the library says of that part may follow."""


@dataclass(slots=True)
class Tally:
    """What came of the folders. faults: a line for each that ended neither in words nor in a run."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""

    @property
    def holds(self) -> bool:
        return not self.faults

    def words(self) -> str:
        counts = ", ".join(f"{name} {self.outcomes[name]:,}" for name in OUTCOMES)
        total = f"{self.outcomes.total():,} hostile folders: {counts}"
        return "\n".join([f"{total}; slowest {self.slowest_s:.1f} s ({self.slowest})", *self.faults])

    def note(self, number: int, damage: str, outcome: str, words: str, seconds: float) -> str:
        """Counts one; a line about it."""
        self.outcomes[outcome] += 1
        line = f"{number} {outcome} ({seconds:.1f} s) [{damage}] {words}"
        if seconds > self.slowest_s:
            self.slowest_s, self.slowest = seconds, f"{number}, {damage.partition(':')[0]}"
        if outcome not in ("words", "ran"):
            self.faults.append(line)
        return line


def try_folders(num_folders: int, seed: int, say: Callable[[str], None] = lambda words: None) -> Tally:
    """Makes and tries so many folders, in worker processes."""
    tally = Tally()
    with TemporaryDirectory() as name:
        place = Path(name)
        base = sound(place / "sound")
        damages = [spoil(Random(f"{seed} {number}"), base, place / f"folder-{number}") for number in range(num_folders)]
        begun = 0
        while begun < num_folders:
            for outcome, words, seconds in _watch(place, begun, num_folders):
                say(tally.note(begun, damages[begun], outcome, words, seconds))
                begun += 1
    return tally


def _watch(place: Path, first: int, end: int) -> Iterator[tuple[str, str, float]]:
    """What a worker says of the folders from `first` on, until it is through or ends at one of them."""
    command = [sys.executable, "-m", "tests.chaos.folders", str(place), str(first), str(end)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    worker = subprocess.Popen(command, cwd=ROOT, text=True, **pipes)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(worker.stdout, selectors.EVENT_READ)
            for _ in range(first, end):
                if not selector.select(MOST_S):
                    yield "never came back", "", MOST_S
                    return
                if not (line := worker.stdout.readline()):
                    yield "killed", f"exit {worker.wait()}", 0.0
                    return
                yield tuple(json.loads(line))
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()


def _work(place: Path, first: int, end: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for number in range(first, end):
        used, begun = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        most = int(used.ru_utime + used.ru_stime) + MOST_CPU_S
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))
        outcome, words = attempt(place / f"folder-{number}", place / "sound")
        print(json.dumps((outcome, words, time.monotonic() - begun)), flush=True)
    os._exit(0)  # the thread of a run that never ends stays behind


def attempt(folder: Path, other: Path) -> tuple[str, str]:
    """The outcome of a folder, and what was said: a run with and one without its chat template, and a comparison."""
    said: list[str] = []
    for work in (*_runs(folder), lambda: _compare(folder, other)):
        if (error := _error_of(work)) is None:
            continue
        if type(error).__name__ != "SpecvizError" and "specviz" not in type(error).__module__:
            return "traceback", f"{type(error).__name__}: {error!s:.300}"
        said.append(f"{error!s:.300}")
    if bare := next(filter(is_bare, said), None):
        return "bare", bare
    return ("words", said[0]) if said else ("ran", "")


def _error_of(work: Callable[[], None]) -> BaseException | None:
    try:
        work()
    except BaseException as error:
        return error
    return None


def _runs(folder: Path) -> Iterator[Callable[[], None]]:
    from specviz.models.pool import ModelPool
    from specviz.request import Request
    from specviz.session import run as session
    from specviz.session.workbench import Workbench

    bench = Workbench(ModelPool(2 * 10**9, allow_any=True))
    common = {"method": "prompt_lookup", "target": str(folder), "prompt": "a fox, a dog aaaa", "max_new_tokens": 4}
    for chat in (False, True):
        request = Request.from_dict({**common, "chat": chat})
        yield lambda request=request: list(session.open_run(request, bench=bench).events())


def _compare(folder: Path, other: Path) -> None:
    from specviz.alignment.causes.doctor import examine

    examine(str(folder), str(other))


def is_bare(words: str) -> bool:
    """Whether words for people are what a program did, without the part of the model that is wrong."""
    return bool(PYTHON.search(words)) and not PLACED.search(words)


if __name__ == "__main__":
    _work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
