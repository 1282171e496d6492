"""The opening of any step: what it says and shows is what the trace recorded."""

import re
from dataclasses import replace

import pytest

from specviz.trace import Trace
from specviz.trace.metrics import count, metrics
from specviz.trace.shipped import WELCOME, shipped_runs, shipped_trace
from specviz.views.explore.opening import opening, telling_step
from specviz.views.words import label, prose
from tests.helpers import evidence_traces, traces
from tests.helpers.messages import as_json

STEPS = [(name, step.index) for name in shipped_runs() for step in shipped_trace(name).steps]
ORDER = ("draft", "check", "judge", "verdict", "last", "point")
MOST_WORDS = 20


def shown_of(name, index):
    shown = as_json(opening(shipped_trace(name), index))
    return shown | {"beats": {beat["name"]: beat for beat in shown["beats"]}}


@pytest.fixture(scope="module")
def every():
    """Each shipped step with its opening."""
    return [(shipped_trace(name).steps[index], shown_of(name, index)) for name, index in STEPS]


def test_beats_come_in_one_order_each_at_most_once_and_always_end_with_the_point():
    for name, index in STEPS:
        names = [beat["name"] for beat in as_json(opening(shipped_trace(name), index))["beats"]]
        assert names == [each for each in ORDER if each in names]
        assert names[-1] == "point"


def test_each_token_has_the_status_that_was_recorded(every):
    for step, shown in every:
        tokens = [(token["text"], token["status"]) for token in shown["tokens"]]
        assert set(tokens) <= {(label(token.text, token.bytes), token.status) for token in step.draft}
        assert sum(status == "accepted" for _, status in tokens) == sum(t.status == "accepted" for t in step.draft)
        own = next(((label(t.text, t.bytes), t.kind) for t in step.emitted if t.node is None), None)
        assert shown.get("last") == (own and list(own))


def test_no_verdict_is_told_before_its_beat(every):
    for _, shown in every:
        settled = [beat["settled"] for beat in shown["beats"].values()]
        assert settled == sorted(settled)
        assert all(shown["beats"].get(name, {"settled": 0})["settled"] == 0 for name in ("draft", "check"))
        if "judge" in shown["beats"]:
            assert shown["beats"]["judge"]["asked"] == shown["beats"]["judge"]["settled"]


def test_the_draw_meets_the_solid_bar_exactly_where_the_token_was_accepted(every):
    drawn = [token for _, shown in every for token in shown["tokens"] if "draw" in token]
    assert {token["status"] for token in drawn} == {"accepted", "rejected"}
    assert all((token["draw"] < token["p"]) == (token["status"] == "accepted") for token in drawn)


def test_both_bars_and_the_draw_are_in_proportion_to_what_was_recorded(every):
    seen = 0
    for step, shown in every:
        if step.is_tree or step.settings.rule != "speculative_sampling" or not step.settings.temperature:
            continue
        for token, bars in zip(step.draft, shown["tokens"], strict=False):
            if not token.is_judged or not token.q:
                continue
            is_small = max(token.p_judged, token.q) < 0.1
            assert bars.get("longer", False) == is_small
            scale = 60 / max(token.p_judged, token.q) if is_small else 100
            assert bars["q"] == pytest.approx(scale * token.q, rel=1e-2, abs=2e-3)
            assert bars["p"] == pytest.approx(scale * token.p_judged, rel=1e-2, abs=2e-3)
            assert bars["draw"] == pytest.approx(scale * token.u * token.q, rel=1e-2, abs=2e-3)
            seen += 1
    assert seen > 500


def test_what_is_said_of_a_draw_is_what_the_bars_show(every):
    for step, shown in every:
        for token, bars in zip(step.draft, shown["tokens"], strict=False):
            if "fell" not in bars or step.is_tree:
                continue
            u, chance, verdict = re.fullmatch(
                r".* at (\S+)\s% of the outlined bar(?:, .* to (?:\S+ = )?[<>]?(\S+)\s%)?: (\w+)\.", bars["fell"]
            ).groups()
            assert float(u) == pytest.approx(100 * token.u, abs=0.51)
            assert verdict == token.status
            assert (chance is None) == (step.settings.rule != "speculative_sampling")
            if chance is not None:
                assert float(chance) == pytest.approx(100 * token.accept_prob, abs=0.51)
                assert (float(u) < float(chance)) == (verdict == "accepted")


def test_a_rule_by_which_a_later_token_saves_an_earlier_one_is_not_told_by_its_bars():
    trace = shipped_trace("real-function")
    step = trace.steps[1]
    saved = replace(step.draft[0], status="accepted", accept_prob=0.1, u=0.5)
    step = replace(step, draft=(saved, *step.draft[1:]), settings=replace(step.settings, rule="block_verification"))
    events = [step if event is trace.steps[1] else event for event in trace.events()]
    shown = as_json(opening(Trace(events), 1))["tokens"][0]
    assert shown["draw"] > shown["p"]
    assert shown["fell"] == "The draw falls at 50\u00a0% of the outlined bar: accepted."


def test_no_bar_is_longer_than_its_axis(every):
    for _, shown in every:
        for token in shown["tokens"]:
            assert max(token["q"], token.get("p", 0), token.get("draw", 0)) <= 100


def test_the_token_to_guess_has_the_chance_that_is_closest_to_a_half(every):
    for step, shown in every:
        if "judge" in shown["beats"] and not step.is_tree:
            chances = [abs(token.accept_prob - 0.5) for token in step.draft if token.is_judged]
            assert shown["beats"]["judge"]["asked"] == chances.index(min(chances))


