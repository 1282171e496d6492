"""The server of the page: security headers, the few own routes, Gradio's launch options, the address people type.

Own routes hand out nothing but the browser's half as one script, plotly.js, documents, a health report, and traces of
the registry by their unguessable id, also as a page or as tables. No request ever goes to another host.
"""

import base64
import ctypes
import gzip
import hashlib
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from importlib.util import find_spec
from mimetypes import guess_type
from pathlib import Path
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specviz.decoding.turns import FairQueue
from specviz.errors import SpecvizError
from specviz.models.busy import other_work
from specviz.settings import assets_dir, settings
from specviz.trace import Trace
from specviz.trace import export as exports
from specviz.ui.components import SCRIPT, theme
from specviz.ui.events import FAILED
from specviz.ui.gate import UPLOAD, Gate
from specviz.ui.registry import Registry
from specviz.ui.under_path import EditedPage, UnderPath, is_whole_address, web_address
from specviz.ui.uploads import upload
from specviz.ui.view import View
from specviz.ui.visitors import Visitors
from specviz.views.bundle import bundle, web_file
from specviz.views.document import as_script, palette_head, plotly_js
from specviz.views.documentation import document_page
from specviz.views.explore.run_file import stage_page
from specviz.views.languages import packed_languages
from specviz.views.learn.lesson_file import lesson_page
from specviz.views.learn.plan import FILE_ADDRESS, FILE_NAME
from specviz.views.live import live_files

PAGE_SCRIPT = "page.js"
MAX_SESSIONS = 500
MAX_THREADS = 160
"""Each run holds one thread while it waits for the engine; live controls need threads beside them."""

_INLINE = re.compile(rb"<script(?![^>]*\ssrc=)[^>]*>(.*?)</script>", re.DOTALL)
_SECURITY_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "content-security-policy": "; ".join(
        (
            "default-src 'self'",
            "script-src 'self' 'unsafe-eval'{hashes}",  # gr.HTML compiles its templates with new Function
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
        )
    ),
}
M_ARENA_MAX = -8  # a parameter of mallopt
MOST_ARENAS = 2
TRIM_S = 30.0
"""Seconds between two times that freed memory goes back to the system, which takes 10 to 200 ms."""
_LONG_CACHE = "public, max-age=31536000"
_STEP = re.compile(r"[0-9]{1,7}")
_REF = re.compile(r"[a-z0-9]{1,12}")
_PAGE_LOCKS = tuple(threading.Lock() for _ in range(8))
"""Locks for pages, which may take seconds each: at most so many are made at once, and never two of one view. Views
share locks by chance."""
Make = Callable[[Trace, View, Request], bytes | str]
# only glibc has arenas: else one a thread, which keeps what it took
with suppress(AttributeError, OSError, TypeError):
    ctypes.CDLL(None).mallopt(M_ARENA_MAX, MOST_ARENAS)


def _trim() -> None:
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


class FreedMemory:
    """The memory that was freed in pieces. It goes back to the system, which glibc does only at the end of its heap."""

    def __init__(self) -> None:
        self._since = time.monotonic()

    def give_back(self, _session: str) -> None:
        """Gives freed memory back as a browser leaves, but at most every TRIM_S."""
        if time.monotonic() - self._since > TRIM_S:
            self._since = time.monotonic()
            threading.Thread(target=_trim, daemon=True, name="trim").start()


class SecurityHeaders:
    """Pure ASGI middleware that puts the same headers on every answer; a buffering one would hold the stream back. Only
    inline scripts of the page and of documents run, by their hashes."""

    def __init__(self, app: ASGIApp, head: str) -> None:
        """Stores what the headers need. head: what the page puts into its head later."""
        self.app = app
        self._head = head.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        held: list[Message] = []  # the page's start waits for the page, whose scripts it names
        has_scripts = scope["path"] == "/" or scope["path"].endswith(".md")

        async def with_headers(message: Message) -> None:
            is_start = message["type"] == "http.response.start"
            if is_start and has_scripts:
                held.append(message)
                return
            if held:
                start = held.pop()
                start["headers"] = [*start["headers"], *_raw_headers(message["body"] + self._head)]
                await send(start)
            elif is_start:
                message["headers"] = [*message["headers"], *_RAW_HEADERS]
            await send(message)

        await self.app(scope, receive, with_headers)


