"""Serves the page: python app.py [--host H] [--port P] [--open TRACE] [--target NAME] [--draft NAME]."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specviz import ui
from specviz.errors import SpecvizError
from specviz.settings import settings


def main() -> None:
    parser = argparse.ArgumentParser(description="Speculative decoding, step by step, in the browser.")
    parser.add_argument("--host", default=settings().server_name, help="0.0.0.0 lets others in (default: %(default)s)")
    parser.add_argument("--port", type=int, help="default: GRADIO_SERVER_PORT or 7860, or the next free one")
    parser.add_argument("--open", type=Path, metavar="TRACE", help="show this recorded trace first")
    parser.add_argument("--target", help="a bundled name, a folder or a hub id (default: the bundled pair)")
    parser.add_argument("--draft", help="the draft model, likewise")
    options = parser.parse_args()
    ui.start(options.host, options.port, options.target, options.draft, options.open).demo.block_thread()


if __name__ == "__main__":
    try:
        main()
    except SpecvizError as error:
        print(f"specviz: {error}", file=sys.stderr)
        raise SystemExit(2) from None
