"""A ZeroGPU Space on this machine: the package `spaces` itself, a stub of the scheduler it asks, and no GPU.

As a program it runs the story below on two model folders and prints what happened as JSON; with `page` it serves
app.py.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlparse

NUM_TOKENS = 48
ROOT = Path(__file__).parents[2]


class Scheduler(ThreadingHTTPServer):
    """Lends one GPU and remembers who asked for what. has_quota: whether it lends at all."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.has_quota = True
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def all(self, name: str) -> list[dict[str, str]]:
        return [fields for asked, fields in self.asked if asked == name]


class _Answers(BaseHTTPRequestHandler):
    server: Scheduler

    def do_POST(self) -> None:
        asked = urlparse(self.path)
        name = asked.path.strip("/")
        self.server.asked.append((name, {key: values[0] for key, values in parse_qs(asked.query).items()}))
        status, answer = 200, {}
        if name == "schedule" and self.server.has_quota:
            number = len(self.server.asked)
            answer = {"idle": True, "nvidiaIndex": 0, "nvidiaUUID": "GPU-0", "allowToken": f"token-{number}"}
        elif name == "schedule":
            status, answer = 429, {"left": 3, "wait": 3600}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        """Says nothing."""


def emulate(address: str) -> None:
    """Makes this process one of a ZeroGPU Space whose scheduler is at that address; before specviz is imported."""
    import torch

    torch.version.cuda = "12.8"
    torch._C._cuda_init = int
    torch.cuda._is_in_bad_fork = bool
    os.environ |= {"SPACES_ZERO_GPU": "true", "SPACES_ZERO_DEVICE_API_URL": address, "SPECVIZ_DEVICE": "cpu"}
    torch.set_num_threads(1)  # a forked process has no threads of OpenMP
    import gradio  # noqa: F401
    import spaces  # noqa: F401
    from spaces.zero import torch as patches

    patches.unpatch()
    for name in ("unpatch", "init", "move"):
        setattr(patches, name, lambda *args, **named: None)


def story(target: str, draft: str) -> dict[str, object]:
    """Everything that can happen to runs on such a Space, in turn."""
    scheduler = Scheduler()
    emulate(scheduler.address)
    from specviz.errors import SpecvizError
    from specviz.request import Request
    from specviz.session.gpu_worker import WorkerRun
    from specviz.session.run import Status, open_run
    from specviz.session.workbench import Workbench, workbench
    from specviz.trace import Step

    bench, told = Workbench(workbench().pool, WorkerRun), {}
    request = Request(
        prompt="The fox", target=target, draft=draft, num_speculative_tokens=2, max_new_tokens=NUM_TOKENS, seed=3
    )
    bench.pool.load(target)
    bench.pool.load(draft, as_draft=True)

    def follow(run, at_step=lambda number: None):
        """Reads the events until they end: the last status, and the error's words if there was one."""
        last = None
        try:
            for event in run.events():
                last = event if isinstance(event, Status) else last
                if isinstance(event, Step):
                    at_step(len(run.trace.steps))
        except SpecvizError as error:
            return "error", str(error)
        return run.state, last.message

    def tokens(run):
        return [token.id for token in run.trace.tokens]

    run = open_run(request, bench=bench)
    told["kind"] = type(run).__name__
    told["whole"] = {"end": follow(run), "tokens": tokens(run), "worker": os.getpid() != _worker(scheduler)}
    told["seconds"] = scheduler.all("schedule")[0]["durationSeconds"]

    run = open_run(request, pace="normal", bench=bench)
    follow(run, lambda number: run.controls.set("num_speculative_tokens", 6) if number == 4 else None)
    told["live"] = {
        "k": [step.settings.k for step in run.trace.steps],
        "changed": [list(s.changed) for s in run.trace.steps],
    }

    run, lent = open_run(request, pace="normal", bench=bench), len(scheduler.all("release"))
    paused = follow(run, lambda number: run.pause() if number == 3 else None)
    given_back, so_far = len(scheduler.all("release")) - lent, len(run.trace.steps)
    run.controls.set("pace", "full")
    resumed = follow(run)
    told["pause"] = {
        "states": [paused[0], resumed[0]],
        "given_back": given_back,
        "so_far": so_far,
        "tokens": tokens(run),
    }
    told["pause"]["indices"] = [step.index for step in run.trace.steps]
    told["pause"]["headers"] = sum(event.__class__.__name__ == "Header" for event in run.trace.events())
    told["pause"]["at_ms"] = [step.at_ms for step in run.trace.steps]

    run = open_run(request, pace="normal", bench=bench)
    killed = follow(run, lambda number: os.kill(_worker(scheduler), signal.SIGKILL) if number == 3 else None)
    run.controls.set("pace", "full")
    told["killed"] = {"states": [killed, follow(run)], "tokens": tokens(run)}

    run = open_run(request, pace="normal", bench=bench)
    follow(run, lambda number: run.pause() if number == 2 else None)
    scheduler.has_quota = False
    no_quota = follow(run)
    fresh = follow(open_run(request, bench=bench))
    scheduler.has_quota = True
    run.controls.set("pace", "full")
    told["quota"] = {"paused": no_quota, "fresh": fresh, "again": follow(run), "tokens": tokens(run)}

    events = open_run(request, pace="normal", bench=bench).events()
    while not isinstance(next(events), Step):
        pass
    events.close()
    told["after a closed tab"] = follow(open_run(request, bench=bench))[0]

    lent = len(scheduler.all("schedule"))
    bundled = open_run(
        Request(prompt="The fox", target="fable-target", draft="fable-draft", max_new_tokens=8), bench=bench
    )
    told["bundled"] = {"end": follow(bundled)[0], "lent": len(scheduler.all("schedule")) - lent}
    from specviz.session.whole_run import activate

    try:
        activate(request, bench.pool)
        told["reports"] = ""
    except SpecvizError as error:
        told["reports"] = str(error)
    return told


def _worker(scheduler: Scheduler) -> int:
    """The worker that has the GPU, or had it last."""
    return int(scheduler.all("allow")[-1]["pid"])


def page(*arguments: str) -> None:
    """app.py on such a Space; prints the scheduler's requests when its standard input ends."""
    scheduler = Scheduler()
    emulate(scheduler.address)

    def wait() -> None:
        os.read(0, 1)  # sys.stdin would be locked in the worker that is forked meanwhile
        print(json.dumps([name for name, _ in scheduler.asked]), flush=True)
        os.kill(_worker(scheduler), signal.SIGKILL)  # it has this process's standard output, too
        os._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    sys.argv = ["app.py", *arguments]
    runpy.run_path(str(ROOT / "app.py"), run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1] == "page":
        page(*sys.argv[2:])
    else:
        print(json.dumps(story(*sys.argv[1:])))
