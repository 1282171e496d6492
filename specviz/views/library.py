"""What the library says of a run, in words: how it was made, how its prompt begins, its numbers and its date.

Everything in a trace is untrusted: names and texts are cut short and made harmless. Loads no model.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from itertools import groupby
from typing import Any

from specviz.errors import SpecvizError
from specviz.measures import METRICS, count, lossy_words, metrics
from specviz.shipped import Shipped, shipped_trace
from specviz.trace import Header, Settings, Trace
from specviz.views.feed import CUT_OFF
from specviz.views.names import METHOD_TITLES
from specviz.views.sentences import counted, label, titled, visible

MOST_WORDS = 12  # of a prompt
MOST_CHARACTERS = 64  # of these
MOST_CHANGES = 3  # values of one setting that a title names
PER_CALL = "tokens_per_target_call"
Props = dict[str, Any]


def entry(trace: Trace) -> Props:
    """The `title`, the `words` below it and the `facts` of one run that is over; `date`: when it was made, which a
    browser tells in its own time."""
    created = "" if trace.header is None else trace.header.created
    is_date = _is_date(created)
    facts = (_numbers(trace), trace.footer is None and CUT_OFF, not is_date and label(created))
    words = {"title": _title(trace), "words": _beginning(trace.header), "facts": " · ".join(filter(None, facts))}
    return {**words, "date": created if is_date else ""}


def shipped_entry(run: Shipped) -> Props:
    """The same of a run that comes with specviz, with its `name`, without a date; one that cannot be read says so."""
    try:
        facts = _numbers(shipped_trace(run.name))
    except SpecvizError as error:
        facts = f"cannot be read: {visible(str(error))}"
    return {"name": run.name, "title": run.title, "words": run.about, "facts": facts}


def size_words(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MB"


def _title(trace: Trace) -> str:
    """Method, draft, K and temperature; of what was changed on the way, what came after what."""
    parts = (
        _along(trace, lambda now: titled(now.method, METHOD_TITLES)),
        _along(trace, lambda now: now.draft_model and label(now.draft_model)),
        _along(trace, lambda now: now.k and str(now.k), "K "),
        _along(trace, lambda now: f"{now.temperature:g}", "temperature "),
    )
    return " · ".join(filter(None, parts)) or "No step was made"


def _along(trace: Trace, value: Callable[[Settings], Any], before: str = "") -> str:
    """The values of one setting in the order in which they were in force: "K 4 → 8"; empty where there is none."""
    values = [str(now) for now, _ in groupby(value(step.settings) for step in trace.steps) if now]
    more = ["…"] if len(values) > MOST_CHANGES else []
    return before + " → ".join([*values[:MOST_CHANGES], *more]) if values else ""


def _beginning(header: Header | None) -> str:
    """The first words of the prompt as it was typed, in quotation marks."""
    if header is None:
        return ""
    typed = header.request.get("prompt")
    text = typed if isinstance(typed, str) and typed.strip() else header.prompt.text
    words = text[: 16 * MOST_CHARACTERS].split()
    shown = visible(" ".join(words[:MOST_WORDS]))[:MOST_CHARACTERS].rstrip()
    is_whole = len(words) <= MOST_WORDS and shown == visible(" ".join(words)) and len(text) <= 16 * MOST_CHARACTERS
    return f"“{shown}{'' if is_whole else ' …'}”"


def _numbers(trace: Trace) -> str:
    counters = count(trace)
    per_call = metrics(counters)[PER_CALL]
    words = (
        counted(counters.num_emitted, "token"),
        per_call is not None and f"{METRICS[PER_CALL].spell(per_call)} {METRICS[PER_CALL].label}",
        lossy_words(counters),
    )
    return " · ".join(filter(None, words))


def _is_date(created: str) -> bool:
    try:
        datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True
