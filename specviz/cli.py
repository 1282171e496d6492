"""python -m specviz run | show | export | align | prove | bench | models. Heavy packages are imported when needed."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from . import export_command
from .alignment import command as align_command
from .catalog import default_pair
from .checks import command
from .ending import Endings
from .errors import SpecvizError
from .saving import Output, drop, output, words_apart
from .trace import Event, Step, Trace, TraceWriter, load_trace
from .views.terminal import event_text, generated_text, neutral, numbers_text, wants_colour

if TYPE_CHECKING:
    from . import session


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. Messages for the person go to standard error."""
    options = _parser().parse_args(arguments)
    try:
        with words_apart([each for each in vars(options).values() if isinstance(each, Output)]):
            return options.command(options)
    except SpecvizError as error:
        message = neutral(str(error), keep="\n")
        print(f"specviz: {message}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough
        drop(sys.stdout)
        return 0
    except KeyboardInterrupt as end:
        return 128 + getattr(end, "number", signal.SIGINT)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz", description="Speculative decoding, step by step.")
    commands = parser.add_subparsers(required=True, metavar="run | show | export | align | prove | bench | models")
    _add_run(commands.add_parser("run", help="generate and print every token with its fate"))
    show = commands.add_parser("show", help="replay a recorded trace")
    show.add_argument("file", type=Path)
    show.set_defaults(command=_show)
    export = commands.add_parser("export", help="a recorded run as one HTML page, as tables or as JSON lines")
    export_command.add_arguments(export)
    export.set_defaults(command=export_command.run)
    align = commands.add_parser("align", help="why the target rejects a draft: many prompts, tables, a report")
    align_command.add_arguments(align)
    prove = commands.add_parser("prove", help="check a pair and a rule, or someone else's samples, against the target")
    command.add_arguments(prove)
    prove.set_defaults(command=command.run)
    _add_bench(commands.add_parser("bench", help="measure against no draft and against transformers' generate"))
    models = commands.add_parser("models", help="list models and draft heads that are here and what fits together")
    words = "only: can this draft model draft for this target, and what differs?"
    models.add_argument("--check", nargs=2, metavar=("TARGET", "DRAFT"), help=words)
    words = "only: how these draft heads load for --target, with every tensor's name"
    models.add_argument("--heads", metavar="NAME", help=words)
    models.add_argument("--target", default=default_pair()[0], help="of --heads (default: %(default)s)")
    models.set_defaults(command=_models)
    return parser


def _add_pair(parser: argparse.ArgumentParser) -> None:
    target, draft = default_pair()
    words = "a bundled name, a folder or a hub id; :int8 or :int4 behind it for smaller weights (default: %(default)s)"
    parser.add_argument("--target", default=target, help=words)
    parser.add_argument("--draft", default=draft, help="the draft model, likewise (default: %(default)s)")


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", required=True, help="the text to go on with; - reads standard input")
    _add_pair(parser)
    parser.add_argument("--k", type=_positive, help=f"tokens drafted per step (default: {command.K})")
    parser.add_argument("--method", default="draft_model", help="how to draft (default: %(default)s)")
    parser.add_argument("--rule", default=None, help="how drafts are judged (default: the method's own rule)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--chat", action="store_true", help="render the prompt with the target's chat template")
    parser.add_argument("--param", action="append", default=[], metavar="NAME=VALUE", help="a parameter of the method")
    words = "save the trace as it grows, as .jsonl or .jsonl.gz; - is standard output"
    parser.add_argument("--out", type=partial(output, makes_folder=True), help=words)
    parser.set_defaults(command=_run)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    _add_pair(parser)
    parser.add_argument(
        "--k",
        type=_positive,
        nargs="+",
        default=[4],
        help="tokens drafted per step (default: 4); several: which is best",
    )
    parser.add_argument("--num-tokens", type=_positive, default=64, help="per generation (default: %(default)s)")
    parser.add_argument("--repeats", type=_positive, default=3, help="of every prompt (default: %(default)s)")
    parser.add_argument("--threads", type=_positive, help="of torch on the CPU")
    parser.add_argument("--overhead", action="store_true", help="only: a step's overhead at contexts of 100 and 4,000")
    parser.add_argument(
        "--align", action="store_true", help="only: tokens/s of the alignment lab's batches beside recorded runs"
    )
    words = "only: these methods, or all, against no draft, by kind of prompt"
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=words)
    parser.add_argument("--costs", action="store_true", help="only: what one drafted token and each check cost here")
    parser.add_argument(
        "--context", type=_positive, default=128, help="tokens before what --costs measures (default: %(default)s)"
    )
    words = "write what --costs or --methods measures; - is standard output"
    parser.add_argument("--json", type=output, metavar="OUT", help=words)
    parser.set_defaults(command=_bench)


