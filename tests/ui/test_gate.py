"""Laws of the gate: what a stranger may ask of a server, and that what he may not is refused in words."""

from __future__ import annotations

import asyncio
import base64
import gzip
import html
import io
import json
import re
import socket
import statistics
import sys
import threading
import time
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from gradio import Blocks
from gradio_client import Client
from starlette.exceptions import HTTPException

from specviz.cli.main import _parser
from specviz.errors import SpecvizError
from specviz.trace import TraceError, dump_event
from specviz.ui import BoundedLog, events, gate, startup, uploads, view, visitors
from specviz.ui.gate import checked_body
from specviz.ui.view import view_sent
from specviz.ui.visitors import Visitors, network_of, visitor_of
from tests.helpers import tiny_server as pages

served, client = pages.fixtures()
FOREIGN = "http://attacker.invalid/x.png"
FILE = {"path": FOREIGN, "meta": {"_type": "gradio.FileData"}, "orig_name": "x.jsonl"}
LOOK_UPS: list[str] = []


def _note(event: str, arguments: tuple) -> None:
    if event == "socket.getaddrinfo" and "attacker" in str(arguments[0]):
        LOOK_UPS.append(str(arguments[0]))


@pytest.fixture(scope="module", autouse=True)
def _audit():
    sys.addaudithook(_note)
    with pytest.raises(OSError):
        socket.getaddrinfo("attacker.invalid", 80)
    assert LOOK_UPS, "the hook sees look-ups"


def join(client, session="s1", path="queue/join", data=(), **more):
    return client.post(f"/gradio_api/{path}", json={"data": list(data), "session_hash": session, **more})


def number_of(client, elem_id, event):
    config = client.get("/config").json()
    part = next(each["id"] for each in config["components"] if each["props"].get("elem_id") == elem_id)
    return next(each["id"] for each in config["dependencies"] if [part, event] in each["targets"])


def test_a_text_that_speaks_of_files_passes():
    text = 'see {"path":"http://a/b","meta":{"_type":"gradio.FileData"}}'
    body = json.dumps({"data": [text, {"path": "a row of a file", "url": "http://localhost/a"}]}).encode()
    assert json.loads(checked_body(body, "me", Blocks())) == json.loads(body)


# ---- routes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        f"/gradio_api/file={FOREIGN}",
        f"/gradio_api/file/{FOREIGN}",
        f"/gradio_api/proxy={FOREIGN}",
        "/gradio_api/deep_link?session_hash=x",
        "/gradio_api/dev/reload",
        "/gradio_api/vibe-code",
        "/gradio_api/token",
        "/gradio_api/runs",
        "/gradio_api/mcp/",
        "/monitoring",
        "/login",
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT"])
def test_no_route_answers_but_those_that_the_page_and_its_api_use(client, method, path):
    LOOK_UPS.clear()
    assert client.request(method, path, timeout=5).status_code == HTTPStatus.NOT_FOUND
    assert LOOK_UPS == []


@pytest.mark.parametrize("path", ["queue/join", "run/predict"])
@pytest.mark.parametrize("file", [FILE, {"path": "/etc/passwd"}, FILE | {"path": "/etc/passwd"}, FILE | {"meta": 5}])
@pytest.mark.parametrize("place", ["data", "event_data"])
def test_the_server_takes_no_file_that_was_not_sent_to_it(client, path, file, place):
    LOOK_UPS.clear()
    number = number_of(client, "open", "upload")
    answer = join(client, path=path, fn_index=number, **{"data": [None], place: [file, [file], {"a": file}]})
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert "fetches none" in answer.json()["error"]
    assert LOOK_UPS == []


@pytest.mark.parametrize("value", ["x", 5, [FILE], {"path": 5}, {"root": None}, {"path": None, "url": "http://a"}])
def test_an_event_that_takes_a_file_takes_nothing_else(client, value):
    number = number_of(client, "open", "upload")
    answer = join(client, fn_index=number, data=[value])
    assert (answer.status_code, "takes a file" in answer.json()["error"]) == (HTTPStatus.BAD_REQUEST, True)


