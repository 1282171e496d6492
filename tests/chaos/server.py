"""The server under attack, in a process of its own: tiny models, and an audit hook that notes every foreign look-up.

It writes its address, then a line for each foreign name or address that it looks up or connects to.
"""

import os
import resource
import sys
import tempfile
from pathlib import Path

from specviz.session import workbench
from specviz.ui import BoundedLog
from tests.helpers import tiny_server

OWN = ("127.0.0.1", "localhost", "::1", "0.0.0.0", None, "")
LOOK_UPS = {"socket.getaddrinfo": 0, "socket.gethostbyname": 0, "socket.connect": 1, "socket.sendto": 1}


def note(event: str, arguments: tuple[object, ...]) -> None:
    if event not in LOOK_UPS:
        return
    place = arguments[LOOK_UPS[event]]
    host = place[0] if isinstance(place, tuple) else place
    host = host.decode("latin-1") if isinstance(host, bytes) else host
    if host not in OWN and not str(host).startswith("/"):
        print(f"foreign {event} {host!r}", flush=True)


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stderr = BoundedLog(sys.stderr)  # as the command does
    with (
        tempfile.TemporaryDirectory() as cache,
        tempfile.TemporaryDirectory() as folder,
        tiny_server.served(Path(folder), any_model=True) as page,
    ):
        os.environ["SPECVIZ_CACHE"] = cache  # what passed a trial is kept there
        workbench._shared[:] = [workbench.Workbench(page.page.bench.pool)]  # as the command does
        print(page.address, flush=True)
        sys.addaudithook(note)
        sys.stdin.read()  # until the attacker is done


if __name__ == "__main__":
    main()
