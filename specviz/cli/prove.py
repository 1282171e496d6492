"""The command `prove`: its arguments, its progress on standard error, its report on standard output."""

import argparse
import json
from pathlib import Path

from specviz.cli.help import (
    METHOD_WORDS,
    PARAM_WORDS,
    RULE_WORDS,
    add_chat_options,
    add_k,
    add_sampling,
)
from specviz.cli.output import ProgressLines, output
from specviz.drafters import find_method
from specviz.errors import SpecvizError
from specviz.models.catalog import default_pair
from specviz.request import DEFAULT_K, RunSettings, read_options
from specviz.views.terminal import escape


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target, _ = default_pair()
    parser.add_argument("--prompt", help="one text to continue (default: the bundled prompts)")
    parser.add_argument(
        "--target", help=f"a name from `models`, a folder, .gguf file or hub id (default: {target})"
    )
    parser.add_argument(
        "--draft", help="the draft model, as above (default: the bundled one that suits the target)"
    )
    parser.add_argument("--method", default="draft_model", help=METHOD_WORDS)
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE", help=PARAM_WORDS
    )
    parser.add_argument(
        "--rule", help=f"{RULE_WORDS}; broken:NAME: a rule that is wrong on purpose"
    )
    add_k(parser, f" (default: {DEFAULT_K})", type=int)
    add_sampling(parser, temperature_words="0 compares with the greedy text", of_draft=True)
    parser.add_argument(
        "--chat", action="store_true", help="render the prompts with the target's chat template"
    )
    add_chat_options(parser)
    parser.add_argument(
        "--tokens", type=int, default=2000, help="tokens to write and judge (default: %(default)s)"
    )
    words = "judge another decoder's samples: JSON lines {prompt_ids, ids, sampling, made_in}"
    parser.add_argument("--samples", type=Path, metavar="FILE", help=words)
    parser.add_argument(
        "--made-in", help="number format of samples whose lines name none: bf16, fp16 or fp32"
    )
    words = "save the report with all numbers; - is standard output"
    parser.add_argument("--json", type=output, metavar="OUT", help=words)


def run(options: argparse.Namespace) -> int:
    """Prints the report and returns its exit code. Raises SpecvizError."""
    from specviz.checks.prove import prove

    names = [*RunSettings.NAMES, *RunSettings.ALL_SAMPLING]
    names += ["tokens", "seed", "samples", "made_in", "chat"]
    settings = {name: getattr(options, name) for name in names}
    settings["chat_options"] = read_options(options.chat_option)
    params = find_method(options.method).read(options.param)
    lines = ProgressLines()
    report = prove(
        options.prompt, **settings, k=read_k(options), params=params, on_progress=lines.print_share
    )
    print(escape(str(report), keep="\n"))
    if options.json is not None:
        text = json.dumps(report.to_dict(), indent=1, ensure_ascii=False, allow_nan=False)
        options.json.write(text)
    return report.exit_code


def read_k(options: argparse.Namespace) -> int:
    """The value of --k, or the usual K where it was not given.

    Raises SpecvizError for a method with another parameter for its depth.
    """
    depth = find_method(options.method).depth
    if options.k is not None and depth is not None:
        raise SpecvizError(
            f"the method {options.method} has no K: its draft length is the parameter {depth} (use --param "
            f"{depth}={options.k} instead of --k {options.k})"
        )
    return DEFAULT_K if options.k is None else options.k
