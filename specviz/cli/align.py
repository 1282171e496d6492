"""The command `align`: its arguments, its progress on standard error, a short table on standard output, its exit code.

Exit codes: 0 done, 1 below a threshold or worse than an older job, 3 cannot tell. Bad input raises SpecvizError.
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
    LOGPROBS,
    NEW_TOKENS,
    NOT_CALLED,
    TIMEOUT_S,
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
from specviz.models.catalog import default_pair, is_url
from specviz.request import DEFAULT_K, check_whole
from specviz.views.terminal import escape
from specviz.views.words import quantity

if TYPE_CHECKING:
    from specviz.alignment.job import Progress
    from specviz.alignment.tables.compare import Change
    from specviz.analysis.costs import Costs

NUM_PROBS = 32  # of a place in a training row
MOST_PROBS = 4096
FINDINGS = "findings"
FAIL_ON = ("broken", FINDINGS)
SHOWN_LINES = 5  # of what was refused
NOT_KNOWN = "not known"
SIGNIFICANCE = {None: NOT_CALLED, False: "not significant", True: "significant"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    _add_inputs(parser)
    _add_texts(parser)
    _add_amounts(parser)
    _add_results(parser)


def _add_inputs(parser: argparse.ArgumentParser) -> None:
    """Adds the options for prompts, models and the job's folder."""
    target, draft = default_pair()
    words = "prompts or messages, as JSON, CSV, ..."
    parser.add_argument("--prompts", type=Path, metavar="FILE", help=words)
    words = "stored states of the target, as vLLM's extract_hidden_states writes them: its layers are not loaded"
    parser.add_argument("--states", type=Path, metavar="DIR", help=words)
    words = "the layers in these files, the last one included, such as 2,18,33,36"
    parser.add_argument("--state-layers", type=_layers, metavar="N,N", help=words)
    words = f"a name from `models`, a folder, .gguf file, hub id or a server's address (default: {target})"
    parser.add_argument("--target", help=words)
    words = (
        "draft models or heads, likewise, also run/step-*; or METHOD:HEADS,NAME=VALUE, such as prompt_lookup or "
        f"early_exit:layers=4 (default: {draft})"
    )
    parser.add_argument("--draft", action="extend", nargs="+", help=words)
    words = "folder of the job; the same job continues there"
    parser.add_argument("--out", type=_folder, required=True, metavar="DIR", help=words)
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--overwrite", action="store_true", help="replace an earlier job there")
    words = "keep the parts that let a killed job continue"
    parser.add_argument("--keep-parts", action="store_true", help=words)


def _add_texts(parser: argparse.ArgumentParser) -> None:
    """Adds the options for how the texts are drafted and written."""
    add_k(parser, ", 1 to 16 (default: %(default)s)", type=int, default=DEFAULT_K)
    add_sampling(parser)
    words = "length of each text (default: %(default)s)"
    parser.add_argument("--max-new-tokens", type=int, default=NEW_TOKENS, help=words)
    words = "render every prompt with the target's chat template"
    parser.add_argument("--chat", action="store_true", help=words)
    add_chat_options(parser)


def _add_amounts(parser: argparse.ArgumentParser) -> None:
    """Adds the options for how much is done at once, at what costs, and where."""
    words = (
        "texts written or read at once, fewer if they are long or memory is short; requests at once to servers "
        "(default: %(default)s)"
    )
    parser.add_argument("--batch", type=int, default=32, help=words)
    words = "prompts per part (default: %(default)s)"
    parser.add_argument("--shard-size", type=int, default=32, help=words)
    words = "for servers: likeliest tokens that they name at each place (default: %(default)s)"
    parser.add_argument("--logprobs", type=int, default=LOGPROBS, metavar="N", help=words)
    words = "for servers: seconds to wait for an answer (default: %(default)s)"
    parser.add_argument("--timeout", type=int, default=TIMEOUT_S, metavar="SECONDS", help=words)
    costs = parser.add_mutually_exclusive_group()
    words = "costs measured earlier: from bench costs --json, a list of these, or a summary.json"
    costs.add_argument("--costs", type=Path, metavar="FILE", help=words)
    words = "measure no costs and give no speedups"
    costs.add_argument("--no-costs", action="store_true", help=words)
    words = "where to run (default: local)"
    parser.add_argument("--executor", choices=("local", "ray"), default="local", help=words)
    words = '"auto" or host:port; else a cluster on this machine'
    parser.add_argument("--ray-address", metavar="ADDRESS", help=words)
    words = "for ray (default: one per GPU, or per CPU)"
    parser.add_argument("--workers", type=int, metavar="N", help=words)