class PackedPage(GZipMiddleware):
    """Middleware that compresses the page itself, with its styles, and its script. Nothing else: no stream is held
    back."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] in ("/", f"/{SCRIPT}"):
            await super().__call__(scope, receive, send)
        else:
            await self.app(scope, receive, send)


@lru_cache(8)
def _raw_headers(page: bytes = b"") -> list[tuple[bytes, bytes]]:
    """The security headers as bytes. page: the HTML that holds the inline scripts that may run."""
    hashes = ""
    for script in _INLINE.finditer(page):
        digest = base64.b64encode(hashlib.sha256(script[1]).digest())
        hashes += f" 'sha256-{digest.decode()}'"
    return [
        (name.encode(), value.format(hashes=hashes).encode())
        for name, value in _SECURITY_HEADERS.items()
    ]


_RAW_HEADERS = _raw_headers()


def launch_options(
    registry: Registry,
    engine: FairQueue,
    *,
    ready: Callable[[], bool],
    hosts: Iterable[str] = (),
    root_path: str = "",
) -> dict[str, Any]:
    """Keyword arguments for `Blocks.launch` that every way of starting the page shares.

    hosts: what people type; root_path: where a proxy serves the page. Raises SpecvizError where MCP is asked for and
    its package is missing.
    """
    has_tools = settings().mcp
    if has_tools and find_spec("mcp") is None:
        raise SpecvizError("SPECVIZ_MCP needs the package mcp: pip install 'gradio[mcp]'")
    head = f"{palette_head()}<style>{bundle(web_file(PAGE_SCRIPT)).sheet}</style>"
    return {
        "app_kwargs": {
            "routes": _routes(registry, engine, ready),
            "middleware": _middleware(hosts, head, root_path),
            "exception_handlers": {Exception: _answer_failure},
            "docs_url": None,
            "redoc_url": None,
            "openapi_url": None,
        },
        "root_path": root_path,
        "theme": theme(),
        "favicon_path": str(Path(__file__).with_name("favicon.svg")),
        "head": head,
        "ssr_mode": False,
        "run_history": False,
        "footer_links": [],
        "max_threads": MAX_THREADS,
        "state_session_capacity": MAX_SESSIONS,
        "show_error": False,
        "enable_monitoring": False,
        "share": False,
        "mcp_server": has_tools,
        "quiet": True,
        "_frontend": False,  # it asks for the page once more, and gives up where that takes 3 s
    }


def _routes(registry: Registry, engine: FairQueue, ready: Callable[[], bool]) -> list[Route]:
    """The addresses that this server answers itself, before Gradio."""
    files = [
        Route(f"/specviz/{path}", _serve_file(registry, *file)) for path, file in _FILES.items()
    ]
    return [
        Route("/healthz", _serve_health(registry, engine, ready)),
        Route("/metrics", _serve_metrics(registry, engine)),
        Route(f"/{SCRIPT}", _serve_script),
        Route("/specviz/plotly.min.js", _serve_plotly),
        *files,
        Route(f"/{FILE_ADDRESS}", _serve_lessons),
        Route("/specviz/words/{language}.js", _serve_words),
        Route("/live", _lead_to_live),
        Route("/live/{path:path}", _serve_live),
        Route(UPLOAD, upload, methods=["POST"]),
        Route("/specviz/{folder}/{file}.md", _serve_document),
    ]


def _middleware(hosts: Iterable[str], head: str, root_path: str) -> list[Middleware]:
    """The layers between a browser and Gradio, the outermost first."""
    own = settings()
    names = [name.lower() for name in (*hosts, own.space_host, socket.gethostname()) if name]
    visitors = Visitors(is_proxied=own.space is not None)
    return [
        Middleware(UnderPath, root_path=root_path),
        Middleware(PackedPage),
        Middleware(SecurityHeaders, head=head),
        Middleware(Gate, visitors=visitors, hosts=frozenset(names), has_tools=own.mcp),
        Middleware(EditedPage, script=SCRIPT, is_relative=not is_whole_address(root_path)),
    ]


def _answer_failure(request: Request, error: Exception) -> Response:
    """The answer to a request that failed; the log has the rest."""
    return JSONResponse({"error": FAILED}, 500)


def _engine_numbers(engine: FairQueue) -> dict[str, float]:
    """The number of those who wait for the engine, and the pieces in which it has done its work."""
    pieces = engine.pieces
    return {
        "waiting": engine.num_waiting,
        "pieces_total": pieces.number,
        "longest_piece_seconds": pieces.longest_s,
        "longest_piece_cpu_seconds": pieces.longest_cpu_s,
    }


def _serve_health(
    registry: Registry, engine: FairQueue, ready: Callable[[], bool]
) -> Callable[[Request], Any]:
    async def healthz(request: Request) -> Response:
        """Answers 200 as soon as the page can be used; `models_ready` says whether the default pair is loaded."""
        numbers = {"running": registry.num_running(), "engine": _engine_numbers(engine)}
        return JSONResponse({"ok": True, "models_ready": ready(), **numbers})

    return healthz


def _serve_metrics(registry: Registry, engine: FairQueue) -> Callable[[Request], Any]:
    async def metrics(request: Request) -> Response:
        """The numbers of the health report, in the text format of Prometheus."""
        numbers: dict[str, float] = {"running": registry.num_running()}
        for name, value in _engine_numbers(engine).items():
            numbers[f"engine_{name}"] = value
        lines = []
        for name, value in numbers.items():
            kind = "counter" if name.endswith("_total") else "gauge"
            lines.append(f"# TYPE specviz_{name} {kind}\nspecviz_{name} {value:.9g}\n")
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    return metrics


async def _serve_script(request: Request) -> Response:
    """The browser's half, all of it in one script."""
    script = bundle(web_file(PAGE_SCRIPT)).script.encode()
    return _answer(request, script, "text/javascript", "no-cache", {})


