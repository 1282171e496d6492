"""Drafts for a model of your own: `python -m specviz.zoo.for_target COMMAND TARGET FOLDER ...`.

`dialogues` and `text` write what drafts learn from, and so does `align --export-rows`. `eagle` and `draft` train on it,
a fresh draft or your own (--start-from), and put the result into FOLDER/model. `evaluate` measures it and writes its
card. `ship` puts it into assets/models. Writing and training can be stopped; the same command continues."""

import argparse
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path

import torch

from specviz.drafters.eagle.layouts import papers_layers
from specviz.errors import SpecvizError
from specviz.models.pool import LoadedModel, ModelPool
from specviz.zoo.config import Shape
from specviz.zoo.for_target.dialogues import write_dialogues
from specviz.zoo.for_target.eagle3 import chosen_ids, fresh_head
from specviz.zoo.for_target.evaluate import evaluate
from specviz.zoo.for_target.learning import Goal, Learner, Learning, LearningPace
from specviz.zoo.for_target.own import own_draft, own_head
from specviz.zoo.for_target.plain_text import write_plain_text
from specviz.zoo.for_target.rows import stored_rows
from specviz.zoo.for_target.ship import ship
from specviz.zoo.for_target.small_draft import small_draft
from specviz.zoo.for_target.store import StoredText, read_texts

Command = Callable[[argparse.Namespace, LoadedModel], None]
PACE_WORDS = {
    "texts_per_step": "texts of a step",
    "learning_rate": "the highest learning rate",
    "warmup_steps": "steps in which the learning rate rises",
    "decay_share": "the last share of the run, in which the learning rate falls",
    "overlap_weight": "weight of the chance of a rejection in the loss, beside the cross-entropy",
    "weight_decay": "of AdamW",
    "clip_norm": "largest norm of the gradient",
    "place_weight": "how much the weights of the lab's rows count: 0 not, 1 alone",
    "average": "decay of the running average of the weights, which is what is exported",
}
_HEAD_SIZE = 32  # of the small draft's attention


def run_dialogues(args: argparse.Namespace, target: LoadedModel) -> None:
    layers = () if args.without_states else papers_layers(target)
    write_dialogues(target, args.folder, args.tokens, layers, args.seed)


def run_text(args: argparse.Namespace, target: LoadedModel) -> None:
    write_plain_text(target, args.corpus, args.files, args.folder, args.tokens, args.seed)


def run_eagle(args: argparse.Namespace, target: LoadedModel) -> None:
    texts = texts_of(args, target)
    if args.start_from:
        learner = own_head(target, args.start_from, args.depth)
    else:
        file = args.folder / "ids.json"
        ids = chosen_ids(file, texts, target.info.vocab_size, args.draft_tokens)
        learner = fresh_head(target, ids, args.depth, args.seed)
    learn(args, learner, texts)


def run_draft(args: argparse.Namespace, target: LoadedModel) -> None:
    if args.start_from:
        learner = own_draft(target, args.start_from)
    else:
        learner = small_draft(target, _shape(args, target), args.seed)
    learn(args, learner, texts_of(args, target))


def texts_of(args: argparse.Namespace, target: LoadedModel) -> list[StoredText]:
    """The texts of all data; files hold rows of the lab, which are put into FOLDER/rows."""
    folders = [
        stored_rows(target, data, args.folder) if data.is_file() else data for data in args.data
    ]
    return list(read_texts(folders))


def _shape(args: argparse.Namespace, target: LoadedModel) -> Shape:
    """The sizes of a fresh small draft."""
    widest = target.model.get_input_embeddings().weight.shape[1]
    if args.hidden % _HEAD_SIZE or not 0 < args.hidden <= widest:
        raise SpecvizError(
            f"--hidden must be a multiple of {_HEAD_SIZE} up to {widest} (got {args.hidden})"
        )
    sizes = args.hidden, args.layers, args.hidden // _HEAD_SIZE, 4 * args.hidden
    return Shape(*sizes, context=target.info.context_limit)


