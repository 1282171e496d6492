"""Draft against draft and job against older job: false alarms by simulation, and what an old file may not do."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from specviz.alignment.aggregate import Aggregator
from specviz.alignment.summary import Summary
from specviz.alignment.tables import compare as comparing
from specviz.alignment.tables import shard_tables as tables
from specviz.alignment.tables.compare import BETTER, SAME, UNSURE, WORSE
from specviz.alignment.types import ModelIdentity
from specviz.cli.align import change_line
from specviz.errors import SpecvizError
from tests.helpers import analysed_texts

DRAFTS = ("one", "two")


def compared(parts, num_prompts):
    return comparing.compare_drafts(parts, DRAFTS, {n: f"row {n}" for n in range(num_prompts)})[0]


def summary_of(num=35, drafts=DRAFTS, weights=(0.6, 0.7), first=0, **changes):
    """Texts on which the second draft is better by its weight."""
    aggregator = Aggregator(4, drafts)
    texts = [text_of(first + n, drafts, weights) for n in range(num)]
    aggregator.add(tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts], drafts)))
    return aggregator.summary(analysed_texts.facts(analysed_texts.request(**changes), prompts="a3f"))


def text_of(number, drafts, weights, limits=(10**6,) * 3):
    """The same text under drafts of different weights and contexts."""
    settings = zip(drafts, weights, limits, strict=False)
    made = [analysed_texts.text(number, drafts=(name,), weight=weight, limit=limit) for name, weight, limit in settings]
    columns = {name: own.drafts[name] for name, own in zip(drafts, made, strict=True)}
    return replace(made[0], drafts=columns)


@pytest.fixture(scope="module")
def summary():
    return summary_of()


def renamed(summary, **names):
    """The same job with these drafts alone, new="old": each under a new name."""
    drafts = tuple(replace(summary.draft(name), name=new) for new, name in names.items())
    by_prompt = {row: {new: alphas[name] for new, name in names.items()} for row, alphas in summary.by_prompt.items()}
    return replace(summary, drafts=drafts, by_prompt=by_prompt)


def from_row(summary, first):
    """The same job on prompts of which the first has this number."""
    alphas = summary.by_prompt.values()
    return replace(summary, by_prompt={f"row {first + place}": each for place, each in enumerate(alphas)})


def old(summary, **changes):
    """As it comes back from a file."""
    return msgspec.convert(json.loads(json.dumps(summary.to_dict())) | changes, Summary)


# ---- draft against draft --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_equal_drafts_differ_in_about_5_of_100_jobs_and_in_some_slice_in_as_many():
    """240 jobs of 40 prompts: a rate of 5 % gives more than 22 false alarms in fewer than 1 of 500 such tests."""
    generator = np.random.default_rng(5)
    jobs = [compared(analysed_texts.parts(generator, 40, drafts=DRAFTS), 40) for _ in range(240)]
    assert sum(job.slices[0].significant for job in jobs) <= 22
    assert sum(any(each.significant for each in job.slices[1:]) for job in jobs) <= 22


def test_a_better_draft_is_found_better(summary):
    whole, *slices = summary.comparisons[0].slices
    assert (whole.kind, whole.significant, whole.num_prompts) == ("all", True, 35)
    assert whole.interval[0] < whole.difference < whole.interval[1] < 0
    assert {each.kind for each in slices} == {"class", "depth", "context", "ahead"}


def test_the_difference_is_the_mean_of_the_prompts_own(summary):
    found = summary.comparisons[0]
    gaps = [alphas["one"] - alphas["two"] for alphas in summary.by_prompt.values()]
    assert found.slices[0].difference == pytest.approx(np.mean(gaps))
    standard = np.std(gaps, ddof=1) / np.sqrt(35)
    low, high = found.slices[0].interval
    assert high - low == pytest.approx(2 * 2.03 * standard, rel=0.15)  # Student's t with 34 degrees of freedom


def test_below_30_prompts_nothing_is_called_significant():
    for each in summary_of(29).comparisons[0].slices:
        assert each.significant is None
    assert summary_of(1).comparisons[0].slices[0].interval is None


def test_a_slice_with_few_prompts_is_not_called_significant_beside_a_whole_that_is(summary):
    few = [each for each in summary.comparisons[0].slices if each.num_prompts < 30]
    assert all(each.significant is None for each in few)


def test_texts_where_each_wins_are_those_it_is_ahead_on():
    generator = np.random.default_rng(3)
    parts = analysed_texts.parts(generator, 15, drafts=DRAFTS)
    found = compared(parts, 15)
    whole = {part.draft: own.alphas for part, own in parts.items() if part.kind == "all"}
    gaps = whole["one"] - whole["two"]
    assert [win.prompt for win in found.wins_a] == [n for n in np.argsort(-gaps) if gaps[n] > 0][:10]
    assert [win.prompt for win in found.wins_b] == [n for n in np.argsort(gaps) if gaps[n] < 0][:10]
    assert all(win.difference == gaps[win.prompt] and win.id == f"row {win.prompt}" for win in found.wins_a)


def test_every_two_drafts_are_compared_and_one_alone_with_none():
    three = summary_of(5, ("a", "b", "c"), (0.5, 0.6, 0.7)).comparisons
    assert [(each.a, each.b) for each in three] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert summary_of(5, ("a",), (0.5,)).comparisons == ()


def test_a_draft_that_reads_nothing_is_compared_on_nothing():
    texts = [analysed_texts.text(n, drafts=DRAFTS, limit=3) for n in range(3)]
    aggregator = Aggregator(4, DRAFTS)
    aggregator.add(tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts], DRAFTS)))
    (found,) = aggregator.summary(analysed_texts.facts(analysed_texts.request())).comparisons
    assert (found.slices, found.wins_a, found.wins_b) == ((), (), ())


@pytest.fixture(scope="module")
def unequal():
    """Drafts alike in all but their context: the first ten tokens of 40, and all."""
    texts, aggregator = [text_of(n, DRAFTS, (0.6, 0.6), (39, 10**6)) for n in range(35)], Aggregator(4, DRAFTS)
    aggregator.add(tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts], DRAFTS)))
    return aggregator.summary(analysed_texts.facts(analysed_texts.request(), prompts="a3f"))


def test_drafts_of_different_reach_are_compared_where_all_can_read(unequal):
    """A draft that reads less is neither better nor worse than its own longer copy."""
    (found,) = unequal.comparisons
    assert " 350 of 1,400 tokens" in found.words
    assert {each.difference for each in found.slices} == {0.0}
    assert not any(each.significant for each in found.slices)
    assert (found.wins_a, found.wins_b) == ((), ())
    assert {each.value for each in found.slices if each.kind == "depth"} == {"0-15"}


def test_drafts_without_a_place_in_common_are_not_compared():
    texts, aggregator = [text_of(n, DRAFTS, (0.6, 0.6), (3, 10**6)) for n in range(3)], Aggregator(4, DRAFTS)
    aggregator.add(tables.build_tables(texts, analysed_texts.shard([text.written.row for text in texts], DRAFTS)))
    (found,) = aggregator.summary(analysed_texts.facts(analysed_texts.request())).comparisons
    assert found.words
    assert (found.slices, found.wins_a, found.wins_b) == ((), (), ())


def test_drafts_of_equal_reach_are_compared_everywhere_without_a_word(summary):
    assert summary.comparisons[0].words == ""


# ---- thresholds -----------------------------------------------------------------------------------------------------


def test_every_draft_must_reach_every_threshold(summary):
    alphas = [draft.alpha for draft in summary.drafts]
    assert comparing.check_thresholds(summary, {"alpha": min(alphas)}) == ()
    (failed,) = comparing.check_thresholds(summary, {"alpha": np.mean(alphas), "tokens_per_call": 1.0})
    assert failed == f"one: alpha is {alphas[0]:.4g}, below {np.mean(alphas):g}"
    assert len(comparing.check_thresholds(summary, {"greedy_agreement": 1.0, "mean_acceptance": 1.0})) == 4


def test_tokens_that_a_draft_cannot_read_count_0_for_a_threshold_and_it_is_said(unequal):
    alphas = {draft.name: draft.alpha for draft in unequal.drafts}
    assert comparing.check_thresholds(unequal, {"alpha": alphas["one"] / 4}) == ()
    (failed,) = comparing.check_thresholds(unequal, {"alpha": alphas["one"] / 4 + 0.01})
    counted = "it can read 25\u00a0% of the tokens; the others count as 0"
    assert failed.startswith(f"one: alpha is {alphas['one'] / 4:.4g}, below")
    assert failed.endswith(f"({counted})")
    assert comparing.unreadable_words(unequal, {"alpha": 0.1}) == (f"one: {counted}",)
    assert comparing.unreadable_words(unequal, {"tokens_per_call": 1.0}) == ()


def test_a_draft_that_reads_nothing_reaches_no_threshold_of_agreement(summary):
    nothing = replace(summary.drafts[0], alpha=None, readable=0.0)
    (failed,) = comparing.check_thresholds(replace(summary, drafts=(nothing,)), {"alpha": 0.0})
    assert failed.startswith("one: alpha is not known")


def test_thresholds_are_refused_before_a_job_that_could_not_tell_them():
    comparing.check_threshold_names({"alpha": 0.5, "speedup": 1.0})
    with pytest.raises(SpecvizError, match=r"speedup .* costs"):
        comparing.check_threshold_names({"alpha": 0.5, "speedup": 1.0}, has_costs=False)
    with pytest.raises(SpecvizError, match="'beta'"):
        comparing.check_threshold_names({"beta": 0.5}, has_costs=False)


def test_tokens_per_call_is_held_to_its_threshold_at_the_jobs_k(summary):
    rates = [draft.tokens_per_call[3] for draft in summary.drafts]
    assert comparing.check_thresholds(summary, {"tokens_per_call": min(rates)}) == ()
    assert len(comparing.check_thresholds(summary, {"tokens_per_call": max(rates) + 0.01})) == 2


def test_the_speedup_is_that_of_the_best_k_and_needs_costs(summary):
    draft = replace(summary.drafts[0], speedups=(0.9, 1.3, 1.2))
    known = replace(summary, drafts=(draft,))
    assert comparing.check_thresholds(known, {"speedup": 1.3}) == ()
    assert comparing.check_thresholds(known, {"speedup": 1.31}) == ("one: speedup is 1.3, below 1.31",)
    with pytest.raises(SpecvizError, match=r"speedup of one .* costs"):
        comparing.check_thresholds(summary, {"speedup": 1.0})


def test_an_unknown_threshold_lists_those_there_are(summary):
    with pytest.raises(SpecvizError, match=r"'beta'; .* alpha, greedy_agreement, mean_acceptance"):
        comparing.check_thresholds(summary, {"beta": 1.0})


# ---- against an older job -------------------------------------------------------------------------------------------


def verdicts(now, before):
    return [change.verdict for change in comparing.compare_with_old(now, before)]


def test_a_job_is_no_different_from_itself(summary):
    changes = comparing.compare_with_old(summary, old(summary))
    assert [(each.draft, each.old_draft, each.verdict) for each in changes] == [(n, n, SAME) for n in DRAFTS]
    assert [(each.difference.difference, each.difference.num_prompts) for each in changes] == [(0.0, 35)] * 2


def test_a_better_draft_is_better_and_a_worse_one_worse(summary):
    swapped = renamed(summary, one="two", two="one")
    assert verdicts(summary, old(swapped)) == [WORSE, BETTER]


def test_jobs_are_paired_by_the_ids_of_their_prompts(summary):
    later = from_row(summary, 10)  # rows 10 to 44, of which 25 were in the old job
    changes = comparing.compare_with_old(later, old(summary))
    assert [(each.difference.num_prompts, each.verdict) for each in changes] == [(25, UNSURE)] * 2
    with pytest.raises(SpecvizError, match="no prompt"):
        comparing.compare_with_old(from_row(summary, 100), old(summary))


def test_a_draft_of_another_name_is_compared_where_both_jobs_have_only_one(summary):
    now, before = renamed(summary, new="two"), renamed(summary, first="one")
    (change,) = comparing.compare_with_old(now, old(before))
    assert (change.draft, change.old_draft, change.verdict) == ("new", "first", BETTER)


def test_a_draft_that_the_older_job_has_not_is_refused_by_name(summary):
    with pytest.raises(SpecvizError, match="drafts new; it has one, two"):
        comparing.compare_with_old(renamed(summary, new="one"), old(summary))


def test_drafts_that_both_jobs_have_are_compared_and_the_others_left_out(summary):
    now = renamed(summary, one="one", new="two")
    assert [change.draft for change in comparing.compare_with_old(now, old(summary))] == ["one"]


@pytest.mark.parametrize("change", [{"temperature": 0.7}, {"top_k": 5}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_another_sampling_is_refused_also_before_the_job(summary, change):
    comparing.check_old_job(old(summary), analysed_texts.request(), "a3f")
    with pytest.raises(SpecvizError, match="another sampling"):
        comparing.compare_with_old(replace(summary, sampling=summary.sampling | change), old(summary))
    with pytest.raises(SpecvizError, match="another sampling"):
        comparing.check_old_job(old(summary), analysed_texts.request(**change), "a3f")


def test_another_target_is_refused_by_both_names(summary):
    with pytest.raises(SpecvizError, match=r"target, .* elephant, .* big"):
        comparing.compare_with_old(summary, old(summary, target="elephant"))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"prompts": "b4e"}, r"prompt set .* b4e, .* a3f"),
        ({"max_new_tokens": 9}, r"max_new_tokens, .* 9, .* 40"),
        ({"chat": True}, r"chat setting, .* True, .* False"),
        ({"chat_options": {"x": 1}}, r"chat options, .* \{'x': 1\}, .* \{\}"),
    ],
)
def test_other_prompts_lengths_or_chat_forms_are_refused_by_name_also_before_the_job(summary, change, told):
    """Rows of different files have the same numbers, so their ids alone pair nothing."""
    with pytest.raises(SpecvizError, match=told):
        comparing.compare_with_old(summary, old(summary, **change))
    with pytest.raises(SpecvizError, match=told):
        comparing.check_old_job(old(summary, **change), analysed_texts.request(), "a3f")


def test_the_models_are_checked_before_the_first_shard(summary):
    target, *drafts = (ModelIdentity(name, "", 12, "float32", name) for name in ("big", "new", "two", "newer"))
    comparing.check_old_models(old(summary), target, drafts[:2])
    with pytest.raises(SpecvizError, match="drafts new, newer; it has one, two"):
        comparing.check_old_models(old(summary), target, drafts[::2])
    with pytest.raises(SpecvizError, match="another target"):
        comparing.check_old_models(old(summary), drafts[0], drafts[1:])


def test_a_target_of_the_same_name_that_holds_something_else_is_another_target(summary):
    now = replace(summary, models={"big": "1111"})
    with pytest.raises(SpecvizError, match=r"target, .* big with other weights or settings"):
        comparing.compare_with_old(now, old(summary, models={"big": "2222"}))


def test_the_same_target_under_another_name_is_the_same_target(summary):
    now = replace(summary, models={"big": "1111"})
    assert verdicts(now, old(summary, target="large", models={"large": "1111"})) == [SAME, SAME]


def test_drafts_are_paired_by_what_they_hold_and_else_by_their_names(summary):
    now = replace(summary, models={"one": "a", "two": "b"})
    swapped, retrained = ({"one": "b", "two": "a"}, {"one": "a", "two": "c"})
    pairs = [
        (each.old_draft, each.is_same_model) for each in comparing.compare_with_old(now, old(summary, models=swapped))
    ]
    assert pairs == [("two", True), ("one", True)]
    _, change = comparing.compare_with_old(now, old(summary, models=retrained))
    assert (change.old_draft, change.is_same_model) == ("two", False)
    assert change_line(change).startswith("two against ")


@pytest.mark.parametrize("alpha", [1.5, -0.1, float("nan")])
def test_an_alpha_that_no_job_gives_is_refused(summary, alpha):
    with pytest.raises(SpecvizError, match="from 0 to 1"):
        comparing.compare_with_old(summary, old(summary, by_prompt={"row 0": {"one": alpha, "two": 0.5}}))
