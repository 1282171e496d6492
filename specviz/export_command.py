"""python -m specviz export: a recorded run as one HTML page, as tables, as JSON lines. Loads no torch and no model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from specviz import exports, trace_io
from specviz.errors import SpecvizError
from specviz.trace import Trace
from specviz.views.terminal import neutral

OUTPUTS = ("html", "tokens", "steps", "jsonl")
CUT_OFF = "specviz: FILE holds no end: the recording ends before the run does, and what it has was exported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "a trace's file, or the name of a recorded run that comes with specviz"
    parser.add_argument("file", type=Path, nargs="?", help=words)
    parser.add_argument("--html", metavar="OUT", help="one page that needs no network: text, steps, odds")
    parser.add_argument("--no-charts", action="store_true", help="of --html: no charts, about 2 MB less")
    parser.add_argument("--tokens", metavar="OUT", help="a line per token, as CSV")
    parser.add_argument("--steps", metavar="OUT", help="a line per step, as CSV")
    parser.add_argument("--jsonl", metavar="OUT", help="the trace itself; every OUT is packed if it ends in .gz")
    parser.add_argument("--lessons", metavar="OUT", help="all lessons with their runs as one page; no FILE")


def run(options: argparse.Namespace) -> int:
    """Writes what was asked for; raises SpecvizError in words for the person."""
    outputs = {name: _place(out) for name in OUTPUTS if (out := getattr(options, name)) is not None}
    if options.lessons is not None:
        return _lessons(options, outputs)
    _check(options, outputs)
    trace = exports.named_trace(options.file)
    for name, path in outputs.items():
        _write(path, _maker(name, charts=not options.no_charts)(trace))
        print(f"saved {neutral(str(path))}")
    if trace.footer is None:
        print(CUT_OFF, file=sys.stderr)
    return 0


def _place(out: str) -> Path:
    """Where to write; no folder is made for it. Raises SpecvizError."""
    path = Path(out)
    if out in ("", "-") or out.endswith(("/", os.sep)) or path.is_dir():
        raise SpecvizError(f"OUT must name a file (got {out!r:.200})")
    if not trace_io.ordinary_place(path, "OUT").parent.is_dir():
        raise SpecvizError(f"OUT must lie in a folder that is there (got {out!r:.200})")
    return path


def _lessons(options: argparse.Namespace, outputs: dict[str, Path]) -> int:
    from specviz.views.lesson_file import lesson_page  # it reads all of the page's code

    if options.file is not None or options.no_charts or outputs:
        raise SpecvizError("--lessons stands alone: it takes no FILE and nothing else to write")
    path = _place(options.lessons)
    _write(path, lesson_page())
    print(f"saved {neutral(str(path))}")
    return 0


def _check(options: argparse.Namespace, outputs: dict[str, Path]) -> None:
    wanted = ", ".join(f"--{name}" for name in OUTPUTS)
    if options.file is None:
        raise SpecvizError("say what to export: FILE, or --lessons OUT")
    if not outputs:
        raise SpecvizError(f"say what to write: at least one of {wanted}")
    if options.no_charts and "html" not in outputs:
        raise SpecvizError("--no-charts is about the page: it needs --html")
    places = [path.resolve() for path in (options.file, *outputs.values())]
    if len(set(places)) < len(places):
        raise SpecvizError(f"FILE and what {wanted} write must be different files")


def _maker(name: str, *, charts: bool) -> Callable[[Trace], str]:
    from specviz.views.stage_file import stage_page  # it reads all of the page's code

    makers = {"tokens": exports.tokens_csv, "steps": exports.steps_csv, "jsonl": exports.json_lines}
    return makers.get(name) or (lambda trace: stage_page(trace, charts=charts))


def _write(path: Path, text: str) -> None:
    try:
        trace_io.write_lines(path, text.removesuffix("\n").split("\n"))
    except OSError as error:
        raise SpecvizError(f"{path} could not be written: {error.strerror}") from None
