"""Laws of the claims: what is shown was measured, and a verdict needs its whole interval."""

import re

import pytest

from specviz.analysis.costs import batch_growth
from specviz.bench import claims, lossy
from specviz.bench.claims import ClaimReading, measure_claims, measure_poor_cases
from specviz.bench.lossy import answers_row, drawn_exams, drawn_sums, drawn_word_problems, measure_quality, solve
from specviz.session.workbench import workbench
from specviz.zoo import arithmetic
from tests.helpers.few_claims import few_claims
from tests.helpers.runs import REQUEST


@pytest.fixture
def few(monkeypatch):
    few_claims(monkeypatch, REQUEST.target, REQUEST.draft)


def test_every_pair_has_a_measured_cell_for_every_claim(few, bench):
    *progress, last = measure_claims(bench)
    assert [each.done for each in progress] == [*range(claims.RUNS + 1)]
    assert {each.total for each in (*progress, last)} == {last.done}
    ((heads, rows),) = last.tables
    assert heads == ["they say", "it takes", "tiny"]
    assert len({row[0] for row in rows}) == len(rows) == 13
    assert [row[0] for row in rows if isinstance(row[2], ClaimReading)] == [
        row[0] for row in rows if row[0].endswith(")")
    ]
    assert all(str(row[2]).strip() for row in rows)


def test_alpha_and_c_of_a_trial_are_those_of_its_runs(few, bench, monkeypatch):
    seen = []
    monkeypatch.setattr(claims, "claims_table", lambda trials: (seen.extend(trials), ([], []))[1])
    monkeypatch.setattr(claims, "pairs", lambda: [claims.Case("big", "big", "near", num_tokens=10, in_full=True)])
    [*measure_claims(bench)]
    (trial,) = seen
    assert len(trial.asked) == len(trial.alone) == claims.NUM_PROMPTS
    for asked, alone, c in zip(trial.asked, trial.alone, trial.cost_ratios, strict=True):
        assert asked.prompt == alone.prompt
        assert c == asked.steps.draft_ms / asked.steps.drafted / alone.steps.verify_ms
        assert 0 <= asked.steps.alpha <= 1
    assert trial.held
    assert all(each.draft > 0 for each in trial.held)


def test_the_share_that_a_contender_keeps_is_that_of_its_tokens(bench, few):
    """Greedy and of one model: all of it."""
    same = claims.Case("itself", "big", "big", num_tokens=10)
    *_, last = claims._try_all([same], claims.poor_table, bench)
    ((_, [row]),) = last.tables
    assert row[2] == "1.00 (1.00 to 1.00)"


def test_a_poor_case_says_why_and_when_the_first_token_came(few, bench):
    *_, last = measure_poor_cases(bench)
    ((heads, [row]),) = last.tables
    assert heads[-1] == "why"
    assert "the first token comes after" in row[-1]


@pytest.mark.parametrize(("between", "holds"), [((2.0, 3.0), True), ((1.0, 1.9), False), ((1.9, 2.1), None)])
def test_a_claim_holds_only_with_its_whole_interval(between, holds):
    assert claims._reaches(between, 2.0) is holds


def test_the_cases_change_one_thing_each():
    good, *others = claims.poor_cases()
    for case in others:
        changed = {
            name for name in ("target", "num_tokens", "temperature") if getattr(case, name) != getattr(good, name)
        }
        assert len(changed | ({"draft"} if case.target == good.target and case.draft != good.draft else set())) == 1


def test_batches_are_compared_with_one_token_of_each_text(bench):
    assert sorted(batch_growth(bench.pool.load("big"), rounds=1)) == [1, 8]


# What lossy drafting costs


def test_no_model_was_trained_on_a_sum():
    sums = drawn_sums()
    assert len(set(sums)) == lossy.NUM_SUMS
    for prompt, result in sums:
        a, b = map(int, re.findall(r"\d+", prompt))
        assert arithmetic.is_held_out(a, b)
        assert a + b == result


def test_word_problems_have_the_results_that_one_finds_by_hand():
    problems = drawn_word_problems()
    assert len(set(problems)) == lossy.NUM_WORD_PROBLEMS
    told = [(re.findall(r"\d+", words), result) for words, result in problems[:5]]
    assert told == [(["4", "8"], 12), (["14", "8"], 6), (["9", "5"], 45), (["13", "4"], 9), (["5", "2"], 10)]


def test_steps_of_a_draft_that_cannot_add_make_a_sum_wrong_where_all_are_taken():
    exam, rows = drawn_exams()[0], {}
    for threshold in (None, 0.0, -20.0):
        rows[threshold] = answers_row(threshold, [solve(exam, exam.problems[0], threshold, workbench())])
    assert [row[1][:6] for row in rows.values()] == ["1 of 1", "1 of 1", "0 of 1"]
    assert rows[None][2] == "-"
    assert rows[0.0][2].startswith("0 of")
    taken, _, graded = rows[-20.0][2].split()[:3]
    assert taken == graded != "0"


def test_only_a_lossy_rule_strays_in_a_step(few, bench):
    *_, last = measure_quality(bench)
    assert last.done == last.total
    (_, rules), (_, sums) = last.tables
    for _, promise, wrong, _ in rules:
        assert (float(wrong.rstrip("%")) < 1e-6) == (promise == "lossless")
    assert [row[0] for row in sums] == ["the target alone", "-20"]
