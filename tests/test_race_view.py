"""Laws of the two stages under one player, and of the words of a race."""

import json
from dataclasses import replace

import pytest
import traces
from one_file import unpacked

from specviz.measures import metrics
from specviz.race import Difference, Heat, Race, Reading
from specviz.shipped import shipped_trace
from specviz.trace import Footer, Scores, Trace
from specviz.views import duel as duel_view
from specviz.views import pair
from specviz.views import race as view
from specviz.views.duel import MOST_STEPS, NUM_FRAMES, duel_block, num_shown
from specviz.views.sentences import percent

TITLES = ("A · one", "B · other")
OPTIONS = [("one", "one"), ("other", "other")]
CHOSEN = {
    "left": "one", "right": "other", "temperature": 0.0, "temperatures": ["0.0"], "tokens": 64, "prompts": 1,
    "most_tokens": 256, "prompt": "“Once”",
}  # fmt: skip


def data_of(block):
    return unpacked(block["data"])


def duel(left="one-by-one", right="first-visit", **options):
    return data_of(duel_block(shipped_trace(left), shipped_trace(right), **options))


def mode(data, name):
    return next(each for each in data["modes"] if each["name"] == name)


def length_after(trace, steps):
    return sum(len(step.emitted) for step in trace.steps[:steps])


def time_after(trace, steps):
    return sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps[:steps])


def test_by_time_each_frame_shows_the_steps_that_were_over_then():
    both = [shipped_trace(name) for name in ("one-by-one", "first-visit")]
    frames = mode(duel(), "time")["frames"]
    end = max(time_after(trace, len(trace.steps)) for trace in both)
    assert len(frames) == NUM_FRAMES + 1
    for number, (words, shown, _) in enumerate(frames):
        now = end * number / NUM_FRAMES
        for trace, steps in zip(both, shown, strict=True):
            assert time_after(trace, steps) <= now + 1e-6
            assert steps == len(trace.steps) or time_after(trace, steps + 1) >= now - 1e-6
        assert words == f"{now / 1000:.2f} s"
    assert frames[-1][1] == [len(trace.steps) for trace in both]


def test_both_are_slowed_down_equally_and_a_short_race_can_be_watched():
    paces = mode(duel(), "time")["paces"]
    waits = [wait for _, wait, _ in paces]
    assert [wait / waits[0] for wait in waits] == pytest.approx([1, 4, 16, 64], rel=0.01)
    chosen = next(wait for _, wait, is_chosen in paces if is_chosen)
    assert NUM_FRAMES * chosen > 5_900


def test_by_token_both_sides_show_as_many_tokens_in_as_few_steps_as_it_takes():
    both = [shipped_trace(name) for name in ("one-by-one", "first-visit")]
    for number, (_, shown, plain) in enumerate(mode(duel(), "token")["frames"]):
        assert plain == number
        for trace, steps in zip(both, shown, strict=True):
            assert length_after(trace, steps) >= number
            assert steps == 0 or length_after(trace, steps - 1) < number


def test_the_replay_by_token_rests_where_the_texts_part():
    data = duel("first-visit", "broken-residual")
    one, other = ([token.id for token in shipped_trace(name).tokens] for name in ("first-visit", "broken-residual"))
    part = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert data["part"] == part
    assert mode(data, "token")["rest"] == part + 1
    assert "".join(data["parted"]).startswith(f"The texts part at token {part + 1}: ")
    assert duel("greedy", "greedy")["part"] is None


def test_the_counters_of_each_side_are_the_traces_own():
    for side, name in zip(duel()["sides"], ("one-by-one", "first-visit"), strict=True):
        values = metrics(shipped_trace(name))
        assert side["said"][-1] == f"{values['emitted']} tokens · {values['target_calls']} target calls"
        assert side["said"][0] == "0 tokens · 0 target calls"
        assert side["widths"][-1] == 100
        assert len(side["message"]["steps"]) == len(side["said"]) - 1


@pytest.mark.parametrize("name", ["medusa", "tree", "k-8"])
def test_the_largest_recorded_runs_fit_into_a_small_block(name):
    assert len(duel_block(shipped_trace(name), shipped_trace("first-visit"))["data"]) < 400_000


def long_trace(num_steps):
    builder = traces.Builder()
    for _ in range(num_steps):
        builder.chain(2, 1)
    return builder.trace


def test_a_run_of_more_steps_than_one_message_holds_is_whole():
    data = data_of(duel_block(long_trace(250), long_trace(3)))
    assert [len(side["message"]["steps"]) for side in data["sides"]] == [250, 3]


