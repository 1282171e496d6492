"""Pandas frames of a trace, for notebooks and tables: one row per token or per step.

assets/docs/python-and-shell.md describes the columns. pandas is imported when a function is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specviz.request import RunSettings
from specviz.trace.counters import PHASES
from specviz.trace.events import STATUSES, Step
from specviz.trace.file import Trace
from specviz.trace.values import Record

if TYPE_CHECKING:
    import pandas

_RULE = ("method", "rule", "lossless")
_MODELS = ("target", "draft_model")
TOKEN_COLUMNS = (
    "step", "node", "parent", "depth", "id", "text", "status", "emitted", "position", "p", "q", "p_judged",
    "accept_prob", "u", "overlap", "kl", "p_entropy", "q_entropy", "one_step_tv", "k", "temperature", *_RULE,
)  # fmt: skip
STEP_COLUMNS = (
    "step", "at_ms", "context_length", "k", *RunSettings.ALL_SAMPLING, *_RULE, *_MODELS, "changed", "drafted",
    *STATUSES, "emitted", "truncated", "last_kind", "target_calls", "draft_calls", "target_fed", "draft_fed",
    "target_read_again", "draft_read_again", *PHASES,
)  # fmt: skip


def tokens(trace: Trace) -> pandas.DataFrame:
    """A frame of one row per drafted or emitted token in step order (columns: TOKEN_COLUMNS).

    A token that was drafted and accepted has one row.
    """
    import pandas

    rows = []
    start = 0
    for step in trace.steps:
        rows += _token_rows(step, start)
        start += len(step.emitted)
    frame = pandas.DataFrame(rows, columns=TOKEN_COLUMNS)
    return frame.astype(dict.fromkeys(("node", "parent", "depth", "position"), "Int64"))


def steps(trace: Trace) -> pandas.DataFrame:
    """A frame of one row per step (columns: STEP_COLUMNS)."""
    import pandas

    return pandas.DataFrame([_step_row(step) for step in trace.steps], columns=STEP_COLUMNS)


def _fields(record: Record, columns: Sequence[str]) -> dict[str, Any]:
    """The record's fields that have a column with their name."""
    return {name: getattr(record, name) for name in columns if name in record.__dataclass_fields__}


def _token_rows(step: Step, start: int) -> list[dict[str, Any]]:
    """The rows of a step. start: the position of its first emitted token."""
    shared = {"step": step.index, **_fields(step.settings, TOKEN_COLUMNS)}
    judged_at = {}
    for place in step.positions:
        if place.child is not None:
            judged_at[place.child] = _fields(place, TOKEN_COLUMNS)
    emitted_from = {token.node: index for index, token in enumerate(step.emitted)}
    rows = []
    for node, drafted in enumerate(step.draft):
        row = {**shared, **judged_at.get(node, {}), **_fields(drafted, TOKEN_COLUMNS)}
        row["node"] = node
        index = emitted_from.get(node)
        row["emitted"] = index is not None
        row["position"] = None if index is None else start + index
        if index is not None:
            row["text"] = step.emitted[index].text
        rows.append(row)
    for index, token in enumerate(step.emitted):
        if token.node is None:
            row = {**shared, **_fields(token, TOKEN_COLUMNS), "status": token.kind}
            row["emitted"] = True
            row["position"] = start + index
            rows.append(row)
    return rows


def _step_row(step: Step) -> dict[str, Any]:
    drafted = [token.status for token in step.draft]
    statuses = {status: drafted.count(status) for status in STATUSES}
    calls = {f"{model}_calls": number for model, number in step.calls.items()}
    fed = {f"{model}_fed": number for model, number in step.fed.items()}
    again = {f"{model}_read_again": (step.read_again or {}).get(model, 0) for model in step.fed}
    row = {
        **_fields(step, STEP_COLUMNS),
        **_fields(step.settings, STEP_COLUMNS),
        **_fields(step.timing, STEP_COLUMNS),
        **statuses,
        "step": step.index,
        "changed": ",".join(step.changed),
        "drafted": len(drafted) - statuses["scratch"],
        "emitted": len(step.emitted),
        "last_kind": step.emitted[-1].kind if step.emitted else None,
        **calls,
        **fed,
        **again,
    }
    if step.settings.is_foreign:
        row |= dict.fromkeys(("at_ms", *PHASES))
    return row
