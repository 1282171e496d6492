"""A page over tiny random models, for tests: built as app.py builds it, served on a free port of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session import run as session
from specviz.trace import Trace
from specviz.ui.choices import Offer, make_offer
from specviz.ui.startup import Page, free_port, make_page
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

SIZES = {"tiny-target": (3, 32), "tiny-draft": (2, 16), "tiny-other": (1, 16), "stranger": (1, 16)}
HOST = "127.0.0.1"


def tiny_library(folder: Path) -> ModelPool:
    """A library that knows tiny models by their names, one with a vocabulary of its own, and will load nothing else."""
    pool = ModelPool(allow_any=True)
    for seed, (name, (layers, hidden)) in enumerate(SIZES.items()):
        tokenizer = tiny_tokenizer(seed=2 if name == "stranger" else 0)
        model = tiny("llama", vocab_size=len(tokenizer), layers=layers, hidden=hidden, seed=seed)
        pool.load(str(tiny_folder(folder / name, model, tokenizer)))
    pool.allow_any = False
    return pool


def tiny_offer(any_model: bool = False, **first: object) -> Offer:
    target, draft, *others = SIZES
    offer = make_offer(target, draft, any_model=any_model)
    drafts = tuple((name, name) for name in (draft, *others))
    return replace(offer, drafts=drafts, first=replace(offer.first, **first))


PATIENCE_S = 60.0
"""For an answer that is made when first asked for, as the lessons' file is: seconds on a slow machine; httpx gives
up after 5. How fast an answer must be is bounded by tests that are marked as timed."""


@dataclass(frozen=True, slots=True)
class Served:
    page: Page
    address: str

    def trace(self, **changes: object) -> Trace:
        """A finished run of the page's first request."""
        request: Request = replace(self.page.first, max_new_tokens=12, **changes)
        run = session.open_run(request, bench=self.page.bench)
        for _ in run.events():
            pass
        return run.trace


@contextmanager
def served(folder: Path, welcome: Trace | None = None, *, any_model: bool = False, **first: object) -> Iterator[Served]:
    """welcome: what a first visit sees; any_model: whether folders and hub ids may be typed; first: request fields."""
    pool = tiny_library(folder)
    pool.allow_any = any_model
    page = make_page(tiny_offer(any_model, **first), pool, welcome=welcome)
    address = page.launch(HOST, free_port(HOST, 0, 1))
    try:
        yield Served(page, address.rstrip("/"))
    finally:
        page.demo.close(verbose=False)


@asynccontextmanager
async def tools(address: str) -> AsyncIterator[Any]:
    """A session of a real MCP client, whose package the test has asked for, with a server that has SPECVIZ_MCP."""
    import mcp
    from mcp.client.streamable_http import streamablehttp_client

    connection = streamablehttp_client(f"{address}/gradio_api/mcp/")
    async with connection as (read, write, _), mcp.ClientSession(read, write) as session:
        await session.initialize()
        yield session


def fixtures() -> tuple[object, object]:
    """For a module's names `served` and `client`: a page that its tests share, and what asks it."""

    @pytest.fixture(scope="module", name="served")
    def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
        with served(tmp_path_factory.mktemp("models")) as page:
            yield page

    @pytest.fixture(scope="module", name="client")
    def asking(served: Served) -> Iterator[httpx.Client]:
        with httpx.Client(base_url=served.address, timeout=PATIENCE_S) as client:
            yield client

    return shared, asking
