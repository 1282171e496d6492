"""The command `align`: its arguments, its progress on standard error, a short table on standard output, its exit code.

0: done, 1: below a threshold or worse than an older job, 3: cannot tell; what cannot be used raises SpecvizError.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..catalog import default_pair
from ..errors import SpecvizError
from ..views.terminal import neutral

if TYPE_CHECKING:
    from ..costing import Costs
    from .comparing import Change
    from .executors import Executor
    from .summary import Difference, DraftSummary, Interval, Summary
    from .working import Progress

PAUSE_S = 1.0  # between two lines of progress
SHOWN_LINES = 5  # of what was refused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    target, draft = default_pair()
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="JSON lines: prompt or messages")
    parser.add_argument("--target", help=f"a bundled name, a folder or a hub id (default: {target})")
    parser.add_argument(
        "--draft", action="append", help=f"a draft model, likewise; may be given again (default: {draft})"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="of the job; the same job goes on there")
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts")
    parser.add_argument("--overwrite", action="store_true", help="start over where an earlier job lies")
    parser.add_argument("--keep-parts", action="store_true", help="keep the parts that a killed job goes on from")
    _add_sampling(parser)
    _add_work(parser)
    _add_verdict(parser)
    parser.set_defaults(command=run)


def _add_sampling(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--k", type=int, default=4, help="tokens drafted per step, 1 to 16 (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-new-tokens", type=int, default=128, help="of each text (default: %(default)s)")
    parser.add_argument("--chat", action="store_true", help="render every prompt with the target's chat template")


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=32, help="texts that are read at once (default: %(default)s)")
    parser.add_argument("--shard-size", type=int, default=32, help="prompts per part (default: %(default)s)")
    costs = parser.add_mutually_exclusive_group()
    costs.add_argument("--costs", type=Path, metavar="FILE", help="measured elsewhere: JSON, one for each draft")
    costs.add_argument("--no-costs", action="store_true", help="measure none, and tell no speedups")
    parser.add_argument("--executor", choices=("local", "ray"), default="local")
    parser.add_argument("--ray-address", metavar="ADDRESS", help='"auto" or host:port; else a cluster of this machine')
    parser.add_argument("--workers", type=int, metavar="N", help="of ray (default: one per GPU, or per CPU)")


def _add_verdict(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--fail-under", action="append", default=[], metavar="NAME=NUMBER", help="end with 1 below it, as alpha=0.6"
    )
    parser.add_argument("--compare", type=Path, metavar="OLD.json", help="summary.json of an older job to compare with")


def run(options: argparse.Namespace) -> int:
    """0: done, 1: below a threshold or significantly worse, 3: fewer than 30 prompts in common with the older job."""
    least = thresholds(options.fail_under)
    from . import comparing, outputs
    from .aligning import align

    old = None if options.compare is None else outputs.read_json(options.compare)
    names = ("target", "draft", "out", "k", "temperature", "top_k", "top_p", "seed", "max_new_tokens", "chat")
    names += ("batch", "shard_size", "limit", "overwrite", "keep_parts")
    settings = {name: getattr(options, name) for name in names}
    done = align(options.prompts, **settings, costs=_costs(options), executor=_executor(options), on_progress=_Told())
    _say(text(done.summary))
    _say(f"\nreport: {done.report_path}")
    failed = comparing.check_thresholds(done.summary, least)
    changes = () if old is None else comparing.against(done.summary, old)
    _say("\n".join([*failed, *map(_change, changes)]))
    return exit_code(failed, changes)


def exit_code(failed: Sequence[str], changes: Sequence[Change]) -> int:
    from .comparing import UNSURE, WORSE

    verdicts = {change.verdict for change in changes}
    if failed or WORSE in verdicts:
        return 1
    return 3 if UNSURE in verdicts else 0


def thresholds(pairs: Sequence[str]) -> dict[str, float]:
    """NAME=NUMBER as given. Raises SpecvizError, before anything is loaded."""
    from .comparing import MEASURES

    least = {}
    for pair in pairs:
        name, _, number = pair.partition("=")
        if name not in MEASURES:
            raise SpecvizError(
                f"--fail-under takes NAME=NUMBER with a name of {', '.join(MEASURES)} (got {pair!r:.80})"
            )
        least[name] = _finite(pair, number)
    return least


def _finite(pair: str, number: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SpecvizError(f"--fail-under takes NAME=NUMBER (got {pair!r:.80})")
    return value


def _costs(options: argparse.Namespace) -> Mapping[str, Costs] | None:
    if options.no_costs:
        return {}
    return None if options.costs is None else read_costs(options.costs)


def read_costs(path: Path) -> dict[str, Costs]:
    """Costs by draft, from a JSON file of one or of a list. Raises SpecvizError."""
    from ..costing import Costs
    from .outputs import read_values

    values = read_values(path)
    found = [Costs.from_dict(each) for each in (values if isinstance(values, list) else [values])]
    costs = {own.draft: own for own in found if own.draft is not None}
    if not found or len(costs) < len(found):
        raise SpecvizError(f"{path.name} must hold the costs of at least one draft, and of each only once")
    return costs


def _executor(options: argparse.Namespace) -> Executor:
    from . import executors

    if options.executor == "local":
        if options.ray_address is not None or options.workers is not None:
            raise SpecvizError("--ray-address and --workers need --executor ray")
        return executors.local
    if options.workers is not None and options.workers < 1:
        raise SpecvizError(f"--workers must be at least 1 (got {options.workers})")
    return partial(executors.on_ray, options.ray_address, options.workers)


class _Told:
    """Says what is being done when that changes, and how far it is now and then."""

    def __init__(self) -> None:
        self._words, self._at = "", -math.inf

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if progress.result is not None or (progress.words == self._words and now - self._at < PAUSE_S):
            return
        self._words, self._at = progress.words, now
        print(neutral(progress_line(progress)), file=sys.stderr, flush=True)


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
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


# ---- the summary in the terminal ------------------------------------------------------------------------------------


def _say(words: str) -> None:
    if words:
        print(neutral(words, keep="\n"))


def text(summary: Summary) -> str:
    """The drafts' numbers, what is wrong with them, how they compare, what was left out."""
    sampling = ", ".join(f"{name} {value:g}" for name, value in summary.sampling.items())
    lines = [
        f"{summary.target}: {_count(summary.num_prompts, 'prompt')}, {_count(summary.num_tokens, 'token')}; {sampling}",
        summary.note,
        "",
        *_table(summary),
        "agreement: sum min(p, q), p = the target's probability, q = the draft's; the paper calls its mean alpha",
        *(f"! {draft.name}: {finding.words}" for draft in summary.drafts for finding in draft.findings),
        *_comparisons(summary),
        *(f"note: {warning}" for warning in summary.warnings),
        *_refused(summary),
    ]
    return "\n".join(lines)


