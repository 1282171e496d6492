"""python -m specviz: see `specviz.cli`."""

from .cli import console

raise SystemExit(console())
