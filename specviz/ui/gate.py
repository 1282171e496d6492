"""The gate: the one ASGI layer between strangers and Gradio. What it does not know, it refuses in words.

It lets through the routes that the page, its files and its API use, for the hosts that this server is, and changes from
its own pages alone; it reads each JSON body once, within bounds, before anything else does; and it puts the visitor
before the name of each session, so that nobody acts in another's.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from anyio import fail_after
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.trace.file import MAX_UPLOAD_BYTES
from specviz.ui.visitors import Visitors

UPLOAD = "/gradio_api/upload"
MOST_BODY_BYTES = 4 * (MAX_UPLOAD_BYTES // 3 + 1) + (256 << 10)
"""A packed run in base64 with what stands around it."""
TOO_LARGE = f"a body has at most {MOST_BODY_BYTES:,} bytes"
MOST_VALUES = 50_000
"""Lists, objects and commas of a body: Gradio walks through them several times."""
MOST_AT_ONCE = 96 << 20
"""Bytes of all bodies that are being read or wait in Gradio's queue."""
QUEUED_S = 5.0
BODY_S = 30.0
"""How long a body counts as waiting once it was handed on, and how long one may take to come."""
_API = "/gradio_api/"
_FILES = r"/(assets|static|svelte|specviz)/.+"
_SINGLE = r"/(config/?|healthz|theme\.css|manifest\.json|robots\.txt|favicon\.ico|pwa_icon(/\d{1,4})?)?"
_ASKED = r"(info/?|openapi\.json|startup-events|app_id/?|theme\.css|queue/(data|status)|heartbeat/[\w-]+)"
_ROUTES = {
    "GET": re.compile(rf"{_FILES}|{_SINGLE}|{_API}({_ASKED}|call/(v2/)?\w+/\w+)"),
    "POST": re.compile(rf"{_API}(queue/join|run/\w+/?|call/(v2/)?\w+/?|component_server/?|cancel|reset/?|upload)"),
}
_HEARTBEAT = re.compile(rf"({_API}heartbeat/)([\w-]+)")
_LISTENING = re.compile(rf"{_API}(?:queue/data|call/(?:v2/)?\w+/(\w+))")
_EVENT = re.compile(rf"{_API}(queue/join|call/)")
_SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)
_FETCHED = re.compile(rb'"path":"[^"]{0,9}//')  # Gradio takes it for a file; a text's own quotes stand behind a \\


