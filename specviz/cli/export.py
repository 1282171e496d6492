"""The command `export`: runs, lessons and a whole site as files. Loads no torch, except for races and checks."""

import argparse
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from specviz.cli.output import Output, output, write_texts
from specviz.errors import SpecvizError
from specviz.trace import export as exports
from specviz.views.terminal import escape

OUTPUTS = {
    "html": "one offline page: text, steps, probabilities",
    "tokens": "CSV, one line per token",
    "steps": "CSV, one line per step",
    "jsonl": "the trace itself; any OUT ending in .gz is compressed, and - is standard output",
}
SITE_FILE = "data/sv-data.js"  # which a site has
LIVE_FILE = "data/sv-live.js"  # which a site has as well, because the live page is a part of it
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
    words = "a page that generates in the browser: a file if OUT ends in .html, else a folder; without FILE"
    add("--live", type=Path, metavar="OUT", help=words)
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
    """Writes the files that were asked for. Raises SpecvizError in words for the person."""
    named = {name: getattr(options, name) for name in OUTPUTS}
    outputs = {name: out for name, out in named.items() if out is not None}
    if options.site is None and (options.no_checks or options.report):
        raise SpecvizError("--no-checks and --report need --site")
    alone = [name for name in ALONE if getattr(options, name) is not None]
    if alone:
        if options.file is not None or options.no_charts or outputs or len(alone) > 1:
            raise SpecvizError(
                f"{', '.join(f'--{name}' for name in ALONE)} stand alone: no FILE and no other output"
            )
        ALONE[alone[0]](options)
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


def _write_lessons(options: argparse.Namespace) -> None:
    from specviz.views.learn.lesson_file import lesson_page  # reads all of the page's code

    options.lessons.write(lesson_page())


def _write_live(options: argparse.Namespace) -> None:
    from specviz.views.live import live_files, live_page

    if options.live.suffix.lower() == ".html" or options.live == Path("-"):
        output(str(options.live)).write(live_page())
    else:
        _check_folder(options.live, "--live", LIVE_FILE)
        _write_folder(options.live, live_files())


def _write_site(options: argparse.Namespace) -> None:
    from specviz.views.site import site_files

    _check_folder(options.site, "--site", SITE_FILE)
    report = None
    try:
        if options.report is not None:
            report = options.report.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecvizError(
            f"--report must be the report.html of an alignment job ({error})"
        ) from None
    recorded = {}
    if not options.no_checks:
        from specviz.ui.reports.site import recorded_sections  # loads gradio and models

        recorded = recorded_sections(_print_progress)
    _write_folder(options.site, site_files(recorded, report))


def _write_folder(folder: Path, files: Mapping[str, str]) -> None:
    """Writes a page of several files. Raises SpecvizError where the folder cannot hold them."""
    try:
        write_texts(folder, files)
    except OSError as error:
        raise SpecvizError(f"the folder could not be written: {error}") from None
    size = sum(len(text.encode()) for text in files.values())
    print(
        f"saved {len(files)} files, {size / 1e6:.1f} MB; open {escape(str(folder / 'index.html'))}"
    )


def _check_folder(folder: Path, option: str, own: str) -> None:
    """Raises SpecvizError unless the folder is new, empty, or holds what the option wrote there: a file named `own`."""
    found = [name for name in (SITE_FILE, LIVE_FILE) if (folder / name).is_file()]
    if not folder.exists() or found[:1] == [own]:
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise SpecvizError(
            f"{option} needs a new or empty folder, or what it wrote before (got {str(folder)!r:.200})"
        )


ALONE = {"lessons": _write_lessons, "site": _write_site, "live": _write_live}
"""The options that stand alone."""


def _print_progress(words: str) -> None:
    print(f"specviz: {words}", file=sys.stderr, flush=True)


def _check(options: argparse.Namespace, outputs: dict[str, Output]) -> None:
    names = ", ".join(f"--{name}" for name in OUTPUTS)
    if options.file is None:
        raise SpecvizError("name what to export: FILE, --lessons OUT, --site FOLDER or --live OUT")
    if not outputs:
        raise SpecvizError(f"name what to write: at least one of {names}")
    if options.no_charts and "html" not in outputs:
        raise SpecvizError("--no-charts needs --html")
    places = [options.file.resolve()]
    for out in outputs.values():
        if isinstance(out.place, Path):
            places.append(out.place.resolve())
    if len(set(places)) < len(places):
        raise SpecvizError(f"FILE and the files of {names} must differ")
