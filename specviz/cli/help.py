"""The parts of --help that commands share: names to choose from, examples, exit codes. Loads no torch."""

import argparse
import re
from collections.abc import Mapping
from typing import Any

from specviz.checks.report import EXIT_WORDS
from specviz.drafters import METHODS
from specviz.models.catalog import bundled_draft, default_pair
from specviz.rules.facts import FACTS

COMMON_CODES = {
    0: "done",
    2: "bad input, or the work failed",
    130: "interrupted (128 + the signal)",
}
METHOD_NAMES = ", ".join(METHODS)
RULE_NAMES = ", ".join(FACTS)
METHOD_WORDS = f"drafting method: {METHOD_NAMES} (default: %(default)s)"
RULE_WORDS = f"acceptance rule: {RULE_NAMES} (default: the method's own rule)"
PARAM_WORDS = "a parameter of the method; may be repeated"

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "page": ("", "--port 8000", "--host 0.0.0.0", "--root-path /specviz", "--open run.jsonl.gz"),
    "run": (
        '--prompt "Once upon a time" --k 4 --out run.jsonl.gz',
        '--prompt "2 + 3 =" --method medusa --param nodes=16 --rule typical',
    ),
    "show": ("run.jsonl.gz",),
    "export": (
        "run.jsonl.gz --html run.html",
        "first-visit --tokens tokens.csv --steps steps.csv",
        "--lessons all.html",
        "--site site --report job/report.html",
    ),
    "align": (
        "--prompts prompts.jsonl --draft fable-draft --draft fable-draft-tiny --out job",
        "--prompts prompts.jsonl --out job2 --fail-under alpha=0.6 --compare job/summary.json",
    ),
    "doctor": ("fable-eagle", "my-head --target Qwen/Qwen3-8B --prompts prompts.jsonl --chat"),
    "prove": ("", "--rule typical --tokens 500", "--samples samples.jsonl --json report.json"),
    "bench": ("", "--k 1 2 3 4", "methods all", "costs --json costs.json"),
    "bench speed": ("", "--k 1 2 3 4", "--target smollm2 --repeats 1"),
    "bench methods": ("all", "draft_model eagle:children=drawn --target smollm2"),
    "bench costs": ("", "--context 512 --json costs.json"),
    "bench waits": ("", "--target smollm2"),
    "bench claims": ("",),
    "bench align": ("", "--repeats 5 --num-tokens 128"),
    "bench llama.cpp": ("", "--k 2 --threads 1"),
    "models": ("", "--check fable-target fable-draft", "--heads fable-medusa"),
    "space": (
        "push OWNER/specviz --target smollm2 --draft smol-draft",
        "push OWNER/specviz --target Qwen/Qwen3-8B --draft AngelSlim/Qwen3-8B_eagle3 --hardware zero-a10g",
        "push OWNER/specviz --dry-run space",
    ),
    "get": ("", "smollm2", "smollm2 --remove"),
}
EXIT_CODES: Mapping[str, Mapping[int, str]] = {
    "align": {
        1: "refused by --fail-on, below --fail-under, or significantly worse than --compare",
        3: "cannot tell",
    },
    "doctor": {1: "the draft is broken"},
    "prove": EXIT_WORDS,
    "bench": {3: "the machine was too busy (only `bench costs`)"},
    "bench costs": {3: "the machine was too busy to measure the costs"},
    "models": {1: "the draft given to --check cannot draft for its target"},
}


def epilog(name: str) -> str:
    """The text below the options of a command, or of a subcommand such as "bench costs": examples and exit codes."""
    examples = [f"%(prog)s {example}".rstrip() for example in EXAMPLES[name]]
    words_of_code = {**COMMON_CODES, **EXIT_CODES.get(name, {})}
    codes = [f"{code}  {words_of_code[code]}" for code in sorted(words_of_code)]
    return "\n  ".join(["examples:", *examples]) + "\n\n" + "\n  ".join(["exit codes:", *codes])


