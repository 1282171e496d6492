"""The command `bench`: a subcommand for each thing that it measures. Loads torch late."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from specviz.cli.help import (
    METHOD_NAMES,
    add_command,
    add_k,
    add_pair,
    fitting_draft,
    positive,
)
from specviz.cli.output import output
from specviz.request import DEFAULT_K

SPEED = "speed"
"""The subcommand of a `bench` that names none."""
LLAMA = "llama.cpp"
MOVED: Mapping[str, str] = {
    "--align": "align",
    "--against": LLAMA,
    "--claims": "claims",
    "--context": "costs --context N",
    "--costs": "costs",
    "--json": "costs --json OUT, or methods NAME --json OUT",
    "--methods": "methods NAME",
    "--waits": "waits",
}
"""Former options of `bench` -> the subcommands that take their place."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="WHAT")
    for name, measurement in _MEASUREMENTS.items():
        subparser = add_command(commands, name, measurement.words, key=f"bench {name}")
        measurement.add_arguments(subparser)
        subparser.add_argument("--threads", type=positive, help="CPU threads for torch")
        subparser.set_defaults(lines=measurement.lines)


def with_subcommand(words: Sequence[str]) -> list[str]:
    """The words after `bench`; without a subcommand, speed is measured."""
    is_named = bool(words) and (not words[0].startswith("--") or words[0] == "--help")
    return list(words) if is_named else [SPEED, *words]


def run(options: argparse.Namespace) -> int:
    if options.threads:
        import torch

        torch.set_num_threads(options.threads)
    from specviz.models.compiler import build

    build().wait()
    for line in options.lines(options):
        print(line, flush=True)
    return 0


def _add_speed(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    words = f" (default: {DEFAULT_K}); give several to find the best"
    add_k(parser, words, type=positive, nargs="+", default=[DEFAULT_K])
    _add_amounts(parser)
    for option in MOVED:
        parser.add_argument(
            option, action=_Moved, nargs="*", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )


def _add_llama(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    _add_one_k(parser)
    _add_amounts(parser)


def _add_methods(parser: argparse.ArgumentParser) -> None:
    words = f"all or some of {METHOD_NAMES}; parameters after colons, as in eagle:children=drawn"
    parser.add_argument("methods", nargs="+", metavar="NAME", help=words)
    add_pair(parser)
    _add_one_k(parser)
    _add_amounts(parser)
    _add_json(parser)


def _add_costs(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    words = "tokens before what is measured (default: %(default)s)"
    parser.add_argument("--context", type=positive, default=128, help=words)
    _add_json(parser)


def _add_waits(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    _add_one_k(parser)


def _add_claims(parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the claims have their own pairs and settings."""


def _add_align(parser: argparse.ArgumentParser) -> None:
    add_pair(parser)
    _add_amounts(parser)


def _add_one_k(parser: argparse.ArgumentParser) -> None:
    add_k(parser, " (default: %(default)s)", type=positive, default=DEFAULT_K)


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    words = "most new tokens per run (default: %(default)s)"
    parser.add_argument("--num-tokens", type=positive, default=64, help=words)
    words = "runs of every prompt (default: %(default)s)"
    parser.add_argument("--repeats", type=positive, default=3, help=words)


def _add_json(parser: argparse.ArgumentParser) -> None:
    words = "save the result; - is standard output"
    parser.add_argument("--json", type=output, metavar="OUT", help=words)


class _Moved(argparse.Action):
    """A former option of `bench`; it refuses with the subcommand that takes its place."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        command = f"{parser.prog.removesuffix(SPEED)}{MOVED[self.option_strings[0]]}"
        raise argparse.ArgumentError(self, f"belongs to another command: {command}")


def _pair(options: argparse.Namespace) -> dict[str, str]:
    return {"target": options.target, "draft": fitting_draft(options)}


def _amounts(options: argparse.Namespace) -> dict[str, int]:
    return {"num_tokens": options.num_tokens, "repeats": options.repeats}


def _speed_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import report

    return report.lines(**_pair(options), **_amounts(options), k=options.k)


def _llama_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import report

    return report.lines(**_pair(options), **_amounts(options), k=[options.k], has_llama=True)


def _methods_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import methods

    return methods.lines(
        **_pair(options),
        **_amounts(options),
        methods=options.methods,
        k=options.k,
        save=options.json and options.json.write,
    )


def _costs_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import report

    save = options.json and options.json.write
    return report.cost_lines(**_pair(options), context_length=options.context, save=save)


def _waits_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import waits

    return waits.lines(**_pair(options), k=options.k)


def _claims_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.bench import lossy

    return lossy.lines()


def _align_lines(options: argparse.Namespace) -> Iterable[str]:
    from specviz.alignment.bench import lines

    return lines(**_pair(options), **_amounts(options))


class _Measurement(NamedTuple):
    """Something that `bench` can measure."""

    words: str  # in one line
    add_arguments: Callable[[argparse.ArgumentParser], None]
    lines: Callable[[argparse.Namespace], Iterable[str]]  # measures, and yields what is printed


_MEASUREMENTS: Mapping[str, _Measurement] = {
    SPEED: _Measurement(
        "speed against no draft and against transformers' generate; measured by default",
        _add_speed,
        _speed_lines,
    ),
    "methods": _Measurement(
        "speed of drafting methods against no draft, by kind of prompt",
        _add_methods,
        _methods_lines,
    ),
    "costs": _Measurement(
        "time of one drafted token and of each check; exits with 3 if the machine is too busy",
        _add_costs,
        _costs_lines,
    ),
    "waits": _Measurement(
        "time to the first token and to the answer, and memory, with and without a draft",
        _add_waits,
        _waits_lines,
    ),
    "claims": _Measurement(
        "what introductions claim, tried on every pair here; where no draft helps; what lossy rules cost",
        _add_claims,
        _claims_lines,
    ),
    "align": _Measurement(
        "speed of the alignment lab's batches against recorded runs", _add_align, _align_lines
    ),
    LLAMA: _Measurement(
        "greedy speed beside llama.cpp with the same pair, through llama-cpp-python where it is installed",
        _add_llama,
        _llama_lines,
    ),
}
