"""The sections that plan: what they say of the shipped run and where something is missing, and their form."""

import json
import math
from dataclasses import dataclass, replace

import pytest

from specviz.analysis import given_text as judged
from specviz.analysis import theory
from specviz.analysis.breakdown import why_slow
from specviz.analysis.every_k import DraftOnText, OtherDrafts
from specviz.settings import assets_dir
from specviz.trace import load_trace, tool_names
from specviz.trace.metrics import metrics
from specviz.views.blocks import ChartBlock
from specviz.views.compare import plan, plan_charts, plan_theory
from specviz.views.palette import palette
from tests.helpers import traces
from tests.helpers.page_records import check_record, every_block, kind_of, kinds

KNOWN = {name for group in palette().values() for name in group}


@dataclass(frozen=True)
class Costs:
    target: str = "fable-target"
    draft: str | None = "fable-draft"
    context_length: int = 13
    draft_ms: float = 0.8
    verify_ms: tuple[float, ...] = tuple(4.0 + 0.05 * n for n in range(33))
    overhead_ms: float = 0.3
    plain_overhead_ms: float = 0.3
    doubt: str = ""


@pytest.fixture(scope="module")
def first_visit():
    return load_trace(assets_dir() / "traces" / "first-visit.jsonl.gz")


@pytest.fixture(scope="module")
def text(first_visit):
    return judged.judge_run(first_visit)


@pytest.fixture(scope="module")
def alpha(first_visit):
    return metrics(first_visit)["alpha"]


def said(section):
    words = [block.words for block in every_block(section.blocks) if hasattr(block, "words")]
    return " ".join(each if isinstance(each, str) else "".join(each) for each in words)


def figures(section):
    return [block.figure for block in every_block(section.blocks) if isinstance(block, ChartBlock)]


def check_form(section):
    """JSON without not-a-number; every chart's colours by name, its traces as long as each other, its table whole."""
    check_record(section)
    for figure in figures(section):
        places = len(figure["data"][0]["x"])
        for line in figure["data"]:
            assert line["meta"]["status"] in KNOWN
            assert len(line["x"]) == len(line["y"]) == places
        for _, trace, attribute in figure["layout"]["meta"]["table"]:
            assert len(figure["data"][trace][attribute]) == places
        curves = [each for each in figure["data"] if each.get("mode") == "lines" and "band" not in each["name"]]
        assert len({each["line"]["dash"] for each in curves}) == len(curves)  # never colour alone


def line(figure, name):
    return next(each for each in figure["data"] if each["name"].startswith(name))


# ---- every K --------------------------------------------------------------------------------------------------------


def test_every_k_without_costs(first_visit, text):
    section = plan.every_k(first_visit, text.every_k(), text.cuts(), point=plan.run_point(first_visit))
    check_form(section)
    assert kinds(section) == ["words", "segments", "words", "chart", "chart", "words"]
    assert "Exact for this text" in said(section)
    assert "Measure costs" in said(section)
    assert f"This run made {len(first_visit.steps)} target calls at K = 4" in said(section)


def test_the_slider_begins_with_the_run_itself(first_visit, text):
    block = plan.every_k(first_visit, text.every_k(), text.cuts(), point=plan.run_point(first_visit)).blocks[1]
    assert (block.k, len(block.by_k), len(block.tokens)) == (4, 32, 64)
    assert block.by_k[4].lengths == tuple(len(step.emitted) for step in first_visit.steps)
    assert block.by_k[4].words[1] == f"{len(first_visit.steps)} target calls"
    assert all(sum(cut.lengths) == 64 for cut in block.by_k.values())
    assert block.tokens[0] == " they"


def test_the_charts_hold_the_what_ifs_numbers_and_the_runs_own_mark(first_visit, text):
    what_if, point = text.every_k(), plan.run_point(first_visit)
    calls, tokens = figures(plan.every_k(first_visit, what_if, text.cuts(), point=point))
    assert line(calls, "expected")["y"][3] == round(what_if.at(4).expected_target_calls, 4)
    assert line(calls, "lower edge")["y"][3] <= line(calls, "expected")["y"][3] <= line(calls, "upper edge")["y"][3]
    assert line(calls, "this run")["y"][3] == point.target_calls == len(first_visit.steps)
    assert line(tokens, "this run")["y"][3] == pytest.approx(64 / len(first_visit.steps), abs=1e-4)
    assert [y for y in line(calls, "this run")["y"] if y is not None] == [point.target_calls]


def test_every_k_with_costs_names_the_best_range(first_visit, text):
    cheap = replace(Costs(), draft_ms=0.2)
    what_if = text.every_k(costs=cheap)
    section = plan.every_k(first_visit, what_if, text.cuts())
    check_form(section)
    low, high = what_if.best
    assert low < high
    assert f"the best is K = {low} to {high}, within 2 %" in said(section)
    best = max(outcome.speedup for outcome in what_if.outcomes)
    assert f"{best:.2f}x the speed without a draft" in said(section)
    assert "slower" not in said(section)
    assert "the best is K = 2; no other" in said(plan.every_k(first_visit, text.every_k(costs=Costs())))


