"""python -m specviz.zoo.shipped_runs [NAME ...] records the runs that come with specviz again: all whose models are
here, or those named; the name of a target stands for all its runs.

To be run whenever the bundled models, the first request or their list in assets/traces/traces.json change, on a machine
with nothing else to do: the page shows their speeds and that of a run without a draft, measured together with each.
"""

import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specviz.analysis.rounds import interval
from specviz.models.files.hub import is_here
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.rules.broken import BROKEN
from specviz.session.whole_run import activate, whole_run
from specviz.trace import Trace
from specviz.trace.metrics import count, metrics
from specviz.trace.shipped import ShippedRun, shipped_file, shipped_runs
from specviz.ui.choices import FIRST_LENGTH, make_offer

REPEATS = 11
SAME = (
    "target",
    "prompt",
    "prompt_ids",
    "chat",
    "chat_options",
    *Request.SAMPLING,
    "seed",
    "max_new_tokens",
)
"""The fields that a run shares with its baseline, a run without a draft."""


@dataclass(frozen=True, slots=True)
class Take:
    """One run to record; equal takes are recorded once. broken: the name of a rule that is wrong on purpose."""

    request: Request
    broken: str | None = None


def record_runs(
    wanted: Collection[ShippedRun], pool: ModelPool, repeats: int = REPEATS
) -> dict[str, Trace]:
    """The finished runs with their scores, by name: the page's first request with the changes of the list.

    After a warm-up round every run and its baseline are made `repeats` times, in turn. Of each run the one with the
    median time is kept; they differ in nothing else.
    """
    first = base_request()
    takes = {
        each.name: Take(Request.from_dict({**first.to_dict(), **each.request}), each.broken)
        for each in wanted
    }
    baselines = {name: _baseline_take(take.request, first) for name, take in takes.items()}
    made = _rounds([*takes.values(), *baselines.values()], pool, repeats)
    return {name: _with_baseline(made[take], made[baselines[name]]) for name, take in takes.items()}


def base_request() -> Request:
    """What the list's runs change: the page's first request, half as long."""
    return replace(make_offer().first, max_new_tokens=FIRST_LENGTH // 2)


def _baseline_take(request: Request, first: Request) -> Take:
    return Take(
        replace(first, method="none", **{name: getattr(request, name) for name in SAME}).validate()
    )


def _rounds(takes: Sequence[Take], pool: ModelPool, repeats: int) -> Mapping[Take, list[Trace]]:
    active_setups = {take: activate(take.request, pool) for take in takes}
    rounds = [
        {
            take: whole_run(active, rule=BROKEN.get(take.broken), scored=True)
            for take, active in active_setups.items()
        }
        for _ in range(repeats + 1)
    ]
    return {take: [made[take] for made in rounds[1:]] for take in active_setups}


def _median_run(runs: Sequence[Trace]) -> Trace:
    return sorted(runs, key=lambda run: count(run).working_ms)[len(runs) // 2]


def _with_baseline(runs: Sequence[Trace], alone: Sequence[Trace]) -> Trace:
    """The median run of all rounds, with the median speed of its baseline in the footer, and between what their ratio
    lies."""
    *events, footer = _median_run(runs).events()
    return Trace([*events, replace(footer, baseline=_baseline(runs, alone))])


def _baseline(runs: Sequence[Trace], alone: Sequence[Trace]) -> dict[str, Any]:
    speeds, baselines = ([metrics(run)["tokens_per_s"] for run in side] for side in (runs, alone))
    low, high = interval(
        [speed / baseline for speed, baseline in zip(speeds, baselines, strict=True)]
    )
    return {
        "tokens_per_s": round(statistics.median(baselines), 3),
        "num_tokens": max(len(run.tokens) for run in alone),
        "environment": dict(alone[0].header.environment),
        "rounds": len(alone),
        "between": [round(low, 3), round(high, 3)],
    }


def _target(run: ShippedRun) -> str:
    return run.request.get("target", make_offer().first.target)


def main(names: list[str]) -> None:
    targets = {run.name: _target(run) for run in shipped_runs().values()}
    if unknown := [name for name in names if name not in targets and name not in targets.values()]:
        sys.exit(f"a recorded run must be one of {', '.join(targets)} (got {', '.join(unknown)})")
    chosen = [
        name for name, target in targets.items() if not names or name in names or target in names
    ]
    if absent := [name for name in chosen if not names and not is_here(targets[name])]:
        print(f"left out, as their target is not on this machine: {', '.join(absent)}")
    wanted = [shipped_runs()[name] for name in chosen if name not in absent]
    for name, made in record_runs(wanted, ModelPool()).items():
        made.save(shipped_file(name))
        print(
            f"saved {shipped_file(name).name}: {len(made.steps)} steps, {len(made.tokens)} tokens"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
