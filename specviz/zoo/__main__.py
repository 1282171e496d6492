"""Make the bundled models: `python -m specviz.zoo` tokenizers, train, distill, heads, export, bias, evaluate, sample.

`make` does all of it in order, as far as it is not done yet. The corpus folder is only read; everything in between lies
in the work folder; finished models go to `--models`."""

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from specviz.settings import assets_dir
from specviz.zoo.config import EDITIONS, load_recipe, recipe_names
from specviz.zoo.data.tokenizer import load_tokenizer
from specviz.zoo.evaluation.report import write_report
from specviz.zoo.evaluation.trials import continuation
from specviz.zoo.family import Workplace
from specviz.zoo.training.export import load_model
from specviz.zoo.training.train import Trainer, TrainingPace, train

MODELS = assets_dir() / "models"
Command = Callable[[argparse.Namespace], None]
COMMANDS = {
    "train": "train a model on text, or go on training it",
    "distill": "let the target write, and train a draft model on its distributions",
    "heads": "train draft heads on the frozen target",
}


def run_tokenizers(args: argparse.Namespace) -> None:
    workplace(args).make_tokenizers(args.corpus)


def run_fit(args: argparse.Namespace) -> None:
    """Train one member to its end, or up to `--stop-at`, saving now and then."""
    fit(args, args.name, args.stop_at)


def fit(args: argparse.Namespace, name: str, stop_at: int | None = None) -> None:
    place = workplace(args)
    trainer = place.restore(name)

    def save(trainer: Trainer) -> None:
        trainer.save(place.checkpoint(name))

    train(
        trainer,
        place.data(trainer.recipe),
        TrainingPace(compiled=args.compile, stop_at=stop_at),
        save,
    )


def run_export(args: argparse.Namespace) -> None:
    workplace(args).export(args.name, args.models)


def run_bias(args: argparse.Namespace) -> None:
    workplace(args).fit_bias(args.name, args.models)


def run_evaluate(args: argparse.Namespace) -> None:
    print(write_report(workplace(args), args.models))


def run_make(args: argparse.Namespace) -> None:
    """Every member in order; finished ones are skipped, interrupted ones go on."""
    run_tokenizers(args)
    for name in recipe_names():
        fit(args, name)
        workplace(args).export(name, args.models)
        if has_bias(name):
            workplace(args).fit_bias(name, args.models)
    run_evaluate(args)


def has_bias(name: str) -> bool:
    heads = load_recipe(EDITIONS[0], name).heads
    return heads is not None and heads.bias is not None


def run_sample(args: argparse.Namespace) -> None:
    folder = args.models / args.name
    model, tokenizer = load_model(folder), load_tokenizer(folder / "tokenizer.json")
    print(continuation(model, tokenizer, args.prompt, args.tokens, args.temperature, args.seed))


def workplace(args: argparse.Namespace) -> Workplace:
    return Workplace(args.work, args.edition, torch.device(args.device))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz.zoo", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    corpus, work, models, compiled = shared_options()
    add = partial(add_command, commands)
    add(
        "tokenizers",
        run_tokenizers,
        "learn the vocabularies and encode every source",
        [corpus, work],
    )
    for command, text in COMMANDS.items():
        names = [
            name for name in recipe_names() if load_recipe(EDITIONS[0], name).command == command
        ]
        parser_of_one = add(command, run_fit, text, [work, compiled])
        parser_of_one.add_argument("name", choices=names)
        parser_of_one.add_argument(
            "--stop-at", type=int, metavar="STEP", help="stop early; run again to go on"
        )
    for command, run, text, parents in (
        ("export", run_export, "put a trained member into the models folder", [work, models]),
        ("sample", run_sample, "let an exported model write", [models]),
    ):
        add(command, run, text, parents).add_argument("name", choices=recipe_names())
    with_bias = list(filter(has_bias, recipe_names()))
    add(
        "bias",
        run_bias,
        "fit a Markov bias on exported heads, which stay as they are",
        [work, models],
    ).add_argument("name", choices=with_bias)
    add(
        "evaluate",
        run_evaluate,
        "measure the exported members and write their cards",
        [work, models],
    )
    add(
        "make",
        run_make,
        "all of it, as far as it is not done yet",
        [corpus, work, models, compiled],
    )
    add_sampling_options(commands.choices["sample"])
    return parser


def add_command(
    commands: Any, name: str, run: Command, text: str, parents: list[argparse.ArgumentParser]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, parents=parents)
    parser.set_defaults(run=run)
    return parser


def shared_options() -> list[argparse.ArgumentParser]:
    """Parents for corpus, work, models and compiling."""
    corpus, work, models, compiled = (argparse.ArgumentParser(add_help=False) for _ in range(4))
    corpus.add_argument(
        "--corpus", type=Path, required=True, help="the folder of texts (see assets/models/DATA.md)"
    )
    work.add_argument(
        "--work", type=Path, required=True, help="where tokens and checkpoints are kept"
    )
    work.add_argument(
        "--edition",
        choices=EDITIONS,
        default=EDITIONS[0],
        help=f"whose recipes (default {EDITIONS[0]})",
    )
    work.add_argument("--device", default="cpu", help="cpu or cuda")
    models.add_argument(
        "--models",
        type=Path,
        default=MODELS,
        help="where finished models go (default assets/models)",
    )
    compiled.add_argument(
        "--compile", action="store_true", help="compile the loss first (worth it after minutes)"
    )
    return [corpus, work, models, compiled]


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="0: the likeliest token at every place"
    )
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)


def main() -> None:
    args = make_parser().parse_args()
    torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
