"""Serves the page, as the command `specviz` does: python app.py [--host H] [--port P] [--open TRACE] ..."""

import sys

from specviz.cli.main import console

if __name__ == "__main__":
    raise SystemExit(console(["page", *sys.argv[1:]]))