def test_of_a_very_long_run_the_first_steps_are_shown_and_that_is_said():
    long = long_trace(MOST_STEPS + 5)
    assert num_shown(long) == MOST_STEPS
    shown = pair.two_runs(OPTIONS, ("one", "other"), (long, long_trace(3)), TITLES)
    assert f"A · one is long: only its first {MOST_STEPS} steps are shown here." in [
        block.get("words") for block in shown["blocks"]
    ]
    assert len(data_of(shown["blocks"][-2])["sides"][0]["message"]["steps"]) == MOST_STEPS


def test_a_run_of_few_steps_and_very_many_tokens_is_cut_too(monkeypatch):
    monkeypatch.setattr(duel_view, "MOST_TOKENS", 5)
    assert num_shown(long_trace(10)) == 2  # of two tokens each
    assert num_shown(traces.Builder().chain(9, 9).trace) == 1


def test_without_recorded_times_there_is_only_the_replay_by_token():
    still = long_trace(3)
    events = list(still.events())
    zero = replace(still.steps[0].timing, total_ms=0.0, wait_ms=0.0)
    quiet = Trace([replace(event, timing=zero) if hasattr(event, "timing") else event for event in events])
    block = duel_block(quiet, still, "time")
    assert block["by"] == "token"
    assert [each["name"] for each in data_of(block)["modes"]] == ["token"]


def test_texts_from_outside_are_labelled():
    hostile = traces.Builder(traces.HOSTILE).chain(4, 4).chain(4, 0).trace
    data = data_of(duel_block(hostile, long_trace(2), "token", ("\u202eleft", "<script>")))
    assert data["sides"][0]["title"] == "⟨202E⟩left"
    assert "\u202e" not in json.dumps(data["parted"], ensure_ascii=False)


# ---- the words of a race --------------------------------------------------------------------------------------------


def timed(name, factor):
    """A recorded run with its times multiplied."""
    events = []
    for event in shipped_trace(name).events():
        if hasattr(event, "timing"):
            timing = replace(event.timing, total_ms=event.timing.total_ms * factor)
            event = replace(event, timing=timing)
        if not isinstance(event, Footer):
            events.append(event)
    return Trace(events)


def result(*factors, names=("greedy", "greedy"), **more):
    heats = tuple(Heat("a prompt", timed(names[0], factor), timed(names[1], 1)) for factor in factors)
    return Race(8, 8, "", heats, **more)


def verdicts(found):
    shown = view.race(OPTIONS, CHOSEN, found, TITLES)
    told = [block for block in shown["blocks"] if block["kind"] in ("verdict", "words")]
    return [("".join(block["words"]), block.get("state")) for block in told]


@pytest.mark.parametrize(
    ("factors", "words", "state"),
    [
        ((2, 3, 4, 5, 6), "B · other was faster: 4.00×{} (median of 5 prompts, 2.00× to 6.00×).", "consistent"),
        ((0.5,) * 5, "B · other was slower: 0.50×{} (median of 5 prompts, 0.50× to 0.50×).", "consistent"),
        ((2, 3, 4, 5), "B · other was faster: 3.50×{} (median of 4 prompts, 2.00× to 5.00×).{more}", "unsure"),
        (
            (0.5, 0.25),
            "B · other took longer both times: 0.38×{} (median of 2 prompts, 0.25× to 0.50×).{more}",
            "unsure",
        ),
        ((0.58,), "B · other took longer this once: 0.58×{} (one prompt only).{more}", "unsure"),
        ((2,), "B · other took less time this once: 2.00×{} (one prompt only).{more}", "unsure"),
        ((0.9, 1.2), "{none}1.05×{} (median of 2 prompts, 0.90× to 1.20×).", "unsure"),
        ((1.1,), "{none}1.10×{} (one prompt only).", "unsure"),
        ((1.001, 1.002) * 3, "{none}1.00×{} (median of 6 prompts, 1.00× to 1.00×).", "unsure"),
        ((1.14,) * 6, "{none}1.14×{} (median of 6 prompts, 1.14× to 1.14×).", "unsure"),
        ((0.99, 2, 2, 2, 2), "{none}2.00×{} (median of 5 prompts, 0.99× to 2.00×).", "unsure"),
    ],
)
def test_losing_is_said_as_plainly_as_winning(factors, words, state):
    none, more = "No clear difference: B · other ran at ", " Repeat over 5 prompts or more to be sure."
    whole = words.format(" the speed of A · one", none=none, more=more)
    assert verdicts(result(*factors))[0] == (whole, state)