def _answer(
    request: Request, content: bytes, media_type: str, cache_control: str, more: Mapping[str, str]
) -> Response:
    """The content, or 304 for a browser that has it. more: further headers."""
    etag = f'"{hashlib.blake2b(content, digest_size=12).hexdigest()}"'
    headers = {"etag": etag, "cache-control": cache_control, **more}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=media_type, headers=headers)


@cache
def _plotly_bytes(compressed: bool) -> bytes:
    """The bytes of plotly.js, which are compressed once for all visitors."""
    content = plotly_js().encode()
    return gzip.compress(content, 6, mtime=0) if compressed else content


def _serve_plotly(request: Request) -> Response:
    """The answer with plotly.js."""
    return _answer_packed(request, _plotly_bytes, "text/javascript", _LONG_CACHE)


def _answer_packed(
    request: Request, make: Callable[[bool], bytes], media_type: str, cache_control: str
) -> Response:
    """A large file, compressed where the browser takes it. make: whether it is compressed -> its bytes, kept for all.

    Called by plain functions, which Starlette runs in a thread: compressing never holds the event loop.
    """
    compressed = "gzip" in request.headers.get("accept-encoding", "")
    # "identity" keeps Gradio's own middleware from compressing megabytes again for every visitor
    encoding = "gzip" if compressed else "identity"
    headers = {"vary": "accept-encoding", "content-encoding": encoding}
    return _answer(request, make(compressed), media_type, cache_control, headers)


def _serve_file(
    registry: Registry, suffix: str, media_type: str, make: Make
) -> Callable[[Request], Any]:
    def file(request: Request) -> Response:
        """A view's records so far, as a file. The id is the permission (32 random hex digits). Made in a thread."""
        view = registry.get(request.path_params["view"])
        if view is None:
            return PlainTextResponse("this run is gone from the server", status_code=404)
        if view.trace.header is None:
            return PlainTextResponse("this run has not begun yet", status_code=404)
        trace = Trace(view.trace.events())  # a run that goes on would grow under the reader
        try:
            with other_work.work():
                content = make(trace, view, request)
        except SpecvizError as error:
            return PlainTextResponse(str(error), status_code=400)
        is_small = make is _page and _is_small(request)
        name = exports.file_name(trace, f"-small{suffix}" if is_small else suffix)
        headers = {
            "content-disposition": f'attachment; filename="{name}"',
            "cache-control": "no-store",
        }
        return Response(content, media_type=media_type, headers=headers)

    return file


def _is_small(request: Request) -> bool:
    return request.query_params.get("charts") == "0"


