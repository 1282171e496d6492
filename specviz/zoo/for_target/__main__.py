"""Drafts for a chat model of your own: `python -m specviz.zoo.for_target COMMAND TARGET FOLDER ...`.

`dialogues` and `text` write what drafts learn from into a folder; `eagle` and `draft` train on such folders into
another one; all of them go on where they were ended."""

import argparse
from functools import partial
from pathlib import Path

import torch

from specviz.models.library import Library, LoadedModel
from specviz.zoo.config import Shape
from specviz.zoo.for_target.learning import Goal, Learning, Pace
from specviz.zoo.for_target.small_draft import SmallDraft
from specviz.zoo.for_target.store import read_texts


def load_target(args: argparse.Namespace) -> LoadedModel:
    return Library(allow_any=True).load(args.target)


def run_draft(args: argparse.Namespace) -> None:
    target = load_target(args)
    shape = Shape(args.hidden, args.layers, args.hidden // 32, args.hidden * 8 // 3, target.info.context_limit)
    draft = SmallDraft(target, shape, seed=0)
    learning = Learning(draft, list(read_texts(args.data)), pace_of(args), args.folder / "training")
    learning.run(goal_of(args), partial(draft.export, args.folder / "model"))


def pace_of(args: argparse.Namespace) -> Pace:
    return Pace(texts_per_step=args.texts_per_step, learning_rate=args.rate, overlap_weight=args.overlap_weight)


def goal_of(args: argparse.Namespace) -> Goal:
    return Goal(args.steps, args.hours and args.hours * 3600)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz.zoo.for_target", description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("target", help="name, folder or hub id of the chat model")
    common.add_argument("folder", type=Path, help="where the work goes")
    usual = Pace()
    training = argparse.ArgumentParser(add_help=False, parents=[common])
    training.add_argument("data", type=Path, nargs="+", help="folders that `dialogues` and `text` have filled")
    training.add_argument("--steps", type=int, help="in all, earlier runs counted in")
    training.add_argument("--hours", type=float, help="in all, earlier runs counted in")
    training.add_argument("--texts-per-step", type=int, default=usual.texts_per_step)
    training.add_argument("--rate", type=float, default=usual.learning_rate, help="learning rate at its highest")
    training.add_argument("--overlap-weight", type=float, default=usual.overlap_weight)
    draft = commands.add_parser("draft", parents=[training], help="a small Llama model with the target's vocabulary")
    draft.add_argument("--hidden", type=int, default=96)
    draft.add_argument("--layers", type=int, default=4)
    draft.set_defaults(run=run_draft)
    return parser


def main() -> None:
    args = make_parser().parse_args()
    torch.set_num_threads(args.threads)
    args.run(args)


if __name__ == "__main__":
    main()
