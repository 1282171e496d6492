"""The gate: the one ASGI layer between strangers and Gradio. What it does not know, it refuses in words.

It lets through the routes that the page, its files and its API use, for the hosts that this server is, and changes from
its own pages alone; it reads each JSON body once, within bounds, before anything else does, and checks what it gives an
endpoint of the API; and it puts the visitor before the name of each session, so that nobody acts in another's.
"""

import asyncio
import os
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from anyio import fail_after
from gradio import Blocks
from gradio.block_function import BlockFunction
from gradio.data_classes import FileData
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.errors import SpecvizError
from specviz.trace import MAX_UPLOAD_BYTES
from specviz.trace.values import format_got
from specviz.ui.api import ENDPOINTS, check_arguments, parameters_of
from specviz.ui.events import FAILED, as_fields
from specviz.ui.under_path import is_loopback, web_address
from specviz.ui.visitors import Visitors
from specviz.views.documentation import refusal_page, unknown_name_page

UPLOAD = "/gradio_api/upload"
MOST_BODY_BYTES = 4 * (MAX_UPLOAD_BYTES // 3 + 1) + (256 << 10)
"""A packed run in base64 with what stands around it."""
MOST_VALUES = 50_000
"""Lists, objects and commas of a body: Gradio walks through them several times."""
MOST_AT_ONCE = 96 << 20
"""Bytes of all bodies that are being read or wait in Gradio's queue."""
QUEUED_S, BODY_S = 5.0, 30.0
"""How long a body counts as waiting once it was handed on, and how long one may take to come."""
_API = "/gradio_api/"
_FILES = r"/(assets|static|svelte|specviz)/.+"
_SINGLE = r"/(config/?|healthz|metrics|theme\.css|manifest\.json|robots\.txt|favicon\.ico|pwa_icon(/\d{1,4})?)?"
_ASKED = r"(info/?|openapi\.json|startup-events|app_id/?|theme\.css|queue/(data|status)|heartbeat/[\w-]+)"
_ROUTES = {
    "GET": re.compile(rf"{_FILES}|{_SINGLE}|{_API}({_ASKED}|call/(v2/)?\w+/\w+)"),
    "POST": re.compile(
        rf"{_API}(queue/join|run/\w+/?|call/(v2/)?\w+/?|component_server/?|cancel|reset/?|upload)"
    ),
}
_HEARTBEAT = re.compile(rf"({_API}heartbeat/)([\w-]+)")
_LISTENING = re.compile(rf"{_API}(?:queue/data|call/(?:v2/)?\w+/(\w+))")
_EVENT = re.compile(rf"{_API}(queue/join|call/|mcp)")
_MCP = re.compile(rf"{_API}mcp/?")
"""Where Gradio serves MCP, on servers that do."""
_TOOLS = re.compile(f"(GET|POST|DELETE) {_MCP.pattern}")
_CALLED = re.compile(rf"{_API}(?P<way>run|call|call/v2)/(?P<name>\w+)/?")
_PLAIN_HOST = re.compile(r"(localhost|[\d.]+|\[[\da-f:.]+])\.?(:\d*)?", re.IGNORECASE)
_PORT = re.compile(r"\.?(:\d*)?$")
_NAME = re.compile(
    r"(?=.{1,253}$)[a-z\d]([\w-]*[a-z\d])?(\.[a-z\d]([\w-]*[a-z\d])?)*", re.IGNORECASE | re.ASCII
)
"""A plain host name, which is shown to people and may stand in a command."""
_NAMES = (
    "It answers to localhost, to a plain address such as 127.0.0.1, to its machine's own name, and to each name that "
    "it was started with: specviz --allow-host"
)
_PAGES = (
    "Only the server's own page may, at the address that the browser shows. Behind a proxy that puts its own name for "
    "it, start it with the name in that address: specviz --allow-host"
)
_SESSION = re.compile(r"[\w-]{1,64}", re.ASCII)


class Refusal(HTTPException):
    """A refusal with an answer of its own. content: for a program; page: makes that for a person who has opened an
    address."""

    def __init__(
        self,
        status: int,
        words: str,
        content: Mapping[str, Any] | None = None,
        page: Callable[[], str] | None = None,
    ) -> None:
        super().__init__(status, words)
        self.content, self.page = content or {"error": words}, page or partial(refusal_page, words)


class Gate:
    """Pure ASGI middleware. hosts: the names of this server besides the loopback's and plain addresses. has_tools:
    whether it serves MCP."""

    def __init__(
        self,
        app: ASGIApp,
        visitors: Visitors,
        hosts: frozenset[str] = frozenset(),
        has_tools: bool = False,
    ) -> None:
        self.app, self._visitors, self._hosts, self._has_tools = app, visitors, hosts, has_tools
        self._num_held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await (
                self.app(scope, receive, send)
                if scope["type"] == "lifespan"
                else send({"type": "websocket.close"})
            )
            return
        try:
            passed = self._check(scope)
            if passed["method"] == "POST":
                receive = await self._read(passed, receive)
            is_direct = passed["path"].startswith(f"{_API}run/")
            answer = (
                _tell_refusals(scope, receive, send)
                if is_direct
                else self._visitors.issue(passed, send)
            )
            with self._visitors.listening(_listener(passed)):
                await self.app(passed, receive, answer)
        except HTTPException as refusal:
            await _told(scope, refusal)(scope, receive, send)

    def _check(self, scope: Scope) -> Scope:
        """The request as it goes on, with its visitor; its session, if it names one, is the visitor's own."""
        headers, path = Headers(scope=scope), scope["path"]
        host = headers.get("host", "")
        if not _PLAIN_HOST.fullmatch(host) and not self._is_named(host):
            raise _unknown_name(host, scope)
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        is_tool = self._has_tools and _TOOLS.fullmatch(f"{method} {path}")
        if not is_tool and (method not in _ROUTES or not _ROUTES[method].fullmatch(path)):
            raise HTTPException(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        origin = headers.get("origin")
        page = host if origin is None else origin.partition("//")[2]
        if method != "GET" and page.lower() != host.lower() and not self._is_named(page):
            words = (
                f"pages of {origin!r:.100} may not act here. {_PAGES} {_plain_name(page) or 'NAME'}"
            )
            raise HTTPException(HTTPStatus.FORBIDDEN, words)
        visitor = self._visitors.of(scope, headers)
        if method == "POST" and _EVENT.match(path) and not self._visitors.admit(visitor):
            raise HTTPException(
                HTTPStatus.TOO_MANY_REQUESTS, "one visitor may not ask for more: wait a few seconds"
            )
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

    def _is_named(self, host: str) -> bool:
        return _PORT.sub("", host).lower() in self._hosts

    async def _read(self, scope: Scope, receive: Receive) -> Receive:
        """The request's body, complete and checked. Raises HTTPException."""
        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        wanted = "multipart/form-data" if scope["path"] == UPLOAD else "application/json"
        if kind != wanted:
            raise HTTPException(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                f"a body must be {wanted} here (got {kind!r:.60})",
            )
        body = bytearray()
        try:
            with fail_after(BODY_S):
                async for piece in Request(scope, receive).stream():
                    body += piece
                    self._num_held += len(piece)
                    if len(body) > MOST_BODY_BYTES:
                        words = f"a body has at most {MOST_BODY_BYTES:,} bytes"
                        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
                    if self._num_held > MOST_AT_ONCE:
                        raise HTTPException(
                            HTTPStatus.SERVICE_UNAVAILABLE, "too much is being sent here: try again"
                        )
        except ClientDisconnect:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "the body ended too early") from None
        except TimeoutError:
            raise HTTPException(
                HTTPStatus.REQUEST_TIMEOUT, f"the body did not come within {BODY_S:g} s"
            ) from None
        finally:
            asyncio.get_running_loop().call_later(QUEUED_S, self._let_go, len(body))
        if scope["path"] == UPLOAD:
            return _replay(bytes(body), receive)
        page = scope["app"].get_blocks()
        return _replay(
            checked_body(bytes(body), scope["specviz_visitor"], page, scope["path"]), receive
        )

    def _let_go(self, num_bytes: int) -> None:
        self._num_held -= num_bytes


def _plain_name(host: str) -> str | None:
    """The name without its port; None where it is no plain one."""
    name = _PORT.sub("", host)
    return name if _NAME.fullmatch(name) else None


def _unknown_name(host: str, scope: Scope) -> Refusal:
    name = _plain_name(host)
    words = f"this server is not called {host!r:.100}. {_NAMES} {name or 'NAME'}"
    address, port = scope.get("server") or ("localhost", None)  # where the request came in
    page = partial(unknown_name_page, name, web_address(address, port), is_loopback(address))
    return Refusal(HTTPStatus.MISDIRECTED_REQUEST, words, page=page)


def _told(scope: Scope, refusal: HTTPException) -> Response:
    """What was refused and why: a page for a person who has opened an address, else JSON."""
    if not isinstance(refusal, Refusal):
        refusal = Refusal(refusal.status_code, refusal.detail)
    if scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", ""):
        return HTMLResponse(refusal.page(), refusal.status_code)
    return JSONResponse(refusal.content, refusal.status_code)


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body once, then what comes after it: whether the other side goes away."""
    first: list[Message] = [{"type": "http.request", "body": body}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


def _tell_refusals(scope: Scope, receive: Receive, send: Send) -> Send:
    """`send` for an event that is called directly. Gradio says of all its errors that the server is at fault; what was
    refused in words is the caller's, and the rest gets words."""
    is_held = False

    async def told(message: Message) -> None:
        nonlocal is_held
        if (
            message["type"] == "http.response.start"
            and message["status"] == HTTPStatus.INTERNAL_SERVER_ERROR
        ):
            is_held = True
        elif is_held:
            given = msgspec.json.decode(message["body"])
            words = given["error"] or FAILED
            status = HTTPStatus.INTERNAL_SERVER_ERROR if words == FAILED else HTTPStatus.BAD_REQUEST
            await JSONResponse({**given, "error": words}, status)(scope, receive, send)
        else:
            await send(message)

    return told


def checked_body(body: bytes, visitor: str, page: Blocks, path: str = "") -> bytes:
    """The JSON body, sent to this path, with the visitor's own session in it. Raises HTTPException for what Gradio must
    not see."""
    if sum(map(body.count, (b"[", b"{", b","))) > MOST_VALUES:
        raise HTTPException(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a body holds at most {MOST_VALUES:,} values"
        )
    try:
        given = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        words = f"the body cannot be read as JSON in UTF-8 ({error!s:.100})"
        raise HTTPException(HTTPStatus.BAD_REQUEST, words) from None
    if not isinstance(given, dict):
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, f"the body must be a JSON object (got {type(given).__name__})"
        )
    if given.get("session_hash") is not None:
        given["session_hash"] = _own_session(visitor, given["session_hash"])
    given.pop("batched", None)  # no event here takes several values at once
    called, mark = _CALLED.fullmatch(path), "meta"
    if given.get("fn_index") is not None and (called is None or called["way"] == "run"):
        if _check_event(given["fn_index"], given.get("data"), page.fns) not in ENDPOINTS:
            mark = "path"
    elif called:
        is_named = called["way"] == "call/v2"
        _check_call(called["name"], given if is_named else given.get("data"), is_named=is_named)
    elif _MCP.fullmatch(path) and given.get("method") == "tools/call":
        _check_tool(given)
    _check_files(given, page.upload_file_set, mark)
    return msgspec.json.encode(given)