def _add_results(parser: argparse.ArgumentParser) -> None:
    """Adds the options for what is done with the results."""
    words = "exit with 1 where a draft is broken, or where any fault is found"
    parser.add_argument("--fail-on", choices=FAIL_ON, help=words)
    words = "exit with 1 below this value, such as alpha=0.6"
    parser.add_argument(
        "--fail-under", action="append", default=[], metavar="NAME=NUMBER", help=words
    )
    words = (
        "write the texts as JSON lines to train on: the target's probabilities at every place, and how often the "
        "draft is rejected there"
    )
    parser.add_argument("--export-rows", type=output, metavar="OUT", help=words)
    words = "the likeliest tokens that a row holds for each place; 0: none (default: %(default)s)"
    parser.add_argument("--export-probs", type=int, default=NUM_PROBS, metavar="N", help=words)
    words = "a sound ancestor of the drafts, of the same shape: says which tensors differ and what they cost"
    parser.add_argument("--reference", metavar="MODEL", help=words)
    words = (
        "what an engine counted with this draft (its answers, log, metrics or bench result): says whether the files "
        "allow more, and what may lie between"
    )
    parser.add_argument("--served", type=Path, metavar="FILE", help=words)
    words = "summary.json of an older job to compare with"
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help=words)


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(",")))
    except ValueError:
        words = f"must be numbers such as 2,18,33,36 (got {text!r:.80})"
        raise argparse.ArgumentTypeError(words) from None


def _folder(text: str) -> Path:
    if text == "-":
        raise argparse.ArgumentTypeError("must name a folder: a job writes several files (got '-')")
    return Path(text)


def run(options: argparse.Namespace) -> int:
    """Runs the job and returns the exit code.

    It is 0 when done, 1 below a threshold or significantly worse, 3 with fewer than 30 prompts in common with the older
    job.
    """
    try:
        return _run(options)
    except KeyboardInterrupt:
        from specviz.alignment.job_folder import resume_hint

        say(f"\nspecviz: stopped{resume_hint(options.out)}")
        raise


def _run(options: argparse.Namespace) -> int:
    if options.draft:
        options.draft = list(_expand(options.draft))
    options.target = _target(options)
    thresholds = read_thresholds(options.fail_under)
    executor = _executor(options)
    costs = None if options.costs is None else read_costs(options.costs)
    if options.no_costs:
        costs = {}
    check_whole("--export-probs", options.export_probs, 0, MOST_PROBS)
    from specviz.alignment import outputs
    from specviz.alignment.prompts import open_prompts

    old = None if options.compare is None else outputs.read_summary(options.compare)
    prompts = None if options.prompts is None else open_prompts(options.prompts)
    from specviz.alignment.job import align  # it loads torch
    from specviz.request import Request, read_options

    _check_threshold_names(thresholds, options.draft, costs)
    names = ["out", "k", *Request.SAMPLING, "seed", "max_new_tokens", "chat"]
    names += ["target", "draft", "batch", "shard_size", "limit", "overwrite", "keep_parts"]
    settings = {name: getattr(options, name) for name in names}
    settings |= {"reference": options.reference, "logprobs": options.logprobs}
    settings |= {"timeout_s": options.timeout, "served": options.served}
    settings["chat_options"] = read_options(options.chat_option)
    lines = ProgressLines()

    def print_progress(progress: Progress) -> None:
        if progress.result is None:
            lines.print(progress.words, progress_line(progress))

    result = align(
        prompts,
        **settings,
        costs=costs,
        executor=executor,
        older=old,
        on_progress=print_progress,
    )
    _print([summary_text(result.summary), "", f"report: {result.report_path}"])
    if options.export_rows is not None:
        from specviz.alignment.training_rows import training_lines

        rows = islice(prompts.rows(), options.limit)
        with executor() as run_each:
            written = training_lines(
                result, rows, run_each, num_probs=options.export_probs, batch=options.batch
            )
            options.export_rows.write_lines(_counted(written, lines))
    return print_verdict(result.summary, thresholds, old, options.fail_on)


def _target(options: argparse.Namespace) -> Any:
    """The target, with its stored states if there are any.

    Raises SpecvizError where there are neither prompts nor states, and for what states alone cannot do.
    """
    if options.states is None:
        if options.state_layers is not None:
            raise SpecvizError(
                "--state-layers names the layers of stored states: it needs --states"
            )
        if options.prompts is None:
            raise SpecvizError("name the prompts (--prompts FILE), or stored states (--states DIR)")
        if is_url(options.target):
            _refuse_options(options, "needs the weights here, and these models are served")
        return options.target
    if options.state_layers is None:
        raise SpecvizError(
            "files of states do not say which layers they hold: --state-layers must name them, as vLLM was told them "
            "(eagle_aux_hidden_state_layer_ids)"
        )
    _refuse_options(options, "needs the target's weights: leave out --states")
    from specviz.alignment.states.target import WithStates

    target = options.target or default_pair()[0]
    return WithStates(target, options.states, options.state_layers)


