"""Sends hostile inputs to a server one by one, and takes its CPU time, memory and look-ups."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory, TemporaryFile

import httpx

from specviz.models.files import trial_process
from tests.chaos.damages import sound
from tests.chaos.folders import is_bare
from tests.chaos.inputs import KINDS, SHARES, Attack, Server

ROOT = Path(__file__).parents[2]
TRACE = ROOT / "assets" / "traces" / "first-visit.jsonl.gz"
MOST_CPU_S = {"folders": trial_process.MOST_S + 5.0}
"""Of CPU: a trial has 40 s for all its steps, and 5 s are for reading what passed. Any other kind: 2 s."""
MOST_MB = 1_600
PATIENCE_S = 120.0
WORDLESS = re.compile(r'"error": ?(null|"")')
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(slots=True)
class Report:
    """What an attack came to."""

    inputs: Counter[str] = field(default_factory=Counter)
    answers: Counter[int] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    crashes: int = 0
    bare: list[str] = field(default_factory=list)
    scripts: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    slow: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    slowest: str = ""
    most_mb: float = 0.0
    last_mb: float = 0.0
    log_bytes: int = 0
    tracebacks: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        faults = (self.crashes, self.tracebacks, self.bare, self.scripts, self.foreign, self.slow)
        return not any(faults) and self.most_mb <= MOST_MB

    def time(self, what: str, most_s: float, before: float, after: float) -> float:
        """Notes an input's CPU time; returns the time so far, which no reading sets back."""
        if after - before > most_s:
            self.slow.append(f"{what}: {after - before:.2f} s")
        if after - before > self.slowest_s:
            self.slowest_s, self.slowest = after - before, what
        return max(before, after)

    def note_log(self, log: bytes) -> None:
        """Of each traceback the first unindented line, which is the error."""
        self.log_bytes = len(log)
        _, *traces = log.decode(errors="replace").split("Traceback (most recent call last):\n")
        self.tracebacks = [
            next((line for line in trace.splitlines() if not line.startswith(" ")), "") for trace in traces
        ]

    def words(self) -> str:
        kinds = ", ".join(f"{name} {count:,}" for name, count in self.inputs.items())
        return "; ".join(
            (
                f"{self.inputs.total():,} inputs ({kinds})",
                f"answers {dict(sorted(self.answers.items()))}",
                f"calls ended {dict(self.ended)}",
                f"crashes {self.crashes}",
                f"bare errors {len(self.bare)} {self.bare[:4]}",
                f"script runs {len(self.scripts)} {self.scripts[:2]}",
                f"foreign look-ups {len(self.foreign)} {self.foreign[:2]}",
                f"too slow {len(self.slow)} {self.slow[:4]}; slowest {self.slowest_s:.2f} s of CPU ({self.slowest})",
                f"memory at most {self.most_mb:.0f} MB, at the end {self.last_mb:.0f} MB",
                f"log {self.log_bytes:,} bytes, tracebacks {len(self.tracebacks)} {self.tracebacks[:4]}",
            )
        )


class Target:
    """The server's process."""

    def __init__(self, process: subprocess.Popen[str], report: Report) -> None:
        self._process = process
        self.address = process.stdout.readline().strip()
        threading.Thread(target=self._listen, args=(report.foreign,), daemon=True).start()

    def _listen(self, foreign: list[str]) -> None:
        foreign.extend(line.strip() for line in self._process.stdout if line.startswith("foreign"))

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def end(self, number: int) -> int:
        """Its exit code after this signal."""
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)

    def cpu_s(self) -> float:
        """Its own, that of its ended children, and that of those that live, and theirs."""
        return _cpu_s(self._process.pid)

    def num_threads(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/task"))

    def num_files(self) -> int:
        return len(os.listdir(f"/proc/{self._process.pid}/fd"))

    def megabytes(self, name: str) -> float:
        """VmRSS or VmHWM."""
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1024


def _cpu_s(process: int) -> float:
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # it ended: from now on its parent counts it
        return 0.0
    children = []
    for thread in Path(f"/proc/{process}/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended: others of the process have its children now
            children += thread.read_text().split()
    return sum(map(int, fields[11:15])) / _TICK + sum(_cpu_s(int(child)) for child in set(children))


@contextmanager
def running(report: Report) -> Iterator[Target]:
    command = [sys.executable, "-m", "tests.chaos.server"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}  # any model may be named, and none is looked for on the hub
    with TemporaryFile() as log:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        process = subprocess.Popen(command, cwd=ROOT, text=True, env=environment, **pipes)
        try:
            yield Target(process, report)
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
            log.seek(0)
            report.note_log(log.read())


def attack(num_inputs: int, seed: int, say: Callable[[str], None] = lambda words: None) -> Report:
    """All inputs in turn, each as if from another address of a few hundred."""
    chance, report = Random(seed), Report()
    with (
        TemporaryDirectory() as place,
        running(report) as target,
        httpx.Client(base_url=target.address, timeout=PATIENCE_S) as client,
    ):
        trace, base = gzip.decompress(TRACE.read_bytes()), sound(Path(place, "sound"))
        server = Server.of(client.get("/config").json(), trace, base)
        before = target.cpu_s()
        for number in range(num_inputs):
            name = chance.choices(list(KINDS), SHARES)[0]
            report.inputs[name] += 1
            _send(client, KINDS[name](chance, server), f"10.0.{chance.randrange(8)}.{chance.randrange(250)}", report)
            if not target.lives:
                report.crashes += 1
                break
            before = report.time(f"input {number}, {name}", MOST_CPU_S.get(name, 2.0), before, target.cpu_s())
            if number % 1_000 == 999 or number == num_inputs - 1:
                report.most_mb, report.last_mb = target.megabytes("VmHWM"), target.megabytes("VmRSS")
                say(report.words())
    return report


def _send(client: httpx.Client, attack: Attack, address: str, report: Report) -> None:
    client.cookies.clear()
    try:
        request = client.build_request(
            attack.method, attack.path, content=attack.content, headers={"x-forwarded-for": address, **attack.headers}
        )
    except (httpx.InvalidURL, UnicodeEncodeError, ValueError):
        return
    try:
        answer = client.send(request)
        event = re.fullmatch(r'\{"event_id":"(\w+)"\}', answer.text)
        if event and "/call/" in attack.path:  # the answer comes to whoever listens
            answer = client.get(f"{attack.path.replace('/v2', '')}/{event[1]}")
            report.ended[answer.text.rpartition("event: ")[2].partition("\n")[0]] += 1
            if is_bare(answer.text):
                report.bare.append(f"{attack.path} {attack.content[:200]!r} {answer.text[-300:]}")
    except (httpx.RemoteProtocolError, httpx.LocalProtocolError, httpx.WriteError, httpx.ReadError):
        report.answers[0] += 1  # the connection was closed on it
        return
    report.answers[answer.status_code] += 1
    if (answer.status_code >= 500 and b"error" not in answer.content) or WORDLESS.search(answer.text):
        report.bare.append(f"{attack.method} {attack.path[:60]} {attack.content[:80]!r} {answer.status_code}")
    policy, kind = answer.headers.get("content-security-policy", ""), answer.headers.get("content-type", "")
    runs_inline = "'unsafe-inline'" in policy.partition("script-src")[2].partition(";")[0] or not policy
    if kind.startswith("text/html") and runs_inline and attack.path != "/":
        report.scripts.append(attack.path)