def _positive(text: str) -> int:
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


def _run(options: argparse.Namespace) -> int:
    from . import session
    from .drafters import method_named
    from .request import Request

    fields = ("target", "draft", "method", "rule", "temperature", "top_k", "top_p")
    fields += ("seed", "max_new_tokens", "chat")
    prompt = _standard_input() if options.prompt == "-" else options.prompt
    params = method_named(options.method).read(options.param)
    k = command.k_of(options)
    request = Request(prompt=prompt, params=params, k=k, **{name: getattr(options, name) for name in fields})
    run = session.open_run(request)
    _follow(run, options.out)
    _print_end(run.trace)
    return 0


def _follow(run: session.Run, out: Output | None) -> None:
    """Prints the run and keeps its file up with it; however it ends, the file has all of its trace."""
    from .api import recorded

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
        raise SpecvizError(f"the prompt on standard input must be UTF-8 text ({error.reason})") from None


def _show(options: argparse.Namespace) -> int:
    trace = load_trace(options.file)
    colours = wants_colour(sys.stdout, os.environ)
    for event in trace.events():
        _print_event(event, colours)
    _print_end(trace)
    if trace.footer is None:
        print("specviz: the recording ends before the run does", file=sys.stderr)
    return 0


def _print_event(event: Event | session.Status, colours: bool) -> None:
    if text := event_text(event, colours=colours):
        print(text, flush=isinstance(event, Step))


def _print_end(trace: Trace) -> None:
    prompt = neutral(trace.header.prompt.text, keep=" \n")
    print(f"\n{prompt}{generated_text(trace)}\n")
    print(numbers_text(trace))


def _models(options: argparse.Namespace) -> int:
    if options.check:
        return _check_pair(*options.check)
    from .overview import heads_report, overview

    print(neutral(heads_report(options.heads, options.target), keep="\n") if options.heads else overview())
    return 0


def _check_pair(target: str, draft: str) -> int:
    from .doctor import examine
    from .doctor_report import text

    diagnosis = examine(target, draft)
    print(text(diagnosis))
    return 0 if diagnosis.is_direct else 1


def _bench(options: argparse.Namespace) -> int:
    import torch

    if options.json is not None and not (options.costs or options.methods):
        raise SpecvizError("--json writes what --costs or --methods measures: it needs one of them")
    if options.threads:
        torch.set_num_threads(options.threads)
    for line in _bench_lines(options):
        print(line, flush=True)
    return 0


def _bench_lines(options: argparse.Namespace) -> Iterable[str]:
    from . import bench_methods, bench_report, costing_report
    from .alignment import pace

    pair = {"target": options.target, "draft": options.draft}
    runs = {**pair, "num_tokens": options.num_tokens, "repeats": options.repeats}
    if options.overhead:
        return [bench_report.overhead()]
    if options.costs:
        return costing_report.lines(**pair, context_length=options.context, save_as=options.json)
    if options.align:
        return pace.lines(**runs)
    if options.methods:
        if len(options.k) > 1:
            raise SpecvizError(f"--methods takes one K (got {', '.join(map(str, options.k))})")
        return bench_methods.lines(**runs, methods=options.methods, k=options.k[0], save_as=options.json)
    return bench_report.lines(**runs, k=options.k)
