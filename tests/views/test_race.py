"""Laws of the two stages under one player, and of the words of a race."""

import json
import re
from dataclasses import replace
from itertools import accumulate

import msgspec
import pytest

from specviz.bench.race import Heat, PartingLogits, Race, RaceDifference
from specviz.trace import Footer, Scores, Trace
from specviz.trace.metrics import metrics
from specviz.trace.shipped import shipped_trace
from specviz.views.blocks import Press, VerdictBlock, WordsBlock, dump
from specviz.views.compare import race as view
from specviz.views.compare import side_by_side_player as duel_view
from specviz.views.compare import two_runs as pair
from specviz.views.compare.race import Seat
from specviz.views.compare.race_words import IMPOSSIBLE, SAME_DISTRIBUTION
from specviz.views.compare.side_by_side_player import (
    MOST_STEPS,
    NUM_FRAMES,
    PlayerData,
    num_shown,
    side_by_side_block,
)
from specviz.views.words import percent
from tests.helpers import traces
from tests.helpers.one_file import unpacked
from tests.helpers.page_records import check_record, kind_of
from tests.helpers.written_messages import CHOICES, OFFER, OPTIONS, TITLES


def data_of(block):
    return unpacked(block.data)


def side_by_side(left="one-by-one", right="first-visit", **options):
    return data_of(side_by_side_block(shipped_trace(left), shipped_trace(right), **options))


def mode(data, name):
    return next(each for each in data["modes"] if each["name"] == name)


def length_after(trace, steps):
    return sum(len(step.emitted) for step in trace.steps[:steps])


def time_after(trace, steps):
    return sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps[:steps])


def test_by_time_each_frame_shows_the_steps_that_were_over_then():
    both = [shipped_trace(name) for name in ("one-by-one", "first-visit")]
    frames = mode(side_by_side(), "time")["frames"]
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
    paces = mode(side_by_side(), "time")["paces"]
    waits = [wait for _, wait, _ in paces]
    assert [wait / waits[0] for wait in waits] == pytest.approx([1, 4, 16, 64], rel=0.01)
    chosen = next(wait for _, wait, is_chosen in paces if is_chosen)
    assert NUM_FRAMES * chosen > 5_900


def test_the_pace_is_the_least_slow_one_that_can_be_followed():
    for ms, words in ((7_000, "as recorded"), (2_000, "4× slower"), (500, "16× slower"), (20, "64× slower")):
        steps = long_trace(4).steps
        share = ms / len(steps)
        run = Trace(
            replace(event, timing=replace(event.timing, total_ms=share, wait_ms=0.0))
            if hasattr(event, "timing")
            else event
            for event in long_trace(4).events()
        )
        paces = mode(data_of(side_by_side_block(run, run, "time")), "time")["paces"]
        assert [name for name, _, is_chosen in paces if is_chosen] == [words]


def test_runs_of_different_prompts_part_nowhere():
    data = side_by_side("first-visit", "sum")
    assert (data["part"], mode(data, "token")["rest"]) == (None, -1)
    assert "different prompts" in "".join(data["parted"])


def test_by_token_both_sides_show_as_many_tokens_in_as_few_steps_as_it_takes():
    both = [shipped_trace(name) for name in ("one-by-one", "first-visit")]
    for number, (_, shown, plain) in enumerate(mode(side_by_side(), "token")["frames"]):
        assert plain == number
        for trace, steps in zip(both, shown, strict=True):
            assert length_after(trace, steps) >= number
            assert steps == 0 or length_after(trace, steps - 1) < number


