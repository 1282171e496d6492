"""What the server hands out, and what it refuses."""

from __future__ import annotations

import asyncio
import gzip
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from gradio.state_holder import SessionState

from specviz.settings import assets_dir
from specviz.trace import read_trace
from specviz.ui import page
from specviz.ui import server as serving
from specviz.ui.explore.handlers import increments_since
from specviz.ui.under_path import UnderPath, is_loopback
from specviz.ui.view import view_of
from specviz.views.bundle import bundle, web_file
from specviz.views.live import live_files
from tests.helpers import tiny_server as pages
from tests.helpers.documents import DOCS
from tests.helpers.waits import until

served, client = pages.fixtures()
ARENAS = """
import ctypes, threading
import specviz.ui
library, all_there = ctypes.CDLL(None), threading.Barrier(24)
ask = lambda: (all_there.wait(), library.malloc(4096), all_there.wait())
threads = [threading.Thread(target=ask) for _ in range(24)]
for each in threads:
    each.start()
for each in threads:
    each.join()
library.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(library.fdopen(1, b"w"))
library.malloc_info(0, stream)
library.fflush(stream)
"""
"""Prints what glibc tells of its arenas when many threads have asked for memory."""
FREED = """
import ctypes, pathlib, resource, threading, time
from specviz.ui import server
pages_of, size = pathlib.Path("/proc/self/statm"), resource.getpagesize()
library, taken = ctypes.CDLL(None), lambda: int(pages_of.read_text().split()[1]) * size >> 20
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(4096) for _ in range(50_000)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 4096)
for block in blocks[:-1]:
    library.free(block)
freed = server.FreedMemory()
freed.give_back("too soon")
before = taken()
time.monotonic = lambda late=time.monotonic() + 2 * server.TRIM_S: late
freed.give_back("later")
for thread in threading.enumerate():
    if thread.name == "trim":
        thread.join()
print(before - taken())
"""
"""Prints how many MB a server gives back of 200 that are free behind a block that is not."""


@pytest.mark.parametrize("path", ["/", "/healthz", "/config", "/specviz/web/specviz.js", "/specviz/web/nothing.js"])
def test_every_answer_carries_the_security_headers(client, path):
    headers = client.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors" not in headers["content-security-policy"], "a Space shows the page in a frame"


def test_what_lies_below_the_told_path_is_served_as_at_the_root():
    async def ask(path, query=b""):
        answers = []
        scope = {"type": "http", "method": "GET", "path": path, "query_string": query, "headers": [], "root_path": ""}

        async def shown(scope, receive, send):
            answers.append(scope["path"])

        async def send(message):
            answers.extend(value.decode() for name, value in message.get("headers", ()) if name == b"location")

        await UnderPath(shown, "https://hub.example/user/ann%40example")(scope, None, send)
        return answers

    seen = [("/user/ann@example/", "/"), ("/user/ann@example/healthz", "/healthz"), ("/healthz", "/healthz")]
    seen += [("/user/ann@examples/x", "/user/ann@examples/x"), ("/user/ann@example", "ann@example/")]
    for asked, passed in seen:
        assert asyncio.run(ask(asked)) == [passed]
    assert asyncio.run(ask("/user/ann@example", b"run=eagle")) == ["ann@example/?run=eagle"]


def test_health_is_json_and_200(client):
    answer = client.get("/healthz")
    assert answer.status_code == 200
    assert answer.json()["ok"] is True


def leave(client, session):
    with client.stream("GET", f"/gradio_api/heartbeat/{session}") as answer:
        next(answer.iter_lines())


def test_a_server_forgets_events_whose_messages_nobody_fetched(served, client, monkeypatch):
    queue = served.page.demo._queue
    monkeypatch.setattr(queue.pending_messages_per_session, "max_size", 3)
    number = next(each["id"] for each in client.get("/config").json()["dependencies"] if not each["inputs"])
    for session in range(6):
        asked = {"data": [], "fn_index": number, "session_hash": f"silent{session}"}
        client.post("/gradio_api/queue/join", json=asked).raise_for_status()
    assert len(queue.pending_event_ids_session) >= 6
    leave(client, "other")
    until(lambda: len(queue.pending_event_ids_session) <= 3)


def test_what_is_kept_of_the_parts_for_every_browser_is_what_they_would_say(served):
    for part in served.page.demo.blocks.values():
        kept = part.get_config()
        assert kept == type(part).get_config(part)
        kept["value"] = "typed in one browser"
        assert part.get_config() == type(part).get_config(part)
        if not part.skip_api:
            assert part.api_info() == type(part).api_info(part)


