"""python -m specviz.ui.record [NAME ...] makes the recorded runs anew that come with specviz, or those named.

To be run whenever the bundled models, the first request or their list in assets/traces/traces.json change.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from specviz.models import Library
from specviz.recording import cast_for, record
from specviz.rules.broken import BROKEN
from specviz.shipped import Shipped, shipped, shipped_file
from specviz.trace import Trace
from specviz.ui.offer import make_offer


def recorded(wanted: Shipped, library: Library) -> Trace:
    """The finished run with its scores, warmed up: the page's first request with the changes of the list."""
    cast = cast_for(replace(make_offer().first, **wanted.request).checked(), library)
    record(cast)
    return record(cast, rule=BROKEN.get(wanted.broken), scored=True)


def main(names: list[str]) -> None:
    if unknown := [name for name in names if name not in shipped()]:
        sys.exit(f"a recorded run must be one of {', '.join(shipped())} (got {', '.join(unknown)})")
    library = Library()
    for name in names or shipped():
        made = recorded(shipped()[name], library)
        made.save(shipped_file(name))
        print(f"saved {shipped_file(name).name}: {len(made.steps)} steps, {len(made.tokens)} tokens")


if __name__ == "__main__":
    main(sys.argv[1:])
