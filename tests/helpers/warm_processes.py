"""Programs in processes of their own that start warm: copies of one that has loaded torch and transformers before.

Loading these takes nine tenths of what a short command costs. The process that is copied, one for each worker of the
tests, knows nothing of specviz: a program loads all of it itself, and ends as any other does. What must start cold
(what is loaded when, a terminal) has no place here.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import IO, Any

LOADED = ("torch", "transformers.generation", "transformers.models.llama.modeling_llama", "pandas")
COMMAND = "import runpy\nrunpy.run_module('specviz', run_name='__main__', alter_sys=True)"
"""The program of `python -m specviz`."""
MOST_BYTES = 1 << 20  # of a program with its arguments and environment


class Process:
    """A program that runs: as much of subprocess.Popen as tests need. What it says on standard error is in the result
    of `communicate`."""

    def __init__(self, pid: int, status: int, stdout: int, stderr: IO[bytes]) -> None:
        self.pid, self.returncode = pid, None
        self.stdout = open(stdout, encoding="utf-8")  # noqa: SIM115
        self._status, self._stderr = status, stderr

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float = 60) -> int:
        """The exit status; minus the signal's number where one ended it."""
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
            self.returncode = int(os.read(self._status, 16))
            os.close(self._status)
        return self.returncode

    def communicate(self, timeout: float = 60) -> tuple[str, str]:
        """What it prints until its end, and all that it says on standard error."""
        late = threading.Timer(timeout, self.kill)
        late.start()
        printed = self.stdout.read()
        self.wait(timeout)
        late.cancel()
        self._stderr.seek(0)
        return printed, self._stderr.read().decode()

    def close(self) -> None:
        self.kill()
        self.wait()
        self.stdout.close()
        self._stderr.close()


def start(program: str, *arguments: str | Path, cwd: Path, env: Mapping[str, str] | None = None) -> Process:
    """Starts this text of a program in that folder."""
    (reading, writing), (status, telling) = os.pipe(), os.pipe()
    said, nothing = tempfile.TemporaryFile(), os.open(os.devnull, os.O_RDONLY)  # noqa: SIM115
    sent = {"program": program, "argv": ["-c", *map(str, arguments)], "cwd": str(cwd), "env": dict(env or os.environ)}
    socket.send_fds(_server(), [json.dumps(sent).encode()], [nothing, writing, said.fileno(), telling])
    for mine in (nothing, writing, telling):
        os.close(mine)
    return Process(int(os.read(status, 16)), status, reading, said)


def run(program: str, *arguments: str | Path, timeout: float = 120, **options: Any) -> subprocess.CompletedProcess:
    """Runs it to its end, as subprocess.run does with captured text."""
    process = start(program, *arguments, **options)
    try:
        printed, said = process.communicate(timeout)
        return subprocess.CompletedProcess(arguments, process.returncode, printed, said)
    finally:
        process.close()


@cache
def _server() -> socket.socket:
    """The way to the process that is copied. It ends when this one does."""
    ours, its = socket.socketpair()
    with its:
        command = [sys.executable, __file__, str(its.fileno())]
        subprocess.Popen(command, pass_fds=[its.fileno()], stdin=subprocess.DEVNULL, start_new_session=True)
    return ours


# ---- the process that is copied -------------------------------------------------------------------------------------


def serve(server: socket.socket) -> dict[str, Any] | None:
    """In each copy: what it is to run, its streams in place. In the process itself: None, when nobody asks any more."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # whoever started the tests may ignore some
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    keepers = set()
    while True:
        message, (*streams, telling), *_ = socket.recv_fds(server, MOST_BYTES, 4) or (b"", (None,))
        if not message:
            return None
        keepers = {each for each in keepers if os.waitpid(each, os.WNOHANG)[0] == 0}
        keeper = os.fork()
        if keeper == 0:
            server.close()
            return _keep(telling, json.loads(message), streams)
        keepers.add(keeper)
        for each in (*streams, telling):
            os.close(each)


def _keep(telling: int, told: dict[str, Any], streams: list[int]) -> dict[str, Any]:
    """Copies itself once more, tells the copy's number and in the end its exit status."""
    copy = os.fork()
    if copy:
        for each in streams:
            os.close(each)
        os.write(telling, str(copy).encode())
        os.write(telling, str(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1])).encode())
        os._exit(0)
    os.close(telling)
    os.setsid()
    for number, each in enumerate(streams):
        os.dup2(each, number)
    for each in set(streams) - {0, 1, 2}:
        os.close(each)
    return told


def become(told: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """What a new interpreter would have: streams, folder, environment, path, a main module."""
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(told["env"])
    os.chdir(told["cwd"])
    sys.argv = told["argv"]
    sys.path[:1] = ["", *filter(None, told["env"].get("PYTHONPATH", "").split(os.pathsep))]
    main = sys.modules["__main__"] = ModuleType("__main__")
    return told["program"], main.__dict__


if __name__ == "__main__":
    for name in LOADED:
        importlib.import_module(name)
    if asked := serve(socket.socket(fileno=int(sys.argv[1]))):
        exec(*become(asked))
