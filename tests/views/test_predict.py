"""Laws of "predict the verdict": every place is a judged token of the run, nothing is told before the guess."""

import json
import math
from dataclasses import replace

import pytest

from specviz.trace import Trace
from specviz.trace.shipped import shipped_trace
from specviz.views.blocks import dump
from specviz.views.learn.predict import MOST_PLACES, NO_DRAWS, predict_block, predict_props
from specviz.views.words import percent, prose
from tests.helpers import traces
from tests.helpers.messages import as_json
from tests.helpers.one_file import unpacked

RUNS = ("first-visit", "tiny-draft", "k-8", "sum")
TELLING = ("draw", "zoom", "note", "numbers", "siblings")


def judged(trace):
    """The darts of a run in reading order, by the records alone."""
    found = [(step, node) for step in trace.steps for node, token in enumerate(step.draft) if token.is_judged]
    return found[:MOST_PLACES]


def places_of(trace):
    return predict_props(trace).places


@pytest.mark.parametrize("name", RUNS)
def test_every_place_is_a_judged_token_with_its_verdict_and_look(name):
    trace = shipped_trace(name)
    for place, (step, node) in zip(places_of(trace), judged(trace), strict=True):
        token = step.draft[node]
        assert (place.step, place.ref, place.accepted) == (step.index, str(node), token.status == "accepted")
        assert place.look.status == token.status
        assert place.look.draw.accepted == place.accepted
        assert place.look.rows.p[0] == percent(token.p_judged)
        assert place.ask.rows.q[0] == percent(1.0 if token.q is None else token.q)


@pytest.mark.parametrize("name", RUNS)
def test_the_text_before_a_place_is_what_was_written_until_then(name):
    trace = shipped_trace(name)
    text, pieces = prose("".join(token.text for token in trace.tokens)), []
    for place in places_of(trace):
        pieces += place.before
        written = "".join(part for part, status in pieces if status != "rejected")
        assert text.startswith(written)
        step = trace.steps[place.step]
        kept_here = sum(token.status == "accepted" for token in step.draft[: int(place.ref)])
        num_before = sum(len(each.emitted) for each in trace.steps[: place.step]) + kept_here
        assert written == prose("".join(token.text for token in trace.tokens[:num_before]))
        pieces += place.after
        gives = ["accepted"] if place.accepted else ["rejected", *([] if step.truncated else ["resampled"])]
        assert [status for _, status in place.after] == gives


@pytest.mark.parametrize("name", RUNS)
def test_before_the_guess_nothing_tells_the_verdict(name):
    for place in places_of(shipped_trace(name)):
        ask = place.ask
        assert not set(TELLING) & set(as_json(ask))
        assert ask.status == "undecided"
        assert set(ask.rows.role[1:]) <= {"", "others"}
        assert ask.rows.role[0] == "drafted"
        assert not any(
            words in "".join(ask.title)
            for words in ("random draw", "accepted.", "rejected,", "rejected.", "resampled", "always")
        )
        shown = [row for row, role in zip(ask.rows.p_dot, ask.rows.role, strict=True) if role == ""]
        shown = [-1.0 if at is None else at for at in shown]
        assert shown == sorted(shown, reverse=True)  # the token that came instead stands where its probabilities put it


def test_the_question_is_the_same_whichever_way_the_draw_fell():
    trace = shipped_trace("tiny-draft")
    kept = next((s, n) for s, n in judged(trace) if s.draft[n].status == "accepted" and n == len(s.draft) - 1)
    step, node = kept
    fallen = replace(step.draft[node], status="rejected", u=0.999999)
    last = replace(step.emitted[-1], kind="resampled")
    other = replace(step, draft=(*step.draft[:node], fallen), emitted=(*step.emitted[:node], last))
    events = [trace.header, trace.models[0]]
    for index, made in ((0, step), (0, other)):
        made = replace(made, index=index)
        events.append(made)
    one, two = (places_of(Trace([*events[:2], each]))[-1] for each in events[2:])
    assert (one.accepted, two.accepted) == (True, False)
    assert one.ask == two.ask


def test_the_question_spells_both_probabilities_as_the_bars_do():
    told = 0
    for name in RUNS:
        for place in places_of(shipped_trace(name)):
            p, q = place.ask.rows.p[0], place.ask.rows.q[0]
            words = "".join(place.ask.title)
            told += p != q
            if p != q and "without a probability" not in words:
                assert f" {q}, the target {p}. Accepted or rejected?" in words
    assert told > 20


@pytest.mark.parametrize("name", RUNS)
def test_the_bets_are_those_of_the_likelier_side(name):
    trace = shipped_trace(name)
    chances = [(step.draft[node].accept_prob, step.draft[node].status) for step, node in judged(trace)]
    for number, place in enumerate(places_of(trace), 1):
        right = [chance >= 0.5 if status == "accepted" else chance < 0.5 for chance, status in chances[:number]]
        share = math.fsum(max(chance, 1 - chance) for chance, _ in chances[:number]) / number
        assert place.bet == f"{sum(right)} of {number} (on average {percent(share)})"
    assert predict_props(trace).learned[1] == f"{sum(right)} of {len(chances)}"


def test_at_temperature_0_nothing_is_said_to_be_chance():
    assert "nothing is left to chance" in predict_props(shipped_trace("sum")).learned[2]
    assert "Nobody can do better" in predict_props(shipped_trace("tiny-draft")).learned[4]


@pytest.mark.parametrize("make", [traces.plain, traces.empty, lambda: shipped_trace("tree")])
def test_runs_without_such_draws_are_said_to_have_none(make):
    assert predict_block({"one": make()}).words == NO_DRAWS


def test_siblings_are_no_places():
    trace = traces.tree()
    assert {step.is_tree for step in trace.steps} == {True, False}
    assert not any(trace.steps[place.step].is_tree for place in places_of(trace))


def test_another_rule_has_no_draw_of_this_picture():
    trace = traces.chain()
    lossy = [replace(step, settings=replace(step.settings, rule="lenience", lossless=False)) for step in trace.steps]
    assert predict_props(Trace([trace.header, trace.models[0], *lossy])) is None


def test_tokens_behind_the_end_of_the_text_are_left_out():
    trace = traces.truncated()
    for place in places_of(trace):
        step = trace.steps[place.step]
        assert int(place.ref) <= len(step.emitted)


def test_a_judged_token_of_which_no_probabilities_are_recorded_is_no_place():
    trace = shipped_trace("first-visit")
    step, node = judged(trace)[0]
    bare = replace(step, positions=tuple(place for place in step.positions if place.child != node))
    made = Trace([trace.header, trace.models[0], bare, *trace.steps[1:]])
    refs = [(place.step, place.ref) for place in places_of(made)]
    assert (step.index, str(node)) not in refs
    assert refs[: len(refs) - 1] == [(step.index, str(node)) for step, node in judged(trace)[1:]][: len(refs) - 1]


def test_a_block_holds_all_runs_packed_and_small():
    made = predict_block({name: shipped_trace(name) for name in RUNS} | {"a tree": shipped_trace("tree")})
    assert [title for title, _ in made.runs] == list(RUNS)
    assert unpacked(made.runs[0][1]) == json.loads(dump(predict_props(shipped_trace("first-visit"))))
    assert all(len(packed) < 20_000 for _, packed in made.runs)


def test_hostile_tokens_stay_texts_that_steer_nothing():
    shown = dump(predict_props(traces.hostile()))
    assert not any(sign in shown for sign in ("\u202e", "\u2028", "\x1b", "\x00"))
