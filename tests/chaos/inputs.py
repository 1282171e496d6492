"""Hostile inputs by kind. Each kind takes a random.Random and gives one request; the same seed gives the same ones."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from specviz.ui.api import ENDPOINTS, parameters_of
from tests.chaos.damages import spoil

FOREIGN = "http://attacker.invalid/x.png"
TEXTS = (
    "",
    "\x00",
    "\u202e",
    "x" * 70_000,
    "<script>alert(1)</script>",
    "${alert(1)}",
    "{{x}}",
    "../../etc/passwd",
    FOREIGN,
)
NUMBERS = (0, -1, 1.5, 2**31, 2**63, 2**64, 10**30, -(10**308), 1e308, True, None)
RAW = (b"", b"null", b"[]", b"{", b'{"data":NaN}', b'{"data":["\\ud800"]}', b"\xff\xfe", b'{"a":1e999}', b"[" * 200_000)
PATHS = (
    "file={0}", "file/{0}", "proxy={0}", "deep_link?session_hash=x", "dev/reload", "vibe-edit", "vibe-code",
    "vibe-starter-queries", "process_recording", "run-history/connect", "token", "stream/x/y/z/playlist.m3u8",
    "custom_component/x/client/component/index.js", "file=/etc/passwd", "upload_progress?upload_id=x",
    "profiling/traces",
)  # fmt: skip
OTHER_PATHS = ("/monitoring", "/login", "/logout", "/specviz/web/..%2fpage.py", "/?deep_link=x", "/runs", "/docs")
HOSTS = (
    "attacker.invalid",
    "localhost.attacker.invalid",
    "127.0.0.1.attacker.invalid",
    "",
    "[",
    "a" * 5_000,
    "x@localhost",
)
ORIGINS = ("http://attacker.invalid", "null", "http://127.0.0.1.attacker.invalid", "file://", "http://[", "")
UNKNOWN = b'{"event":"z","a":[' + b"{}," * 150_000 + b"1]}\n"
SHORT = {"prompt": "The fox", "prompts": ["The fox"], "run": "k-1", "tokens": 0, "max_new_tokens": 1}
"""Of an endpoint's parameters. A proof of no tokens is refused: one takes seconds."""
COOKIES = ("specviz-visitor=x.y", "specviz-visitor=", "specviz-visitor=a-b." + "0" * 32, '"', "a" * 6_000)


@dataclass(frozen=True, slots=True)
class Attack:
    """One request."""

    method: str
    path: str
    content: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Server:
    """What an attacker knows of the page: /config tells it to everybody."""

    functions: tuple[tuple[int, int], ...]
    """Each event's number, and how many inputs it has."""
    calls: tuple[tuple[int, str], ...]
    """Component and name of each function that the browser calls."""
    trace: bytes
    """A real one."""
    sound: Path
    """A model's folder on the server's disk; the damaged ones lie beside it."""

    @classmethod
    def of(cls, config: Mapping[str, Any], trace: bytes, sound: Path) -> Server:
        functions = tuple((each["id"], len(each["inputs"])) for each in config["dependencies"] if each["backend_fn"])
        parts = ((each["id"], each["props"].get("server_fns") or []) for each in config["components"])
        return cls(functions, tuple((number, name) for number, names in parts for name in names), trace, sound)