def test_a_new_browser_has_no_part_describe_itself_anew(served, monkeypatch):
    monkeypatch.setattr(inspect, "signature", lambda *_: pytest.fail("a part looks at its own signature"))
    assert len(SessionState(served.page.demo).config_values) > 100


def test_a_server_forgets_the_sessions_of_browsers_that_left(served, client, monkeypatch):
    monkeypatch.setattr(page, "MOST_LEFT", 2)
    states = served.page.demo.state_holder
    for number in range(5):
        leave(client, f"gone{number}")
        until(lambda: any(name.endswith(f".gone{number}") for name in states.session_data))  # noqa: B023
    until(lambda: sum(".gone" in name for name in [*states.session_data]) == 2)
    assert states.time_last_used.keys() == states.session_data.keys()


@pytest.mark.slow
def test_the_threads_of_a_server_share_few_arenas():
    """In a process of its own: an arena stays for good."""
    made = subprocess.run([sys.executable, "-c", ARENAS], check=True, capture_output=True, text=True).stdout
    assert made.count("<heap nr=") <= serving.MOST_ARENAS


@pytest.mark.slow
def test_memory_that_was_freed_in_pieces_goes_back_as_browsers_leave():
    """In a process of its own: 200 MB are freed behind a block that is not."""
    given = subprocess.run([sys.executable, "-c", FREED], check=True, capture_output=True, text=True).stdout
    assert int(given) >= 150


def test_it_starts_on_a_machine_that_takes_seconds_for_the_page(tmp_path, monkeypatch):
    answer = serving.PackedPage.__call__

    async def answer_late(packed, scope, receive, send):
        await asyncio.sleep(4 if scope["type"] == "http" and scope["path"] == "/" else 0)
        await answer(packed, scope, receive, send)

    monkeypatch.setattr(serving.PackedPage, "__call__", answer_late)
    with pages.served(tmp_path) as slow:
        assert httpx.get(f"{slow.address}/healthz", timeout=pages.PATIENCE_S).status_code == 200


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_there_is_no_api_documentation_of_the_framework(client, path):
    assert client.get(path).status_code == 404


def test_the_browsers_half_comes_as_one_compressed_script(client):
    answer = client.get("/specviz/web/specviz.js")
    assert answer.text == bundle(web_file("page.js")).script
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["cache-control"] == "no-cache"


def test_an_unchanged_script_is_not_sent_again(client):
    etag = client.get("/specviz/web/specviz.js").headers["etag"]
    again = client.get("/specviz/web/specviz.js", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/specviz/web/../page.py",
        "/specviz/web/..%2fpage.py",
        "/specviz/web/%2e%2e/%2e%2e/%2e%2e/etc/passwd",
        "/specviz/web//etc/passwd",
        "/specviz/web/page.py",
        "/specviz/web/",
        "/specviz/web/page.js",
        "/specviz/trace/..%2f..%2fapp.py",
        "/specviz/trace/0",
        "/gradio_api/file=app.py",
        "/gradio_api/file=/etc/passwd",
    ],
)
def test_nothing_else_is_served(served, path):
    answer = _raw_get(served.address, path)
    assert answer.status_code in (403, 404, 405)


def _raw_get(address: str, path: str) -> httpx.Response:
    """A GET whose path is not tidied up on the way."""
    request = httpx.Request("GET", address)
    request.url = request.url.copy_with(raw_path=path.encode())
    with httpx.Client() as client:
        return client.send(request)


