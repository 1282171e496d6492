"""The gate: the one ASGI layer between strangers and Gradio. What it does not know, it refuses in words.

It lets through the routes of the page, its files and its API, for this server's hosts, and changes by its own pages
alone. It reads each JSON body once, within bounds, before anything else does. It checks what goes to an endpoint of the
API. It puts the visitor before the name of each session, so that nobody acts in another's.
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
"""Lists, objects and commas in a body: Gradio walks through them several times."""
MOST_AT_ONCE = 96 << 20
"""Bytes of all bodies that are being read or wait in Gradio's queue."""
QUEUED_S = 5.0
"""Seconds that a body counts as waiting once it was handed on."""
BODY_S = 30.0
"""Seconds that a body may take to come."""
_API = "/gradio_api/"
_FILES = r"/(assets|static|svelte|specviz)/.+|/live(/.*)?"
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
"""The address at which Gradio serves MCP, on servers that do."""
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
    """A refusal with an answer of its own."""

    def __init__(
        self,
        status: int,
        words: str,
        content: Mapping[str, Any] | None = None,
        page: Callable[[], str] | None = None,
    ) -> None:
        """Stores the answer. content: for a program; page: makes one for a person who has opened an address."""
        super().__init__(status, words)
        self.content = content or {"error": words}
        self.page = page or partial(refusal_page, words)


class Gate:
    """Pure ASGI middleware that checks every request and refuses what it does not know."""

    def __init__(
        self,
        app: ASGIApp,
        visitors: Visitors,
        hosts: frozenset[str] = frozenset(),
        has_tools: bool = False,
    ) -> None:
        """Stores what the gate knows. hosts: the names of this server besides the loopback's and plain addresses;
        has_tools: whether it serves MCP."""
        self.app = app
        self._visitors = visitors
        self._hosts = hosts
        self._has_tools = has_tools
        self._num_held = 0  # bytes of bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close"})
            return
        try:
            passed = self._check(scope)
            if passed["method"] == "POST":
                receive = await self._read(passed, receive)
            if passed["path"].startswith(f"{_API}run/"):
                answer = _tell_refusals(scope, receive, send)
            else:
                answer = self._visitors.issue(passed, send)
            with self._visitors.listening(_listener(passed)):
                await self.app(passed, receive, answer)
        except HTTPException as refusal:
            await _answer_refusal(scope, refusal)(scope, receive, send)

    def _check(self, scope: Scope) -> Scope:
        """The request as it goes on, with its visitor. A session that it names becomes the visitor's own."""
        headers = Headers(scope=scope)
        path = scope["path"]
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        self._check_address(scope, headers, method)
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
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            session = _own_session(visitor, query.get("session_hash"))
            passed["query_string"] = urlencode({"session_hash": session}).encode()
        return passed

    def _check_address(self, scope: Scope, headers: Headers, method: str) -> None:
        """Raises HTTPException for another host, for an unknown address, and for changes by another site's pages."""
        host = headers.get("host", "")
        if not _PLAIN_HOST.fullmatch(host) and not self._is_named(host):
            raise _unknown_name(host, scope)
        path = scope["path"]
        is_tool = self._has_tools and _TOOLS.fullmatch(f"{method} {path}")
        if not is_tool and (method not in _ROUTES or not _ROUTES[method].fullmatch(path)):
            raise HTTPException(HTTPStatus.NOT_FOUND, "there is nothing at this address")
        origin = headers.get("origin")
        page = host if origin is None else origin.partition("//")[2]
        if method != "GET" and page.lower() != host.lower() and not self._is_named(page):
            name = _plain_name(page) or "NAME"
            words = f"pages of {origin!r:.100} may not act here. {_PAGES} {name}"
            raise HTTPException(HTTPStatus.FORBIDDEN, words)

    def _is_named(self, host: str) -> bool:
        return _PORT.sub("", host).lower() in self._hosts

    async def _read(self, scope: Scope, receive: Receive) -> Receive:
        """A `receive` of the request's body, complete and checked. Raises HTTPException."""
        is_upload = scope["path"] == UPLOAD
        kind = Headers(scope=scope).get("content-type", "").partition(";")[0].strip().lower()
        expected = "multipart/form-data" if is_upload else "application/json"
        if kind != expected:
            words = f"a body must be {expected} here (got {kind!r:.60})"
            raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, words)
        body = bytearray()
        try:
            with fail_after(BODY_S):
                async for piece in Request(scope, receive).stream():
                    body += piece
                    self._num_held += len(piece)
                    self._check_sizes(len(body))
        except ClientDisconnect:
            raise HTTPException(HTTPStatus.BAD_REQUEST, "the body ended too early") from None
        except TimeoutError:
            words = f"the body did not come within {BODY_S:g} s"
            raise HTTPException(HTTPStatus.REQUEST_TIMEOUT, words) from None
        finally:
            asyncio.get_running_loop().call_later(QUEUED_S, self._let_go, len(body))
        if is_upload:
            return _replay(bytes(body), receive)
        page = scope["app"].get_blocks()
        checked = checked_body(bytes(body), scope["specviz_visitor"], page, scope["path"])
        return _replay(checked, receive)

    def _check_sizes(self, num_bytes: int) -> None:
        """Raises HTTPException where a body, or all of them together, have more bytes than they may."""
        if num_bytes > MOST_BODY_BYTES:
            words = f"a body has at most {MOST_BODY_BYTES:,} bytes"
            raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
        if self._num_held > MOST_AT_ONCE:
            words = "too much is being sent here: try again"
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, words)

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