def cut(heat, left, right):
    """A heat with its runs cut off after so many steps."""
    sides = [
        Trace(event for event in trace.events() if getattr(event, "index", 0) < most and not isinstance(event, Scores))
        for trace, most in ((heat.left, left), (heat.right, right))
    ]
    return replace(heat, left=sides[0], right=sides[1])


def test_short_texts_give_no_verdict():
    found = result(*[2] * 5, names=("one-by-one", "one-by-one"))
    for steps, state in ((31, "unsure"), (32, "consistent")):
        words, told = verdicts(replace(found, heats=tuple(cut(heat, 64, steps) for heat in found.heats)))[0]
        assert (told, "Repeat with texts of 32 tokens or more to be sure." in words) == (state, state == "unsure")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("greedy", "greedy"), None),
        (("broken-residual", "first-visit"), "A · one is lossy: its text is not the target's own."),
        (("first-visit", "broken-residual"), "B · other is lossy: its text is not the target's own."),
        (("broken-residual",) * 2, "A · one and B · other are lossy: their texts are not the target's own."),
    ],
)
def test_the_verdict_of_the_clock_names_every_lossy_side(names, words):
    for factors in ((2,) * 5, (1,)):
        told = verdicts(result(*factors, names=names))[0][0]
        assert told.endswith(f". {words}") if words else "lossy" not in told


def test_a_race_under_load_gives_no_speedup_anywhere():
    shown = view.race(OPTIONS, CHOSEN, result(2, 3, is_shared=True), TITLES)["blocks"]
    (block,) = [each for each in shown if each["kind"] == "duel"]
    text = json.dumps([each for each in shown if each["kind"] != "duel"])
    assert shown[0]["words"].startswith("Under load")
    assert "\\u00d7" not in text
    assert "no ratio" in text
    table = next(each for each in shown if each["kind"] == "table")
    assert [row[1:3] for row in table["rows"]] == [["under load", "under load"]] * 2
    assert [mode["name"] for mode in data_of(block)["modes"]] == ["token"]
    assert not {"first", "second"} & set(" ".join(mode(data_of(block), "token")["ends"]).split())


def test_how_much_of_the_times_went_into_recording_is_said():
    found = result(2, 4)
    shares = []
    for traces_of in ([heat.left for heat in found.heats], [heat.right for heat in found.heats]):
        steps = [step for trace in traces_of for step in trace.steps]
        shares.append(sum(s.timing.record_ms for s in steps) / sum(s.timing.total_ms - s.timing.wait_ms for s in steps))
    assert shares[0] != pytest.approx(shares[1])
    *_, block = view.race(OPTIONS, CHOSEN, found, TITLES)["blocks"]
    one, other = (percent(share) for share in shares)
    assert "".join(block["blocks"][-1]["words"]).endswith(
        f"A · one spent {one} of its time on it, B · other {other}."
    )  # fmt: skip


def test_the_table_holds_the_numbers_of_the_two_runs_below():
    found = result(2)
    table = next(block for block in view.race(OPTIONS, CHOSEN, found, TITLES)["blocks"] if block["kind"] == "table")
    for row, trace in zip(table["rows"], (found.heats[0].left, found.heats[0].right), strict=True):
        seconds = time_after(trace, len(trace.steps)) / 1000
        number = len(trace.tokens)
        calls = sum(step.calls["target"] for step in trace.steps)
        assert row[1:6] == [
            f"{seconds:.2f} s", f"{number / seconds:.1f}", str(number), str(calls), f"{number / calls:.2f}",
        ]  # fmt: skip


def test_identical_texts_are_called_identical():
    assert verdicts(result(2, 3))[1] == (
        "Identical: on all 2 prompts the two texts are the same, token for token (64 tokens each).", "exact",
    )  # fmt: skip


def test_where_one_side_ended_early_the_texts_are_the_same_as_far_as_both_go():
    found = result(2, 3)
    short = cut(found.heats[1], 64, 2)
    assert len(short.right.tokens) < len(short.left.tokens)
    words, state = verdicts(replace(found, heats=(found.heats[0], short)))[1]
    assert (state, words) == (
        "exact",
        "Identical: on all 2 prompts the two texts are the same, token for token; where one side ended early, as far "
        "as both go.",
    )


def test_two_draws_from_one_law_may_differ_and_a_lossy_side_is_named():
    assert verdicts(result(2, names=("first-visit", "hot")))[1][0] == view.SAME_LAW
    words = verdicts(result(2, names=("first-visit", "broken-residual")))[1][0]
    assert words.startswith("Two draws, but not from the same law: B · other is lossy")