def test_a_draft_that_does_not_pay_is_said_to(first_visit, text):
    dear = replace(Costs(), draft_ms=6.0)
    assert "This is slower than no draft" in said(plan.every_k(first_visit, text.every_k(costs=dear), text.cuts()))


def test_every_k_where_nothing_is_known():
    assert "Start a run" in said(plan.every_k(None, None))
    assert said(plan.every_k(traces.chain(), None, refusal="a lossy rule wrote this")) == "a lossy rule wrote this"


def test_a_run_with_a_changed_k_has_no_point():
    assert plan.run_point(traces.changed_k()) is None
    assert plan.run_point(traces.empty()) is None
    assert plan.run_point(traces.chain(), speedup=0.5).speedup == 0.5


@pytest.mark.parametrize("rule", ["block_verification", "sample_and_match"])
def test_a_run_by_another_rule_has_no_point(rule):
    recorded = traces.Builder().chain(4, 2, changed={"rule": rule}).chain(4, 3).score().finish()
    assert plan.run_point(recorded, speedup=1.5) is None
    text = judged.judge_run(recorded)
    section = plan.every_k(recorded, text.every_k(costs=Costs()), text.cuts(), point=plan.run_point(recorded))
    assert "This run made" not in said(section)
    assert f"This run used fable-draft with {rule.replace('_', ' ')}, so its own calls are not" in said(section)
    assert not any("this run" in each["name"] for figure in figures(section) for each in figure["data"])


def test_a_live_change_of_the_draft_leaves_no_point():
    recorded = traces.Builder().chain(4, 2).chain(4, 3, changed={"draft_model": "other"}).finish()
    assert plan.run_point(recorded) is None


def test_a_speed_measured_in_other_runs_is_called_so(first_visit, text):
    what_if, own = text.every_k(costs=Costs()), replace(plan.run_point(first_visit), speedup=1.25)
    for point, name in ((plan.run_point(first_visit, speedup=1.25), "measured in short runs"), (own, "this run")):
        calls, tokens, speed = figures(plan.every_k(first_visit, what_if, text.cuts(), point=point))
        assert line(speed, name)["y"][3] == 1.25
        assert line(speed, name)["hovertemplate"].startswith(f"{name}: ")
        assert line(calls, "this run")
        assert line(tokens, "this run")


def test_hostile_token_texts_are_written_out():
    recorded = traces.hostile()
    scored = traces.Builder(traces.HOSTILE, seed=7)
    for drafted, kept in traces.CHAINS * 2:
        scored.chain(drafted, kept)
    hostile = scored.score().finish()
    tokens = plan.every_k(recorded, judged.judge_run(hostile).every_k([4]), judged.judge_run(hostile).cuts([4]))
    assert not any(char in text for text in tokens.blocks[1].tokens for char in "\x1b\u202e\x00")


# ---- other drafts ---------------------------------------------------------------------------------------------------


def test_other_drafts_table_marks_the_best_and_says_who_cannot(first_visit, text):
    near = DraftOnText("fable-draft", 0.68, text.every_k(costs=Costs()))
    worse = replace(text, chances=replace(text.chances, accept=text.chances.accept * 0.5))
    rows = (DraftOnText("slow", 0.3, worse.every_k()), near, DraftOnText("stranger", refusal="another vocabulary"))
    section = plan.other_drafts(first_visit, OtherDrafts(3, 3, rows), 4)
    check_form(section)
    table = section.blocks[0]
    assert table.marked == 1
    assert table.rows[1][:3] == ["fable-draft", "68\u00a0%", f"{near.what_if.at(4).tokens_per_call:.2f}"]
    assert table.rows[0][3] == "not known"
    assert table.rows[2] == ["stranger", "another vocabulary", "–", "–"]
    (figure,) = figures(section)
    assert [each["name"] for each in figure["data"]] == ["slow", "fable-draft"]
    assert figure["data"][1]["y"] == [round(share, 4) for share in near.what_if.by_depth[:16]]
    assert len({(each["line"]["dash"], each["marker"]["symbol"]) for each in figure["data"]}) == 2


def test_other_drafts_under_way_show_how_far(first_visit):
    section = plan.other_drafts(first_visit, OtherDrafts(0, 4, ()), 4)
    assert kinds(section) == ["progress"]
    assert section.controls[0].do == "ask"


def test_other_drafts_before_and_without_a_run(first_visit):
    assert "Press “Ask the other drafts”" in said(plan.other_drafts(first_visit, None, 4))
    assert plan.other_drafts(None, None, 4).controls == ()


# ---- theory ---------------------------------------------------------------------------------------------------------


def test_theory_draws_no_speed_from_costs_of_a_busy_machine_and_says_so(text, alpha):
    costs = replace(Costs(), doubt="This machine was too busy.")
    section = plan_theory.theory(text.every_k(costs=costs), alpha, costs)
    assert len(figures(section)) == 1
    assert costs.doubt in said(section)