def test_a_replacement_comes_with_the_distribution_that_it_was_drawn_from(every):
    with_shares = [
        shown["beats"]["last"]["shares"] for _, shown in every if shown["beats"].get("last", {}).get("shares")
    ]
    assert len(with_shares) > 20
    for shares in with_shares:
        assert sum(drawn for *_, drawn in shares) == 1
        assert max(width for _, width, *_ in shares) == 100


def test_without_a_rejection_the_opening_says_so_and_shows_no_shares(every):
    for step, shown in every:
        beats = shown["beats"]
        if "verdict" in beats and not any(token.status == "rejected" for token in step.draft):
            assert beats["verdict"]["sentence"].startswith("Every guess is accepted")
            assert "shares" not in beats.get("last", {})


def test_only_a_lossless_step_promises_the_same_text(every):
    for step, shown in every:
        promise = "exactly as often as if the target had written alone"
        assert (promise in shown["beats"]["point"]["sentence"]) == step.settings.lossless
        may_draft = step.settings.method != "none"
        assert ("Same text, fewer passes" in shown["title"]) == (step.settings.lossless and may_draft)


def test_the_clocks_and_the_race_are_the_recorded_times():
    trace = shipped_trace("real-function")
    step = trace.steps[1]
    alone_ms = 1000 / trace.footer.baseline["tokens_per_s"]
    beats = shown_of("real-function", 1)["beats"]
    assert beats["draft"]["clocks"][0][1] == f"{step.timing.draft_ms:.1f}\u00a0ms"
    here_ms = step.timing.total_ms - step.timing.wait_ms
    written = len(step.emitted)
    assert [time for _, time in beats["last"]["clocks"]] == [
        f"{here_ms:.0f}\u00a0ms",
        f"{written * alone_ms:.0f}\u00a0ms",
    ]
    race = as_json(opening(trace, 1))["race"]["tokens"]
    emitted = [token for each in trace.steps for token in each.emitted][: len(race)]
    assert [text for text, *_ in race] == [prose(token.text) for token in emitted]
    assert [alone for *_, alone in race] == pytest.approx(
        [alone_ms * (1 + place) for place in range(len(race))], abs=0.05
    )
    ends = [sum(each.timing.total_ms - each.timing.wait_ms for each in trace.steps[: index + 1]) for index in range(3)]
    by_step = [end for end, each in zip(ends, trace.steps, strict=False) for _ in each.emitted]
    assert [here for *_, here, _ in race][: len(by_step)] == pytest.approx(by_step, abs=0.05)


def test_without_a_measured_baseline_nothing_is_said_of_the_target_alone():
    trace = shipped_trace("real-function")
    *events, footer = trace.events()
    shown = as_json(opening(Trace([*events, replace(footer, baseline=None)]), 1))
    assert "race" not in shown
    assert all(len(beat["clocks"]) == 1 for beat in shown["beats"])


def test_a_block_is_told_as_one_pass_with_its_whole_time():
    made = evidence_traces.block()
    told = as_json(opening(made, 0))
    cost = f"{made.steps[0].timing.draft_ms:.1f}\u00a0ms"
    words = f"guesses four tokens (words or parts of words) at once, in one pass: {cost}."
    assert words in told["beats"][0]["sentence"]
    assert told["filled"] == "together"


def test_only_a_bias_lets_the_opening_say_that_a_guess_knew_the_one_before():
    words = "Each is then chosen in turn, knowing the one before it."
    made = (evidence_traces.block, evidence_traces.block_in_turn, evidence_traces.early_exit)
    assert [words in as_json(opening(make(), 0))["beats"][0]["sentence"] for make in made] == [False, True, False]


def test_each_sentence_is_short(every):
    for _, shown in every:
        for beat in shown["beats"].values():
            assert all(len(words.split()) <= MOST_WORDS for words in beat["sentence"].split(". ")), beat["sentence"]


def test_the_step_that_a_first_visit_sees_has_something_to_guess_and_a_rejection_that_can_be_seen():
    trace = shipped_trace(WELCOME)
    assert metrics(count(trace))["tokens_per_target_call"] >= 2.5
    step = trace.steps[telling_step(trace)]
    assert step.index > 0
    asked = step.draft[shown_of(WELCOME, step.index)["beats"]["judge"]["asked"]]
    assert 0.2 < asked.accept_prob < 0.8
    rejected = next(token for token in step.draft if token.status == "rejected")
    assert min(rejected.p_judged, rejected.q) > 0.05
    assert rejected.text.strip().isalpha()
    assert any(token.status == "accepted" for token in step.draft)


def test_of_a_conversation_the_question_is_the_last_turn_alone():
    assert as_json(opening(shipped_trace("real-eagle"), 0))["question"] == "Why is the sky blue?"
    assert as_json(opening(shipped_trace("first-visit"), 0))["question"].startswith("Once upon a time")


def test_the_text_so_far_is_the_text_before_the_step():
    trace = shipped_trace("first-visit")
    before = "".join(token.text for step in trace.steps[:4] for token in step.emitted)
    assert before.endswith(as_json(opening(trace, 4))["before"].removeprefix("… "))


@pytest.mark.parametrize("name", traces.ALL)
def test_every_kind_of_trace_can_be_opened(name):
    trace = traces.ALL[name]()
    for step in trace.steps:
        assert as_json(opening(trace, step.index))["beats"]
