"""Pandas frames of a trace, for notebooks and tables: one row per token or per step; pandas is imported when called.

TOKEN_COLUMNS and STEP_COLUMNS say what each column holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specviz.trace.file import STATUSES, Step, Trace
from specviz.trace.values import Record

if TYPE_CHECKING:
    import pandas

_RULE = {
    "method": "method in force",
    "rule": "rule in force",
    "lossless": "whether that rule preserves the target's distribution",
}
TOKEN_COLUMNS: Mapping[str, str] = {
    "step": "index of the step",
    "node": "index in the step's draft; missing for the target's own token",
    "parent": "the node this one hangs from, -1 for the context; missing for the target's own token",
    "depth": "depth in the draft, from 1; missing for the target's own token",
    "id": "token id",
    "text": "text of the token alone; of an emitted one, what it added to the generated text",
    "status": "accepted, rejected, ignored, scratch; the target's own tokens: resampled, bonus, plain",
    "emitted": "whether the token is in the text; one accepted after the end of the text is not",
    "position": "index in the generated text; missing if the token was not emitted",
    "p": "the target's probability at the parent",
    "q": "the draft model's probability; missing for a point mass",
    "p_judged": "the target's probability after earlier siblings were rejected; missing if not judged",
    "accept_prob": "probability of acceptance; missing if not judged",
    "u": "the random draw, uniform in 0 to 1; missing if not judged",
    "overlap": "sum min(p, q) where the token was judged",
    "kl": "KL(p||q) in nats where the token was judged; missing if infinite",
    "p_entropy": "entropy of the target's distribution in nats where the token was judged",
    "q_entropy": "entropy of the draft model's distribution in nats where the token was judged",
    "one_step_tv": "total variation between p and a lossy rule's distribution of one token; missing if lossless",
    "k": "K in force",
    "temperature": "temperature in force",
    **_RULE,
}
STEP_COLUMNS: Mapping[str, str] = {
    "step": "index of the step",
    "at_ms": "when the step began",
    "context_length": "tokens before the step",
    "k": "K in force",
    "temperature": "temperature in force",
    "top_k": "top-k in force",
    "top_p": "top-p in force",
    "draft_temperature": "the draft's own temperature in force; missing: as the target's",
    "draft_top_k": "the draft's own top-k in force; missing: as the target's",
    "draft_top_p": "the draft's own top-p in force; missing: as the target's",
    **_RULE,
    "target": "target model in force",
    "draft_model": "draft model in force",
    "changed": "names of the settings changed before the step, joined by commas",
    "drafted": "drafted tokens (scratch not counted)",
    "accepted": "drafted tokens accepted",
    "rejected": "drafted tokens rejected",
    "ignored": "drafted tokens not judged",
    "scratch": "nodes that could not be accepted",
    "emitted": "tokens added to the text",
    "truncated": "tokens left out at the end of the text",
    "last_kind": "kind of the last emitted token",
    "target_calls": "forwards of the target model",
    "draft_calls": "forwards of the draft model",
    "target_fed": "tokens fed to the target model",
    "draft_fed": "tokens fed to the draft model",
    "draft_ms": "time to draft",
    "verify_ms": "time of the target's forward",
    "accept_ms": "time to judge",
    "record_ms": "time to record",
    "wait_ms": "waiting that the pace added",
    "total_ms": "whole time of the step, waiting included",
}


def tokens(trace: Trace) -> pandas.DataFrame:
    """One row per drafted or emitted token in step order (columns: TOKEN_COLUMNS); an accepted token has one row."""
    import pandas

    rows, start = [], 0
    for step in trace.steps:
        rows += _token_rows(step, start)
        start += len(step.emitted)
    frame = pandas.DataFrame(rows, columns=list(TOKEN_COLUMNS))
    return frame.astype(dict.fromkeys(("node", "parent", "depth", "position"), "Int64"))


def steps(trace: Trace) -> pandas.DataFrame:
    """One row per step (columns: STEP_COLUMNS)."""
    import pandas

    return pandas.DataFrame([_step_row(step) for step in trace.steps], columns=list(STEP_COLUMNS))


def _fields(record: Record, columns: Mapping[str, str]) -> dict[str, Any]:
    """The record's fields that have a column of their name."""
    return {name: getattr(record, name) for name in columns if name in record.__dataclass_fields__}


def _token_rows(step: Step, start: int) -> list[dict[str, Any]]:
    """start: the position of the step's first emitted token."""
    shared = {"step": step.index, **_fields(step.settings, TOKEN_COLUMNS)}
    emitted = {token.node: (start + index, token) for index, token in enumerate(step.emitted)}
    judged_at = {each.child: _fields(each, TOKEN_COLUMNS) for each in step.positions if each.child is not None}
    rows = []
    for node, drafted in enumerate(step.draft):
        position, kept = emitted.pop(node, (None, drafted))
        row = {**shared, **judged_at.get(node, {}), **_fields(drafted, TOKEN_COLUMNS), "node": node, "text": kept.text}
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
