"""The way from flags to a served page: what is offered, the address to print, the first pair loaded while people
read."""

import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TextIO

import gradio as gr

from specviz.analysis.costs import measure_tree_sizes
from specviz.errors import SpecvizError
from specviz.lessons.load import found_lessons
from specviz.models import compiler, get
from specviz.models.catalog import HEADS, REAL
from specviz.models.files.hub import ignore_progress, is_here
from specviz.models.memory import gains_by_bfloat16
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import open_run
from specviz.session.setup import models_named
from specviz.session.workbench import Workbench, workbench
from specviz.settings import settings
from specviz.trace import Trace
from specviz.trace.engines.dspark import load_run
from specviz.trace.shipped import WELCOME, shipped_trace
from specviz.ui.choices import Offer, make_offer
from specviz.ui.page import build
from specviz.ui.registry import Registry
from specviz.ui.server import launch_options, typed_address
from specviz.ui.under_path import is_loopback, is_whole_address, web_address

PORTS_TRIED = 20
MEASURED_AFTER_S = (0.0, 20.0, 120.0)
"""Seconds before each try to time trees, while others use the engine or this machine is too busy."""
LOGGED_S = 60.0
MOST_LOGGED = 20_000
"""Characters of the log in LOGGED_S: strangers' mistakes fill no disk."""