def test_no_event_is_called_in_a_batch(client):
    body = json.dumps({"data": [[None]], "batched": True}).encode()
    assert json.loads(checked_body(body, "me", Blocks())) == {"data": [[None]]}


def test_of_a_file_that_was_sent_nothing_but_its_place_reaches_gradio(tmp_path):
    page, place = Blocks(), tmp_path / "sent.jsonl"
    page.upload_file_set = {str(place)}
    file = {"path": str(place), "meta": 5, "size": "large", "url": "http://attacker.invalid"}
    body = json.dumps({"data": [file]}).encode()
    with pytest.raises(HTTPException, match="has no"):
        checked_body(body, "me", page)
    place.touch()
    kept = {"path": str(place), "meta": {"_type": "gradio.FileData"}}
    assert json.loads(checked_body(body, "me", page)) == {"data": [kept]}


def test_the_page_runs_only_its_own_inline_scripts(client):
    page, other = client.get("/"), client.get("/config")
    scripts = re.search(r"script-src[^;]*", page.headers["content-security-policy"])[0]
    assert "'sha256-" in scripts
    assert "unsafe-inline" not in scripts
    assert "'sha256-" not in other.headers["content-security-policy"]


def test_a_deep_link_is_no_link(client):
    config = re.search(r"gradio_config = (\{.*?\});</script>", client.get("/?deep_link=../x").text)[1]
    assert json.loads(config)["deep_link_state"] == "none"


# ---- bodies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"{", b"", b'{"data":NaN}', b'{"data":"\\ud800"}', b"\xff", b"[" * 40_000, b"[1]"])
def test_a_body_that_is_no_json_object_is_refused_in_words(client, body):
    answer = client.post("/gradio_api/run/predict", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == HTTPStatus.BAD_REQUEST
    assert "JSON" in answer.json()["error"]


@pytest.mark.parametrize("path", ["queue/join", "run/predict"])
def test_an_event_that_does_not_fit_the_page_is_refused_in_words(client, path):
    number = number_of(client, "run", "click")
    for given, words in (({"fn_index": number}, "takes"), ({"fn_index": 9_999}, "no event 9999")):
        answer = join(client, path=path, **given)
        assert (answer.status_code, words in answer.json()["error"]) == (HTTPStatus.BAD_REQUEST, True)


def test_what_an_event_refuses_in_words_is_no_fault_of_the_server(client):
    answer = join(client, path="run/predict", fn_index=number_of(client, "stage", "really"))
    assert (answer.status_code, "is gone" in answer.json()["error"]) == (HTTPStatus.BAD_REQUEST, True)


@pytest.mark.parametrize(("place", "name"), [("registry", "current"), ("demo", "preprocess_data")])
def test_an_event_that_fails_without_words_is_told_in_words(client, served, monkeypatch, place, name):
    def broken(*given):
        raise RuntimeError("the engineers' own words")

    monkeypatch.setattr(getattr(served.page, place), name, broken)
    answer = join(client, path="run/predict", data=[4], fn_index=number_of(client, "k", "input"))
    assert (answer.status_code, answer.json()["error"]) == (500, events.FAILED)


def test_a_live_value_of_any_kind_is_refused_by_its_run_alone(client):
    number = number_of(client, "k", "input")
    assert join(client, path="run/predict", data=[{}], fn_index=number).status_code == HTTPStatus.OK, "nothing runs"


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
@pytest.mark.parametrize("path", ["component_server", "queue/join"])
def test_no_body_passes_that_a_foreign_page_may_send_unasked(client, path, kind):
    answer = client.post(f"/gradio_api/{path}", content=b"{}", headers={"content-type": kind})
    assert answer.status_code == HTTPStatus.UNSUPPORTED_MEDIA_TYPE


def test_a_flood_of_values_is_refused_before_it_is_read():
    with pytest.raises(HTTPException, match="at most 50,000 values"):
        checked_body(b'{"data":[' + b"[]," * 60_000 + b"1]}", "me", Blocks())


def through(messages):
    """What a gate answers, and how many pieces of the body it took."""
    sent, left = [], list(messages)

    async def app(scope, receive, send):
        raise AssertionError("it passed")

    async def receive():
        return left.pop(0)

    async def send(message):
        sent.append(message)

    given = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/gradio_api/queue/join", "query_string": b"", "headers": given}
    asyncio.run(gate.Gate(app, Visitors())(scope, receive, send))
    return sent[0]["status"], len(messages) - len(left)


def test_a_body_is_read_no_further_than_its_bound():
    piece = {"type": "http.request", "body": b" " * (1 << 20), "more_body": True}
    status, taken = through([piece] * 60)
    assert status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    assert taken <= gate.MOST_BODY_BYTES / (1 << 20) + 1


# ---- hosts and origins ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "passes"),
    [
        ("localhost", True),
        ("LOCALHOST:7860", True),
        ("127.0.0.1:7860", True),
        ("[::1]:7860", True),
        ("10.1.2.3:7860", True),
        (f"{socket.gethostname()}:7860", True),
        ("attacker.invalid", False),
        ("127.0.0.1.attacker.invalid", False),
        ("localhost.attacker.invalid:7860", False),
        ("[", False),
    ],
)
def test_only_the_names_of_this_server_are_served(client, host, passes):
    answer = client.get("/healthz", headers={"host": host})
    assert (answer.status_code == HTTPStatus.OK) is passes
    assert passes or "--allow-host" in answer.json()["error"]


