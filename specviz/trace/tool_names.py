"""One run's numbers under the names that other engines and papers give them, each with its formula.

Every value and formula is `measures.METRICS`'s; here stand only the names. Exports under vLLM's and SGLang's field
names, for tools that read those.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from specviz.trace.counters import Counters
from specviz.trace.file import Trace
from specviz.trace.metrics import METRICS, Metric, count, metrics, vllm_counters

VLLM, SGLANG, NVIDIA, LM_STUDIO, EAGLE, LEVIATHAN = "vLLM", "SGLang", "NVIDIA", "LM Studio", "EAGLE", "Leviathan et al."
TOOLS = (VLLM, SGLANG, NVIDIA, LM_STUDIO, EAGLE, LEVIATHAN)
_NAMES: tuple[tuple[str, str, str], ...] = (  # tool, its name, name in METRICS
    (VLLM, "mean_acceptance_length", "mean_acceptance_length"),
    (VLLM, "draft_acceptance_rate", "acceptance_rate"),
    (VLLM, "acceptance_histogram", "acceptance_histogram"),
    (VLLM, "num_accepted_draft_tokens", "accepted"),
    (VLLM, "num_draft_tokens", "drafted"),
    (VLLM, "acceptance rate per position", "acceptance_by_depth_all_steps"),
    (SGLANG, "spec_accept_length", "tokens_per_target_call"),
    (SGLANG, "spec_accept_rate", "acceptance_rate"),
    (SGLANG, "spec_verify_ct", "target_calls"),
    (SGLANG, "spec_num_correct_drafts", "accepted"),
    (SGLANG, "spec_num_proposed_drafts", "drafted"),
    (SGLANG, "spec_correct_drafts_histogram", "acceptance_histogram"),
    (NVIDIA, "AR (a number of tokens, not a share)", "tokens_per_step"),
    (NVIDIA, "joint acceptance rate", "nvidia_joint"),
    (NVIDIA, "conditional acceptance rate", "nvidia_conditional"),
    (LM_STUDIO, "accepted draft tokens, %", "lm_studio_percent"),
    (EAGLE, "compression ratio", "compression_ratio"),
    (LEVIATHAN, "alpha", "alpha"),
)
STEPS_WITH_A_DRAFT = Metric("steps with a draft", "steps that drafted a token", lambda c: c.num_drafting_steps, "count")


@dataclass(frozen=True, slots=True)
class ToolNumber:
    """One number as `tool` calls it; value None where it is undefined, and then `reason` says why."""

    tool: str
    name: str
    label: str
    formula: str
    value: Any
    shown: str
    reason: str = ""


def tool_numbers(recorded: Trace) -> tuple[ToolNumber, ...]:
    """Every name of every tool, in the order of TOOLS."""
    counters = count(recorded)
    values = metrics(counters)
    rows = [
        _number(tool, name, METRICS[key], values[key], values["reasons"].get(key, "")) for tool, name, key in _NAMES
    ]
    rows.append(_number(VLLM, "num_spec_steps", STEPS_WITH_A_DRAFT, STEPS_WITH_A_DRAFT.function(counters), ""))
    rows.append(_spec_tokens(recorded))
    return tuple(sorted(rows, key=lambda row: TOOLS.index(row.tool)))


def _number(tool: str, name: str, metric: Metric, value: Any, reason: str) -> ToolNumber:
    return ToolNumber(tool, name, metric.label, metric.formula, value, metric.spell(value), reason)


def _spec_tokens(recorded: Trace) -> ToolNumber:
    ks = {step.settings.k for step in recorded.steps}
    value = ks.pop() if len(ks) == 1 else None
    reason = "" if value is not None else "K changed during the run" if ks else "no step was made"
    return ToolNumber(
        VLLM, "num_spec_tokens", "K", "tokens asked for per step", value, "n/a" if value is None else str(value), reason
    )


def export(recorded: Trace, tool: str) -> str:
    """The tool's numbers as JSON, under its own field names; for vLLM its server's counters too."""
    if tool not in (VLLM, SGLANG):
        raise ValueError(f"tool must be {VLLM} or {SGLANG} (got {tool!r})")
    fields = {row.name: row.value for row in tool_numbers(recorded) if row.tool == tool and row.name.isidentifier()}
    counters: Counters = count(recorded)
    return json.dumps(fields | (vllm_counters(counters) if tool == VLLM else {}), indent=2)