def _page(trace: Trace, view: View, request: Request) -> str:
    """The page of a run as a file. Raises SpecvizError for a selection that is not in the run."""
    # the feed of a whole run can be reused
    is_whole = view.feed.is_over and len(view.feed) == len(trace.steps)
    options = {
        "charts": not _is_small(request),
        "selection": _selected_place(request),
        "feed": view.feed if is_whole else None,
        "unended": view.unended,
    }
    try:
        with _PAGE_LOCKS[hash(view.id) % len(_PAGE_LOCKS)]:
            return stage_page(trace, **options)
    except ValueError as error:
        raise SpecvizError(str(error)) from None


def _selected_place(request: Request) -> tuple[int, str] | None:
    """The place to pin in the page. Raises SpecvizError for anything else."""
    step = request.query_params.get("step")
    ref = request.query_params.get("ref")
    if step is None and ref is None:
        return None
    if not _STEP.fullmatch(step or "") or not _REF.fullmatch(ref or ""):
        raise SpecvizError(
            f"step and ref must name a place in the run (got {step!r:.40}, {ref!r:.40})"
        )
    return int(step), ref


def _packed_trace(trace: Trace, view: View, request: Request) -> bytes:
    return gzip.compress(exports.json_lines(trace).encode())


# path -> the suffix of the file's name, its media type, and the function that makes it of a trace
_FILES: dict[str, tuple[str, str, Make]] = {
    "trace/{view}": (".jsonl.gz", "application/gzip", _packed_trace),
    "page/{view}.html": (".html", "text/html", _page),
    "tokens/{view}.csv": ("-tokens.csv", "text/csv", lambda trace, *_: exports.tokens_csv(trace)),
    "steps/{view}.csv": ("-steps.csv", "text/csv", lambda trace, *_: exports.steps_csv(trace)),
}


def _serve_lessons(request: Request) -> Response:
    """The answer with all lessons as one file. A plain function: it is made in a thread."""
    try:
        with other_work.work():
            content = _lesson_bytes(assets_dir())
    except SpecvizError as error:
        return PlainTextResponse(str(error), status_code=404)
    headers = {"content-disposition": f'attachment; filename="{FILE_NAME}"'}
    return _answer(request, content, "text/html", "no-cache", headers)


@cache
def _lesson_bytes(folder: Path) -> bytes:
    """The page of the lessons in this folder of assets."""
    return lesson_page().encode()


async def _lead_to_live(request: Request) -> Response:
    """Leads to the live page, whose files lie beside it; the place is relative, as a proxy may serve it elsewhere."""
    return RedirectResponse("live/")


def _serve_live(request: Request) -> Response:
    """A file of the live page, or 404."""
    path = request.path_params["path"] or "index.html"
    if path not in _live_files():
        return PlainTextResponse("not found", status_code=404)
    media_type = guess_type(path)[0] or "text/plain"
    return _answer_packed(request, partial(_live_bytes, path), media_type, "no-cache")


@cache
def _live_files() -> Mapping[str, str]:
    return live_files()


@cache
def _live_bytes(path: str, compressed: bool) -> bytes:
    """The bytes of a file of the live page."""
    content = _live_files()[path].encode()
    return gzip.compress(content, 1, mtime=0) if compressed else content


async def _serve_words(request: Request) -> Response:
    """The sentences of a language as a script, or 404."""
    packed = packed_languages().get("sv-words-{language}".format(**request.path_params))
    if packed is None:
        return PlainTextResponse("not found", status_code=404)
    return _answer(request, as_script(packed).encode(), "text/javascript", "no-cache", {})


def _serve_document(request: Request) -> Response:
    """The answer with a document as a page. Its name is looked up, never joined to a folder."""
    try:
        content = document_page("{folder}/{file}.md".format(**request.path_params))
    except KeyError:
        return PlainTextResponse("not found", status_code=404)
    return _answer(request, content.encode(), "text/html", "no-cache", {})


def typed_address(host: str, port: int) -> str:
    """The address that other people in the room type: this machine's own when the server is bound to all of them."""
    return web_address(_lan_address() if host in ("0.0.0.0", "::", "") else host, port)


def _lan_address() -> str:
    """The address of the outgoing interface; connecting a datagram socket picks it and sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return probe.getsockname()[0]
        except OSError:
            return socket.gethostname()