def read_page(client, path, **headers):
    """What a browser shows, as text; it runs no script."""
    answer = client.get(path, headers={"accept": "text/html,*/*;q=0.8", **headers})
    assert answer.headers["content-type"].startswith("text/html")
    assert "<script" not in answer.text
    return answer, " ".join(html.unescape(re.sub("<[^>]*>", "", answer.text.partition("<main>")[2])).split())


def test_a_person_who_opens_a_refused_address_reads_a_page_that_says_why(client):
    told = client.get("/nothing/at/all").json()["error"]
    assert read_page(client, "/nothing/at/all")[1].lower() == f"this address was refused {told}"


@pytest.mark.parametrize("path", ["/", "/specviz/docs/README.md", "/nothing/at/all"])
def test_a_name_that_is_not_known_is_a_page_with_the_flag_and_an_address_that_works(served, client, path):
    answer, said = read_page(client, path, host="hub.example:7860")
    assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST
    assert said.startswith("This server does not know the name hub.example Your browser")
    assert said.endswith("as in specviz --allow-host hub.example")
    assert f"On the server's own machine, this one works: {served.address} " in said
    assert client.get(served.address).status_code == HTTPStatus.OK
    told = client.get(path, headers={"host": "hub.example:7860"}).json()["error"]
    assert told.endswith("it was started with: specviz --allow-host hub.example")


def test_the_flag_on_the_page_makes_the_name_known(client):
    said = read_page(client, "/", host="hub.example:7860")[1]
    options = _parser().parse_args(["page", *said.rpartition("specviz ")[2].split()])
    assert options.allow_host == ["hub.example"]
    known = gate.Gate(None, Visitors(), frozenset(options.allow_host))._check
    assert known({"type": "http", "method": "GET", "path": "/", "headers": [(b"host", b"hub.example:7860")]})


def test_in_a_class_the_address_is_that_of_the_request_and_the_command_admits_others():
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "headers": [(b"host", b"laptop")],
        "server": ("10.0.0.5", 80),
    }
    with pytest.raises(HTTPException) as refused:
        gate.Gate(None, Visitors())._check(scope)
    page = refused.value.page()
    assert '<a href="http://10.0.0.5:80">' in page
    assert "specviz --host 0.0.0.0 --allow-host laptop\n" in page


@pytest.mark.parametrize(
    "name",
    ["<b>x</b>", "x`y", "a b", "$(id)", "-x", "x;id", "a" * 300, "[x](y)", "x..y", "é.example", "x@localhost", ""],
)
def test_a_name_that_is_no_plain_one_is_not_shown(client, name):
    answer, said = read_page(client, "/", host=name.encode())
    assert answer.status_code == HTTPStatus.MISDIRECTED_REQUEST
    assert said.startswith("This server does not know this name Your browser")
    assert said.endswith("specviz --allow-host NAME")
    assert not name or name not in answer.text


