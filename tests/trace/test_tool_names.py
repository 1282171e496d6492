"""Other tools' names for one run, counted again here from its records."""

import json

import pytest

from specviz.trace import tool_names
from specviz.trace.tool_names import SGLANG, TOOLS, VLLM, export, tool_numbers
from tests.helpers import traces


def counted(recorded):
    """(steps, steps with a draft, drafted, accepted per step that drafted, emitted), by hand."""
    drafting = [step for step in recorded.steps if step.draft]
    kept = [sum(token.status == "accepted" for token in step.draft) for step in drafting]
    drafted = sum(token.status != "scratch" for step in recorded.steps for token in step.draft)
    return len(recorded.steps), len(drafting), drafted, kept, len(recorded.tokens)


def values(recorded):
    return {(row.tool, row.name): row.value for row in tool_numbers(recorded)}


@pytest.mark.parametrize("name", ["chain", "changed_k", "lookup", "truncated"])
def test_the_numbers_by_hand(name):
    recorded = traces.ALL[name]()
    steps, drafting, drafted, kept, emitted = counted(recorded)
    got = values(recorded)
    assert got[VLLM, "mean_acceptance_length"] == pytest.approx(1 + sum(kept) / drafting)
    assert got[VLLM, "draft_acceptance_rate"] == pytest.approx(sum(kept) / drafted)
    assert (got[VLLM, "num_draft_tokens"], got[VLLM, "num_accepted_draft_tokens"]) == (drafted, sum(kept))
    assert got[VLLM, "acceptance_histogram"] == [kept.count(n) for n in range(len(got[VLLM, "acceptance_histogram"]))]
    assert got[VLLM, "num_spec_steps"] == sum(got[VLLM, "acceptance_histogram"]) == drafting
    assert got[SGLANG, "spec_verify_ct"] == steps
    assert got[SGLANG, "spec_accept_length"] == got["EAGLE", "compression ratio"] == pytest.approx(emitted / steps)
    assert got["NVIDIA", "joint acceptance rate"][0] == pytest.approx(sum(n >= 1 for n in kept) / steps)
    assert got["LM Studio", "accepted draft tokens, %"] == pytest.approx(100 * sum(kept) / drafted)


def test_one_run_has_different_numbers_under_names_that_sound_alike():
    got = values(traces.chain())
    alike = [got[VLLM, "mean_acceptance_length"], got[VLLM, "draft_acceptance_rate"], got["Leviathan et al.", "alpha"]]
    assert len({round(value, 3) for value in alike}) == 3


def test_every_name_has_a_formula_and_words_and_tools_stand_together():
    rows = tool_numbers(traces.chain())
    assert all(row.formula and row.shown and not row.reason for row in rows)
    assert list(dict.fromkeys(row.tool for row in rows)) == list(TOOLS)
    assert sorted(rows, key=lambda row: TOOLS.index(row.tool)) == list(rows)


def test_what_is_undefined_says_why():
    rows = {row.name: row for row in tool_numbers(traces.plain())}
    assert rows["draft_acceptance_rate"].value is None
    assert rows["draft_acceptance_rate"].shown == "n/a"
    assert "no token was drafted" in rows["draft_acceptance_rate"].reason
    assert "not been scored" in rows["alpha"].reason
    assert tool_names.tool_numbers(traces.changed_k())[-1].tool == "Leviathan et al."


def test_num_spec_tokens_is_k_where_it_was_constant():
    by_name = {row.name: row for row in tool_numbers(traces.chain())}
    assert by_name["num_spec_tokens"].value == 4
    assert {row.name: row for row in tool_numbers(traces.changed_k())}["num_spec_tokens"].reason.startswith("K changed")
    assert "no step" in {row.name: row for row in tool_numbers(traces.empty())}["num_spec_tokens"].reason


def test_exports_carry_the_engines_own_field_names():
    vllm, sglang = (json.loads(export(traces.chain(), tool)) for tool in (VLLM, SGLANG))
    assert set(vllm) == {
        "mean_acceptance_length", "draft_acceptance_rate", "acceptance_histogram", "num_spec_steps",
        "num_accepted_draft_tokens", "num_draft_tokens", "num_spec_tokens", "vllm:spec_decode_num_drafts",
        "vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens",
        "vllm:spec_decode_num_accepted_tokens_per_pos",
    }  # fmt: skip
    assert set(sglang) == {
        "spec_accept_length", "spec_accept_rate", "spec_verify_ct", "spec_num_correct_drafts",
        "spec_num_proposed_drafts", "spec_correct_drafts_histogram",
    }  # fmt: skip
    assert vllm["vllm:spec_decode_num_drafts"] == vllm["num_spec_steps"] == 7
    assert sum(sglang["spec_correct_drafts_histogram"]) == 7


def test_only_two_engines_are_exported():
    with pytest.raises(ValueError, match="must be vLLM or SGLang"):
        export(traces.chain(), "NVIDIA")