class Gate:
    """Pure ASGI middleware. hosts: the names of this server besides the loopback's and plain addresses."""

    def __init__(self, app: ASGIApp, visitors: Visitors, hosts: frozenset[str] = frozenset()) -> None:
        self.app, self._visitors, self._hosts = app, visitors, hosts
        self._num_held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (self.app(scope, receive, send) if scope["type"] == "lifespan" else send({"type": "websocket.close"}))
            return
        try:
            passed = self._check(scope)
            if passed["method"] == "POST":
                passed, receive = await self._read(passed, receive)
        except HTTPException as refusal:
            await _refuse(refusal.status_code, refusal.detail)(scope, receive, send)
            return
        with self._visitors.listening(_listener(passed)):
            await self._answer(passed, receive, self._visitors.issue(passed, send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Gradio's answer. What fails in it is told in words and in one line of the log."""
        begun = []

        async def noted(message: Message) -> None:
            begun.append(True)
            await send(message)

        try:
            await self.app(scope, receive, noted)
        except Exception as error:
            if begun:
                raise
            print(f"specviz: {scope['path']:.100} failed: {type(error).__name__}: {error!s:.200}", file=sys.stderr)
            await _refuse(HTTPStatus.INTERNAL_SERVER_ERROR, "this request cannot be served")(scope, receive, send)

    def _check(self, scope: Scope) -> Scope:
        """The request as it goes on, with its visitor; its session, if it names one, is the visitor's own."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not self._is_own(host):
            told = f"start specviz with --allow-host {_name_of(host):.80}, if that is its name"
            raise HTTPException(HTTPStatus.MISDIRECTED_REQUEST, f"this server is not called {host!r:.100}: {told}")
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        if method not in _ROUTES or not _ROUTES[method].fullmatch(path):
            raise HTTPException(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        origin = headers.get("origin")
        if method == "POST" and origin is not None and not self._is_own_origin(origin, host):
            raise HTTPException(HTTPStatus.FORBIDDEN, f"pages of {origin!r:.100} may not act here")
        visitor = self._visitors.of(scope, headers)
        if method == "POST" and _EVENT.match(path) and not self._visitors.admit(visitor):
            raise HTTPException(HTTPStatus.TOO_MANY_REQUESTS, "one visitor may not ask for more: wait a few seconds")
        passed = {**scope, "specviz_visitor": visitor, "specviz_listeners": self._visitors}
        if path == "/":
            passed["query_string"] = b""  # deep links of Gradio are off
        elif beat := _HEARTBEAT.fullmatch(path):
            passed["path"] = f"{beat[1]}{_own_session(visitor, beat[2])}"
            passed["raw_path"] = passed["path"].encode()
        elif path == f"{_API}queue/data":
            asked = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            session = _own_session(visitor, asked.get("session_hash"))
            passed["query_string"] = urlencode({"session_hash": session}).encode()
        return passed

    def _is_own(self, host: str) -> bool:
        """Whether a Host header names this server. Any plain address does: no name was bound to it by a stranger."""
        name = _name_of(host)
        return name == "localhost" or name in self._hosts or _is_address(name)

    def _is_own_origin(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
            return parts.netloc.lower() == host.lower() or (parts.hostname or "") in self._hosts
        except ValueError:
            return False

    async def _read(self, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
        """The request with its body checked and complete. Raises HTTPException."""
        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        wanted = "multipart/form-data" if scope["path"] == UPLOAD else "application/json"
        if kind != wanted:
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"a body must be {wanted} here (got {kind!r:.60})")
        num_held = 0
        try:
            pieces = []
            with fail_after(BODY_S):
                async for piece in _pieces(receive):
                    num_held += len(piece)
                    self._num_held += len(piece)
                    if num_held > MOST_BODY_BYTES:
                        raise HTTPException(
                            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body has at most {MOST_BODY_BYTES} bytes"
                        )
                    if self._num_held > MOST_AT_ONCE:
                        raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "too much is being sent here: try again")
                    pieces.append(piece)
            body = b"".join(pieces)
            body = body if scope["path"] == UPLOAD else checked_body(body, scope["specviz_visitor"])
        except TimeoutError:
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_S:g} s") from None
        finally:
            asyncio.get_running_loop().call_later(QUEUED_S, self._let_go, num_held)
        headers = [each for each in scope["headers"] if each[0] not in (b"content-length", b"transfer-encoding")]
        headers.append((b"content-length", str(len(body)).encode()))
        return {**scope, "headers": headers}, _replay(body, receive)

    def _let_go(self, num_bytes: int) -> None:
        self._num_held -= num_bytes


async def _pieces(receive: Receive) -> AsyncIterator[bytes]:
    """The pieces of a body. Raises HTTPException for one that ends before its time."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise HTTPException(HTTPStatus.BAD_REQUEST, "the body was cut off")
        more = message.get("more_body", False)
        yield message.get("body", b"")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then what comes after it: whether the other side goes away."""
    first = [body]

    async def replayed() -> Message:
        if first:
            return {"type": "http.request", "body": first.pop(), "more_body": False}
        return await receive()

    return replayed


def checked_body(body: bytes, visitor: str) -> bytes:
    """The JSON body with the visitor's own session in it. Raises HTTPException for what Gradio must not see."""
    if sum(map(body.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body holds at most {MOST_VALUES:,} values")
    try:
        given = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body is not JSON in UTF-8 ({error!s:.100})") from None
    if not isinstance(given, dict):
        raise HTTPException(HTTPStatus.BAD_REQUEST, f"the body must be a JSON object (got {type(given).__name__})")
    if given.get("session_hash") is not None:
        given["session_hash"] = _own_session(visitor, given["session_hash"])
    encoded = msgspec.json.encode(given)
    if _FETCHED.search(encoded):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "a file must be sent here: this server fetches none")
    return encoded


def _own_session(visitor: str, session: object) -> str:
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        raise HTTPException(HTTPStatus.BAD_REQUEST, "session_hash must be 1 to 64 letters, digits, - and _")
    return f"{visitor}.{session}"


def _refuse(status: int, words: str) -> JSONResponse:
    return JSONResponse({"error": words}, status)


def _listener(scope: Scope) -> str | None:
    """The session, or the event of the plain API, whose news this request waits for."""
    if not (asked := _LISTENING.fullmatch(scope["path"])) or scope["method"] != "GET":
        return None
    return asked[1] or dict(parse_qsl(scope["query_string"].decode()))["session_hash"]


def _name_of(host: str) -> str:
    """Of a Host header: without its port, an IPv6 address without its brackets."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        return bool(ip_address(name))
    except ValueError:
        return False
