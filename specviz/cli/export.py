"""python -m specviz export: runs, lessons and a whole site as files. Loads no torch, except for races and checks."""

import argparse
import sys
from functools import partial
from pathlib import Path

from specviz.cli.output import Output, output
from specviz.errors import SpecvizError
from specviz.trace import export as exports
from specviz.views.terminal import escape

OUTPUTS = {
    "html": "one offline page: text, steps, probabilities",
    "tokens": "CSV, one line per token",
    "steps": "CSV, one line per step",
    "jsonl": "the trace itself; any OUT ending in .gz is compressed, and - is standard output",
}
INCOMPLETE = "specviz: the recording in FILE stops before the end of the run; everything up to there was exported"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "file",
        type=Path,
        nargs="?",
        help="a trace file, or the name of a recorded run that comes with specviz",
    )
    for name, words in OUTPUTS.items():
        add(f"--{name}", type=output, metavar="OUT", help=words)
    add(
        "--no-charts", action="store_true", help="for --html: leave out the charts, about 2 MB less"
    )
    add(
        "--lessons",
        type=output,
        metavar="OUT",
        help="all lessons with their runs as one page; without FILE",
    )
    words = "a site that needs no server: runs, lessons, games, races and checks; without FILE"
    add("--site", type=Path, metavar="FOLDER", help=words)
    words = "for --site: leave out the races and checks, which take some minutes of real work"
    add("--no-checks", action="store_true", help=words)
    add(
        "--report",
        type=Path,
        metavar="FILE",
        help="for --site: the report of an alignment job, its report.html",
    )


def run(options: argparse.Namespace) -> int:
    """Writes what was asked for; raises SpecvizError in words for the person."""
    outputs = {name: out for name in OUTPUTS if (out := getattr(options, name)) is not None}
    if options.site is None and (options.no_checks or options.report):
        raise SpecvizError("--no-checks and --report need --site")
    if options.lessons is not None or options.site is not None:
        from specviz.views.learn.lesson_file import lesson_page  # it reads all of the page's code

        if (
            options.file is not None
            or options.no_charts
            or outputs
            or None not in (options.lessons, options.site)
        ):
            raise SpecvizError("--lessons and --site stand alone: no FILE and no other output")
        options.lessons.write(lesson_page()) if options.lessons else _write_site(options)
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
        print(INCOMPLETE, file=sys.stderr)
    return 0


def _write_site(options: argparse.Namespace) -> None:
    from specviz.views.site import site_files

    folder = options.site
    if (
        folder.exists()
        and not (folder / "site.js").is_file()
        and (not folder.is_dir() or any(folder.iterdir()))
    ):
        raise SpecvizError(
            f"--site needs a new or empty folder, or an earlier site (got {str(folder)!r:.200})"
        )
    try:
        report = options.report and options.report.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecvizError(
            f"--report must be the report.html of an alignment job ({error})"
        ) from None
    recorded = {}
    if not options.no_checks:
        from specviz.ui.reports.site import (
            recorded_sections,
        )  # it loads gradio and the bundled models

        recorded = recorded_sections(
            lambda words: print(f"specviz: {words}", file=sys.stderr, flush=True)
        )
    files = site_files(recorded, report)
    try:
        for name, text in files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, "utf-8", newline="\n")
    except OSError as error:
        raise SpecvizError(f"the site could not be written: {error}") from None
    size = sum(len(text.encode()) for text in files.values())
    print(
        f"saved {len(files)} files, {size / 1e6:.1f} MB; open {escape(str(folder / 'index.html'))}"
    )


def _check(options: argparse.Namespace, outputs: dict[str, Output]) -> None:
    wanted = ", ".join(f"--{name}" for name in OUTPUTS)
    if options.file is None:
        raise SpecvizError("name what to export: FILE, --lessons OUT or --site FOLDER")
    if not outputs:
        raise SpecvizError(f"name what to write: at least one of {wanted}")
    if options.no_charts and "html" not in outputs:
        raise SpecvizError("--no-charts needs --html")
    files = [out.place for out in outputs.values() if isinstance(out.place, Path)]
    places = [path.resolve() for path in (options.file, *files)]
    if len(set(places)) < len(places):
        raise SpecvizError(f"FILE and the files of {wanted} must differ")
