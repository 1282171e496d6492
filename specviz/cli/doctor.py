"""The command `doctor`: whether one draft or head is sound for a target, and what is wrong with it if not."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from specviz.cli.help import add_chat_options
from specviz.cli.output import ProgressLines
from specviz.errors import SpecvizError
from specviz.models.catalog import default_pair
from specviz.views.terminal import escape

if TYPE_CHECKING:
    from specviz.alignment.causes.verdict import Verdict
    from specviz.alignment.summary import Examined
    from specviz.alignment.types import PromptRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    words = "draft heads or a draft model: a bundled name, a folder or a hub id, or METHOD:HEADS"
    parser.add_argument("draft", help=words)
    words = "the model that it drafts for (default: %(default)s)"
    parser.add_argument("--target", default=default_pair()[0], help=words)
    words = (
        "prompts that the target continues, as for align; the first 24 (default: the bundled ones)"
    )
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=words)
    words = "render every prompt with the target's chat template"
    parser.add_argument("--chat", action="store_true", help=words)
    add_chat_options(parser)


def run(options: argparse.Namespace) -> int:
    """Returns 0 for a sound or a weak draft, 1 for a broken one. Raises SpecvizError."""
    from specviz.alignment.causes.probes import FEWEST_TEXTS, NUM_TOKENS, steps
    from specviz.alignment.causes.verdict import BROKEN, verdict_of
    from specviz.alignment.model_identity import identify
    from specviz.alignment.summary import Examined
    from specviz.alignment.types import Shard
    from specviz.models.chat import has_chat_form
    from specviz.models.pool import ModelPool
    from specviz.request import Request, read_options

    pool = ModelPool()
    rows = _rows(options.prompts)
    models = identify([options.target, options.draft], pool)
    target, draft = (model.name for model in models)
    chat_options = read_options(options.chat_option)
    request = Request(
        prompt="of a file",
        target=target,
        max_new_tokens=NUM_TOKENS,
        chat=options.chat or bool(chat_options),
        chat_options=chat_options,
    ).validate()
    lines = ProgressLines()
    lines.print(target, f"{target} continues the prompts")
    for step in steps(Shard(request, (draft,), rows, {}, models=models), pool):
        if isinstance(step, Examined):
            examined = step
        else:
            lines.print(
                step.draft, f"looking for faults in {step.draft}: {step.num_trials:,} trials"
            )
    if draft not in examined.agreements:
        raise SpecvizError(
            f"a draft is examined on at least {FEWEST_TEXTS} texts that it can read (got {len(rows)} prompts)"
        )
    verdict = verdict_of(examined.agreements[draft], examined.floors, examined.findings)
    may_chat = not request.chat and has_chat_form(pool.load(options.target).tokenizer)
    print(escape(doctor_text(draft, target, examined, verdict, may_chat=may_chat), keep="\n"))
    return 1 if verdict == BROKEN else 0


def _rows(file: Path | None) -> tuple[PromptRow, ...]:
    from specviz.alignment.causes.probes import NUM_TEXTS
    from specviz.alignment.prompts import from_values, open_prompts

    if file is not None:
        return tuple(open_prompts(file).rows())[:NUM_TEXTS]
    from specviz.prompts import prompts_file

    kinds = [[prompt["text"] for prompt in kind["prompts"]] for kind in prompts_file()["kinds"]]
    texts = list(chain.from_iterable(zip(*kinds, strict=False)))  # of every kind alike
    times = -(-NUM_TEXTS // len(texts))  # another text is drawn behind each
    return tuple(from_values((texts * times)[:NUM_TEXTS]).rows())


def doctor_text(
    draft: str, target: str, examined: Examined, verdict: Verdict, *, may_chat: bool = False
) -> str:
    """The verdict first, then the floors, the faults, the next step and what was looked for.

    may_chat: whether the target has a chat format that was not used.
    """
    from specviz.alignment.causes.verdict import SOUND, floor_words, loss_words, next_step

    agreement = examined.agreements[draft]
    next_words = next_step(verdict, examined.findings)
    if verdict != SOUND and may_chat and not examined.findings:
        next_words = (
            f"add --chat: {target} is a chat model, and drafts for one learn from its chats"
        )
    lines = [
        f"{draft} for {target} is {verdict}: agreement {agreement:.3f}; "
        f"{loss_words(agreement, examined.findings)}",
        floor_words(examined.floors),
        *(f"! {finding.words}" for finding in examined.findings),
        f"next: {next_words}",
        *(f"note: {words}" for words in examined.warnings),
        f"looked for: {', '.join(examined.looked_for)}",
    ]
    return "\n".join(lines)