def _answer_refusal(scope: Scope, refusal: HTTPException) -> Response:
    """The answer that says what was refused and why: a page for a person who has opened an address, else JSON."""
    if not isinstance(refusal, Refusal):
        refusal = Refusal(refusal.status_code, refusal.detail)
    if scope["method"] == "GET" and "text/html" in Headers(scope=scope).get("accept", ""):
        return HTMLResponse(refusal.page(), refusal.status_code)
    return JSONResponse(refusal.content, refusal.status_code)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body once, then what comes after it: whether the other side goes away."""
    first: list[Message] = [{"type": "http.request", "body": body}]

    async def replayed() -> Message:
        return first.pop() if first else await receive()

    return replayed


def _tell_refusals(scope: Scope, receive: Receive, send: Send) -> Send:
    """A `send` for an event that is called directly. Gradio says that the server is at fault in every error. Here what
    was refused in words is the caller's fault, and every other error gets words."""
    is_held = False

    async def send_answer(message: Message) -> None:
        nonlocal is_held
        is_start = message["type"] == "http.response.start"
        if is_start and message["status"] == HTTPStatus.INTERNAL_SERVER_ERROR:
            is_held = True
        elif is_held:
            content = msgspec.json.decode(message["body"])
            words = content["error"] or FAILED
            status = HTTPStatus.BAD_REQUEST
            if words == FAILED:
                status = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = JSONResponse({**content, "error": words}, status)
            await answer(scope, receive, send)
        else:
            await send(message)

    return send_answer


def checked_body(body: bytes, visitor: str, page: Blocks, path: str = "") -> bytes:
    """The JSON body that was sent to this path, with the visitor's own session in it. Raises HTTPException for what
    Gradio must not see."""
    content = _decode(body)
    if content.get("session_hash") is not None:
        content["session_hash"] = _own_session(visitor, content["session_hash"])
    content.pop("batched", None)  # no event here takes several values at once
    called = _CALLED.fullmatch(path)
    file_mark = "meta"
    if content.get("fn_index") is not None and (called is None or called["way"] == "run"):
        event = _check_event(content["fn_index"], content.get("data"), page.fns)
        if event not in ENDPOINTS:
            file_mark = "path"
    elif called:
        is_named = called["way"] == "call/v2"
        values = content if is_named else content.get("data")
        _check_call(called["name"], values, is_named=is_named)
    elif _MCP.fullmatch(path) and content.get("method") == "tools/call":
        _check_tool(content)
    _check_files(content, page.upload_file_set, file_mark)
    return msgspec.json.encode(content)


