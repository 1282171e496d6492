"""Pandas frames of a trace, for notebooks and tables: one row per token or per step; pandas is imported when called.

TOKEN_COLUMNS and STEP_COLUMNS say what each column holds. Reads records only; counts nothing that measures counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specviz.trace.counters import PHASES
from specviz.trace.file import DraftToken, EmittedToken, Settings, Step, Trace

if TYPE_CHECKING:
    import pandas

TOKEN_COLUMNS: Mapping[str, str] = {
    "step": "index of the step",
    "node": "index in the step's draft; missing for the target's own token",
    "parent": "the node this one hangs from, -1 for the context; missing for the target's own token",
    "depth": "depth in the draft, from 1; missing for the target's own token",
    "id": "token id",
    "text": "text of the token alone; of an emitted one, what it added to the generated text",
    "status": "accepted, rejected, ignored, scratch; the target's own tokens: resampled, bonus, plain",
    "emitted": "whether the token is in the text; one accepted behind the end of the text is not",
    "position": "index in the generated text; missing if the token was not emitted",
    "p": "the target's probability at the parent",
    "q": "the draft model's probability; missing for a point mass",
    "p_judged": "the target's probability after earlier siblings failed; missing if not judged",
    "accept_prob": "probability to be kept; missing if not judged",
    "u": "the uniform draw; missing if not judged",
    "overlap": "sum min(p, q) where the token was judged",
    "kl": "KL(p||q) in nats where the token was judged; missing if infinite",
    "p_entropy": "entropy of the target's distribution in nats where the token was judged",
    "q_entropy": "entropy of the draft model's distribution in nats where the token was judged",
    "one_step_tv": "total variation between a lossy rule's law of one token and p; missing under a lossless rule",
    "k": "K in force",
    "temperature": "temperature in force",
    "method": "method in force",
    "rule": "rule in force",
    "lossless": "whether that rule follows the target's own odds",
}
STEP_COLUMNS: Mapping[str, str] = {
    "step": "index of the step",
    "at_ms": "when the step began",
    "context_length": "tokens before the step",
    "k": "K in force",
    "temperature": "temperature in force",
    "top_k": "top-k in force",
    "top_p": "top-p in force",
    "method": "method in force",
    "rule": "rule in force",
    "lossless": "whether that rule follows the target's own odds",
    "target": "target model in force",
    "draft_model": "draft model in force",
    "changed": "names of the settings changed before the step, joined by commas",
    "drafted": "drafted tokens (scratch not counted)",
    "accepted": "drafted tokens kept",
    "rejected": "drafted tokens cut",
    "ignored": "drafted tokens not judged",
    "scratch": "nodes that could not be accepted",
    "emitted": "tokens added to the text",
    "truncated": "tokens cut at the end of the text",
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
_JUDGED_AT = ("overlap", "kl", "p_entropy", "q_entropy", "one_step_tv")
_WHOLE = ("node", "parent", "depth", "position")
_IN_FORCE = [name for name in TOKEN_COLUMNS if name in Settings.__annotations__]
"""The settings that every token of a step comes with."""


def tokens(trace: Trace) -> pandas.DataFrame:
    """One row per drafted or emitted token in step order (columns: TOKEN_COLUMNS); a kept token has one row."""
    import pandas

    rows, start = [], 0
    for step in trace.steps:
        rows += _token_rows(step, start)
        start += len(step.emitted)
    frame = pandas.DataFrame(rows, columns=list(TOKEN_COLUMNS))
    return frame.astype(dict.fromkeys(_WHOLE, "Int64"))


def steps(trace: Trace) -> pandas.DataFrame:
    """One row per step (columns: STEP_COLUMNS)."""
    import pandas

    return pandas.DataFrame([_step_row(step) for step in trace.steps], columns=list(STEP_COLUMNS))


def _token_rows(step: Step, start: int) -> list[dict[str, Any]]:
    shared = {"step": step.index, **{name: getattr(step.settings, name) for name in _IN_FORCE}}
    emitted = {token.node: (start + index, token) for index, token in enumerate(step.emitted)}
    judged_at = {position.child: position for position in step.positions if position.child is not None}
    rows = []
    for node, drafted in enumerate(step.draft):
        position, kept = emitted.get(node, (None, None))
        place = {name: getattr(judged_at[node], name) for name in _JUDGED_AT} if node in judged_at else {}
        ending = {"emitted": kept is not None, "position": position}
        rows.append({**shared, **_drafted_row(node, drafted, kept), **place, **ending})
    if None in emitted:
        position, last = emitted[None]
        own = {"id": last.id, "text": last.text, "status": last.kind, "p": last.p, "q": last.q}
        rows.append({**shared, **own, "emitted": True, "position": position})
    return rows


def _drafted_row(node: int, token: DraftToken, kept: EmittedToken | None) -> dict[str, Any]:
    names = ("parent", "depth", "id", "status", "p", "q", "p_judged", "accept_prob", "u")
    return {"node": node, "text": (kept or token).text, **{name: getattr(token, name) for name in names}}


def _step_row(step: Step) -> dict[str, Any]:
    statuses = [token.status for token in step.draft]
    counts = {name: statuses.count(name) for name in ("accepted", "rejected", "ignored", "scratch")}
    models = ("target", "draft")
    own = [name for name in STEP_COLUMNS if name in Settings.__annotations__]
    return {
        "step": step.index,
        "at_ms": step.at_ms,
        "context_length": step.context_length,
        **{name: getattr(step.settings, name) for name in own},
        "changed": ",".join(step.changed),
        "drafted": len(statuses) - counts["scratch"],
        **counts,
        "emitted": len(step.emitted),
        "truncated": step.truncated,
        "last_kind": step.emitted[-1].kind if step.emitted else None,
        **{f"{model}_calls": step.calls[model] for model in models},
        **{f"{model}_fed": step.fed[model] for model in models},
        **{name: getattr(step.timing, name) for name in PHASES},
    }
