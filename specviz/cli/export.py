"""python -m specviz export: a recorded run as one HTML page, as tables, as JSON lines. Loads no torch and no model."""

import argparse
import sys
from functools import partial
from pathlib import Path

from specviz.cli.output import Output, output
from specviz.errors import SpecvizError
from specviz.trace import export as exports

OUTPUTS = {
    "html": "one offline page: text, steps, probabilities",
    "tokens": "CSV, one line per token",
    "steps": "CSV, one line per step",
    "jsonl": "the trace itself; any OUT ending in .gz is compressed, and - is standard output",
}
CUT_OFF = "specviz: the recording in FILE stops before the end of the run; everything up to there was exported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "a trace file, or the name of a recorded run that comes with specviz"
    parser.add_argument("file", type=Path, nargs="?", help=words)
    for name, words in OUTPUTS.items():
        parser.add_argument(f"--{name}", type=output, metavar="OUT", help=words)
    parser.add_argument("--no-charts", action="store_true", help="for --html: leave out the charts, about 2 MB less")
    words = "all lessons with their runs as one page; without FILE"
    parser.add_argument("--lessons", type=output, metavar="OUT", help=words)


def run(options: argparse.Namespace) -> int:
    """Writes what was asked for; raises SpecvizError in words for the person."""
    outputs = {name: out for name in OUTPUTS if (out := getattr(options, name)) is not None}
    if options.lessons is not None:
        from specviz.views.learn.lesson_file import lesson_page  # it reads all of the page's code

        if options.file is not None or options.no_charts or outputs:
            raise SpecvizError("--lessons stands alone: no FILE and no other output")
        options.lessons.write(lesson_page())
        return 0
    _check(options, outputs)
    trace = exports.find_trace(options.file)
    makers = {"tokens": exports.tokens_csv, "steps": exports.steps_csv, "jsonl": exports.json_lines}
    if "html" in outputs:
        from specviz.views.explore.run_file import stage_page  # it reads all of the page's code

        makers["html"] = partial(stage_page, charts=not options.no_charts)
    for name, out in outputs.items():
        out.write(makers[name](trace))
    if trace.footer is None:
        print(CUT_OFF, file=sys.stderr)
    return 0


def _check(options: argparse.Namespace, outputs: dict[str, Output]) -> None:
    wanted = ", ".join(f"--{name}" for name in OUTPUTS)
    if options.file is None:
        raise SpecvizError("name what to export: FILE, or --lessons OUT")
    if not outputs:
        raise SpecvizError(f"name what to write: at least one of {wanted}")
    if options.no_charts and "html" not in outputs:
        raise SpecvizError("--no-charts needs --html")
    files = [out.place for out in outputs.values() if isinstance(out.place, Path)]
    places = [path.resolve() for path in (options.file, *files)]
    if len(set(places)) < len(places):
        raise SpecvizError(f"FILE and the files of {wanted} must differ")