def _check_files(given: dict[str, Any], sent: Collection[str], mark: str) -> None:
    """Leaves nothing but the path of each file in it. Raises HTTPException for one that was not sent here.

    mark: the field by which Gradio takes an object with a path for a file.
    """
    rest: list[Any] = [given]
    while rest:
        value = rest.pop()
        if isinstance(value, list):
            rest += value
        elif (
            isinstance(value, dict) and mark in value and isinstance(path := value.get("path"), str)
        ):
            if path not in sent or not os.path.exists(path):
                words = "an object with a path is a file and must be sent here: this server fetches none and has no"
                raise HTTPException(HTTPStatus.BAD_REQUEST, f"{words} {path!r:.80}")
            value.clear()
            value |= {"path": path, "meta": {"_type": "gradio.FileData"}}
        elif isinstance(value, dict):
            rest += value.values()


def _check_event(number: object, values: object, events: Mapping[int, BlockFunction]) -> str:
    """The event's name. Raises HTTPException for one that the page does not have, or values that it does not take."""
    event = events.get(number) if isinstance(number, int) else None
    if event is None:
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, f"this page has no event {number!r:.40}: load it again"
        )
    if event.api_name in ENDPOINTS:
        _check_call(event.api_name, values, is_named=False)
    got = len(values) if isinstance(values, list) else 0
    if got < len(event.inputs):
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, f"this event takes {len(event.inputs)} values (got {got})"
        )
    for part, value in zip(event.inputs, values or (), strict=False):
        if (
            part.data_model is FileData
            and value is not None
            and not isinstance(as_fields(value).get("path"), str)
        ):
            words = f"this event takes a file: an object with the path at which it was sent {format_got(value)}"
            raise HTTPException(HTTPStatus.BAD_REQUEST, words)
    return event.api_name