def test_the_replay_by_token_rests_where_the_texts_part():
    data = side_by_side("first-visit", "broken-residual")
    one, other = ([token.id for token in shipped_trace(name).tokens] for name in ("first-visit", "broken-residual"))
    part = next(place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert data["part"] == part
    assert mode(data, "token")["rest"] == part + 1
    assert "".join(data["parted"]).startswith(f"The texts differ from token {part + 1}: ")
    assert side_by_side("greedy", "greedy")["part"] is None


def test_the_counters_of_each_side_are_the_traces_own():
    for side, name in zip(side_by_side()["sides"], ("one-by-one", "first-visit"), strict=True):
        values = metrics(shipped_trace(name))
        assert side["said"][-1] == f"{values['emitted']} tokens · {values['target_calls']} target calls"
        assert side["said"][0] == "0 tokens · 0 target calls"
        assert side["widths"][-1] == 100
        assert len(side["message"]["steps"]) == len(side["said"]) - 1


def test_the_player_gets_what_its_records_declare():
    for by in ("time", "token"):
        block = side_by_side_block(shipped_trace("greedy"), shipped_trace("first-visit"), by)
        check_record(block)
        data = {**data_of(block), "sides": []}  # what a stage shows has tests of its own
        shown = msgspec.convert(data, PlayerData)
        assert by in [mode.name for mode in shown.modes]


@pytest.mark.parametrize("name", ["medusa", "tree", "k-8"])
def test_the_largest_recorded_runs_fit_into_a_small_block(name):
    assert len(side_by_side_block(shipped_trace(name), shipped_trace("first-visit")).data) < 400_000


def long_trace(num_steps):
    builder = traces.Builder()
    for _ in range(num_steps):
        builder.chain(2, 1)
    return builder.trace


def test_a_run_of_more_steps_than_one_message_holds_is_whole():
    data = data_of(side_by_side_block(long_trace(250), long_trace(3)))
    assert [len(side["message"]["steps"]) for side in data["sides"]] == [250, 3]


def test_of_a_very_long_run_the_first_steps_are_shown_and_that_is_said():
    long = long_trace(MOST_STEPS + 5)
    assert num_shown(long) == MOST_STEPS
    shown = pair.two_runs(OPTIONS, ("one", "other"), (long, long_trace(3)), TITLES)
    assert f"A · one is long: only its first {MOST_STEPS} steps are shown." in [
        getattr(block, "words", None) for block in shown.blocks
    ]
    assert len(data_of(shown.blocks[-2])["sides"][0]["message"]["steps"]) == MOST_STEPS


def test_a_run_of_few_steps_and_very_many_tokens_is_cut_too(monkeypatch):
    monkeypatch.setattr(duel_view, "MOST_TOKENS", 5)
    assert num_shown(long_trace(10)) == 2  # of two tokens each
    assert num_shown(traces.Builder().chain(9, 9).trace) == 1


def test_without_recorded_times_there_is_only_the_replay_by_token():
    still = long_trace(3)
    events = list(still.events())
    zero = replace(still.steps[0].timing, total_ms=0.0, wait_ms=0.0)
    quiet = Trace([replace(event, timing=zero) if hasattr(event, "timing") else event for event in events])
    block = side_by_side_block(quiet, still, "time")
    assert block.by == "token"
    assert [each["name"] for each in data_of(block)["modes"]] == ["token"]


def test_texts_from_outside_are_labelled():
    hostile = traces.Builder(traces.HOSTILE).chain(4, 4).chain(4, 0).trace
    data = data_of(side_by_side_block(hostile, long_trace(2), "token", ("\u202eleft", "<script>")))
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


def took(trace):
    return time_after(trace, len(trace.steps))


def result(*factors, names=("greedy", "greedy"), slower=1.0, **more):
    """slower: by what factor the second run of a side took longer."""
    sides = [(timed(names[0], factor), timed(names[1], 1)) for factor in factors]
    heats = [Heat("a prompt", *both, tuple(slower * took(run) for run in both)) for both in sides]
    return Race(8, 8, "", tuple(heats), **more)


def verdicts(found):
    shown = view.race(OFFER, CHOICES, found, TITLES)
    told = [block for block in shown.blocks if isinstance(block, (VerdictBlock, WordsBlock))]
    return [("".join(block.words), getattr(block, "state", None)) for block in told]


FIRM, FEW, NONE = "B · other was {}", "Too few to tell: B · other ran at {}", "No clear difference: B · other ran at {}"
EVEN = "About as fast: B · other ran at {}"
MORE = " Race over 6 prompts or more to be sure."


@pytest.mark.parametrize(
    ("factors", "words", "state"),
    [
        ((2, 3, 4, 4, 5, 6), FIRM.format("faster: 4.00×") + "{} (median of 6 prompts, 2.00× to 6.00×).", "consistent"),
        ((0.5,) * 6, FIRM.format("slower: 0.50×") + "{} (median of 6 prompts, 0.50× to 0.50×).", "consistent"),
        ((2,) * 5, FEW.format("2.00×") + "{} (median of 5 prompts, 2.00× to 2.00×)." + MORE, "unsure"),
        ((2, 3, 4, 5), FEW.format("3.46×") + "{} (median of 4 prompts, 2.00× to 5.00×)." + MORE, "unsure"),
        ((0.5, 0.25), FEW.format("0.35×") + "{} (median of 2 prompts, 0.25× to 0.50×)." + MORE, "unsure"),
        ((2,), FEW.format("2.00×") + "{} (one prompt only)." + MORE, "unsure"),
        ((1.1,), FEW.format("1.10×") + "{} (one prompt only)." + MORE, "unsure"),
        ((1.001, 1.002) * 3, EVEN.format("1.00×") + "{} (median of 6 prompts, 1.00× to 1.00×).", "unsure"),
        ((1.04,) * 6, EVEN.format("1.04×") + "{} (median of 6 prompts, 1.04× to 1.04×).", "unsure"),
        ((1 / 1.04,) * 6, EVEN.format("0.96×") + "{} (median of 6 prompts, 0.96× to 0.96×).", "unsure"),
        ((1 / 1.06,) * 6, FIRM.format("slower: 0.94×") + "{} (median of 6 prompts, 0.94× to 0.94×).", "consistent"),
        ((0.9, *(1.1,) * 5), EVEN.format("1.10×") + "{} (median of 6 prompts, 0.90× to 1.10×).", "unsure"),
        ((0.99, *(2,) * 5), NONE.format("2.00×") + "{} (median of 6 prompts, 0.99× to 2.00×).", "unsure"),
        (
            (0.9, *(2,) * 7, 3),
            FIRM.format("faster: 2.00×")
            + "{} (median of 9 prompts, 0.90× to 3.00×; 2.00× to 2.00× without the 1 at either end).",
            "consistent",
        ),
    ],
)
def test_losing_is_said_as_plainly_as_winning(factors, words, state):
    told = verdicts(result(*factors))[0]
    assert told == (words.format(" the speed of A · one"), state)


def test_a_difference_that_depends_on_the_prompt_is_told_so():
    words, state = verdicts(result(0.34, 0.4, 0.5, 0.5, 0.52, 1.71, slower=1.02))[0]
    assert state == "unsure"
    assert words == (
        "It depends on the prompt: B · other was faster than A · one on 1 of 6, slower on 5 (median of 6 prompts, "
        "0.34× to 1.71×)."
    )
    for factors in ((0.34, 0.4, 0.5, 0.5, 0.52, 1.1), (0.34, 0.4, 0.4, 0.9, 1.1, 1.1)):  # nowhere clearly the other way
        assert verdicts(result(*factors, slower=1.02))[0][0].startswith("No clear difference")


def test_on_a_busy_machine_what_is_not_beyond_chance_is_told_with_the_reason():
    told = "This machine was too busy: two runs of one setup on the same prompt differed by 20\u00a0%."
    words, state = verdicts(result(0.9, *(1.3,) * 5, slower=1.2))[0]
    assert words == (
        "No clear difference: B · other ran at 1.30× the speed of A · one (median of 6 prompts, 0.90× to 1.30×). "
        f"{told} Race again when it is idle."
    )
    assert state == "unsure"
    assert told not in verdicts(result(0.9, *(1.3,) * 5, slower=1.1))[0][0]
    assert verdicts(result(*(1.3,) * 6, slower=1.2))[0][1] == "consistent"  # six of six agree


def test_the_verdict_does_not_depend_on_who_is_called_a():
    for share in (1.03, 1.049, 1.051, 1.07):
        assert verdicts(result(*(share,) * 6))[0][1] == verdicts(result(*(1 / share,) * 6))[0][1]


def test_how_steady_the_machine_was_is_said_below():
    *_, fold, _ = view.race(OFFER, CHOICES, result(2, 2, slower=1.04), TITLES).blocks
    assert "took 4.0\u00a0% more time" in fold.blocks[0].words


def cut(heat, left, right):
    """A heat with its runs cut off after so many steps."""
    sides = [
        Trace(event for event in trace.events() if getattr(event, "index", 0) < most and not isinstance(event, Scores))
        for trace, most in ((heat.left, left), (heat.right, right))
    ]
    return replace(heat, left=sides[0], right=sides[1])


@pytest.mark.parametrize("names", [("one-by-one", "first-visit"), ("first-visit", "one-by-one")])
def test_no_ratio_above_the_tokens_per_target_call_is_shown_whichever_side_has_no_draft(names):
    factor = 9 if names[0] == "one-by-one" else 1 / 9
    found = result(*[factor] * 6, names=names)
    section = view.race(OFFER, CHOICES, found, TITLES)
    assert verdicts(found)[0] == (IMPOSSIBLE, "unsure")
    told = dump([block for block in section.blocks if kind_of(block) != "side_by_side"])
    assert not re.search(r"9\.00×|0\.11×", told)
    assert told.count('"no ratio"') == 7, "of every prompt, and of all together"
    assert '\\"median_ratio_b_over_a\\": null' in told


def test_short_texts_give_no_verdict():
    found = result(*[2] * 6, names=("first-visit", "first-visit"))
    ends = list(accumulate(len(step.emitted) for step in found.heats[0].right.steps))
    enough = next(place for place, end in enumerate(ends, 1) if end >= 32)
    for steps, state in ((enough - 1, "unsure"), (enough, "consistent")):
        words, told = verdicts(replace(found, heats=tuple(cut(heat, 64, steps) for heat in found.heats)))[0]
        assert (told, "Race with texts of 32 tokens or more to be sure." in words) == (state, state == "unsure")


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
    for factors in ((2,) * 6, (1,)):
        told = verdicts(result(*factors, names=names))[0][0]
        assert told.endswith(f". {words}") if words else "lossy" not in told


def test_a_race_under_load_gives_no_speedup_anywhere():
    shown = view.race(OFFER, CHOICES, result(2, 3, is_shared=True), TITLES).blocks
    (block,) = [each for each in shown if kind_of(each) == "side_by_side"]
    text = dump([each for each in shown if kind_of(each) != "side_by_side"])
    assert shown[0].words.startswith("Under load")
    assert "×" not in text
    assert "no ratio" in text
    table, prompts = (each for each in shown if kind_of(each) == "table")
    assert [row[1:3] for row in table.rows] == [["under load", "under load"]] * 2
    *rows, together = prompts.rows
    assert [row[1:4] for row in rows] == [["under load", "under load", "no ratio"]] * 2
    assert together[1:4] == ["", "", "no ratio"]
    assert all(row[4].isdigit() and row[5].isdigit() for row in prompts.rows)  # no clock is needed to count
    assert [mode["name"] for mode in data_of(block)["modes"]] == ["token"]
    assert not {"first", "second"} & set(" ".join(mode(data_of(block), "token")["ends"]).split())


def test_how_much_of_the_times_went_into_recording_is_said():
    found = result(2, 4)
    shares = []
    for traces_of in ([heat.left for heat in found.heats], [heat.right for heat in found.heats]):
        steps = [step for trace in traces_of for step in trace.steps]
        shares.append(sum(s.timing.record_ms for s in steps) / sum(s.timing.total_ms - s.timing.wait_ms for s in steps))
    assert shares[0] != pytest.approx(shares[1])
    *_, block, _ = view.race(OFFER, CHOICES, found, TITLES).blocks
    one, other = (percent(share) for share in shares)
    assert "".join(block.blocks[-1].words).endswith(
        f"A · one spent {one} of its time on it, B · other {other}."
    )  # fmt: skip


def test_the_table_holds_the_numbers_of_the_two_runs_above():
    found = result(2)
    table = next(block for block in view.race(OFFER, CHOICES, found, TITLES).blocks if kind_of(block) == "table")
    for row, trace in zip(table.rows, (found.heats[0].left, found.heats[0].right), strict=True):
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


def test_two_draws_from_one_distribution_may_differ_and_a_lossy_side_is_named():
    assert verdicts(result(2, names=("first-visit", "hot")))[1][0] == SAME_DISTRIBUTION
    words = verdicts(result(2, names=("first-visit", "broken-residual")))[1][0]
    assert words.startswith("Two draws from different distributions: B · other used a lossy rule.")


def test_of_a_race_that_was_stopped_the_texts_are_not_called_identical_where_they_part():
    parted = result(2, names=("first-visit", "broken-residual")).heats[0]
    cold = [replace(event, request={**event.request, "temperature": 0.0}) if hasattr(event, "request") else event
            for event in parted.left.events()]  # fmt: skip
    found = Race(4, 8, "", (replace(parted, left=Trace(cold)),))
    shown = view.race(OFFER, CHOICES, found, TITLES, seat=Seat("key", 0)).blocks
    assert shown[0].words == "Stopped after 4 of 8 runs."
    assert shown[2].words.startswith("Not identical: the texts differ on 1 of 1 prompts.")


def difference(gap, is_tie, above=0.0, heat=0):
    trace = shipped_trace("greedy")
    reading = PartingLogits("target", "fable-target", (9.0 + gap, 9.0), (0.5, 0.4), 9.0 + gap + above)
    return RaceDifference(heat, "a prompt", 6, trace.tokens[6], trace.tokens[7], (reading,), is_tie)


@pytest.mark.parametrize(
    ("gap", "is_tie", "names", "state", "words"),
    [
        (1e-5, True, ("greedy", "greedy"), "unsure", "are only 1e-05 apart: a tie"),
        (2.0, False, ("greedy", "greedy"), "differs", "This is no tie and should not happen."),
        (2.0, False, ("greedy", "broken-residual"), "unsure", "B · other used a lossy rule"),
    ],
)
def test_the_first_difference_is_shown_with_its_logits_and_its_reason(gap, is_tie, names, state, words):
    found = result(2, names=names, difference=difference(gap, is_tie))
    shown = view.race(OFFER, CHOICES, found, TITLES).blocks
    assert shown[1].state == state
    assert words in "".join(shown[1].words)
    assert "differ from token 7" in "".join(shown[1].words)
    assert next(each for each in shown if kind_of(each) == "table").rows == [
        ["target fable-target", f"{9 + gap:.5f}", "9.00000", "50\u00a0%", "40\u00a0%"]
    ]


def test_where_neither_token_is_the_most_likely_that_is_said():
    words = verdicts(result(2, difference=difference(1e-5, False, above=3.0)))[1][0]
    assert "The target's most likely token there is neither of the two" in words


def test_the_heat_that_parts_is_replayed():
    same, other = result(2, 3).heats, result(2, names=("first-visit", "broken-residual")).heats[0]
    found = Race(8, 8, "", (*same, replace(other, title="the odd one")), difference=difference(2.0, False, heat=2))
    shown = view.race(OFFER, CHOICES, found, TITLES).blocks
    (block,) = [each for each in shown if kind_of(each) == "side_by_side"]
    assert data_of(block)["part"] == other.parting
    assert block.by == "token"
    kinds = [kind_of(each) for each in shown]
    assert kinds.index("side_by_side") < kinds.index("table")  # the lanes stand first
    assert shown[kinds.index("side_by_side") - 1].words == ["Both runs on the prompt ", "“the odd one”", ":"]
    *_, runs, prompts = (each for each in shown if kind_of(each) == "table")
    assert [each.caption for each in (runs, prompts)] == ["The two runs above", "Prompt by prompt"]
    assert [each.marked for each in (runs, prompts)] == [-1, 2]
    (block,) = [
        each for each in view.race(OFFER, CHOICES, result(2, 3), TITLES).blocks if kind_of(each) == "side_by_side"
    ]
    assert (block.by, data_of(block)["part"]) == ("time", None)


def test_who_was_first_is_who_took_less_time_and_waiting_is_no_work():
    slow, fast = timed("greedy", 2), timed("greedy", 1)
    for left, right, ends in ((slow, fast, ("second", "first")), (fast, slow, ("first", "second"))):
        told = mode(data_of(side_by_side_block(left, right, "time", TITLES)), "time")["ends"]
        assert tuple(each.rpartition(", ")[2] for each in told) == ends
    waited = Trace(
        replace(event, timing=replace(event.timing, wait_ms=100.0, total_ms=event.timing.total_ms + 100.0))
        if hasattr(event, "timing") else event
        for event in slow.events()
    )  # fmt: skip
    alone, beside = (mode(data_of(side_by_side_block(each, fast, "time")), "time") for each in (slow, waited))
    assert alone["ends"] == beside["ends"]
    assert [words for words, *_ in alone["frames"]] == [words for words, *_ in beside["frames"]]


def test_what_is_known_when_a_race_is_stopped_is_shown_while_it_goes_on():
    found = replace(result(2, 3), done=6)
    shown = view.race(OFFER, CHOICES, found, TITLES).blocks
    assert [kind_of(each) for each in shown] == ["progress", "verdict", "table"]
    assert "median of 2 prompts" in "".join(shown[1].words)
    assert [row[3] for row in shown[2].rows] == ["2.00×", "3.00×", "2.45×"]


def test_prompt_by_prompt_the_numbers_are_the_runs_own_and_their_totals_those_of_all():
    found = result(2, 4, names=("first-visit", "k-8"))
    _, table = (each for each in view.race(OFFER, CHOICES, found, TITLES).blocks if kind_of(each) == "table")
    for runs, place in ((["first-visit"] * 2, 0), (["k-8"] * 2, 1)):
        steps = [step for name in runs for step in shipped_trace(name).steps]
        calls = sum(step.calls["target"] for step in steps)
        statuses = [token.status for step in steps for token in step.draft]
        kept = statuses.count("accepted") / (statuses.count("accepted") + statuses.count("rejected"))
        assert table.rows[-1][4 + place] == str(calls)
        assert table.rows[0][4 + place] == str(calls // 2)
        assert table.rows[0][6 + place] == table.rows[-1][6 + place] == f"{100 * kept:.0f} %"
    for row in table.rows[:2]:
        assert float(row[2]) / float(row[1]) == pytest.approx(float(row[3][:-1]), rel=0.02)


def test_a_race_that_is_kept_can_be_replayed_prompt_by_prompt_and_its_runs_saved():
    found = result(2, 4, slower=1.1)
    shown = view.race(OFFER, CHOICES, found, TITLES, seat=Seat("key", 1, ("one", "other"))).blocks
    _, table, links = (each for each in shown if kind_of(each) in ("table", "links"))
    assert [row[-1] and row[-1].does for row in table.rows] == [
        Press("race", "replay", {"race": "key", "heat": str(number)}) for number in (0, 1)
    ] + [""]
    assert [href for _, href in links.entries] == ["specviz/trace/one", "specviz/trace/other"]
    assert table.marked == 1
    assert not any(kind_of(each) == "links" for each in view.race(OFFER, CHOICES, found, TITLES).blocks)


def test_the_file_of_a_race_holds_all_its_numbers():
    found = result(2, 4, slower=1.1)
    *_, saved = view.race(OFFER, CHOICES, found, TITLES).blocks
    told = json.loads(saved.text)
    assert [side["title"] for side in told["sides"]] == list(TITLES)
    assert told["machine"] == found.heats[0].left.header.environment
    assert told["median_ratio_b_over_a"] == pytest.approx(8**0.5)
    assert told["unsteadiness"] == pytest.approx(0.1)
    for heat, each in zip(found.heats, told["prompts"], strict=True):
        for trace, side in zip((heat.left, heat.right), each["a_and_b"], strict=True):
            assert side["times_ms"] == pytest.approx([took(trace), 1.1 * took(trace)])
            assert side["target_calls"] == sum(step.calls["target"] for step in trace.steps)
        assert each["prompt"]["prompt"] == heat.left.header.request["prompt"]


def test_with_another_run_on_explore_what_was_found_stays_under_a_line_that_says_so():
    shown = view.race(replace(OFFER, problem="old trouble"), CHOICES, result(2, 4), TITLES)
    fresh = view.race(replace(OFFER, problem="new trouble"), CHOICES)
    section = view.with_earlier_result(fresh, shown)
    assert [block.words for block in section.blocks[:2]] == ["new trouble", view.BEFORE]
    assert section.blocks[2:] == shown.blocks[1:]
    assert view.with_earlier_result(fresh, section) == section
    assert view.has_result(section)
    assert not view.has_result(fresh)


def test_the_prompt_that_is_raced_stands_above_the_buttons():
    assert "The first prompt: “Once”" in "".join(view.race(OFFER, CHOICES).lead)


def test_before_and_during_the_race():
    assert view.race(OFFER, CHOICES).blocks[0].words == view.NOTHING
    running = view.race(OFFER, CHOICES, Race(1, 4, "warming up\u202e B")).blocks[0]
    assert (running.width, running.words) == (25.0, "1 of 4 runs · warming up⟨202E⟩ B")
