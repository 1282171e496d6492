"""Pandas frames of a trace, for notebooks and tables: one row per token or per step; pandas is imported when called.

What each column holds is told in assets/docs/python-and-shell.md.
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

_RULE, _MODELS = ("method", "rule", "lossless"), ("target", "draft_model")
TOKEN_COLUMNS = (
    "step", "node", "parent", "depth", "id", "text", "status", "emitted", "position", "p", "q", "p_judged",
    "accept_prob", "u", "overlap", "kl", "p_entropy", "q_entropy", "one_step_tv", "k", "temperature", *_RULE,
)  # fmt: skip
STEP_COLUMNS = (
    "step", "at_ms", "context_length", "k", *RunSettings.ALL_SAMPLING, *_RULE, *_MODELS, "changed", "drafted",
    *STATUSES, "emitted", "truncated", "last_kind", "target_calls", "draft_calls", "target_fed", "draft_fed", *PHASES,
)  # fmt: skip


def tokens(trace: Trace) -> pandas.DataFrame:
    """One row per drafted or emitted token in step order (columns: TOKEN_COLUMNS); an accepted token has one row."""
    import pandas

    rows, start = [], 0
    for step in trace.steps:
        rows += _token_rows(step, start)
        start += len(step.emitted)
    frame = pandas.DataFrame(rows, columns=TOKEN_COLUMNS)
    return frame.astype(dict.fromkeys(("node", "parent", "depth", "position"), "Int64"))


def steps(trace: Trace) -> pandas.DataFrame:
    """One row per step (columns: STEP_COLUMNS)."""
    import pandas

    return pandas.DataFrame([_step_row(step) for step in trace.steps], columns=STEP_COLUMNS)


def _fields(record: Record, columns: Sequence[str]) -> dict[str, Any]:
    """The record's fields that have a column of their name."""
    return {name: getattr(record, name) for name in columns if name in record.__dataclass_fields__}


def _token_rows(step: Step, start: int) -> list[dict[str, Any]]:
    """start: the position of the step's first emitted token."""
    shared = {"step": step.index, **_fields(step.settings, TOKEN_COLUMNS)}
    emitted = {token.node: (start + index, token) for index, token in enumerate(step.emitted)}
    judged_at = {
        each.child: _fields(each, TOKEN_COLUMNS)
        for each in step.positions
        if each.child is not None
    }
    rows = []
    for node, drafted in enumerate(step.draft):
        position, kept = emitted.pop(node, (None, drafted))
        row = {
            **shared,
            **judged_at.get(node, {}),
            **_fields(drafted, TOKEN_COLUMNS),
            "node": node,
            "text": kept.text,
        }
        rows.append({**row, "emitted": position is not None, "position": position})
    for position, own in emitted.values():
        row = {**shared, **_fields(own, TOKEN_COLUMNS), "status": own.kind}
        rows.append({**row, "emitted": True, "position": position})
    return rows


def _step_row(step: Step) -> dict[str, Any]:
    statuses = {status: sum(token.status == status for token in step.draft) for status in STATUSES}
    return {
        **_fields(step, STEP_COLUMNS),
        **_fields(step.settings, STEP_COLUMNS),
        **_fields(step.timing, STEP_COLUMNS),
        **statuses,
        "step": step.index,
        "changed": ",".join(step.changed),
        "drafted": len(step.draft) - statuses["scratch"],
        "emitted": len(step.emitted),
        "last_kind": step.emitted[-1].kind if step.emitted else None,
        **{f"{model}_calls": number for model, number in step.calls.items()},
        **{f"{model}_fed": number for model, number in step.fed.items()},
    }
