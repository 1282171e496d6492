"""The command `page`: serves the page until it is ended."""

from __future__ import annotations

import argparse
from pathlib import Path

from specviz.settings import settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "0.0.0.0 lets others in (default: GRADIO_SERVER_NAME or 127.0.0.1)"
    parser.add_argument("--host", help=words)
    parser.add_argument("--port", type=int, help="default: GRADIO_SERVER_PORT or 7860, or the next free one")
    parser.add_argument("--open", type=Path, metavar="TRACE", help="show this recorded trace first")
    parser.add_argument("--target", help="a bundled name, a folder or a hub id (default: the bundled pair)")
    parser.add_argument("--draft", help="the draft model, likewise")


def run(options: argparse.Namespace) -> int:
    """Returns when the person ends the server; raises SpecvizError where it cannot start."""
    host = options.host or settings().server_name
    from specviz import ui  # it loads gradio

    ui.start(host, options.port, options.target, options.draft, options.open).demo.block_thread()
    return 0
