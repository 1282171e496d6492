"""A model that is not of the catalogue is tried before it is read: its settings, its tokenizer and its chat template.

Each is a stranger's input to a library that sets no bound on its work. A helper process tries them, see
trial_process.py. What a folder passed is kept by the content of its small files: a model is tried once, and a
catalogue's never.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path

import specviz
from specviz import models
from specviz.errors import SpecvizError
from specviz.models.files.hub import hash_of
from specviz.models.files.small_files import small_files
from specviz.models.files.trial_process import MOST_CPU_S, MOST_MEMORY_GB, MOST_S
from specviz.settings import cache_dir
from specviz.trace.lines import write_lines
from specviz.trace.values import TraceError

_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS", "MALLOC_ARENA_MAX")
"""Set to 1: each thread would reserve addresses, which the limit of memory counts."""
_PATIENCE_S = 20.0  # beyond the limits of a trial: until the helper has started
_NO_PROCESS = "no process in which to try a model could be started"
_WORDS = {
    "SIGXCPU": f"needs more than {MOST_CPU_S} s of CPU",
    "SIGALRM": f"was not done when its trial had taken {MOST_S} s",
    "memory": f"needs more than {MOST_MEMORY_GB} GB of memory",
}
"""What ended the trial -> what is said of the step in which it ended."""
_OF_THE_MACHINE = ("SIGALRM", "SIGKILL")
"""What a busy machine may do to any model: such a refusal is not remembered."""


def check_by_trial(folder: Path, name: str) -> None:
    """Tries a model's folder unless it passed before. SpecvizError with the step and the limit that it broke."""
    state = _state(folder)
    kept = cache_dir() / "trials" / f"{state}.json"
    if kept.is_file():
        return
    if words := _helper.find_fault(folder, state):
        raise SpecvizError(f"{name} was not loaded: {words}")
    with suppress(OSError, TraceError):  # then it is tried again next time
        write_lines(kept, ["{}"])


def _state(folder: Path) -> str:
    """A hash of all that the outcome of a trial depends on."""
    files = [(str(file.relative_to(folder)), hash_of(file)) for file in small_files(folder)]
    return hashlib.sha256(json.dumps([_code(), files]).encode()).hexdigest()[:24]


@cache
def _code() -> str:
    """The versions of the libraries, and a hash of the code that a trial runs."""
    digest = hashlib.sha256(f"{version('transformers')} {version('tokenizers')}".encode())
    for file in sorted(Path(models.__file__).parent.rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


class _Helper:
    """The process that tries folders, one at a time. It starts with the first, and ends when it has long been idle."""

    def __init__(self) -> None:
        self._faults: dict[str, str] = {}
        self.forget()
        if hasattr(os, "register_at_fork"):  # the process and whoever holds the lock belong to the other one
            os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._number = 0  # of the folder that it was given last

    def find_fault(self, folder: Path, state: str) -> str:
        """Which step of its trial ended at which limit, in words; "" where none did. state: names the content."""
        with self._lock:
            if state not in self._faults:
                answer = self._ask(folder) or self._ask(folder)  # an idle helper may have ended just now
                if answer is None:
                    raise SpecvizError(f"{_NO_PROCESS}: it ended at once")
                if answer[1] in _OF_THE_MACHINE:
                    return _describe(*answer)
                self._faults[state] = _describe(*answer)
            return self._faults[state]

    def _ask(self, folder: Path) -> tuple[str, str] | None:
        """The last step of the folder's trial, and what ended it; None where the helper ended before the first. Unless
        its answer was read to the end, the helper is ended: what it still says belongs to no other folder."""
        self._number += 1
        process, step, is_late = self._running(), "", threading.Event()
        limit = threading.Timer(MOST_S + _PATIENCE_S, lambda: (is_late.set(), process.kill()))
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
        if is_late.is_set() and not step:
            raise SpecvizError(f"{_NO_PROCESS}: it was not ready after {MOST_S + _PATIENCE_S:g} s")
        return (step, "SIGALRM") if step else None

    def _end(self, process: subprocess.Popen[str]) -> None:
        self._process = None
        process.kill()
        process.wait()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            place = Path(specviz.__file__).parents[1]  # with -m, modules of the current folder come first
            own = {**dict.fromkeys(_ONE_THREAD, "1"), "HF_HUB_OFFLINE": "1"}
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
            command = [sys.executable, "-m", "specviz.models.files.trial_process"]
            try:
                self._process = subprocess.Popen(
                    command, text=True, encoding="utf-8", cwd=place, env={**os.environ, **own}, **pipes
                )
            except OSError as error:
                raise SpecvizError(f"{_NO_PROCESS}: {error.strerror}") from error
        return self._process


_helper = _Helper()


def _describe(step: str, ended: str) -> str:
    if not ended:
        return ""
    if ended.startswith("SIG"):
        return f"{step} {_WORDS.get(ended) or f'ends the process that tries it ({ended})'}"
    return f"{step} {_WORDS.get(ended, ended)}"