def learn(args: argparse.Namespace, learner: Learner, texts: list[StoredText]) -> None:
    if args.steps is args.hours is None:
        raise SpecvizError("say when the training ends: with --steps, --hours or both")
    pace = LearningPace(**{field.name: getattr(args, field.name) for field in fields(LearningPace)})
    goal = Goal(args.steps, args.hours and 3600 * args.hours)
    Learning(learner, texts, pace, args.folder, args.start_from).run(
        goal, partial(learner.export, args.folder / "model")
    )


def run_evaluate(args: argparse.Namespace, target: LoadedModel) -> None:
    print(evaluate(target, args.folder, texts_of(args, target), args.questions))


def run_ship(args: argparse.Namespace, target: LoadedModel) -> None:
    print(f"{ship(target.name, args.folder)} is the bundled draft now")


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz.zoo.for_target", description=__doc__)
    words = "CPU threads; write it before COMMAND (default 1)"
    parser.add_argument("--threads", type=int, default=1, help=words)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(
        name: str, run: Command, text: str, *parents: argparse.ArgumentParser
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, parents=[_common_options(), *parents])
        command.set_defaults(run=run)
        return command

    dialogues = add("dialogues", run_dialogues, "let the target write both sides of dialogues")
    words = "enough for `draft`, and much smaller"
    dialogues.add_argument("--without-states", action="store_true", help=words)
    text = add("text", run_text, "let the target read plain text")
    text.add_argument("corpus", type=Path, help="a folder with .txt.xz files")
    words = "which of them (default %(default)s)"
    text.add_argument("--files", default="*train.txt.xz", help=words)
    for command in (dialogues, text):
        words = "how many in all (default %(default)s)"
        command.add_argument("--tokens", type=int, default=2_000_000, help=words)
    data, training = _data_option(), _training_options()
    eagle = add("eagle", run_eagle, "train an EAGLE-3 head", data, training)
    words = "how many different tokens it can draft (default %(default)s)"
    eagle.add_argument("--draft-tokens", type=int, default=8192, help=words)
    words = "how far ahead it learns to draft (default %(default)s)"
    eagle.add_argument("--depth", type=int, default=4, help=words)
    words = "train a small Llama model with the target's vocabulary"
    draft = add("draft", run_draft, words, data, training)
    words = "width of its hidden states (default %(default)s)"
    draft.add_argument("--hidden", type=int, default=96, help=words)
    words = "how many layers it has (default %(default)s)"
    draft.add_argument("--layers", type=int, default=4, help=words)
    words = "measure what is in FOLDER/model and write its card"
    measure = add("evaluate", run_evaluate, words, data)
    words = "held-out ones to answer (default %(default)s)"
    measure.add_argument("--questions", type=int, default=20, help=words)
    words = "put FOLDER/model into assets/models, as the bundled draft of this target"
    add("ship", run_ship, words)
    return parser


def _common_options() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("target", help="name, folder or hub id of the model")
    words = "of the data or the training; `evaluate` and `ship` read it"
    common.add_argument("folder", type=Path, help=words)
    words = "of all random draws (default %(default)s)"
    common.add_argument("--seed", type=int, default=0, help=words)
    return common


def _data_option() -> argparse.ArgumentParser:
    data = argparse.ArgumentParser(add_help=False)
    words = "folders that `dialogues` and `text` have filled, and files of `align --export-rows`"
    data.add_argument("data", type=Path, nargs="+", help=words)
    return data


def _training_options() -> argparse.ArgumentParser:
    training = argparse.ArgumentParser(add_help=False)
    words = "train until so many steps, those before a stop counted in"
    training.add_argument("--steps", type=int, help=words)
    words = "train for so many hours, those before a stop counted in"
    training.add_argument("--hours", type=float, help=words)
    words = "train this draft model, or this head, on: a folder, whose form the result keeps"
    training.add_argument("--start-from", type=Path, metavar="MODEL", help=words)
    for each in fields(LearningPace):
        if each.name != "seed":
            option = f"--{each.name.replace('_', '-')}"
            words = f"{PACE_WORDS[each.name]} (default %(default)s)"
            training.add_argument(option, type=type(each.default), default=each.default, help=words)
    return training


def main() -> None:
    args = make_parser().parse_args()
    torch.set_num_threads(args.threads)
    try:
        args.run(args, ModelPool(allow_any=True).load(args.target))
    except SpecvizError as error:
        raise SystemExit(f"specviz: {error}") from None


if __name__ == "__main__":
    main()
