"""The opening of any step: what it says and shows is what the trace recorded."""

import math

import pytest

from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views.explore.opening import opening, telling_step
from specviz.views.words import label
from tests.helpers import traces
from tests.helpers.messages import as_json

STEPS = [(name, step.index) for name in shipped_runs() for step in shipped_trace(name).steps]
ORDER = ("slow", "draft", "check", "judge", "verdict", "last", "point")
MOST_WORDS = 20


def beats_of(name, index):
    return {beat["name"]: beat for beat in as_json(opening(shipped_trace(name), index))["beats"]}


@pytest.fixture(scope="module")
def every():
    """Each shipped step with the beats of its opening."""
    return [(shipped_trace(name).steps[index], beats_of(name, index)) for name, index in STEPS]


def test_beats_come_in_one_order_each_at_most_once_and_always_end_with_the_point():
    for name, index in STEPS:
        names = [beat["name"] for beat in as_json(opening(shipped_trace(name), index))["beats"]]
        assert names == [each for each in ORDER if each in names]
        assert (names[0], names[-1]) == ("slow", "point")


def test_at_the_end_each_token_has_the_status_that_was_recorded(every):
    for step, beats in every:
        chips = [(text, status) for text, status, _ in beats["point"]["chips"]]
        known = [(label(token.text, token.bytes), token.status) for token in step.draft]
        known += [(label(token.text, token.bytes), token.kind) for token in step.emitted if token.node is None]
        assert set(chips) <= set(known)
        assert sum(status == "accepted" for _, status in chips) == sum(t.status == "accepted" for t in step.draft)
        assert chips[-1][1] == next((t.kind for t in step.emitted if t.node is None), chips[-1][1])


def test_nothing_is_told_before_its_beat(every):
    for _, beats in every:
        for name in ("draft", "check"):
            assert {status for _, status, _ in beats.get(name, {"chips": []})["chips"]} <= {"drafted"}
        if "judge" in beats:
            assert beats["judge"]["chips"][0][1] == "judged"


def test_the_draw_falls_in_the_solid_part_exactly_where_the_token_was_accepted(every):
    bars = [
        beats[name]["bar"] for step, beats in every for name in ("judge", "verdict") if "bar" in beats.get(name, {})
    ]
    drawn = [bar for bar in bars if "x" in bar]
    assert {bar["accepted"] for bar in drawn} == {True, False}
    assert all((bar["x"] < bar["fill"]) == bar["accepted"] for bar in drawn)


def test_the_first_bar_is_the_overlap_as_a_share_of_the_drafts_probability(every):
    for step, beats in every:
        token = next((token for token in step.draft if token.is_judged), None)
        is_chain = not step.is_tree and step.settings.rule == "speculative_sampling"
        if is_chain and step.settings.temperature and token and token.q:
            share = 100 * min(token.p_judged, token.q) / token.q
            assert math.isclose(beats["judge"]["bar"]["fill"], share, abs_tol=1e-3)


def test_a_replacement_comes_with_the_distribution_that_it_was_drawn_from(every):
    shown = [beats["last"]["shares"] for _, beats in every if beats.get("last", {}).get("shares")]
    assert len(shown) > 20
    for shares in shown:
        assert sum(drawn for *_, drawn in shares) == 1
        assert max(width for _, width, *_ in shares) == 100


def test_without_a_rejection_the_opening_says_so_and_shows_no_shares(every):
    for step, beats in every:
        if "verdict" in beats and not any(token.status == "rejected" for token in step.draft):
            assert beats["verdict"]["sentence"].startswith("Every guess is accepted")
            assert "shares" not in beats.get("last", {})


def test_only_a_lossless_step_promises_the_targets_distribution(every):
    for step, beats in every:
        assert ("exactly as if the target had written alone" in beats["point"]["sentence"]) == step.settings.lossless


def test_each_sentence_is_short(every):
    for _, beats in every:
        for beat in beats.values():
            assert all(len(words.split()) <= MOST_WORDS for words in beat["sentence"].split(". ")), beat["sentence"]


def test_the_step_that_opens_has_a_token_accepted_one_rejected_and_one_dropped():
    trace = shipped_trace("first-visit")
    step = trace.steps[telling_step(trace)]
    assert {"accepted", "rejected", "ignored"} <= {token.status for token in step.draft}
    assert step.index > 0
    assert step.draft[0].accept_prob < 0.9, "there is something to guess"


def test_of_a_conversation_the_question_is_the_last_turn_alone():
    assert as_json(opening(shipped_trace("real-eagle"), 0))["question"] == "Why is the sky blue?"
    assert as_json(opening(shipped_trace("first-visit"), 0))["question"].startswith("Once upon a time")


def test_the_answer_so_far_and_the_tokens_written_first_are_the_text_before_the_step():
    trace = shipped_trace("first-visit")
    shown = as_json(opening(trace, 4))
    before = [token for step in trace.steps[:4] for token in step.emitted]
    assert shown["written"] == [label(token.text) for token in before[-3:]]
    assert "".join(token.text for token in before[:-3]).endswith(shown["before"].removeprefix("… "))


@pytest.mark.parametrize("name", traces.ALL)
def test_every_kind_of_trace_can_be_opened(name):
    trace = traces.ALL[name]()
    for step in trace.steps:
        assert as_json(opening(trace, step.index))["beats"]