class BoundedLog:
    """A text stream that passes on a bounded number of characters in a while, and then says that there was more."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._since = time.monotonic()
        self._left = MOST_LOGGED  # characters

    def write(self, text: str) -> int:
        if time.monotonic() - self._since > LOGGED_S:
            self._since = time.monotonic()
            self._left = MOST_LOGGED
        if self._left > 0:
            self._left -= len(text)
            self._stream.write(text if self._left > 0 else "\n... more than a log should hold\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@dataclass(frozen=True, slots=True)
class Page:
    """A built page with what it needs to be served."""

    demo: gr.Blocks
    registry: Registry
    bench: Workbench
    first: Request
    is_warm: threading.Event = field(default_factory=threading.Event)

    def launch(self, host: str, port: int, names: Sequence[str] = (), root_path: str = "") -> str:
        """Serves the page in the background, and returns the local address.

        names: by which browsers may call it besides its own; root_path: where a proxy serves it.
        """
        options = launch_options(
            self.registry,
            self.bench.engine,
            ready=self.is_warm.is_set,
            hosts=names,
            root_path=root_path,
        )
        _, address, _ = self.demo.launch(
            server_name=host, server_port=port, prevent_thread_lock=True, **options
        )
        return address

    def warm_up(self) -> None:
        """Loads the first pair and makes a few tokens, so that the first Run answers at once; then measures its
        trees."""
        compiler.build().wait()  # a model that is read meanwhile would have to be proved again
        try:
            for _ in open_run(replace(self.first, max_new_tokens=8), bench=self.bench).events():
                pass
            self.is_warm.set()
            self._measure_tree_sizes()
        except SpecvizError as error:
            print(f"specviz: {error}", flush=True)
        self.is_warm.set()

    def _measure_tree_sizes(self) -> None:
        """Finds which size of a token tree is best by time here, for the first pair. It makes way for any run."""
        pool = self.bench.pool
        target = pool.load(self.first.target)
        draft = None if self.first.draft is None else pool.load(self.first.draft, as_draft=True)
        for pause_s in MEASURED_AFTER_S:
            time.sleep(pause_s)
            for _ in self.bench.in_turns(measure_tree_sizes(pool, target, draft)):
                if len(self.bench.engine):
                    break
            if pool.step_ms:
                return


def make_page(
    offer: Offer, pool: ModelPool, opened: Path | None = None, welcome: Trace | None = None
) -> Page:
    """The page over one pool, with the trace file `opened` on its stage if given, or `welcome` at a first visit.
    Raises SpecvizError."""
    registry = Registry()
    bench = Workbench(pool)
    if settings().zero_gpu:
        from specviz.session.gpu_worker import WorkerRun  # it needs the package of such a Space

        bench.open_in_worker = WorkerRun
    shown = "" if opened is None else registry.keep(load_run(opened)).increment()
    demo = build(offer, registry, bench, shown=shown, welcome=welcome)
    return Page(demo, registry, bench, offer.first)


def first_visit() -> Trace | None:
    """The recorded run that comes with specviz; None, with a word to whoever started it, if it cannot be read."""
    try:
        return shipped_trace(WELCOME)
    except SpecvizError as error:
        print(f"specviz: no recorded run for first visits: {error}", flush=True)
        return None


def start(
    host: str,
    port: int | None,
    target: str | None,
    draft: str | None,
    opened: Path | None,
    names: Sequence[str] = (),
    root_path: str | None = None,
) -> Page:
    """Serves the page in the background and prints its address.

    Where others reach it, they can run only models on offer and fetch none, unless the settings allow it; a line says
    so. names: by which browsers may call it besides its own; root_path: where a proxy serves it, None: as the settings
    say.
    """
    own = settings()
    if root_path is None:
        root_path = own.root_path
    is_public = bool(names) or is_whole_address(root_path) or own.space is not None
    is_private = is_loopback(host) and not is_public
    pool = workbench().pool  # the same as for all other work in this process
    offer = _make_offer(pool, target or own.target, draft or own.draft, is_private)
    page = make_page(offer, pool, opened, first_visit())
    for fault in found_lessons().faults:
        print(f"specviz: a lesson is left out: {fault}", flush=True)
    first_port = own.server_port if port is None else port
    port = free_port(host, first_port, PORTS_TRIED if port is None else 1)
    if own.zero_gpu:
        # a worker has what was loaded before the launch, and its time is not spent on warming up
        for kind, name in models_named(offer.first.settings)[:2]:
            pool.load(name, as_draft=kind != "target")
        page.is_warm.set()
    page.launch(host, port, names, root_path)
    local_host = host if is_loopback(host) else "localhost"
    print(f"specviz: open {web_address(local_host, port)}", flush=True)
    if not is_loopback(host):
        print(f"specviz: others on this network type {typed_address(host, port)}", flush=True)
    if not is_private:
        print(f"specviz: {what_others_may(offer, is_loopback(host))}", flush=True)
    if not page.is_warm.is_set():
        threading.Thread(target=page.warm_up, daemon=True, name="warm-up").start()
    return page


def _make_offer(pool: ModelPool, target: str | None, draft: str | None, is_private: bool) -> Offer:
    """The offer that begins with these models, which this loads. Other models may be named, and fetched, as the
    settings say, else on a private page alone."""
    target = _load(pool, target)
    draft = _load(pool, draft)
    own = settings()
    pool.allow_any = is_private if own.allow_any_model is None else own.allow_any_model
    may_get = is_private if own.allow_get is None else own.allow_get
    if target is None and draft is None and is_here(REAL):
        target = REAL
    return make_offer(
        target,
        draft,
        any_model=pool.allow_any,
        may_get=may_get,
        gains_by_bfloat16=gains_by_bfloat16(),
    )


def what_others_may(offer: Offer, is_proxied: bool) -> str:
    """One line that says what those can do who reach the page, and what narrows it.

    is_proxied: whether they reach it by a proxy, and not at its host.
    """
    models = "the listed models that this machine has, and download none"
    narrower = []
    if offer.may_get:
        models = f"the listed models that this machine has, and fetch {', '.join(get.on_offer())}"
        narrower.append("SPECVIZ_ALLOW_GET=0 forbids fetching")
    if offer.any_model:
        models = "any model: of a folder of this machine, or of the hub, which is then downloaded"
        narrower.insert(0, "SPECVIZ_ALLOW_ANY_MODEL=0 leaves them the listed models")
    if settings().space is None and not is_proxied:
        narrower.append("--host 127.0.0.1 keeps the page to this machine")
    narrowed = f". To narrow it: {'; '.join(narrower)}" if narrower else ""
    return f"others may run {models}; whoever has the address of a run may read it{narrowed}"


def _load(pool: ModelPool, name: str | None) -> str | None:
    """Loads a model that whoever starts the page has named, any one. What `get` offers is fetched where it is not
    here. Returns its name."""
    if name is None or name in HEADS:  # heads are loaded with their target
        return name
    if name in get.on_offer() and not is_here(name):
        print(f"specviz: fetching {get.describe(name)}", flush=True)
        get.get(name, ignore_progress)
    allowed = pool.allow_any
    pool.allow_any = True
    try:
        return pool.load(name).name
    finally:
        pool.allow_any = allowed


def free_port(host: str, first: int, tried: int) -> int:
    """The first free port from `first` on. Raises SpecvizError if all that were tried are taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in range(first, first + tried):
        with suppress(OSError), socket.create_server((host, port), family=family) as probe:
            return probe.getsockname()[1]
    raise SpecvizError(
        f"port {first} on {host} is taken; is specviz already running? Choose another with --port"
    )
