"""A proxy that serves another server under a path of its own, as JupyterHub and nginx do; all else is not there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from specviz.ui.startup import free_port
from tests.helpers.waits import until

HOST = "127.0.0.1"
OF_ONE_HOP = (b"content-length", b"transfer-encoding")
"""Headers that are not passed on: the proxy sends bodies in pieces of its own."""


@contextmanager
def proxied(address: str, path: str, *, cuts: bool) -> Iterator[str]:
    """The address of the page behind a proxy under `path`, which the proxy cuts off or leaves in."""
    client = httpx.AsyncClient(timeout=None, cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])))

    async def forward(request: Request) -> Response:
        asked = request.scope["raw_path"].decode()
        if not f"{asked}/".startswith(f"{path}/"):
            return PlainTextResponse(f"nothing here: {asked}", 404)
        headers = [pair for pair in request.headers.raw if pair[0] != b"content-length"]
        url = f"{address}{asked.removeprefix(path) if cuts else asked}?{request.url.query}".removesuffix("?")
        made = client.build_request(request.method, url, headers=headers, content=await request.body())
        answer = await client.send(made, stream=True)
        passed = StreamingResponse(answer.aiter_raw(), answer.status_code)
        passed.raw_headers = [pair for pair in answer.headers.raw if pair[0].lower() not in OF_ONE_HOP]
        return passed

    routes = [Route("/{path:path}", forward, methods=["GET", "POST", "HEAD"])]
    port = free_port(HOST, 0, 1)
    server = uvicorn.Server(
        uvicorn.Config(Starlette(routes=routes), host=HOST, port=port, log_level="warning", lifespan="off")
    )
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield f"http://{HOST}:{port}{path}/"
    server.should_exit = server.force_exit = True
    thread.join(10)
