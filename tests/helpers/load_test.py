"""python -m tests.helpers.load_test [--sessions 30] [--tokens 48] [--target NAME | --tiny]: many people run at once.

Serves the page on this machine's loopback interface, a model's in a process of its own, and joins its queue as browsers
do. Nothing else is called.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.waits import until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 300.0


@dataclass(slots=True)
class Seen:
    """What one session got: when each step came, in seconds after it asked, and which."""

    at: list[float] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    done: int | None = None
    run: str | None = None

    @property
    def longest_gap(self) -> float:
        return max((late - early for early, late in zip(self.at, self.at[1:], strict=False)), default=0.0)


def run_event(config: dict[str, Any]) -> tuple[int, list[Any]]:
    """The number of the Run button's handler, and the values that its fields have at first."""
    components = {part["id"]: part for part in config["components"]}
    button = next(number for number, part in components.items() if part["props"].get("elem_id") == "run")
    event = next(e for e in config["dependencies"] if [button, "click"] in e["targets"] and e["backend_fn"])
    return event["id"], [components[number] for number in event["inputs"]]


def values_of(parts: list[dict[str, Any]], **changes: Any) -> list[Any]:
    """The fields' values, some of them changed by elem_id."""
    return [changes.get(part["props"]["elem_id"].replace("-", "_"), part["props"].get("value")) for part in parts]


async def watch(client: httpx.AsyncClient, session: str, event: int, values: list[Any]) -> Seen:
    """One session: it presses Run and listens until the end."""
    began, seen = time.monotonic(), Seen()
    await join(client, {"data": values, "fn_index": event, "session_hash": session, "event_data": None})
    async for text in outputs(client, session):
        message = json.loads(text)
        assert message["from"] <= len(seen.steps), "a hole in the stream"
        for step in message["steps"][len(seen.steps) - message["from"] :]:
            seen.steps.append(step["index"])
            seen.at.append(time.monotonic() - began)
        seen.done, seen.run = message.get("done"), message["run"]
    return seen


async def join(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    (await client.post("/gradio_api/queue/join", json={"trigger_id": None, **asked})).raise_for_status()


async def outputs(client: httpx.AsyncClient, session: str) -> AsyncIterator[str]:
    """The stage's values as they come; Gradio sends each as a change of the one before."""
    value = ""
    async with client.stream("GET", "/gradio_api/queue/data", params={"session_hash": session}) as answer:
        async for line in answer.aiter_lines():
            said = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
            if said.get("msg") == "process_completed":
                return
            if said.get("msg") == "process_generating":
                value = _changed(value, said["output"]["data"][0])
                yield value


def _changed(value: str, change: Any) -> str:
    if isinstance(change, str):
        return change
    for action, _, text in change:
        value = value + text if action == "append" else text
    return value


async def crowd(address: str, sessions: int, **changes: Any) -> list[Seen]:
    """So many browsers at once, each with the page open, all of them pressing Run within a second."""
    async with AsyncExitStack() as stack:
        clients = (httpx.AsyncClient(base_url=address, timeout=PATIENCE_S) for _ in range(sessions))
        browsers = [await stack.enter_async_context(client) for client in clients]
        for browser in browsers:
            (await browser.get("/")).raise_for_status()  # which gives each a visitor's name
        event, parts = run_event((await browsers[0].get("/config")).json())

        async def one(number: int) -> Seen:
            await asyncio.sleep(number / sessions)
            return await watch(browsers[number], f"crowd{number}", event, values_of(parts, seed=number, **changes))

        return await asyncio.gather(*map(one, range(sessions)))


def report(seen: list[Seen]) -> str:
    first, gaps = [one.at[0] for one in seen], [one.longest_gap for one in seen]
    lost = sum(one.steps != list(range(one.done or -1)) for one in seen)
    return (
        f"{len(seen)} sessions, {sum(len(one.steps) for one in seen)} steps; first token: median "
        f"{statistics.median(first):.2f} s, last of all {max(first):.2f} s; longest gap between two steps: median "
        f"{statistics.median(gaps):.2f} s, of all {max(gaps):.2f} s; sessions that lost a step: {lost}"
    )


@contextmanager
def named(target: str | None) -> Iterator[str]:
    """The page as its command serves it, in a process of its own, as browsers are, once its models are loaded."""
    from specviz.models.catalog import default_pair
    from specviz.ui.startup import free_port

    port, target = free_port("127.0.0.1", 0, 1), target or default_pair()[0]
    command, address = [sys.executable, "app.py", "--port", str(port), "--target", target], f"http://127.0.0.1:{port}"
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as server:
        try:
            until(partial(_is_ready, address))
            yield address
        finally:
            server.terminate()


def _is_ready(address: str) -> bool:
    """Whether the page is served and its first models are loaded."""
    with suppress(httpx.TransportError):
        return httpx.get(f"{address}/healthz").json()["models_ready"]
    return False


@contextmanager
def tiny() -> Iterator[str]:
    from tests.helpers import tiny_server

    with tempfile.TemporaryDirectory() as folder, tiny_server.served(Path(folder)) as page:
        yield page.address


def main() -> None:
    parser = argparse.ArgumentParser(description="Many people at once.")
    parser.add_argument("--sessions", type=int, default=30)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--target", help="the page begins with it (default: the bundled pair)")
    parser.add_argument("--tiny", action="store_true", help="with tiny random models instead of the bundled pair")
    options = parser.parse_args()
    with tiny() if options.tiny else named(options.target) as address:
        print(report(asyncio.run(crowd(address, options.sessions, max_tokens=options.tokens))))


if __name__ == "__main__":
    main()
