"""python -m specviz.ui.record [NAME ...] makes the recorded runs anew that come with specviz, or those named.

To be run whenever the bundled models, the first request or their list in assets/traces/traces.json change.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import replace

from specviz.measures import count
from specviz.models import Library
from specviz.recording import cast_for, record
from specviz.rules.broken import BROKEN
from specviz.shipped import Shipped, shipped, shipped_file
from specviz.trace import Trace
from specviz.ui.offer import make_offer

REPEATS = 11


def recorded(wanted: Collection[Shipped], library: Library, repeats: int = REPEATS) -> dict[str, Trace]:
    """The finished runs with their scores, by name: the page's first request with the changes of the list.

    All are made in turn, several times after a round to warm up; of each the middle one by time is kept. They differ in
    nothing else.
    """
    first = make_offer().first
    casts = {each: cast_for(replace(first, **each.request).checked(), library) for each in wanted}
    rounds = [
        {each.name: record(cast, rule=BROKEN.get(each.broken), scored=True) for each, cast in casts.items()}
        for _ in range(repeats + 1)
    ]
    return {each.name: _middle([made[each.name] for made in rounds[1:]]) for each in wanted}


def _middle(runs: list[Trace]) -> Trace:
    return sorted(runs, key=lambda run: count(run).working_ms)[len(runs) // 2]


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in shipped()]:
        sys.exit(f"a recorded run must be one of {', '.join(shipped())} (got {', '.join(unknown)})")
    for name, made in recorded([shipped()[name] for name in names or shipped()], Library()).items():
        made.save(shipped_file(name))
        print(f"saved {shipped_file(name).name}: {len(made.steps)} steps, {len(made.tokens)} tokens")


if __name__ == "__main__":
    main(sys.argv[1:])
