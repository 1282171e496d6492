"""The page below a path of its host, where a proxy serves it: JupyterHub, nginx and others.

A proxy cuts the path off, or leaves it to the server, which then must know it. The page itself need not: it takes the
place where the browser has found it for the server's address. Where Gradio's page is edited for that, it also gets our
script.
"""

import re
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_BESIDE = b"new URL('.', location).href.slice(0, -1)"
_NEXT = b"<script>window.gradio_api_info"
_OWN = b"<script>window.gradio_config.root = %b;</script>" % _BESIDE
_ROOT = re.compile(rb'const root = "https?://[^"]*"')
"""The place where Gradio's page holds its own idea of the server's address, made of what the proxy told: in what stands
before _NEXT, and in a script."""
_MANIFEST = b'<link rel="manifest" href="/manifest.json" />'
_FILES = b'<link rel="icon" href="favicon.ico" /><link rel="manifest" href="manifest.json" />'
"""The files that are else asked for at the root of the host: by Gradio's page, and by browsers of a page without an
icon."""


def is_whole_address(root_path: str) -> bool:
    """Whether the page is told its address with scheme and host, which then counts wherever it was found."""
    return "://" in root_path


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def web_address(host: str, port: int | None) -> str:
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}" if port is None else f"http://{name}:{port}"


class UnderPath:
    """Pure ASGI middleware: what is behind it sees paths as at the root, whether the proxy has cut this one or not."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self.app = app
        self._below = unquote(urlsplit(root_path).path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        below = self._below
        if below and path == below and scope["type"] == "http":
            # what lies beside the page would be asked for above it
            query = scope["query_string"].decode("latin-1")
            place = f"{below.rpartition('/')[2]}/"
            if query:
                place += f"?{query}"
            await RedirectResponse(place)(scope, receive, send)
            return
        if below and path.startswith(f"{below}/"):
            path = path.removeprefix(below)
            scope = {**scope, "path": path, "raw_path": path.encode()}
        await self.app(scope, receive, send)


class EditedPage:
    """Pure ASGI middleware: Gradio's page, which runs our script before it draws anything."""

    def __init__(self, app: ASGIApp, script: str, *, is_relative: bool) -> None:
        """Stores what the page needs. script: its address; is_relative: the page asks for everything beside itself,
        whatever it is called from outside."""
        self.app = app
        self._script = f'<script defer src="{script}"></script>'.encode()
        self._is_relative = is_relative

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        held: list[Message] = []  # the page's start, which tells its length

        async def edited(message: Message) -> None:
            if message["type"] == "http.response.start":
                held.append(message)
                return
            if held:
                message = {**message, "body": self._edit(message["body"])}
                start = held.pop()
                length = str(len(message["body"])).encode()
                headers = [
                    (name, length if name == b"content-length" else value)
                    for name, value in start["headers"]
                ]
                await send({**start, "headers": headers})
            await send(message)

        is_page = scope["type"] == "http" and scope["path"] == "/"
        await self.app(scope, receive, edited if is_page else send)

    def _edit(self, page: bytes) -> bytes:
        page = page.replace(b"<head>", b"<head>" + self._script, 1)
        return _beside_itself(page) if self._is_relative else page


def _beside_itself(page: bytes) -> bytes:
    """The page of Gradio's with the place where it was found instead of the address that it was given."""
    page = _ROOT.sub(b"const root = %b" % _BESIDE, page.replace(_NEXT, _OWN + _NEXT))
    return page.replace(_MANIFEST, _FILES)