@pytest.mark.parametrize("origin", ["http://attacker.invalid", "null", "http://localhost:1", "http://["])
def test_a_foreign_page_changes_nothing(client, origin):
    answer = client.post("/gradio_api/run/predict", json={"data": []}, headers={"origin": origin})
    assert answer.status_code == HTTPStatus.FORBIDDEN


def test_the_own_page_and_whoever_is_no_page_may(served, client):
    for headers in ({}, {"origin": served.address}):
        answer = client.post("/gradio_api/reset", json={"event_id": "x"}, headers=headers)
        assert answer.status_code == HTTPStatus.OK


def test_a_space_is_served_by_its_name_and_to_its_own_origin():
    passes = gate.Gate(None, Visitors(), frozenset({"me-it.hf.space"}))._check
    headers = [(b"host", b"me-it.hf.space"), (b"origin", b"https://me-it.hf.space")]
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/gradio_api/reset",
        "headers": headers,
        "client": ("1.1.1.1", 1),
    }
    assert passes(scope)["specviz_visitor"]


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_tools_are_reached_where_they_are_served_and_by_no_foreign_page(method):
    scope = {"type": "http", "method": method, "path": "/gradio_api/mcp/", "client": ("1.1.1.1", 1)}
    own, foreign = ([(b"host", b"localhost"), (b"origin", page)] for page in (b"http://localhost", b"http://x.invalid"))
    with_tools = gate.Gate(None, Visitors(), has_tools=True)._check
    assert with_tools({**scope, "headers": own})["specviz_visitor"]
    with pytest.raises(HTTPException, match="nothing at this address"):
        gate.Gate(None, Visitors())._check({**scope, "headers": own})
    with pytest.raises(HTTPException, match="nothing at this address"):
        with_tools({**scope, "headers": own, "path": "/gradio_api/mcp/messages/"})
    if method != "GET":
        with pytest.raises(HTTPException, match="may not act here"):
            with_tools({**scope, "headers": foreign})


# ---- visitors -------------------------------------------------------------------------------------------------------


def scope_of(cookie="", address="9.9.9.9", **headers):
    named = {"cookie": cookie, **headers}
    given = gate.Headers({name.replace("_", "-"): each for name, each in named.items()})
    return {"type": "http", "client": (address, 1), "headers": given.raw}, given


def test_the_server_issues_who_a_visitor_is_and_takes_nothing_else(served):
    with httpx.Client(base_url=served.address) as browser:
        cookie = browser.get("/").cookies[visitors.COOKIE]
        assert browser.get("/").cookies.get(visitors.COOKIE) is None, "it has one"
    own = Visitors()
    assert own.of(*scope_of(f"{visitors.COOKIE}={cookie}")) == own.of(*scope_of()), "another server signed it"
    visitor, _, signature = cookie.partition(".")
    assert own.of(*scope_of(f"{visitors.COOKIE}={visitor}x.{signature}")) == own.of(*scope_of())


def test_without_a_cookie_the_address_is_the_visitor():
    own = Visitors()
    assert own.of(*scope_of(address="9.9.9.9")) != own.of(*scope_of(address="9.9.9.8"))
    assert own.of(*scope_of(address="2001:db8::1")) == own.of(*scope_of(address="2001:db8::2"))
    behind = Visitors(is_proxied=True)
    told = [behind.of(*scope_of(x_forwarded_for=f"1.2.3.4, {last}")) for last in ("5.5.5.5", "6.6.6.6")]
    assert behind.of(*scope_of(x_forwarded_for="fe80::1%x:y")), "whatever is told"
    assert told[0] != told[1], "a proxy adds whom it saw, behind what a stranger wrote"
    assert own.of(*scope_of(x_forwarded_for="7.7.7.7")) == own.of(*scope_of())


