"""python -m specviz.zoo.record [NAME ...] makes the recorded runs anew that come with specviz, or those named.

To be run whenever the bundled models, the first request or their list in assets/traces/traces.json change, on a machine
with nothing else to do: their speeds are shown, and so is that of no draft, which each run is measured beside.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specviz.models.library import Library
from specviz.request import Request
from specviz.rules.broken import BROKEN
from specviz.session.record import activate, record
from specviz.trace.file import Trace
from specviz.trace.metrics import count, metrics
from specviz.trace.recorded import Shipped, shipped, shipped_file
from specviz.ui.choices import make_offer

REPEATS = 11
SAME = ("target", "prompt", "prompt_ids", *Request.SAMPLING, "seed", "max_new_tokens")
"""What a run and the run without a draft that it is measured beside have in common."""


@dataclass(frozen=True, slots=True)
class Take:
    """What is recorded: equal takes are one. broken: the name of a rule that is wrong on purpose."""

    request: Request
    broken: str | None = None


def recorded(wanted: Collection[Shipped], library: Library, repeats: int = REPEATS) -> dict[str, Trace]:
    """The finished runs with their scores, by name: the page's first request with the changes of the list.

    All are made in turn, with the runs without a draft beside them, several times after a round to warm up; of each the
    middle one by time is kept. They differ in nothing else.
    """
    first = make_offer().first
    takes = {each.name: Take(replace(first, **each.request).validate(), each.broken) for each in wanted}
    beside = {name: _alone(take.request, first) for name, take in takes.items()}
    made = _rounds([*takes.values(), *beside.values()], library, repeats)
    return {name: _with_baseline(_middle(made[take]), made[beside[name]]) for name, take in takes.items()}


def _alone(request: Request, first: Request) -> Take:
    return Take(replace(first, method="none", **{name: getattr(request, name) for name in SAME}).validate())


def _rounds(takes: Sequence[Take], library: Library, repeats: int) -> Mapping[Take, list[Trace]]:
    active_setups = {take: activate(take.request, library) for take in takes}
    rounds = [
        {take: record(active, rule=BROKEN.get(take.broken), scored=True) for take, active in active_setups.items()}
        for _ in range(repeats + 1)
    ]
    return {take: [made[take] for made in rounds[1:]] for take in active_setups}


def _middle(runs: Sequence[Trace]) -> Trace:
    return sorted(runs, key=lambda run: count(run).working_ms)[len(runs) // 2]


def _with_baseline(run: Trace, alone: Sequence[Trace]) -> Trace:
    """The run with the median speed of those without a draft, as a session's footer has one that it measured."""
    *events, footer = run.events()
    return Trace([*events, replace(footer, baseline=_baseline(alone))])


def _baseline(alone: Sequence[Trace]) -> dict[str, Any]:
    speed = statistics.median(metrics(run)["tokens_per_s"] for run in alone)
    longest = max(len(run.tokens) for run in alone)
    return {"tokens_per_s": round(speed, 3), "num_tokens": longest, "environment": dict(alone[0].header.environment)}


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in shipped()]:
        sys.exit(f"a recorded run must be one of {', '.join(shipped())} (got {', '.join(unknown)})")
    for name, made in recorded([shipped()[name] for name in names or shipped()], Library()).items():
        made.save(shipped_file(name))
        print(f"saved {shipped_file(name).name}: {len(made.steps)} steps, {len(made.tokens)} tokens")


if __name__ == "__main__":
    main(sys.argv[1:])