def difference(gap, is_tie, above=0.0, heat=0):
    trace = shipped_trace("greedy")
    reading = Reading("target", "fable-target", (9.0 + gap, 9.0), (0.5, 0.4), 9.0 + gap + above)
    return Difference(heat, "a prompt", 6, trace.tokens[6], trace.tokens[7], (reading,), is_tie)


@pytest.mark.parametrize(
    ("gap", "is_tie", "names", "state", "words"),
    [
        (1e-5, True, ("greedy", "greedy"), "unsure", "1e-05 apart in logits: a tie"),
        (2.0, False, ("greedy", "greedy"), "differs", "That is no tie: this should not happen."),
        (2.0, False, ("greedy", "broken-residual"), "unsure", "B · other follows a lossy rule"),
    ],
)
def test_the_first_difference_is_shown_with_its_logits_and_its_reason(gap, is_tie, names, state, words):
    found = result(2, names=names, difference=difference(gap, is_tie))
    shown = view.race(OPTIONS, CHOSEN, found, TITLES)["blocks"]
    assert shown[1]["state"] == state
    assert words in "".join(shown[1]["words"])
    assert "part at token 7" in "".join(shown[1]["words"])
    assert shown[2]["rows"] == [["target fable-target", f"{9 + gap:.5f}", "9.00000", "50\u00a0%", "40\u00a0%"]]


def test_where_neither_token_is_the_favourite_that_is_said():
    words = verdicts(result(2, difference=difference(1e-5, False, above=3.0)))[1][0]
    assert "The target's favourite there is neither of the two" in words


def test_the_heat_that_parts_is_replayed():
    same, other = result(2, 3).heats, result(2, names=("first-visit", "broken-residual")).heats[0]
    found = Race(8, 8, "", (*same, replace(other, title="the odd one")), difference=difference(2.0, False, heat=2))
    shown = view.race(OPTIONS, CHOSEN, found, TITLES)["blocks"]
    (block,) = [each for each in shown if each["kind"] == "duel"]
    assert data_of(block)["part"] == other.parted
    assert block["by"] == "token"
    assert [each["caption"] for each in shown if each.get("caption")] == [
        "the prompt “the odd one”: the two runs below"
    ]
    (block,) = [each for each in view.race(OPTIONS, CHOSEN, result(2, 3), TITLES)["blocks"] if each["kind"] == "duel"]
    assert (block["by"], data_of(block)["part"]) == ("time", None)


def test_who_was_first_is_who_took_less_time_and_waiting_is_no_work():
    slow, fast = timed("greedy", 2), timed("greedy", 1)
    for left, right, ends in ((slow, fast, ("second", "first")), (fast, slow, ("first", "second"))):
        told = mode(data_of(duel_block(left, right, "time", TITLES)), "time")["ends"]
        assert tuple(each.rpartition(", ")[2] for each in told) == ends
    waited = Trace(
        replace(event, timing=replace(event.timing, wait_ms=100.0, total_ms=event.timing.total_ms + 100.0))
        if hasattr(event, "timing") else event
        for event in slow.events()
    )  # fmt: skip
    alone, beside = (mode(data_of(duel_block(each, fast, "time")), "time") for each in (slow, waited))
    assert alone["ends"] == beside["ends"]
    assert [words for words, *_ in alone["frames"]] == [words for words, *_ in beside["frames"]]


def test_what_is_known_when_a_race_is_stopped_is_shown_while_it_goes_on():
    found = replace(result(2, 3), done=6)
    shown = view.race(OPTIONS, CHOSEN, found, TITLES)["blocks"]
    assert [each["kind"] for each in shown] == ["progress", "verdict", "table"]
    assert "median of 2 prompts" in "".join(shown[1]["words"])
    assert [row[3] for row in shown[2]["rows"]] == ["2.00×", "3.00×"]


def test_the_prompt_that_is_raced_stands_above_the_buttons():
    assert "The first prompt: “Once”" in "".join(view.race(OPTIONS, CHOSEN)["lead"])


def test_before_and_during_the_race():
    assert view.race(OPTIONS, CHOSEN)["blocks"][0]["words"] == view.NOTHING
    running = view.race(OPTIONS, CHOSEN, Race(1, 4, "warming up\u202e B"))["blocks"][0]
    assert (running["width"], running["words"]) == (25.0, "1 of 4 runs · warming up⟨202E⟩ B")