def _decode(body: bytes) -> dict[str, Any]:
    """The JSON object in a body. Raises HTTPException for anything else, and for one with too many values."""
    num_values = body.count(b"[") + body.count(b"{") + body.count(b",")
    if num_values > MOST_VALUES:
        words = f"a body holds at most {MOST_VALUES:,} values"
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words)
    try:
        content = msgspec.json.decode(body)
    except (ValueError, RecursionError) as error:
        words = f"the body cannot be read as JSON in UTF-8 ({error!s:.100})"
        raise HTTPException(HTTPStatus.BAD_REQUEST, words) from None
    if not isinstance(content, dict):
        words = f"the body must be a JSON object (got {type(content).__name__})"
        raise HTTPException(HTTPStatus.BAD_REQUEST, words)
    return content


def _check_files(content: dict[str, Any], sent: Collection[str], mark: str) -> None:
    """Leaves nothing but the path in each object that is a file. Raises HTTPException for a file that was not sent
    here.

    mark: the field by which Gradio takes an object with a path for a file.
    """
    unchecked: list[Any] = [content]
    while unchecked:
        value = unchecked.pop()
        if isinstance(value, list):
            unchecked += value
        elif isinstance(value, dict):
            path = value.get("path")
            if mark not in value or not isinstance(path, str):
                unchecked += value.values()
                continue
            if path not in sent or not os.path.exists(path):
                words = "an object with a path is a file and must be sent here: this server fetches none and has no"
                raise HTTPException(HTTPStatus.BAD_REQUEST, f"{words} {path!r:.80}")
            value.clear()
            value["path"] = path
            value["meta"] = {"_type": "gradio.FileData"}


def _check_event(number: object, values: object, events: Mapping[int, BlockFunction]) -> str:
    """The event's name. Raises HTTPException for one that the page does not have, or values that it does not take."""
    event = events.get(number) if isinstance(number, int) else None
    if event is None:
        words = f"this page has no event {number!r:.40}: load it again"
        raise HTTPException(HTTPStatus.BAD_REQUEST, words)
    if event.api_name in ENDPOINTS:
        _check_call(event.api_name, values, is_named=False)
    num_values = len(values) if isinstance(values, list) else 0
    if num_values < len(event.inputs):
        words = f"this event takes {len(event.inputs)} values (got {num_values})"
        raise HTTPException(HTTPStatus.BAD_REQUEST, words)
    for part, value in zip(event.inputs, values or (), strict=False):
        if part.data_model is not FileData or value is None:
            continue
        if not isinstance(as_fields(value).get("path"), str):
            words = f"this event takes a file: an object with the path at which it was sent {format_got(value)}"
            raise HTTPException(HTTPStatus.BAD_REQUEST, words)
    return event.api_name


def _check_call(endpoint: str, values: Any, *, is_named: bool) -> None:
    """Raises HTTPException for what an endpoint does not take. values: by name, or as they came as `data`."""
    if endpoint not in ENDPOINTS:
        words = f"there is no endpoint {endpoint!r:.60}: this server has {', '.join(ENDPOINTS)}"
        raise HTTPException(HTTPStatus.NOT_FOUND, words)
    try:
        check_arguments(endpoint, values if is_named else _name_values(endpoint, values))
    except SpecvizError as error:
        words = str(error)
        detail = {
            "__type__": "validate",
            "is_valid": False,
            "parameter_name": endpoint,
            "message": words,
        }
        content = {"error": words, "detail": [detail]}  # Gradio's client reads the detail
        raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, words, content) from None


def _name_values(endpoint: str, values: object) -> dict[str, object]:
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
    """Raises HTTPException for what a tool of MCP does not take. The answer is a result that says it is an error."""
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
    """The session, or the event of the plain API, that this request waits for news of; "" for other requests."""
    listening = _LISTENING.fullmatch(scope["path"])
    if listening is None or scope["method"] != "GET":
        return ""
    if listening[1]:
        return listening[1]
    query = dict(parse_qsl(scope["query_string"].decode()))
    return query["session_hash"]