def test_theory_draws_the_formula_beside_the_text(first_visit, text, alpha):
    what_if, costs = text.every_k(costs=Costs()), Costs()
    section = plan_theory.theory(what_if, alpha, costs, plan.run_point(first_visit, speedup=1.2))
    check_form(section)
    tokens, speed = figures(section)
    formula = line(tokens, "formula")
    assert formula["y"][3] == round((1 - alpha**5) / (1 - alpha), 4)
    assert line(speed, "formula, alpha")["y"][3] == round((1 - alpha**5) / (1 - alpha) / (4 * 0.2 + 1), 4)
    step_ms = 4 * 0.8 + costs.verify_ms[4] + 0.3
    assert line(speed, "formula, measured")["y"][3] == round((1 - alpha**5) / (1 - alpha) * 4.3 / step_ms, 4)
    assert line(speed, "measured in short runs")["y"][3] == 1.2
    assert f"gives at most {1 / (1 - alpha):.2f} tokens per target call: the first rejection" in said(section)
    assert f"K = 1 gives {(1 + alpha) / 1.2:.2f}x, the best " in said(section)
    assert f"gives {formula['y'][3]:.2f} tokens per target call" in said(section)


def test_published_rows_are_counted_not_assumed(text, alpha):
    words = said(plan_theory.theory(text.every_k(), alpha, None))
    rows = theory.TABLES_2_AND_4
    above = sum(row.measured > theory.walltime_improvement(row.alpha, row.k, row.c) for row in rows)
    assert f"is above the formula's in {above} of these 12 rows and below it in {12 - above}." in words
    assert "Measure costs" in words


def test_a_condition_that_fails_is_said(text, alpha):
    dear = replace(Costs(), draft_ms=4.0)
    assert "No K makes this pair faster" in said(plan_theory.theory(text.every_k(costs=dear), alpha, dear))


def test_theory_without_an_alpha_still_shows_what_was_published():
    section = plan_theory.theory(None, None, None)
    check_form(section)
    assert kinds(section) == ["words", "details"]
    assert "No alpha yet" in said(section)


# ---- why is it slow? ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("speed", "says"), [(150.0, "1.50x, faster than"), (60.0, "0.60x, slower than")])
def test_factors_lead_from_the_ideal_to_the_measured_speedup(speed, says):
    made = why_slow(traces.chain(), Costs(), tokens_per_s=speed, baseline_tokens_per_s=100.0)
    section = plan.why_slow(made)
    check_form(section)
    assert f"Measured: {says} no draft." in said(section)
    table = next(block for block in section.blocks if kind_of(block) == "table")
    assert [row[0] for row in table.rows] == ["ideal", *(each.name for each in made.factors), "measured speedup"]
    (figure,) = figures(section)
    assert figure["layout"]["yaxis"]["type"] == "log"
    ends = [
        next(
            (bars["base"][at], bars["base"][at] + bars["y"][at]) for bars in figure["data"] if bars["y"][at] is not None
        )
        for at in range(7)
    ]
    product = float(made.ideal)
    for (low, high), factor in zip(ends[1:-1], made.factors, strict=True):
        before, product = product, product * factor.value
        assert sorted((before, product)) == pytest.approx([low, high], abs=2e-4)
    assert sorted((1.0, made.speedup)) == pytest.approx(list(ends[-1]), abs=2e-4)
    assert math.isclose(product, made.speedup)
    assert all(low > 0 for low, _ in ends)


def test_what_was_not_measured_alike_is_shown():
    costs = replace(Costs(), context_length=900)
    made = why_slow(traces.chain(), costs, tokens_per_s=150.0, baseline_tokens_per_s=100.0, most_timed=5)
    assert len(made.notes) == 2
    assert all(note in said(plan.why_slow(made)) for note in made.notes)


def test_what_is_missing_for_the_factors_is_named():
    assert "Measure costs" in said(plan.why_slow(None, has_run=True))
    assert said(plan.why_slow(None, has_run=True, has_costs=True)) == "Not known yet: press “Measure the speed” here."
    assert "Start a run" in said(plan.why_slow(None))
    assert said(plan.why_slow(None, refusal="this run drafted trees")) == "this run drafted trees"


# ---- other tools' names ---------------------------------------------------------------------------------------------


def test_every_tool_has_its_rows_and_two_have_a_file(first_visit):
    section = plan.tool_names(first_visit)
    check_form(section)
    assert {row[0] for row in section.blocks[0].rows} == set(tool_names.TOOLS)
    files = [block for block in section.blocks if kind_of(block) == "download"]
    assert [block.file for block in files] == ["specviz-vllm.json", "specviz-sglang.json"]
    assert json.loads(files[0].text)["num_spec_tokens"] == 4


def test_undefined_numbers_say_why_and_no_run_says_so():
    rows = plan.tool_names(traces.plain()).blocks[0].rows
    assert any(row[2] == "n/a: no token was drafted" for row in rows)
    assert "Start a run" in said(plan.tool_names(None))


def test_points_outside_the_ks_are_left_out(text):
    figure = plan_charts.calls_chart(text.every_k([1, 2]), plan_charts.Point(4, 20, 3.0, None))
    assert [each["name"] for each in figure["data"]] == [
        "expected",
        "lower edge of the band (5 %)",
        "upper edge of the band (95 %)",
    ]