def test_a_session_is_its_visitors_own():
    body = json.dumps({"session_hash": "tab", "data": []}).encode()
    mine, other = (json.loads(checked_body(body, visitor, Blocks()))["session_hash"] for visitor in ("net-a", "net-b"))
    assert mine != other
    assert (visitor_of(mine), network_of(visitor_of(mine))) == ("net-a", "net")
    with pytest.raises(HTTPException, match="session_hash"):
        checked_body(b'{"session_hash":"net-b.tab","data":[]}', "net-a", Blocks())


def test_a_run_begins_only_with_a_listener(served, monkeypatch):
    monkeypatch.setattr(visitors, "LISTENER_S", 0.3)
    with httpx.Client(base_url=served.address) as silent:
        number = number_of(silent, "run", "click")
        parts = silent.get("/config").json()
        inputs = next(each["inputs"] for each in parts["dependencies"] if each["id"] == number)
        values = {part["id"]: part["props"].get("value") for part in parts["components"]}
        assert join(silent, "silent", data=[values[part] for part in inputs], fn_index=number).status_code == 200
        time.sleep(1.0)
    assert not [name for name in served.page.registry._current if name.endswith(".silent")]


def test_whoever_listens_may_begin_and_nobody_else():
    own = Visitors()
    with own.listening("net-a.tab"):
        own.await_listener("net-a", "net-a.tab", None)
    visitors_s, visitors.LISTENER_S = visitors.LISTENER_S, 0.1
    try:
        with pytest.raises(SpecvizError, match="nobody listens"):
            own.await_listener("net-a", "net-a.tab")
    finally:
        visitors.LISTENER_S = visitors_s


def test_a_busy_browser_may_take_seconds_until_it_listens():
    own = Visitors()
    listening = own.listening("net-a.tab")
    threading.Timer(2.5, listening.__enter__).start()
    own.await_listener("net-a", "net-a.tab")


def test_neither_a_browser_nor_a_network_fills_the_queue():
    own = Visitors()
    assert sum(own.admit("net-a") for _ in range(200)) == visitors.MOST_ASKED
    others = sum(own.admit(f"net-{number}") for number in range(500))
    assert others == visitors.MOST_ASKED_BY_ALL - 200
    assert own.admit("far-a")


def test_the_python_client_goes_on_working(served):
    client = Client(served.address, verbose=False)
    answer = client.predict("The fox said", max_new_tokens=4, api_name="/run")
    assert answer["numbers"]["emitted"] == 4


def test_a_log_holds_so_much_in_a_while(monkeypatch):
    written = io.StringIO()
    log = BoundedLog(written)
    for _ in range(10_000):
        print("Traceback: the same again", file=log)
    assert len(written.getvalue()) <= startup.MOST_LOGGED + 100
    assert written.getvalue().endswith("more than a log should hold\n")
    monkeypatch.setattr(startup, "LOGGED_S", 0.0)
    print("later", file=log)
    assert written.getvalue().endswith("later\n")


# ---- files ----------------------------------------------------------------------------------------------------------


def test_a_small_file_that_would_take_much_memory_is_refused_in_words(served):
    head = dump_event(served.trace().header).encode() + b"\n"
    flood = b'{"event":"z","a":[' + b"{}," * 150_000 + b"1]}\n"
    with pytest.raises(TraceError, match="more than 256 MB of memory"):
        view_sent(gzip.compress(head + flood * 12, 1))


def test_a_file_that_takes_too_long_is_read_no_further(served, monkeypatch):
    trace = served.trace()
    content = b"".join(dump_event(event).encode() + b"\n" for event in trace.events())
    assert view_sent(gzip.compress(content)).trace == trace
    monkeypatch.setattr(view, "MOST_CPU_S", 1e-6)
    with pytest.raises(TraceError, match="takes more than 1e-06 s of computing"):
        view_sent(content)


