"""Starts `python app.py` as README says, waits until /healthz answers, ends it; needs no test package."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

DEADLINE_S = 120  # for its start and for its end, also on a machine that stalls


def main() -> int:
    started = time.monotonic()
    with serving([sys.executable, "app.py"], Path(__file__).parent.parent, os.environ) as address:
        print(f"app.py answered on {address} after {time.monotonic() - started:.1f} s")
    return 0


@contextmanager
def serving(command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The address of the page that this command serves, on a free port, once it can be used; then it is ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    app = subprocess.Popen(command, cwd=folder, env={**environment, "GRADIO_SERVER_PORT": str(port)})
    try:
        _wait_for(f"http://127.0.0.1:{port}/healthz", app)
        yield f"http://127.0.0.1:{port}"
    finally:
        app.terminate()
        app.wait(DEADLINE_S)


def _wait_for(url: str, app: subprocess.Popen) -> None:
    started = time.monotonic()
    while time.monotonic() - started < DEADLINE_S:
        if app.poll() is not None:
            raise SystemExit(f"the page's server ended with status {app.returncode} before it answered")
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit(f"the page's server did not answer on {url} within {DEADLINE_S} s")


if __name__ == "__main__":
    raise SystemExit(main())
