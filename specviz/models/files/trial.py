"""Trials of models that are not in the catalogue: settings, tokenizer and chat template are tried before they are read.

Each is a stranger's input to a library that sets no bound on its work. A helper process tries them; see
trial_process.py. A passed trial is stored under a hash of the folder's small files, so a model is tried only once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from time import monotonic

import specviz
from specviz import models
from specviz.errors import SpecvizError
from specviz.models.files.hub import hash_of
from specviz.models.files.small_files import small_files
from specviz.models.files.trial_process import MOST_CPU_S, MOST_MEMORY_GB, MOST_S
from specviz.settings import cache_dir

MOST_AT_ONCE = 2  # models that are tried at a time
MOST_WAITING = 4  # models that wait for that; a further one is refused
FORGOTTEN_S = 300
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "MALLOC_ARENA_MAX")
"""Environment variables that are set to 1: each thread would reserve addresses, which the memory limit counts."""
_PATIENCE_S = 20.0  # beyond the limits of a trial, for the helper's start
_NO_PROCESS = "no process in which to try a model could be started"
_WORDS = {
    "SIGXCPU": f"needs more than {MOST_CPU_S} s of CPU",
    "SIGALRM": f"was not done when its trial had taken {MOST_S} s",
    "memory": f"needs more than {MOST_MEMORY_GB} GB of memory",
}
"""The end of a trial -> the words about the step in which it ended."""
_OF_THE_MACHINE = ("SIGALRM", "SIGKILL")
"""Ends that a busy machine may bring to any model: such a refusal is remembered only for FORGOTTEN_S."""


def check_by_trial(folder: Path, name: str) -> None:
    """Tries a model's folder unless it passed before. Raises SpecvizError with the step and the limit that it broke."""
    state = _state(folder)
    passed = cache_dir() / "trials" / state
    if passed.is_file():
        return
    if words := _helpers.find_fault(folder, state):
        raise SpecvizError(f"{name} was not loaded: {words}")
    with suppress(OSError):  # then it is tried again next time
        passed.parent.mkdir(parents=True, exist_ok=True)
        passed.touch()


def _state(folder: Path) -> str:
    """A hash of everything that the outcome of a trial depends on."""
    files = [(str(file.relative_to(folder)), hash_of(file)) for file in small_files(folder)]
    return hashlib.sha256(json.dumps([_code(), files]).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """The versions of the libraries, and a hash of the code that a trial runs."""
    digest = hashlib.sha256(f"{version('transformers')} {version('tokenizers')}".encode())
    for file in sorted(Path(models.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class _Helpers:
    """The processes that try folders. Each starts when it is needed, and ends after a long idle time."""

    def __init__(self) -> None:
        # state -> the fault, and until when it counts
        self._known: dict[str, tuple[str, float]] = {}
        self.forget()
        # the processes, and a thread that closed the lock, belong to the parent
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._changed = threading.Condition()
        self.idle = [_Helper() for _ in range(MOST_AT_ONCE)]
        self._tried: set[str] = set()
        self._num_waiting = 0

    def find_fault(self, folder: Path, state: str) -> str:
        """The words for the step of its trial that ended at a limit; "" if none did. state: names the content."""
        helper = None
        try:
            with self._changed:
                self._wait(state)
                if (words := self._find(state)) is not None:
                    return words
                helper = self.idle.pop()
                self._tried.add(state)
            step, ended = helper.attempt(folder)
            until = monotonic() + FORGOTTEN_S if ended in _OF_THE_MACHINE else math.inf
            words = _describe(step, ended)
            self._known[state] = (words, until)
            return words
        finally:
            if helper is not None:
                with self._changed:
                    self._tried.discard(state)
                    self.idle.append(helper)
                    self._changed.notify_all()

    def _wait(self, state: str) -> None:
        """Waits until the fault is known, or until a helper is idle and no other tries such a folder."""

        def is_over() -> bool:
            return self._find(state) is not None or bool(self.idle and state not in self._tried)

        if is_over():
            return
        if self._num_waiting >= MOST_WAITING:
            raise SpecvizError("too many models are being tried just now: try again in a minute")
        self._num_waiting += 1
        try:
            self._changed.wait_for(is_over)
        finally:
            self._num_waiting -= 1

    def _find(self, state: str) -> str | None:
        words, until = self._known.get(state, ("", 0.0))
        return words if monotonic() < until else None


class _Helper:
    """A process that tries one folder at a time."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self._number = 0  # of the folder that the process was given last
        self._is_late = False

    def attempt(self, folder: Path) -> tuple[str, str]:
        """Tries a folder; returns the last step of its trial, and what ended it."""
        answer = self._ask(folder)
        if answer is None and self._number > 1:  # it was idle, and may have ended just now
            answer = self._ask(folder)
        if answer is None:
            limit = f"was not ready after {MOST_S + _PATIENCE_S:g} s"
            raise SpecvizError(f"{_NO_PROCESS}: it {limit if self._is_late else 'ended at once'}")
        return answer

    def _ask(self, folder: Path) -> tuple[str, str] | None:
        """Asks the process for `attempt`'s answer; None if it ended before the first step.

        Unless the answer was read to its end, the process is ended: the rest of it belongs to no other folder.
        """
        process = self._running()
        step = ""
        self._number += 1
        self._is_late = False
        limit = threading.Timer(MOST_S + _PATIENCE_S, self._end_late, (process,))
        limit.daemon = True
        try:
            limit.start()
            process.stdin.write(json.dumps([self._number, str(folder.absolute())]) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                number, kind, words = json.loads(line)
                if number != self._number:
                    continue
                if kind == "end":
                    return step, words
                step = words
        except OSError:  # it ended before it read the folder's name
            pass
        except BaseException:
            self._end(process)
            raise
        finally:
            limit.cancel()
        self._end(process)
        if not step:
            return None
        return step, "SIGALRM" if self._is_late else "SIGKILL"

    def _end_late(self, process: subprocess.Popen[str]) -> None:
        self._is_late = True
        _kill(process)

    def _end(self, process: subprocess.Popen[str]) -> None:
        self.process = None
        _kill(process)
        process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self.process is not None and self.process.poll() is None:
            return self.process
        if not sys.executable:
            raise SpecvizError(f"{_NO_PROCESS}: this Python does not know where its own program is")
        place = Path(specviz.__file__).parents[
            1
        ]  # with -m, the current folder's modules come first
        variables = {**dict.fromkeys(_ONE_THREAD, "1"), "HF_HUB_OFFLINE": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        command = [sys.executable, "-m", "specviz.models.files.trial_process"]
        try:
            self.process = subprocess.Popen(
                command,
                text=True,
                encoding="utf-8",
                cwd=place,
                env={**os.environ, **variables},
                start_new_session=True,
                **pipes,
            )
        except OSError as error:
            raise SpecvizError(f"{_NO_PROCESS}: {error.strerror}") from error
        self._number = 0
        # so that a process that ends when idle leaves no zombie
        threading.Thread(target=self.process.wait, daemon=True).start()
        return self.process


def _kill(process: subprocess.Popen[str]) -> None:
    """Ends the process and the child in which it tries a folder. The child would go on and hold the pipe open."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()


_helpers = _Helpers()


def _describe(step: str, ended: str) -> str:
    if not ended:
        return ""
    if not ended.startswith("SIG"):
        return f"{step} {_WORDS.get(ended, ended)}"
    fault = _WORDS.get(ended, f"ends the process that tries it ({ended})")
    if ended in _OF_THE_MACHINE:
        fault += f"; try again in {FORGOTTEN_S // 60} minutes"
    return f"{step} {fault}"