def _refuse_options(options: argparse.Namespace, why: str) -> None:
    """Raises SpecvizError for an option that needs weights, where they are not here. why: goes on after its name."""
    for name in ("fail_on", "export_rows", "reference"):
        if getattr(options, name) is not None:
            raise SpecvizError(f"--{name.replace('_', '-')} {why}")


def _counted(written: Iterator[str], lines: ProgressLines) -> Iterator[str]:
    """The lines as they come, with a word on how many there are."""
    words = "writing rows to train on"
    for number, line in enumerate(written):
        lines.print(words, f"{words}: {number:,}")
        yield line


def _check_threshold_names(
    thresholds: Mapping[str, float], drafts: list[str] | None, costs: Mapping[str, Costs] | None
) -> None:
    """Raises SpecvizError for a threshold that this job cannot compare with, as it has no costs for all drafts."""
    from specviz.alignment.tables.compare import check_threshold_names
    from specviz.session.workbench import workbench

    has_costs = True
    if costs is not None:
        names = {workbench().pool.shown_name(name) for name in drafts or default_pair()[1:]}
        steady = {name for name, measured in costs.items() if not measured.doubt}
        has_costs = names <= steady
    check_threshold_names(thresholds, has_costs=has_costs)


def _expand(names: Sequence[str]) -> Iterator[str]:
    """Yields each name; for a pattern such as run/step-* the folders that fit it, in natural order.

    Raises SpecvizError where none fits.
    """
    for name in names:
        if is_url(name) or not has_magic(name):
            yield name
            continue
        found = glob(str(Path(name).expanduser()))
        if not found:
            raise SpecvizError(
                f"no checkpoint fits the pattern {name!r:.200}: name folders such as run/step-*"
            )
        yield from sorted(found, key=natural_key)


def print_verdict(
    summary: Summary, least: Mapping[str, float], old: Summary | None, fail_on: str | None = None
) -> int:
    """Prints the values below a threshold, then each draft against the older job; returns the exit code.

    fail_on: one of FAIL_ON.
    """
    from specviz.alignment.tables import compare as comparing

    failed = [*comparing.check_thresholds(summary, least), *_failed_on(summary, fail_on)]
    notes = [f"note: {words}" for words in comparing.unreadable_words(summary, least)]
    _print([*failed, *notes])
    if old is None:
        return exit_code(failed, ())
    try:
        changes = comparing.compare_with_old(summary, old)
    except SpecvizError as error:
        if not failed:
            raise
        _print([f"note: {error}"])
        return 1
    lines = [change_line(change) for change in changes]
    compared = {change.draft for change in changes}
    for draft in summary.drafts:
        if draft.name not in compared:
            lines.append(f"note: {draft.name} is not in the older job, so it is not compared")
    _print(lines)
    return exit_code(failed, changes)


def _failed_on(summary: Summary, fail_on: str | None) -> list[str]:
    """The drafts that --fail-on refuses, in words. It refuses what could not be judged, too."""
    if fail_on is None:
        return []
    from specviz.alignment.causes.verdict import BROKEN

    words = []
    for draft in summary.drafts:
        if draft.verdict is None:
            words.append(
                f"{draft.name}: too few texts to tell whether it is sound (--fail-on {fail_on})"
            )
        elif draft.verdict == BROKEN or (fail_on == FINDINGS and draft.findings):
            found = quantity(len(draft.findings), "finding")
            words.append(f"{draft.name} is {draft.verdict}, with {found} (--fail-on {fail_on})")
    return words


def exit_code(failed: Sequence[str], changes: Sequence[Change]) -> int:
    from specviz.alignment.tables.compare import UNSURE, WORSE

    verdicts = {change.verdict for change in changes}
    if failed or WORSE in verdicts:
        return 1
    return 3 if UNSURE in verdicts else 0


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
    """Reads costs by draft from a JSON file: costs of one draft, of several in a list or by draft, or a job's summary.

    Raises SpecvizError.
    """
    from specviz.alignment.outputs import read_values
    from specviz.analysis.costs import Costs

    values = read_values(path)
    try:
        found = [Costs.from_dict(entry) for entry in _cost_entries(values)]
    except SpecvizError as error:
        raise SpecvizError(
            f"{path.name} does not hold costs as bench costs --json writes them: {error}"
        ) from error
    costs = {measured.draft: measured for measured in found if measured.draft is not None}
    if not found or len(costs) < len(found):
        raise SpecvizError(
            f"{path.name} must hold the costs of at least one draft, and of each only once"
        )
    return costs


