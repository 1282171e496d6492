"""python -m specviz: see `specviz.cli`."""

import sys

from .cli import main

for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")  # a terminal of few characters shows the others by their numbers
raise SystemExit(main())
