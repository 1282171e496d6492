"""The command `get`: fetches a model that is not bundled, when and only when a person asks for it."""

import argparse

from specviz.cli.output import ProgressLines
from specviz.models.hub import is_here


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of the model; without it: what can be got, and what is here")
    parser.add_argument("--remove", action="store_true", help="delete it here")


def run(options: argparse.Namespace) -> int:
    from specviz.models import get

    if options.name is None:
        for name in get.on_offer():
            print(f"{name}  {get.describe(name)} ({'here' if is_here(name) else 'not here'})")
    elif options.remove:
        print(f"{options.name} {'was deleted' if get.remove(options.name) else 'is not here'}")
    else:
        print(get.describe(options.name), flush=True)
        print(f"{options.name} is here: {get.get(options.name, ProgressLines().print_share)}")
    return 0
