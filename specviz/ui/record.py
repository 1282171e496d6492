"""python -m specviz.ui.record makes the recorded run anew that a first visit sees: the page's own first request.

To be run whenever the bundled models or the first request change.
"""

from __future__ import annotations

from specviz import session
from specviz.trace import Trace
from specviz.ui.offer import first_visit_file, make_offer


def record() -> Trace:
    """The finished run of the first request."""
    run = session.open_run(make_offer().first)
    return Trace(event for event in run.events() if not isinstance(event, session.Status))


if __name__ == "__main__":
    recorded = record()
    recorded.save(first_visit_file())
    print(f"saved {first_visit_file().name}: {len(recorded.steps)} steps, {len(recorded.tokens)} tokens")
