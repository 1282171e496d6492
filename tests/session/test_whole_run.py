"""Laws of a run recorded at once: it is the run that a session makes, and a rule that is wrong on purpose says so."""

from dataclasses import replace
from itertools import pairwise

import pytest

from specviz.rules.broken import BROKEN
from specviz.session.whole_run import activate, whole_run
from specviz.trace import Scores
from tests.helpers.runs import REQUEST, made, timeless


def recorded(bench, *, rule=None, scored=False, **changes):
    return whole_run(activate(replace(REQUEST, **changes).validate(), bench.pool), rule=rule, scored=scored)


def without_rule(trace):
    """The header's request names the rule that was used; a session's has the one that was asked for."""
    events = timeless(trace)
    events[0]["request"] = {**events[0]["request"], "rule": None}
    return events


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"temperature": 0.0},
        {"method": "none", "num_speculative_tokens": 1},
        {"num_speculative_tokens": 7, "seed": 3},
    ],
)
def test_it_is_the_run_that_a_session_makes(bench, changes):
    assert without_rule(recorded(bench, scored=True, **changes)) == without_rule(made(bench, **changes))


def test_one_setup_records_the_same_run_again(bench):
    active = activate(REQUEST.validate(), bench.pool)
    assert timeless(whole_run(active)) == timeless(whole_run(active))


def test_scores_are_there_when_asked_for(bench):
    assert not any(isinstance(event, Scores) for event in recorded(bench).events())
    assert len(recorded(bench, scored=True).scores[0].p) == REQUEST.max_new_tokens


def test_a_draft_of_another_vocabulary_has_no_probabilities_of_the_text(bench):
    """Its ids are no ids of the text: one of them read in its table would be another token."""
    changes = {"method": "cross_vocabulary", "draft": "stranger", "max_new_tokens": 8}
    [scored] = recorded(bench, scored=True, **changes).scores
    assert (scored.draft_model, set(scored.q), set(scored.overlap)) == (None, {None}, {None})
    assert None not in scored.p


def test_each_step_begins_after_the_one_before(bench):
    steps = recorded(bench).steps
    assert 0 <= steps[0].at_ms < steps[0].timing.total_ms
    for before, step in pairwise(steps):
        assert step.at_ms >= before.at_ms + before.timing.draft_ms + before.timing.verify_ms


def test_a_broken_rule_is_recorded_by_its_name_as_lossy(bench):
    wrong, right = recorded(bench, rule=BROKEN["resample_p"]), recorded(bench)
    assert {step.settings.rule for step in wrong.steps} == {"resample_p"}
    assert not any(step.settings.lossless for step in wrong.steps)
    assert wrong.header.request["rule"] == "resample_p"
    first_cut = next(step.index for step in right.steps if any(t.status == "rejected" for t in step.draft))
    for one, other in zip(wrong.steps[: first_cut + 1], right.steps[: first_cut + 1], strict=True):
        assert [(t.id, t.status, t.u) for t in one.draft] == [(t.id, t.status, t.u) for t in other.draft]


def test_a_mistake_in_drafting_is_made_by_the_draft(bench):
    greedy = recorded(bench, rule=BROKEN["argmax_draft"])
    judged = [(step.draft[at.child], at) for step in greedy.steps for at in step.positions if at.child is not None]
    assert judged
    for token, position in judged:
        assert token.q == max(q for _, _, _, q, *_ in position.top)
    assert greedy.text != recorded(bench).text


def test_the_header_says_which_forward_ran(bench):
    environment = recorded(bench).header.environment
    assert environment["forward"].startswith("compact (not compiled: its width ")
    assert environment["products"].startswith("columns ")