def _table(summary: Summary) -> list[str]:
    head = ("draft", "agreement, 95 %", "same favourite", f"tokens per target call, K={summary.k}", "best K", "speedup")
    rows = [head, *(_row(draft, summary.k) for draft in summary.drafts)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(draft: DraftSummary, k: int) -> tuple[str, ...]:
    best = "not known" if draft.best_k is None else "-".join(str(each) for each in dict.fromkeys(draft.best_k))
    speedup = "no costs" if draft.speedups is None else f"{max(draft.speedups):.2f}x"
    agreement = f"{draft.alpha:.3f}{_between(draft.alpha_interval)}"
    return (
        draft.name,
        agreement,
        f"{draft.greedy_agreement:.1%}",
        f"{draft.tokens_per_call[k - 1]:.2f}",
        best,
        speedup,
    )


def _between(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval[0]:.3f} to {interval[1]:.3f})"


def _comparisons(summary: Summary) -> list[str]:
    lines = []
    for each in summary.comparisons:
        whole = each.slices[0]
        lines.append(f"{each.a} less {each.b}: {_difference(whole)}")
    return lines


def _difference(found: Difference) -> str:
    told = {
        None: "not called significant: fewer than 30 prompts",
        False: "not significant",
        True: "significant",
    }[found.significant]
    number = f"{found.difference:+.3f}".replace("-", "−")
    return f"agreement {number}{_between(found.interval)}, n = {_count(found.num_prompts, 'prompt')}, {told}"


def _change(change: Change) -> str:
    old = "" if change.old_draft == change.draft else f" (there {change.old_draft})"
    return f"{change.draft} against the older job{old}: {change.verdict}; {_difference(change.difference)}"


def _refused(summary: Summary) -> list[str]:
    if not summary.num_refused:
        return []
    shown = [f"  line {line}: {reason}" for line, reason in summary.refused[:SHOWN_LINES]]
    return [f"{_count(summary.num_refused, 'row')} could not be used:", *shown]


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
