"""The command `doctor`: under which convention a draft head accepts most, and what to look at."""

from __future__ import annotations

import argparse
import sys
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.errors import SpecvizError
from specviz.models.catalog import default_pair
from specviz.views.terminal import escape
from specviz.views.words import quantity

if TYPE_CHECKING:
    from specviz.alignment.causes.head_doctor import ConventionResult, HeadDiagnosis


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("head", help="draft heads: a bundled name, a folder or a hub id")
    words = "the model that the head was trained for (default: %(default)s)"
    parser.add_argument("--target", default=default_pair()[0], help=words)
    words = "prompts that the target continues (default: the bundled ones); 48 texts, each prompt in turn"
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=words)


def run(options: argparse.Namespace) -> int:
    """0: as its files say is best; 1: another convention is clearly better. Raises SpecvizError."""
    from specviz.alignment.causes.head_doctor import HeadDoctor
    from specviz.cli.models import load_any_kind
    from specviz.models.pool import ModelPool

    pool = ModelPool()
    target = pool.load(options.target)
    heads = load_any_kind(pool, options.head, target)
    print(
        f"{escape(heads.name)}: {escape(target.name)} continues the prompts",
        file=sys.stderr,
        flush=True,
    )
    diagnosis = HeadDoctor(heads, target, _prompts(options.prompts)).examine()
    print(escape(doctor_text(diagnosis), keep="\n"))
    return 0 if diagnosis.best is None else 1


def _prompts(file: Path | None) -> list[str]:
    from specviz.alignment.causes.head_doctor import NUM_TEXTS

    if file is None:
        from specviz.prompts import prompts_file

        kinds = [[each["text"] for each in kind["prompts"]] for kind in prompts_file()["kinds"]]
        return list(chain.from_iterable(zip(*kinds, strict=False)))  # of every kind alike
    from specviz.alignment.prompts import open_prompts
    from specviz.models.chat import as_lines

    every = list(open_prompts(file).rows())
    rows = [row for row in every if not row.only_for_templates][:NUM_TEXTS]
    if others := [row for row in every if row.only_for_templates]:
        words = f"{quantity(len(others), 'row')} left out, which only a chat template writes"
        print(
            f"{escape(file.name)}: {words} (line {others[0].line}: {others[0].only_for_templates})",
            file=sys.stderr,
        )
    if any(isinstance(row.prompt, tuple) for row in rows):
        raise SpecvizError(
            f"{file.name} holds token ids as prompts: the doctor changes how texts begin, and needs texts"
        )
    if not rows:
        raise SpecvizError(f"{file.name} holds no prompt that can be written as plain text")
    return [row.prompt or as_lines(row.asked()) for row in rows]


def doctor_text(diagnosis: HeadDiagnosis) -> str:
    """The verdict first, then every convention that was tried."""
    from specviz.alignment.causes.head_doctor import SAYS

    depths = " / ".join(f"{value:.3f}" for value in diagnosis.served)
    lines = [
        f"{diagnosis.head} for {diagnosis.target}: agreement {depths} at depths 1 to {len(diagnosis.served)} "
        f"({diagnosis.num_texts} texts)"
    ]
    if (best := diagnosis.best) is None:
        lines.append("no other convention accepts more than the one that its files name")
    else:
        lines += [
            f"it accepts more with {best.words}: {_gain(best)}",
            f"look at {SAYS[best.field]}",
        ]
    width = max((len(trial.words) for trial in diagnosis.trials), default=0)
    lines += ["", "tried, by the change in agreement (mean over texts and depths)"]
    lines += [
        f"  {trial.words:<{width}}  {_gain(trial)}{' !' if trial.is_better else ''}"
        for trial in diagnosis.trials
    ]
    lines += [f"not tried: {words}" for words in diagnosis.left_out]
    return "\n".join(lines)


def _gain(trial: ConventionResult) -> str:
    return f"{trial.gain:+.3f} (p = {trial.p_value:.2g})".replace("-", "−", trial.gain < 0)
