"""A server or its disk fails, a visitor's network too: what was recorded loads, and the next run works."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from gradio_client import Client

from specviz.errors import SpecvizError
from specviz.models.pool import ModelPool
from specviz.session import run as session
from specviz.session.workbench import Workbench
from specviz.trace import Trace, read_trace
from tests.chaos.attack import Report, Target, running
from tests.helpers import load_test
from tests.helpers import tiny_server as pages
from tests.helpers.small_disk import small_disk
from tests.helpers.waits import until

served, client = pages.fixtures()


def runs(address: str) -> Trace:
    """A whole run, as a program asks for one."""
    made = Client(address, verbose=False).predict("The fox said", max_new_tokens=8, api_name="/run")
    return read_trace(httpx.get(f"{address.rstrip('/')}{made['trace']}", timeout=60).content)


async def begun(client: httpx.AsyncClient, name: str) -> str:
    """The id of a long run of this session, of which some steps have been shown. Its listener goes away."""
    event, parts = load_test.run_event((await client.get("/config")).json())
    asked = {"data": load_test.values_of(parts, max_tokens=400), "fn_index": event, "session_hash": name}
    await load_test.join(client, asked)
    async for message in load_test.outputs(client, name):
        if (shown := json.loads(message))["steps"]:
            return shown["run"]
    raise AssertionError("it showed no step")


def kept_until(target: Target, number: int) -> bytes:
    """What a browser has of a run in whose midst its server is ended by this signal."""

    async def keep() -> bytes:
        async with httpx.AsyncClient(base_url=target.address, timeout=load_test.PATIENCE_S) as client:
            answer = await client.get(f"/specviz/trace/{await begun(client, 'one')}")
            assert target.end(number) == -number
            return answer.content

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, keep()).result()


@pytest.mark.slow
def test_a_server_that_is_killed_takes_nothing_that_a_browser_keeps():
    with running(Report()) as target:
        kept = kept_until(target, signal.SIGKILL)
    recorded = read_trace(kept)
    assert recorded.steps
    with running(Report()) as target, httpx.Client(base_url=target.address, timeout=load_test.PATIENCE_S) as client:
        parts = client.get("/config").json()["components"]
        panel = next(each["id"] for each in parts if "bring" in (each["props"].get("server_fns") or ()))
        asked = {"data": {"packed": base64.b64encode(kept).decode()}, "component_id": panel, "fn_name": "bring"}
        brought = client.post("/gradio_api/component_server", json={**asked, "session_hash": "one"}).json()["run"]
        assert read_trace(client.get(f"/specviz/trace/{brought}").content) == recorded
        assert runs(target.address).footer.reason != "error"
        assert read_trace(kept_until(target, signal.SIGTERM)).steps


@pytest.mark.slow
def test_a_cut_connection_ends_its_run_and_leaves_its_steps(served, client, monkeypatch):
    monkeypatch.setattr(served.page.registry, "_grace_s", 0.2)
    event, parts = load_test.run_event(client.get("/config").json())
    asked = {"data": load_test.values_of(parts, max_tokens=400, pace="slow"), "fn_index": event, "session_hash": "cut"}
    client.post("/gradio_api/queue/join", json=asked).raise_for_status()
    address = httpx.URL(served.address)
    with socket.create_connection((address.host, address.port)) as line:
        line.sendall(b"GET /gradio_api/queue/data?session_hash=cut HTTP/1.1\r\nhost: localhost\r\n\r\n")
        until(lambda: any(view.trace.steps for view in live(served)))
        (view,) = live(served)
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no goodbye: a reset
    until(lambda: not view.is_live)
    kept = read_trace(client.get(f"/specviz/trace/{view.id}").content)
    assert (kept.footer.reason, len(kept.steps) > 0) == ("stopped", True)
    assert runs(served.address).steps


def live(served: pages.Served) -> list:
    return [view for view in served.page.registry._current.values() if view.is_live]


def test_a_file_that_a_full_disk_cannot_take_leaves_nothing_and_the_next_one_is_taken(
    served, client, tmp_path, monkeypatch
):
    with small_disk(tmp_path / "disk", 64) as disk:
        monkeypatch.setattr(served.page.demo.app, "uploaded_file_dir", str(disk))
        full = client.post("/gradio_api/upload", files={"files": ("x.jsonl", b"x" * 200_000)})
        assert (full.status_code, full.text) == (507, "the server cannot keep this file (No space left on device)")
        assert [*disk.iterdir()] == []
        sent = client.post("/gradio_api/upload", files={"files": ("x.jsonl", b"x" * 2_000)})
        assert Path(sent.json()[0]).read_bytes() == b"x" * 2_000
    assert runs(served.address).steps


def test_a_model_whose_folder_is_deleted_goes_on_and_is_missed_in_words(tmp_path):
    bench, folder = Workbench(pages.tiny_library(tmp_path)), tmp_path / "tiny-target"
    asked = replace(pages.tiny_offer().first, max_new_tokens=24)
    run, again = (session.open_run(asked, bench=bench) for _ in range(2))
    for _ in run.events():
        shutil.rmtree(folder, ignore_errors=True)
    assert [*again.events()]
    assert len(run.trace.steps) > 1
    assert again.trace.text == run.trace.text
    with pytest.raises(SpecvizError, match="tiny-target"):
        ModelPool(allow_any=True).load(str(folder))