def test_plotly_is_compressed_once_and_kept_for_long(client):
    packed = client.get("/specviz/plotly.min.js", headers={"accept-encoding": "br, gzip"})
    plain = client.get("/specviz/plotly.min.js", headers={"accept-encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "max-age=31536000" in packed.headers["cache-control"]
    assert packed.content == plain.content
    assert b"plotly.js" in plain.content[:200]


@pytest.mark.slow
def test_the_lessons_are_made_once_and_not_sent_again(client, monkeypatch):
    serving._lesson_bytes.cache_clear()
    made = []
    make = serving.lesson_page
    monkeypatch.setattr(serving, "lesson_page", lambda: made.append(1) or make())
    first = client.get("/specviz/lessons.html")
    again = client.get("/specviz/lessons.html", headers={"if-none-match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    assert client.get("/specviz/lessons.html").text == first.text
    assert len(made) == 1


def test_the_live_page_is_served_with_all_that_it_needs(client):
    moved = client.get("/live", follow_redirects=False)
    assert (moved.status_code, moved.headers["location"]) == (307, "live/")  # also under a proxy's path
    page = client.get("/live/")
    assert page.text == live_files()["index.html"]
    assert "'wasm-unsafe-eval'" in page.text
    assert "'unsafe-eval'" in page.headers["content-security-policy"]  # which lets WebAssembly run
    packed = client.get("/live/data/sv-live-engine.js", headers={"accept-encoding": "gzip"})
    plain = client.get("/live/data/sv-live-engine.js", headers={"accept-encoding": "identity"})
    assert (packed.headers["content-encoding"], packed.content) == ("gzip", plain.content)
    again = client.get("/live/site.js", headers={"if-none-match": client.get("/live/site.js").headers["etag"]})
    assert again.status_code == 304
    assert client.get("/live/data/nothing.js").status_code == 404


def test_a_trace_is_saved_by_its_unguessable_id(client, served):
    trace = served.trace()
    view = served.page.registry.show(view_of(trace), "test")
    answer = client.get(f"/specviz/trace/{view.id}")
    assert read_trace(answer.content) == trace
    assert gzip.decompress(answer.content).startswith(b'{"event":"header"')
    assert answer.headers["content-disposition"].endswith('-draft_model.jsonl.gz"')


@pytest.mark.parametrize("first", [10**400, 2**63, -1, 1.0, True, "0", None])
def test_a_stage_that_asks_for_steps_that_are_not_there_gets_nothing(served, first):
    view = served.page.registry.keep(served.trace())
    give = increments_since(served.page.registry)
    assert give({"run": view.id, "from": first}) is None
    assert json.loads(give({"run": view.id, "from": len(view.feed)}))["steps"] == []


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("10.1.2.3", False)],
)
def test_what_counts_as_this_machine_only(host, expected):
    assert is_loopback(host) is expected


def test_a_name_or_address_bound_to_is_the_one_to_type():
    assert serving.typed_address("10.1.2.3", 7860) == "http://10.1.2.3:7860"
    assert json.dumps(serving.typed_address("0.0.0.0", 7860)).count(":") == 2


def test_no_page_names_another_host_that_the_browser_would_call(client):
    config = client.get("/config").json()
    assert config["analytics_enabled"] is False
    assert not config.get("stylesheets")


@pytest.mark.slow
def test_a_file_sent_to_be_opened_is_deleted_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "KEEP_UPLOADS", (1, 1))
    with pages.served(tmp_path) as served:
        sent = {"files": (f"{tmp_path.name}.jsonl", tmp_path.name.encode())}
        kept = Path(httpx.post(f"{served.address}/gradio_api/upload", files=sent).json()[0])
        until(lambda: not kept.exists())
        assert kept.parent.is_dir(), "it was there"


@pytest.mark.parametrize(("host", "typed"), [("10.0.0.5", "10.0.0.5"), ("fe80::1", "[fe80::1]")])
def test_the_typed_address_is_one_that_a_browser_takes(host, typed):
    assert serving.typed_address(host, 7860) == f"http://{typed}:7860"


# ---- the documents ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCS)
def test_a_document_is_a_page_that_asks_no_network_and_leads_only_to_pages(client, name):
    answer = client.get(f"/specviz/docs/{name}")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert re.findall(r"<[^>]*\bsrc=|<link|@import|url\(|<img|<form|\{text\}|\{title\}", answer.text) == []
    for address in re.findall(r'href="([^"]*)"', answer.text):
        if not address.startswith("https://"):
            page = client.get(answer.url.join(address))
            assert page.status_code == 200
            assert not answer.url.join(address).fragment or f'id="{answer.url.join(address).fragment}"' in page.text


@pytest.mark.parametrize(
    "path", ["docs/nothing.md", "fable-target/MODEL_CARD.md", "docs/..%2f..%2fREADME.md", "x/y.md"]
)
def test_only_documents_are_pages(client, path):
    assert client.get(f"/specviz/{path}").status_code == 404


def test_markup_in_a_document_stays_text(client, monkeypatch, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "x.md").write_text("# A <b>\n\n<script>1</script> [x](javascript:1)\n")
    (tmp_path / "web").symlink_to(assets_dir() / "web")
    monkeypatch.setenv("SPECVIZ_ASSETS", str(tmp_path))
    page = client.get("/specviz/docs/x.md").text
    assert "<script>1" not in page
    assert "<b>" not in page
    assert 'href="javascript' not in page


def test_the_page_leads_to_the_documents(client):
    page = client.get("/config").text
    address = "/specviz/docs/methods.md"
    assert f'href=\\"{address.removeprefix("/")}\\"' in page, "beside the page"
    assert client.get(address).status_code == 200
