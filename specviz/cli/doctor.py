"""The command `doctor`: the convention under which a draft head accepts most, and what to look at."""

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
    """Returns 0 where the convention of the files is best, 1 where another one is clearly better.

    Raises SpecvizError.
    """
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

        kinds = []
        for kind in prompts_file()["kinds"]:
            kinds.append([prompt["text"] for prompt in kind["prompts"]])
        return list(chain.from_iterable(zip(*kinds, strict=False)))  # of every kind alike
    from specviz.alignment.prompts import open_prompts
    from specviz.models.chat import as_lines

    all_rows = list(open_prompts(file).rows())
    rows = [row for row in all_rows if not row.only_for_templates][:NUM_TEXTS]
    left_out = [row for row in all_rows if row.only_for_templates]
    if left_out:
        first = f"line {left_out[0].line}: {left_out[0].only_for_templates}"
        words = f"{quantity(len(left_out), 'row')} left out, which only a chat template writes"
        print(f"{escape(file.name)}: {words} ({first})", file=sys.stderr)
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
    best = diagnosis.best
    if best is None:
        lines.append("no other convention accepts more than the one that its files name")
    else:
        lines.append(f"it accepts more with {best.words}: {_gain(best)}")
        lines.append(f"look at {SAYS[best.field]}")
    width = max((len(trial.words) for trial in diagnosis.trials), default=0)
    lines += ["", "tried, by the change in agreement (mean over texts and depths)"]
    for trial in diagnosis.trials:
        mark = " !" if trial.is_better else ""
        lines.append(f"  {trial.words:<{width}}  {_gain(trial)}{mark}")
    lines += [f"not tried: {words}" for words in diagnosis.left_out]
    return "\n".join(lines)


def _gain(trial: ConventionResult) -> str:
    gain = f"{trial.gain:+.3f}".replace("-", "−")
    return f"{gain} (p = {trial.p_value:.2g})"
