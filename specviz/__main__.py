"""python -m specviz: see `specviz.cli.main`."""

from specviz.cli.main import console

raise SystemExit(console())
