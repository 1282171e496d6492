"""Starts `python app.py` as README says, waits until /healthz answers, ends it; needs no test package."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

DEADLINE_S = 120


def main() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    app = subprocess.Popen(
        [sys.executable, "app.py"],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "GRADIO_SERVER_PORT": str(port)},
    )
    try:
        health = _wait_for(f"http://127.0.0.1:{port}/healthz", started, app)
    finally:
        app.terminate()
        app.wait(20)
    print(f"app.py answered after {time.monotonic() - started:.1f} s: {health}")
    return 0


def _wait_for(url: str, started: float, app: subprocess.Popen) -> dict:
    while time.monotonic() - started < DEADLINE_S:
        if app.poll() is not None:
            raise SystemExit(f"app.py ended with status {app.returncode} before it answered")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise SystemExit(f"app.py did not answer on {url} within {DEADLINE_S} s")


if __name__ == "__main__":
    raise SystemExit(main())