def _cost_entries(values: Any) -> Sequence[Any]:
    """The values that should be costs of one draft each."""
    if isinstance(values, Mapping) and isinstance(values.get("costs"), Mapping):
        values = values["costs"]
    if isinstance(values, Mapping) and all(isinstance(entry, Mapping) for entry in values.values()):
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
    words = [progress.how_far]
    if progress.tokens_per_s is not None:
        words.append(f"{progress.tokens_per_s:,.0f} tokens/s")
    if progress.seconds_left is not None:
        words.append(f"{_duration(progress.seconds_left)} left")
    return ", ".join(words)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _print(lines: Sequence[str]) -> None:
    if lines:
        print(escape("\n".join(lines), keep="\n"))


# ---- the summary as text: what is not known is said in words, never as a number --------------------------------------


def summary_text(summary: Summary) -> str:
    """The summary as text: the drafts' numbers, their faults, how they compare, and what was left out."""
    lines = [
        f"{summary.target}: {quantity(summary.num_prompts, 'prompt')}, {quantity(summary.num_tokens, 'token')}",
        summary.note,
        "",
        *_verdicts(summary),
        *_table(summary),
        "agreement: sum min(p, q), p = the target's probability, q = the draft's; the paper calls its mean alpha",
        *_served_lines(summary),
    ]
    lines += _comparisons(summary)
    lines += [f"note: {warning}" for warning in summary.warnings]
    if summary.num_refused:
        lines.append(f"{quantity(summary.num_refused, 'row')} could not be used:")
        lines += [f"  line {line}: {reason}" for line, reason in summary.refused[:SHOWN_LINES]]
    return "\n".join(lines)


def _verdicts(summary: Summary) -> list[str]:
    """The verdict on each draft beside the floors, then its faults and the next step."""
    from specviz.alignment.causes.verdict import floor_words, loss_words

    lines = []
    for draft in summary.drafts:
        if draft.verdict is not None:
            lost = loss_words(draft.alpha, draft.findings)
            lines.append(f"{draft.name} is {draft.verdict}: agreement {draft.alpha:.3f}; {lost}")
        lines += [f"! {draft.name}: {finding.words}" for finding in draft.findings]
        if draft.next_step:
            lines.append(f"  next: {draft.next_step}")
    if summary.floors is not None:
        lines.append(floor_words(summary.floors))
    return [*lines, ""] if lines else []


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
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _served_lines(summary: Summary) -> Iterator[str]:
    """What an engine counted, beside what the files allow."""
    served = summary.as_served
    if served is None:
        return
    from specviz.alignment.served.beside import WAYS, tokens_words

    counters = served.counters
    yield (
        f"as served ({counters.source}, {counters.num_steps:,.0f} steps): {counters.tokens_per_step:.2f} tokens per "
        f"step{_positions(counters.by_position)}"
    )
    for way in served.allowed:
        positions = _positions(way.by_position)
        yield f"these files, {WAYS[way.by_argmax]} tokens: {tokens_words(way)}{positions}"


def _positions(shares: Sequence[float]) -> str:
    if not shares:
        return ""
    return f"; accepted by position {', '.join(f'{share:.2f}' for share in shares)}"


def _row(draft: DraftSummary, k: int) -> tuple[str, ...]:
    best_k = NOT_KNOWN
    if draft.best_k is not None:
        low, high = draft.best_k
        best_k = f"{low}" if low == high else f"{low}-{high}"
    most_likely = draft.by_argmax
    return (
        draft.name,
        f"{_format(draft.alpha, '.3f')}{_format_interval(draft.alpha_interval)}",
        _format(None if most_likely is None else most_likely.alpha, ".3f"),
        _format(draft.tokens_per_call[k - 1], ".2f"),
        _format(None if most_likely is None else most_likely.tokens_per_call[k - 1], ".2f"),
        best_k,
        "no costs" if draft.speedups is None else f"{max(draft.speedups):.2f}x",
    )


def _format(value: float | None, form: str) -> str:
    return NOT_KNOWN if value is None else format(value, form)


def _format_interval(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"


def _comparisons(summary: Summary) -> list[str]:
    lines = []
    for pair in summary.comparisons:
        words = _difference(pair.slices[0]) if pair.slices else NOT_KNOWN
        if pair.words:
            words += f"; {pair.words}"
        lines.append(f"{pair.a} minus {pair.b}: {words}")
    return lines


def _difference(measured: AlphaDifference) -> str:
    number = f"{measured.difference:+.3f}".replace("-", "−")
    number += _format_interval(measured.interval)
    n = quantity(measured.num_prompts, "prompt")
    return f"agreement {number}, n = {n}, {SIGNIFICANCE[measured.significant]}"


def change_line(change: Change) -> str:
    """A line that compares a draft with the older job."""
    old = "" if change.old_draft == change.draft else f" (then {change.old_draft})"
    if not old and change.is_same_model is False:
        old = " (weights or settings have changed)"
    return f"{change.draft} against the older job{old}: {change.verdict}; {_difference(change.difference)}"
