"""The command `align`: its arguments, its progress on standard error, a short table on standard output, its exit code.

0: done, 1: below a threshold or worse than an older job, 3: cannot tell; what cannot be used raises SpecvizError.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from glob import glob, has_magic
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.alignment import executors
from specviz.alignment.summary import (
    NOT_CALLED,
    AlphaDifference,
    DraftSummary,
    Interval,
    Summary,
    natural_key,
)
from specviz.cli.ending import say
from specviz.cli.help import add_chat_options, add_k, add_sampling
from specviz.cli.output import ProgressLines, output
from specviz.errors import SpecvizError
from specviz.models.catalog import default_pair
from specviz.request import DEFAULT_K
from specviz.views.terminal import escape
from specviz.views.words import quantity

if TYPE_CHECKING:
    from specviz.alignment.job import Progress
    from specviz.alignment.tables.compare import Change
    from specviz.analysis.costs import Costs

SHOWN_LINES = 5  # of what was refused
NOT_KNOWN = "not known"
SIGNIFICANCE = {None: NOT_CALLED, False: "not significant", True: "significant"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target, draft = default_pair()
    parser.add_argument(
        "--prompts",
        type=Path,
        required=True,
        metavar="FILE",
        help="prompts or messages, as JSON, CSV, ...",
    )
    parser.add_argument(
        "--target", help=f"a name from `models`, a folder, .gguf file or hub id (default: {target})"
    )
    words = (
        "draft models or heads, likewise, also run/step-*; or METHOD:HEADS,NAME=VALUE, such as prompt_lookup or "
        f"early_exit:layers=4 (default: {draft})"
    )
    parser.add_argument("--draft", action="extend", nargs="+", help=words)
    words = "folder of the job; the same job continues there"
    parser.add_argument("--out", type=_folder, required=True, metavar="DIR", help=words)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier job there")
    parser.add_argument(
        "--keep-parts", action="store_true", help="keep the parts that let a killed job continue"
    )
    add_k(parser, ", 1 to 16 (default: %(default)s)", type=int, default=DEFAULT_K)
    add_sampling(parser)
    parser.add_argument(
        "--max-new-tokens", type=int, default=128, help="length of each text (default: %(default)s)"
    )
    parser.add_argument(
        "--chat", action="store_true", help="render every prompt with the target's chat template"
    )
    add_chat_options(parser)
    words = "texts written or read at once; fewer if they are long or memory is short (default: %(default)s)"
    parser.add_argument("--batch", type=int, default=32, help=words)
    parser.add_argument(
        "--shard-size", type=int, default=32, help="prompts per part (default: %(default)s)"
    )
    costs = parser.add_mutually_exclusive_group()
    words = "costs measured earlier: from bench --json, a list of these, or a summary.json"
    costs.add_argument("--costs", type=Path, metavar="FILE", help=words)
    costs.add_argument(
        "--no-costs", action="store_true", help="measure no costs and give no speedups"
    )
    parser.add_argument(
        "--executor",
        choices=("local", "ray"),
        default="local",
        help="where to run (default: local)",
    )
    parser.add_argument(
        "--ray-address",
        metavar="ADDRESS",
        help='"auto" or host:port; else a cluster on this machine',
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="for ray (default: one per GPU, or per CPU)"
    )
    words = "exit with 1 below this value, such as alpha=0.6"
    parser.add_argument(
        "--fail-under", action="append", default=[], metavar="NAME=NUMBER", help=words
    )
    words = "write the texts as JSON lines to train on, with a weight for each token"
    parser.add_argument("--export-rows", type=output, metavar="OUT", help=words)
    parser.add_argument(
        "--compare",
        type=Path,
        metavar="OLD.json",
        help="summary.json of an older job to compare with",
    )


def _folder(text: str) -> Path:
    if text == "-":
        raise argparse.ArgumentTypeError("must name a folder: a job writes several files (got '-')")
    return Path(text)


def run(options: argparse.Namespace) -> int:
    """0: done, 1: below a threshold or significantly worse, 3: fewer than 30 prompts in common with the older job."""
    try:
        return _run(options)
    except KeyboardInterrupt:
        from specviz.alignment.job_folder import resume_hint

        say(f"\nspecviz: stopped{resume_hint(options.out)}")
        raise


def _run(options: argparse.Namespace) -> int:
    options.draft = options.draft and [*_expand(options.draft)]
    least, executor = read_thresholds(options.fail_under), _executor(options)
    costs = {} if options.no_costs else None if options.costs is None else read_costs(options.costs)
    from specviz.alignment import outputs
    from specviz.alignment.prompts import open_prompts

    old = None if options.compare is None else outputs.read_summary(options.compare)
    prompts = open_prompts(options.prompts)
    from specviz.alignment.job import align  # it loads torch
    from specviz.alignment.tables.compare import check_threshold_names
    from specviz.request import Request, read_options
    from specviz.session.workbench import workbench

    drafts = map(workbench().pool.shown_name, options.draft or default_pair()[1:])
    steady = {name for name, own in (costs or {}).items() if not own.doubt}
    check_threshold_names(least, has_costs=costs is None or set(drafts) <= steady)
    names = ("out", "k", *Request.SAMPLING, "seed", "max_new_tokens", "chat")
    names += ("batch", "shard_size", "limit", "overwrite", "keep_parts")
    settings = {name: getattr(options, name) for name in ("target", "draft", *names)}
    settings["chat_options"] = read_options(options.chat_option)
    lines = ProgressLines()

    def tell(progress: Progress) -> None:
        if progress.result is None:
            lines.print(progress.words, progress_line(progress))

    done = align(prompts, **settings, costs=costs, executor=executor, older=old, on_progress=tell)
    _print([summary_text(done.summary), "", f"report: {done.report_path}"])
    if options.export_rows is not None:
        from specviz.alignment.training_rows import training_lines

        options.export_rows.write_lines(training_lines(done, islice(prompts.rows(), options.limit)))
    return print_verdict(done.summary, least, old)


def _expand(names: Sequence[str]) -> Iterator[str]:
    """Each name, or what a pattern such as run/step-* fits, in natural order. SpecvizError where it fits nothing."""
    for name in names:
        if not has_magic(name):
            yield name
            continue
        if not (found := glob(str(Path(name).expanduser()))):
            raise SpecvizError(
                f"no checkpoint fits the pattern {name!r:.200}: name folders such as run/step-*"
            )
        yield from sorted(found, key=natural_key)


def print_verdict(summary: Summary, least: Mapping[str, float], old: Summary | None) -> int:
    """Prints what is below a threshold, then each draft against the older job; returns the exit code."""
    from specviz.alignment.tables import compare as comparing

    failed = comparing.check_thresholds(summary, least)
    _print([*failed, *(f"note: {words}" for words in comparing.unreadable_words(summary, least))])
    try:
        changes = () if old is None else comparing.compare_with_old(summary, old)
    except SpecvizError as error:
        if not failed:
            raise
        _print([f"note: {error}"])
        return 1
    compared = {change.draft for change in changes}
    new = [draft.name for draft in summary.drafts if old is not None and draft.name not in compared]
    notes = (f"note: {name} is not in the older job, so it is not compared" for name in new)
    _print([*map(change_line, changes), *notes])
    return exit_code(failed, changes)


def exit_code(failed: Sequence[str], changes: Sequence[Change]) -> int:
    from specviz.alignment.tables.compare import UNSURE, WORSE

    verdicts = {change.verdict for change in changes}
    return 1 if failed or WORSE in verdicts else 3 if UNSURE in verdicts else 0


def read_thresholds(pairs: Sequence[str]) -> dict[str, float]:
    """The thresholds of NAME=NUMBER pairs. Raises SpecvizError, before anything is loaded."""
    from specviz.alignment.tables.compare import MEASURES

    least = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if name not in MEASURES:
            words = f"--fail-under takes NAME=NUMBER with a name of {', '.join(MEASURES)}"
            raise SpecvizError(f"{words} (got {pair!r:.80})")
        try:
            least[name] = float(number)
        except ValueError:
            least[name] = math.nan
        if not math.isfinite(least[name]):
            raise SpecvizError(f"--fail-under takes NAME=NUMBER (got {pair!r:.80})")
    return least


def read_costs(path: Path) -> dict[str, Costs]:
    """Costs by draft, from a JSON file of one, of several in a list or by draft, or of a job's summary with its own.

    Raises SpecvizError.
    """
    from specviz.alignment.outputs import read_values
    from specviz.analysis.costs import Costs

    values = read_values(path)
    try:
        found = [Costs.from_dict(each) for each in _each_costs(values)]
    except SpecvizError as error:
        raise SpecvizError(
            f"{path.name} does not hold costs as bench --costs --json writes them: {error}"
        ) from error
    costs = {own.draft: own for own in found if own.draft is not None}
    if not found or len(costs) < len(found):
        raise SpecvizError(
            f"{path.name} must hold the costs of at least one draft, and of each only once"
        )
    return costs


def _each_costs(values: Any) -> Sequence[Any]:
    if isinstance(values, Mapping) and isinstance(values.get("costs"), Mapping):
        values = values["costs"]
    if isinstance(values, Mapping) and all(isinstance(each, Mapping) for each in values.values()):
        return list(values.values())
    return values if isinstance(values, list) else [values]


def _executor(options: argparse.Namespace) -> executors.Executor:
    if options.executor == "local":
        if options.ray_address is not None or options.workers is not None:
            raise SpecvizError("--ray-address and --workers need --executor ray")
        return executors.local
    if options.workers is not None and options.workers < 1:
        raise SpecvizError(f"--workers must be at least 1 (got {options.workers})")
    return partial(executors.on_ray, options.ray_address, options.workers)


def progress_line(progress: Progress) -> str:
    words = [f"{progress.words}: {progress.done:,} of {progress.total:,} prompts"]
    if progress.tokens_per_s is not None:
        words.append(f"{progress.tokens_per_s:,.0f} tokens/s")
    if progress.seconds_left is not None:
        words.append(f"{_duration(progress.seconds_left)} left")
    return ", ".join(words)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )


def _print(lines: Sequence[str]) -> None:
    if lines:
        print(escape("\n".join(lines), keep="\n"))


# ---- the summary as text: what is not known is said in words, never as a number --------------------------------------


def summary_text(summary: Summary) -> str:
    """The drafts' numbers, what is wrong with them, how they compare, what was left out."""
    lines = [
        f"{summary.target}: {quantity(summary.num_prompts, 'prompt')}, {quantity(summary.num_tokens, 'token')}",
        summary.note,
        "",
        *_table(summary),
        "agreement: sum min(p, q), p = the target's probability, q = the draft's; the paper calls its mean alpha",
        *(
            f"! {draft.name}: {finding.words}"
            for draft in summary.drafts
            for finding in draft.findings
        ),
        *_comparisons(summary),
        *(f"note: {warning}" for warning in summary.warnings),
    ]
    if summary.num_refused:
        lines.append(f"{quantity(summary.num_refused, 'row')} could not be used:")
        lines += [f"  line {line}: {reason}" for line, reason in summary.refused[:SHOWN_LINES]]
    return "\n".join(lines)