def crowded(trace, num_steps, width=1_000):
    """A file whose steps draft many tokens side by side, all of them rejected: each says something of the others."""
    header, models, *_ = trace.events()
    step = next(step for step in trace.steps if step.positions and step.draft)
    token = replace(step.draft[0], parent=-1, depth=1, status="rejected", accept_prob=0.1, u=0.5)
    place = replace(step.positions[0], node=-1, top=())
    given = {
        "draft": tuple(replace(token, id=number) for number in range(width)),
        "emitted": (replace(step.emitted[-1], kind="plain", node=None),),
        "positions": tuple(replace(place, child=number) for number in range(width)),
    }
    steps = (replace(step, index=index, **given) for index in range(num_steps))
    return gzip.compress(b"".join(dump_event(event).encode() + b"\n" for event in (header, models, *steps)))


def test_a_line_of_a_million_lists_is_refused_before_it_is_parsed(served):
    line = b'{"event":"z","a":[' + b"[]," * 1_000_000 + b"1e400]}\n"
    began = time.thread_time()
    with pytest.raises(TraceError, match="more than 400,000 lists and objects"):
        view_sent(dump_event(served.trace().header).encode() + b"\n" + line)
    assert time.thread_time() - began < 1


@pytest.mark.timed
def test_a_small_file_that_takes_long_to_show_is_stopped_and_others_are_answered(served, client, monkeypatch):
    monkeypatch.setattr(view, "MOST_CPU_S", pages.PATIENCE_S)  # a slow machine must not stop it before it is shown
    monkeypatch.setattr(view, "MOST_SHOWN_CPU_S", 1.5)
    packed, told, seconds = base64.b64encode(crowded(served.trace(), 20)).decode(), [], []
    number = next(
        part["id"]
        for part in client.get("/config").json()["components"]
        if "bring" in part["props"].get("server_fns", ())
    )
    asked = {"data": {"packed": packed}, "component_id": number, "fn_name": "bring", "session_hash": "slow"}
    bringing = threading.Thread(
        target=lambda: told.append(
            httpx.post(f"{served.address}/gradio_api/component_server", json=asked, timeout=pages.PATIENCE_S).json()
        )
    )
    bringing.start()
    while bringing.is_alive():
        began = time.perf_counter()
        client.get("/healthz").raise_for_status()
        seconds.append(time.perf_counter() - began)
        time.sleep(0.01)
    assert "more than 1.5 s of computing" in told[0]["refusal"]
    assert statistics.median(seconds) < 0.05


@pytest.mark.parametrize(("name", "status"), [("files", 200), ("other", 400)])
def test_a_file_is_kept_only_where_it_is_cleaned(served, client, name, status):
    folder = Path(served.page.demo.app.uploaded_file_dir)
    before = set(folder.rglob("*")) if folder.is_dir() else set()
    answer = client.post("/gradio_api/upload", files={name: ("../../x.jsonl", b"{}")})
    assert answer.status_code == status
    new = {str(each) for each in set(folder.rglob("*")) - before if each.is_file()}
    assert new == (set(answer.json()) if status == 200 else set())
    assert new <= served.page.demo.upload_file_set


def test_all_sent_files_together_have_a_bound(client, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_BYTES", 3_000)
    kept = [
        Path(client.post("/gradio_api/upload", files={"files": ("x.jsonl", b"x" * 1_000)}).json()[0]) for _ in range(6)
    ]
    assert [place.exists() for place in kept] == [False] * 3 + [True] * 3


def test_a_full_disk_is_told_in_words(client, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(uploads, "_keep", full)
    answer = client.post("/gradio_api/upload", files={"files": ("x.jsonl", b"{}")})
    assert (answer.status_code, answer.text) == (507, "the server cannot keep this file (No space left on device)")


def test_what_fails_inside_is_told_in_words(client, monkeypatch):
    def broken(*arguments):
        raise RuntimeError("on purpose")

    monkeypatch.setattr(uploads, "_keep", broken)
    answer = client.post("/gradio_api/upload", files={"files": ("x.jsonl", b"{}")})
    assert (answer.status_code, answer.json()) == (500, {"error": "this request cannot be served"})


def test_no_file_at_all_is_told_in_words(served):
    import gradio as gr

    handler = next(fn.fn for fn in served.page.demo.fns.values() if getattr(fn.fn, "__name__", "") == "open_trace")
    with pytest.raises(gr.Error, match="no file was sent"):
        handler(SimpleNamespace(session_hash="one"), None)