def value(chance: Random, depth: int = 0) -> Any:
    kind = chance.randrange(8 if depth < 4 else 4)
    if kind < 2:
        return chance.choice(TEXTS)
    if kind < 4:
        return chance.choice(NUMBERS)
    if kind == 4:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    if kind == 5:
        return {
            "path": chance.choice((FOREIGN, "/etc/passwd", "https://attacker.invalid")),
            "meta": {"_type": "gradio.FileData"},
        }
    names = ("run", "from", "packed", "link", "place", "section", "do", "values", "tab", "shipped", "has", "kind")
    return {chance.choice(names): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def posted(path: str, body: Any, **headers: str) -> Attack:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Attack("POST", f"/gradio_api/{path}", content, {"content-type": "application/json", **headers})


def called(chance: Random, server: Server, name: str, data: Any) -> Attack:
    component, call = next(each for each in server.calls if each[1] == name)
    body = {"data": data, "component_id": component, "fn_name": call, "session_hash": f"s{chance.randrange(99)}"}
    return posted("component_server", body)


def routes(chance: Random, server: Server) -> Attack:
    path = chance.choice([*(f"/gradio_api/{each}" for each in PATHS), *OTHER_PATHS]).format(FOREIGN)
    return Attack(chance.choice(("GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE")), path)


def events(chance: Random, server: Server) -> Attack:
    number, num_inputs = chance.choice(server.functions)
    data = [value(chance) for _ in range(chance.choice((num_inputs, num_inputs, 0, 50)))]
    body = {"data": data, "fn_index": number, "session_hash": f"s{chance.randrange(99)}", "event_data": value(chance)}
    return posted(chance.choice(("queue/join", "run/predict")), body)


def calls(chance: Random, server: Server) -> Attack:
    return called(chance, server, chance.choice(server.calls)[1], value(chance))


def bodies(chance: Random, server: Server) -> Attack:
    path = chance.choice(
        ("queue/join", "run/predict", "component_server", "call/run", "call/v2/run", "cancel", "reset")
    )
    raw = chance.choice(
        (*RAW, b'{"data":[' + b"[]," * chance.randrange(1, 90_000) + b"1]}", b'{"data":"' + b"x" * 9_000_000 + b'"}')
    )
    kind = chance.choice(("application/json", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"))
    return posted(path, raw, **{"content-type": kind})


def headers(chance: Random, server: Server) -> Attack:
    given = {"host": chance.choice(HOSTS), "origin": chance.choice(ORIGINS), "cookie": chance.choice(COOKIES)}
    name = chance.choice(list(given))
    if chance.random() < 0.5:
        return Attack("GET", "/healthz", headers={name: given[name]})
    return posted("run/predict", {"data": [], "fn_index": 1, "session_hash": "s"}, **{name: given[name]})


def traces(chance: Random, server: Server) -> Attack:
    """A trace with damage, or a small file that would become large, brought as a browser brings its own."""
    content = bytearray(server.trace)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(content))
        content[place : place + chance.randint(0, 3)] = bytes(chance.choices(b'0123456789.,:"{}[]-eE\\u\xff\x00 ', k=2))
    lines = bytes(content).split(b"\n")
    bombs: tuple[Callable[[], bytes], ...] = (
        lambda: gzip.compress(b"\n".join(lines), 1, mtime=0),
        lambda: b"\n".join(lines),
        lambda: gzip.compress(b"", mtime=0) * chance.randrange(1, 40_000),
        lambda: gzip.compress(
            lines[0] + b"\n" + (b'{"event":"z","a":[' + b"{}," * 150_000 + b"1]}\n") * 12, 1, mtime=0
        ),
        lambda: gzip.compress(b" " * chance.randrange(1 << 24), 1, mtime=0),
        lambda: lines[0] + b"\n" + b"[" * chance.randrange(100_000),
    )
    make = chance.choices(bombs, weights=(40, 40, 1, 1, 1, 2))[0]
    return called(chance, server, "bring", {"packed": base64.b64encode(make()).decode()})


def links(chance: Random, server: Server) -> Attack:
    raw = gzip.compress(json.dumps(value(chance)).encode()) if chance.random() < 0.5 else chance.randbytes(60)
    letters = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    return called(
        chance, server, chance.choice(("linked", "compared")), {"link": chance.choice((letters, f"1.{letters}"))}
    )


def uploads(chance: Random, server: Server) -> Attack:
    name = chance.choice(("files", "other", "files", ""))
    size = chance.choice((0, 10, 100_000, 9_000_000)) if chance.random() < 0.1 else 10
    parts = "".join(
        f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="{chance.choice(TEXTS)[:80]}"\r\n\r\n'
        f"{'x' * size}\r\n"
        for _ in range(chance.choice((1, 1, 3)))
    )
    content = f"{parts}--b--\r\n".encode()
    return Attack("POST", "/gradio_api/upload", content, {"content-type": "multipart/form-data; boundary=b"})


def arguments(chance: Random, server: Server) -> Attack:
    """A call of an endpoint of the API; what is not odd in it makes the work short."""
    endpoint = chance.choice(ENDPOINTS)
    names = parameters_of(endpoint)
    odd = {name: value(chance) for name in chance.choices((*names, "other"), k=chance.randint(1, 2))}
    return posted(f"call/v2/{endpoint}", {**{name: SHORT[name] for name in names if name in SHORT}, **odd})


def folders(chance: Random, server: Server) -> Attack:
    """The name of a damaged model's folder, for a run or for its tokenizer alone."""
    place = server.sound.with_name(f"folder-{chance.getrandbits(64):016x}")
    spoil(chance, server.sound, place)
    name = chance.choice(("run", "compare_tokenizers"))
    run = {"prompt": "a fox, a dog aaaa", "method": "prompt_lookup", "max_new_tokens": 16}
    return posted(f"call/v2/{name}", {"target": str(place), **(run if name == "run" else {"draft": str(server.sound)})})


KINDS: Mapping[str, Callable[[Random, Server], Attack]] = {
    kind.__name__: kind for kind in (routes, events, calls, bodies, headers, traces, links, uploads, arguments, folders)
}
SHARES = (2, 6, 4, 1, 2, 4, 4, 1, 2, 1)
"""How often each kind comes, in their order."""
