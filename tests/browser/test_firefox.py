"""The live page in Firefox, where it is installed: it computes there, and writes what a run in Python writes."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

import specviz
from specviz.views.live import live_page
from tests.browser.test_live import ASKED, at

FIREFOX = next(filter(None, map(shutil.which, ("firefox", "firefox-esr"))), None)
PATIENCE_S = 60
PORT = 2828  # which Marionette, Firefox's own remote control, listens at
TEXT = """return [...document.querySelectorAll('#live .sv-text-body .sv-piece:not(.sv-is-rejected)')]
  .map((piece) => piece.textContent).join('')"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FIREFOX is None, reason="Firefox is not installed (Debian: apt-get install firefox-esr)"),
]


class Marionette:
    """Firefox, told what to do: a message is its length, a colon, and [kind, number, command, arguments] as JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._stream = connection.makefile("rb")
        self._read()
        self.ask("WebDriver:NewSession", {"capabilities": {}})

    def _read(self):
        length = b""
        while (digit := self._stream.read(1)) != b":":
            length += digit
        return json.loads(self._stream.read(int(length)))

    def ask(self, command, arguments):
        message = json.dumps([0, 1, command, arguments]).encode()
        self._connection.sendall(b"%d:%s" % (len(message), message))
        _, _, error, result = self._read()
        assert error is None, error
        return result

    def run(self, script):
        return self.ask("WebDriver:ExecuteScript", {"script": script, "args": []})["value"]

    def wait(self, expression):
        until = time.monotonic() + PATIENCE_S
        while not self.run(f"return {expression}"):
            assert time.monotonic() < until, expression
            time.sleep(0.1)


def connected() -> socket.socket:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        with suppress(OSError):
            return socket.create_connection(("127.0.0.1", PORT), timeout=PATIENCE_S)
        time.sleep(0.2)
    raise AssertionError("Firefox did not listen")


@pytest.fixture(scope="module")
def firefox(tmp_path_factory) -> Iterator[Marionette]:
    profile = tmp_path_factory.mktemp("profile")
    command = [FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", str(profile)]
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connected() as connection:
            browser = Marionette(connection)
            yield browser
            with suppress(OSError, ValueError):
                browser.ask("Marionette:Quit", {"flags": ["eForceQuit"]})
    finally:
        running.wait(PATIENCE_S)


def test_the_live_page_computes_from_disk(firefox, tmp_path):
    path = tmp_path / "live.html"
    path.write_text(live_page(), "utf-8")
    firefox.ask("WebDriver:Navigate", {"url": f"{path.as_uri()}{at()}"})
    firefox.wait("document.documentElement.dataset.done")
    firefox.run("document.querySelector('.sv-live-drive .sv-primary').click()")
    firefox.wait("document.querySelector('.sv-state').textContent.includes('done')")
    asked = dict(ASKED)
    expected = specviz.run(asked.pop("prompt"), target="fable-target", draft="fable-draft", **asked)
    shown = "".join(firefox.run(TEXT).split())
    assert shown.replace("⏎", "").replace("␣", "") == "".join(expected.text.split())