def _table(summary: Summary) -> list[str]:
    per_call = f"tokens per target call, K={summary.k}"
    head = (
        "draft",
        "agreement, 95 %",
        "most likely accepted",
        per_call,
        "with most likely",
        "best K",
        "speedup",
    )
    rows = [head, *(_row(draft, summary.k) for draft in summary.drafts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _row(draft: DraftSummary, k: int) -> tuple[str, ...]:
    best = (
        NOT_KNOWN
        if draft.best_k is None
        else "-".join(str(each) for each in dict.fromkeys(draft.best_k))
    )
    speedup = "no costs" if draft.speedups is None else f"{max(draft.speedups):.2f}x"
    cells = (
        f"{_format(draft.alpha, '.3f')}{_format_interval(draft.alpha_interval)}",
        _format(draft.by_argmax and draft.by_argmax.alpha, ".3f"),
        _format(draft.tokens_per_call[k - 1], ".2f"),
        _format(draft.by_argmax and draft.by_argmax.tokens_per_call[k - 1], ".2f"),
    )
    return (draft.name, *cells, best, speedup)


def _format(value: float | None, form: str) -> str:
    return NOT_KNOWN if value is None else format(value, form)


def _format_interval(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"


def _comparisons(summary: Summary) -> list[str]:
    pairs = (
        (each, _difference(each.slices[0]) if each.slices else NOT_KNOWN)
        for each in summary.comparisons
    )
    return [
        f"{each.a} minus {each.b}: {found}{f'; {each.words}' if each.words else ''}"
        for each, found in pairs
    ]


def _difference(found: AlphaDifference) -> str:
    number = f"{found.difference:+.3f}".replace("-", "−") + _format_interval(found.interval)
    return f"agreement {number}, n = {quantity(found.num_prompts, 'prompt')}, {SIGNIFICANCE[found.significant]}"


def change_line(change: Change) -> str:
    """A draft against the older job."""
    old = "" if change.old_draft == change.draft else f" (then {change.old_draft})"
    if not old and change.is_same_model is False:
        old = " (weights or settings have changed)"
    return f"{change.draft} against the older job{old}: {change.verdict}; {_difference(change.difference)}"