def _check_call(endpoint: str, values: Any, *, is_named: bool) -> None:
    """Raises HTTPException for what an endpoint does not take. values: by name, or as they came as `data`."""
    if endpoint not in ENDPOINTS:
        words = f"there is no endpoint {endpoint!r:.60}: this server has {', '.join(ENDPOINTS)}"
        raise HTTPException(HTTPStatus.NOT_FOUND, words)
    try:
        check_arguments(endpoint, values if is_named else _named(endpoint, values))
    except SpecvizError as error:
        words = str(error)
        told = {
            "__type__": "validate",
            "is_valid": False,
            "parameter_name": endpoint,
            "message": words,
        }
        content = {"error": words, "detail": [told]}  # Gradio's client reads the detail
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, words, content) from None


def _named(endpoint: str, values: object) -> dict[str, object]:
    """The values by the names of the endpoint's parameters. Raises SpecvizError where these are not as many."""
    names = parameters_of(endpoint)
    if not isinstance(values, list):
        raise SpecvizError(f"data must be a list of the values for {endpoint} {format_got(values)}")
    if len(values) != len(names):
        order = f": {', '.join(names)}" if names else ""
        raise SpecvizError(
            f"{endpoint} takes {len(names)} values in data (got {len(values)}){order}"
        )
    return dict(zip(names, values, strict=True))


def _check_tool(message: Mapping[str, Any]) -> None:
    """As `_check_call`, for a call of a tool by MCP, whose answer is a result that is an error."""
    called = as_fields(message.get("params"))
    try:
        _check_call(str(called.get("name")), as_fields(called.get("arguments")), is_named=True)
    except HTTPException as refusal:
        result = {"content": [{"type": "text", "text": refusal.detail}], "isError": True}
        content = {"jsonrpc": "2.0", "id": message.get("id"), "result": result}
        raise Refusal(HTTPStatus.OK, refusal.detail, content) from None


def _own_session(visitor: str, session: object) -> str:
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        raise HTTPException(
            HTTPStatus.BAD_REQUEST, "session_hash must be 1 to 64 letters, digits, - and _"
        )
    return f"{visitor}.{session}"


def _listener(scope: Scope) -> str:
    """The session, or the event of the plain API, whose news this request waits for; "" for others."""
    if not (asked := _LISTENING.fullmatch(scope["path"])) or scope["method"] != "GET":
        return ""
    return asked[1] or dict(parse_qsl(scope["query_string"].decode()))["session_hash"]
