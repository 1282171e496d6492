"""The metrics of a run under other engines' and papers' names, and exports with vLLM's and SGLang's field names."""

import json
from dataclasses import dataclass
from typing import Any

from specviz.trace.file import Trace
from specviz.trace.metrics import METRICS, count, metrics

VLLM = "vLLM"
SGLANG = "SGLang"
NVIDIA = "NVIDIA"
LM_STUDIO = "LM Studio"
EAGLE = "EAGLE"
LEVIATHAN = "Leviathan et al."
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
WAYS_OF_DRAFTING = (
    "Which tokens does a served log's acceptance belong to? By default, vLLM (draft_sample_method greedy), SGLang, "
    "TensorRT-LLM and llama.cpp draft the most likely tokens. Drawn tokens are drafted by vLLM with "
    "draft_sample_method probabilistic, by SGLang with --speculative-use-rejection-sampling, and by TensorRT-LLM with "
    "use_rejection_sampling."
)
_SHORT_NAMES = {
    "AR (a number of tokens, not a share)": "AR",
    "accepted draft tokens, %": "accepted %",
}


@dataclass(frozen=True, slots=True)
class ToolNumber:
    """A number under a tool's name."""

    tool: str
    name: str
    label: str
    formula: str
    value: Any  # None where it is undefined
    shown: str
    reason: str = ""  # why it is undefined


def other_names(name: str) -> str:
    """The names of other tools for this number of METRICS, as "tool: name; tool: name"; "" where none has it."""
    names = []
    for tool, theirs, ours in (*_NAMES, (VLLM, "recovered", "resampled")):
        if ours == name:
            names.append(f"{tool}: {_SHORT_NAMES.get(theirs, theirs)}")
    return "; ".join(names)


def tool_numbers(recorded: Trace) -> tuple[ToolNumber, ...]:
    """The numbers under every name of every tool, in the order of TOOLS."""
    counters = count(recorded)
    values = metrics(counters)
    rows = []
    for tool, name, key in _NAMES:
        metric = METRICS[key]
        value = values[key]
        shown = metric.spell(value)
        reason = values["reasons"].get(key, "")
        rows.append(ToolNumber(tool, name, metric.label, metric.formula, value, shown, reason))
    num_drafts = counters.num_drafting_steps
    words = ("steps with a draft", "steps that drafted a token", num_drafts, f"{num_drafts:,}")
    rows.append(ToolNumber(VLLM, "num_spec_steps", *words))
    ks = {step.settings.k for step in recorded.steps}
    k = None
    reason = ""
    if len(ks) == 1:
        k = ks.pop()
    else:
        reason = "K changed during the run" if ks else "no step was made"
    words = ("K", "tokens asked for per step", k, "n/a" if reason else str(k), reason)
    rows.append(ToolNumber(VLLM, "num_spec_tokens", *words))
    return tuple(sorted(rows, key=lambda row: TOOLS.index(row.tool)))


def export(recorded: Trace, tool: str) -> str:
    """The tool's numbers as JSON under its own field names; for vLLM also the counters that its server exports."""
    if tool not in (VLLM, SGLANG):
        raise ValueError(f"tool must be {VLLM} or {SGLANG} (got {tool!r})")
    rows = [row for row in tool_numbers(recorded) if row.tool == tool]
    fields = {row.name: row.value for row in rows if row.name.isidentifier()}
    if tool == VLLM:
        counters = count(recorded)
        fields |= {
            "vllm:spec_decode_num_drafts": counters.num_drafting_steps,
            "vllm:spec_decode_num_draft_tokens": counters.num_drafted,
            "vllm:spec_decode_num_accepted_tokens": counters.statuses["accepted"],
            "vllm:spec_decode_num_accepted_tokens_per_pos": counters.accepted_to,
        }
    return json.dumps(fields, indent=2)
