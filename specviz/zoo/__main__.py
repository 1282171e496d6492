"""Make the bundled models: `python -m specviz.zoo` tokenizer, prepare, train, export, evaluate, sample, in that order.

The corpus folder is only read; everything in between lies in the work folder; finished models go to `--models`."""

import argparse
from functools import partial
from pathlib import Path

import torch

from specviz.zoo.card import model_card, models_readme
from specviz.zoo.config import Recipe, load_recipe, load_tokenizer_recipe, recipe_names
from specviz.zoo.corpus import END_OF_TEXT, TokenFile, load_sources, prepare
from specviz.zoo.evaluate import evaluate, load_model
from specviz.zoo.export import Origin, export
from specviz.zoo.tokenizer import load_tokenizer, tokenizer_path, train_tokenizer, training_texts
from specviz.zoo.train import Data, Pace, Trainer, train

MODELS = Path(__file__).parents[2] / "assets" / "models"
TARGET = "fable-target"


def run_tokenizer(args: argparse.Namespace) -> None:
    recipe = load_tokenizer_recipe()
    args.work.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(training_texts(args.corpus, recipe, load_sources()), recipe.vocab_size)
    tokenizer.save(str(tokenizer_path(args.work)))


def run_prepare(args: argparse.Namespace) -> None:
    prepare(args.corpus, args.work, load_tokenizer(args.work), load_sources())


def run_train(args: argparse.Namespace) -> None:
    recipe = load_recipe(args.name)
    trainer = restore(args, recipe)
    data = Data.open(args.work, recipe, held_out_names())
    pace = Pace(compiled=args.compile, stop_at=args.stop_at)
    train(trainer, data, pace, partial(keep, args))


def restore(args: argparse.Namespace, recipe: Recipe) -> Trainer:
    """The trainer as its checkpoint left it, or a fresh one."""
    tokenizer = load_tokenizer(args.work)
    end = tokenizer.token_to_id(END_OF_TEXT)
    trainer = Trainer.start(recipe, tokenizer.get_vocab_size(), end, torch.device(args.device))
    if checkpoint(args).exists():
        trainer.load(checkpoint(args))
    return trainer


def checkpoint(args: argparse.Namespace) -> Path:
    return args.work / f"{args.name}.pt"


def keep(args: argparse.Namespace, trainer: Trainer) -> None:
    """Save the run; now and then also put its present state where the application finds it."""
    trainer.save(checkpoint(args))
    if args.export_every and trainer.step % args.export_every == 0:
        export_trainer(args, trainer)


def export_trainer(args: argparse.Namespace, trainer: Trainer) -> None:
    origin = Origin(trainer.recipe, trainer.tokens_seen)
    export(trainer.model, load_tokenizer(args.work), origin, args.models / args.name)


def run_export(args: argparse.Namespace) -> None:
    export_trainer(args, restore(args, load_recipe(args.name)))


def run_evaluate(args: argparse.Namespace) -> None:
    """Measure the target and every draft model there is; write README.md and every MODEL_CARD.md."""
    names = sorted(recipe_names(), key=lambda name: name != TARGET)
    valid = {name: TokenFile.open(args.work, name, "valid") for name in held_out_names()}
    measured = evaluate([args.models / name for name in names], valid)
    for row in measured:
        folder = args.models / row.name
        card = model_card(Origin.read(folder).recipe, row, TARGET, load_sources())
        (folder / "MODEL_CARD.md").write_text(card, encoding="utf-8")
    (args.models / "README.md").write_text(models_readme(measured), encoding="utf-8")
    print(models_readme(measured))


def held_out_names() -> list[str]:
    return [source.name for source in load_sources().values() if source.valid]


def run_sample(args: argparse.Namespace) -> None:
    model, tokenizer = load_model(args.models / args.name), load_tokenizer(args.models / args.name)
    torch.manual_seed(args.seed)
    prompt = torch.tensor([tokenizer.encode(args.prompt).ids])
    sampling = {"do_sample": True, "temperature": args.temperature} if args.temperature else {"do_sample": False}
    tokens = model.generate(prompt, max_new_tokens=args.tokens, pad_token_id=model.config.eos_token_id, **sampling)
    print(tokenizer.decode(tokens[0].tolist()))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz.zoo", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    corpus, work, models, name, device = shared_options()
    for run, text, parents in (
        (run_tokenizer, "learn the vocabulary", [corpus, work]),
        (run_prepare, "encode every source once", [corpus, work]),
        (run_train, "train a model, or go on training it", [name, work, models, device]),
        (run_export, "put a trained model into the models folder", [name, work, models, device]),
        (run_evaluate, "measure the exported models and write their cards", [work, models]),
        (run_sample, "let an exported model write", [name, models]),
    ):
        commands.add_parser(run.__name__.removeprefix("run_"), help=text, parents=parents).set_defaults(run=run)
    add_training_options(commands.choices["train"])
    add_sampling_options(commands.choices["sample"])
    return parser


def shared_options() -> list[argparse.ArgumentParser]:
    """Parents for corpus, work, models, name and device."""
    corpus, work, models, name, device = (argparse.ArgumentParser(add_help=False) for _ in range(5))
    corpus.add_argument("--corpus", type=Path, required=True, help="the folder of texts (see assets/models/DATA.md)")
    work.add_argument("--work", type=Path, required=True, help="where tokens and checkpoints are kept")
    models.add_argument("--models", type=Path, default=MODELS, help="where finished models go (default assets/models)")
    name.add_argument("name", choices=recipe_names())
    device.add_argument("--device", default="cpu", help="cpu or cuda")
    return [corpus, work, models, name, device]


def add_training_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--compile", action="store_true", help="compile the loss first (worth it from a few minutes on)"
    )
    parser.add_argument("--export-every", type=int, default=0, metavar="STEPS", help="also export while training")
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="stop early; run again to go on")


def add_sampling_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--prompt", default="Once upon a time")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)


def main() -> None:
    args = make_parser().parse_args()
    torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