def add_command(
    commands: argparse._SubParsersAction, name: str, words: str, key: str = ""
) -> argparse.ArgumentParser:
    """Adds a command with words for what it does. key: its name in EXAMPLES and EXIT_CODES, if it is another one."""
    return commands.add_parser(
        name,
        help=words,
        description=words,
        epilog=epilog(key or name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def positive(text: str) -> int:
    """The type of an option: a whole number of at least 1."""
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (got {text!r})")
    return int(text)


def add_pair(parser: argparse.ArgumentParser) -> None:
    """Adds the target and the draft model; `fitting_draft` gives the draft model where none is named."""
    target, draft = default_pair()
    words = (
        "a name from `models`, a folder, .gguf file or hub id; with :int8, :int4 or :bfloat16 smaller "
        "(default: %(default)s)"
    )
    parser.add_argument("--target", default=target, help=words)
    words = (
        f"the draft model, as above (default: the bundled one that suits the target, else {draft})"
    )
    parser.add_argument("--draft", help=words)


def fitting_draft(options: argparse.Namespace, *, foreign: bool = False) -> str:
    """The name of the draft model. foreign: whether it may have another vocabulary."""
    return options.draft or bundled_draft(options.target, foreign=foreign) or default_pair()[1]


def add_chat_options(parser: argparse.ArgumentParser) -> None:
    """Adds the switches of the chat template, for a command that has --chat; `read_options` reads them."""
    words = "a switch of the chat template, such as enable_thinking=false; may be repeated"
    parser.add_argument(
        "--chat-option", action="append", default=[], metavar="NAME=VALUE", help=words
    )


class _OneNumber(argparse.Action):
    """An option for a number with two names; both names must give the same number."""

    def __call__(self, parser, namespace, values, option_string=None) -> None:
        earlier_values = getattr(namespace, self.dest)
        earlier_name = getattr(namespace, "k_name", option_string)
        if option_string != earlier_name and values != earlier_values:
            got = f"(got {earlier_values} and {values})"
            raise argparse.ArgumentError(self, f"two names of one number: give one of them {got}")
        namespace.k_name = option_string
        setattr(namespace, self.dest, values)


def add_k(parser: argparse.ArgumentParser, words: str, **options: Any) -> None:
    """Adds the number of tokens that are drafted per step. words: its help; options: for `add_argument`."""
    words = f"tokens drafted per step{words}"
    parser.add_argument(
        "--k", "--num-speculative-tokens", dest="k", action=_OneNumber, help=words, **options
    )


def add_sampling(
    parser: argparse.ArgumentParser,
    *,
    temperature_words: str = "0 is greedy",
    of_draft: bool = False,
) -> None:
    """Adds the settings of the target's distribution, and the seed; of_draft: also the draft's own settings."""
    words = f"from 0 to 5; {temperature_words} (default: %(default)s)"
    parser.add_argument("--temperature", type=float, default=1.0, help=words)
    words = "keep only this many of the most likely tokens; 0: all (default: %(default)s)"
    parser.add_argument("--top-k", type=int, default=0, help=words)
    words = "keep only the most likely tokens up to this total probability; 1: all (default: %(default)s)"
    parser.add_argument("--top-p", type=float, default=1.0, help=words)
    words = "keep only tokens at least this many times as likely as the most likely one; 0: all (default: %(default)s)"
    parser.add_argument("--min-p", type=float, default=0.0, help=words)
    parser.add_argument(
        "--seed", type=int, default=0, help="for all random draws (default: %(default)s)"
    )
    if not of_draft:
        return
    for name, kind in (("temperature", float), ("top-k", int), ("top-p", float), ("min-p", float)):
        words = f"{name} of the draft's own distribution (default: as the target's)"
        parser.add_argument(f"--draft-{name}", type=kind, help=words)
