"""The sections of the Check page: every state in words, nothing judged too early, every width within its axis."""

import json
from dataclasses import replace

import numpy as np
import pytest

from specviz.checks.end_to_end import EndToEnd, FirstToken, Power
from specviz.checks.enumerated import Enumeration
from specviz.checks.greedy import Greedy, TextDifference
from specviz.checks.one_step import Redraws, RuleHere, Share, SumIdentity
from specviz.checks.self_checks import SelfCheck
from specviz.checks.statistics import Cells, Evidence
from specviz.rules import RULES
from specviz.rules.broken import BROKEN
from specviz.views.blocks import dump
from specviz.views.check import sections as check
from specviz.views.check import whole_texts as check_texts
from specviz.views.palette import colour
from tests.helpers.page_records import check_record, every_block, kind_of, kinds
from tests.helpers.traces import HOSTILE

OPTIONS = [("Speculative sampling", "speculative_sampling"), ("Greedy draft", "argmax_draft")]
RIGHT = RuleHere(RULES["speculative_sampling"], 0.6, 1e-17, None)
WRONG = RuleHere(BROKEN["argmax_draft"], 0.9, 0.4, 123)
HOPELESS = RuleHere(BROKEN["clamped_q"], 0.6, 1e-5, None)


def names(token):
    return HOSTILE[token % len(HOSTILE)].decode()


def of_kind(section, kind):
    return [block for block in every_block(section.blocks) if kind_of(block) == kind]


def texts(section):
    return dump(section)


def sound(section):
    """A section that the browser can show: JSON, known verdicts, widths within the axis, tokens written out."""
    check_record(section)
    for block in of_kind(section, "bars"):
        for row in block.rows:
            assert sum(width for _, width in row.parts) <= 100.01
            assert row.tick is None or 0 <= row.tick <= 100.01
            assert len(row.values) == len(block.heads)
            assert "\x1b" not in row.label
            assert "\u202e" not in row.label
    for block in of_kind(section, "table"):
        assert {len(row) for row in block.rows} <= {len(block.columns)}
    assert "proof" not in texts(section).lower()
    return section


# ---- the identity ---------------------------------------------------------------------------------------------------


def made_identity():
    rows = (Share(0, 0.5, 0.2, 0.2, 0.3, 0.0), Share(3, 0.1, 0.6, 0.1, 0.0, 0.5), Share(None, 0.4, 0.2, 0.2, 0.2, 0.0))
    return SumIdentity(2, 1, rows, Share(None, 1.0, 1.0, 0.5, 0.5, 0.5), 4096, 1e-17)


def test_the_identity_stacks_to_p():
    section = sound(check.identity(made_identity(), names))
    (bars,) = of_kind(section, "bars")
    for row, share in zip(bars.rows, made_identity().rows, strict=True):
        assert sum(width for _, width in row.parts) == pytest.approx(100 * share.p / 0.5, abs=0.01)
        assert row.tick == pytest.approx(sum(width for _, width in row.parts), abs=0.01)
    assert bars.rows[-1].label == "all others"
    assert "4,096 tokens" in of_kind(section, "verdict")[0].words
    assert "Step 3, drafted token 2" in texts(section)


def test_an_identity_that_does_not_hold_is_not_called_exact():
    section = sound(check.identity(replace(made_identity(), largest_error=1e-3), names))
    assert [block.state for block in of_kind(section, "verdict")] == ["differs"]


def test_no_identity_says_what_is_missing():
    section = sound(check.identity(None, names))
    assert "pin a drafted token" in texts(section)


# ---- one step -------------------------------------------------------------------------------------------------------

DISTRIBUTION = (0.5, 0.3, 0.2)


def made_redraws(counts, total=1000, here=RIGHT):
    return Redraws(sum(counts), total, here, (3, 8), Cells(DISTRIBUTION, counts), DISTRIBUTION)


def test_no_place_says_what_is_missing():
    section = sound(check.one_step(OPTIONS, "argmax_draft", None, None, names))
    assert "Make a run" in texts(section)
    assert [kind_of(control) for control in section.controls] == ["choice", "count", "count", "button"]


@pytest.mark.parametrize("made", [
    lambda seed: check.one_step(OPTIONS, "argmax_draft", None, None, names, seed=seed),
    lambda seed: check_texts.end_to_end(OPTIONS, "argmax_draft", None, names, seed=seed),
])  # fmt: skip
def test_the_seed_can_be_chosen(made):
    (control,) = [control for control in made(7).controls if getattr(control, "name", "") == "seed"]
    assert (control.value, control.low) == (7, 0)
    assert control.high >= 10**6


def test_the_programs_own_enumeration_stands_first_and_alone_says_enumerated():
    finished = Enumeration(4, 4, True, 3, 640, 2e-16)
    section = sound(check.one_step(OPTIONS, "speculative_sampling", RIGHT, None, names, at=(0, 0), enumerated=finished))
    first, second = of_kind(section, "verdict")
    assert first.words.startswith("exact (enumerated): 640 outcomes of the real program")
    assert second.words.startswith("exact by formula, one token judged alone")
    begun = Enumeration(1, 4, True, 3)
    section = check.one_step(OPTIONS, "speculative_sampling", RIGHT, None, names, at=(0, 0), enumerated=begun)
    assert kinds(section)[0] == "progress"
    wrong = Enumeration(4, 4, False, 3, 64, 0.25)
    section = check.one_step(OPTIONS, "argmax_draft", WRONG, None, names, at=(0, 0), enumerated=wrong)
    assert "25 % of probability" in of_kind(section, "verdict")[0].words


def test_before_the_last_draw_there_are_only_counts():
    section = sound(check.one_step(OPTIONS, "speculative_sampling", RIGHT, made_redraws((5, 3, 2)), names, at=(0, 1)))
    (progress,), (bars,) = of_kind(section, "progress"), of_kind(section, "bars")
    assert progress.width == 1.0
    assert bars.heads == ("count",)
    assert all(row.tick is None for row in bars.rows)
    assert [block.words for block in of_kind(section, "verdict")][1:] == []  # the formula's own stands first


def test_after_the_last_draw_shares_stand_beside_the_distribution():
    section = sound(
        check.one_step(OPTIONS, "speculative_sampling", RIGHT, made_redraws((510, 300, 190)), names, at=(0, 1))
    )
    (bars,) = of_kind(section, "bars")
    assert [row.values for row in bars.rows] == [
        ["510", "51\u00a0%", "50\u00a0%"],
        ["300", "30\u00a0%", "30\u00a0%"],
        ["190", "19\u00a0%", "20\u00a0%"],
    ]
    assert bars.rows[0].tick == pytest.approx(100 * 0.5 / 0.51, abs=0.01)


def test_a_wrong_rule_is_exactly_wrong_before_any_draw():
    section = sound(check.one_step(OPTIONS, "argmax_draft", WRONG, None, names, at=(4, 0)))
    (verdict,) = of_kind(section, "verdict")
    assert verdict.state == "differs"
    assert "about 130 redraws show it" in verdict.words
    assert "Step 5, drafted token 1" in texts(section)


def test_a_wrong_rule_that_hides_takes_more_than_fits():
    section = sound(check.one_step(OPTIONS, "clamped_q", HOPELESS, None, names, at=(4, 0)))
    assert "more redraws than fit here" in texts(section)


def test_a_wrong_rule_that_does_no_harm_here_is_not_called_exact():
    harmless = RuleHere(BROKEN["dropped_draft"], 0.0, 1e-17, None)
    section = sound(check.one_step(OPTIONS, "dropped_draft", harmless, None, names, at=(0, 0)))
    assert [block.state for block in of_kind(section, "verdict")] == ["unsure"]


def test_every_rule_at_the_place_stands_in_a_table_with_the_chosen_one_marked():
    section = check.one_step(OPTIONS, "argmax_draft", WRONG, None, names, at=(0, 0), others=[RIGHT, WRONG, HOPELESS])
    (table,) = of_kind(sound(section), "table")
    assert table.marked == 1
    assert table.rows[0][3:] == ["0", "–"]
    assert "acceptance alone cannot tell" in table.caption


# ---- end to end -----------------------------------------------------------------------------------------------------


def made_texts(total=64, wrong=False):
    holds = np.ones((64, 2)) if wrong else np.tile([[1.0, 0.0], [0.0, 1.0]], (32, 1))
    evidence = Evidence.empty(("one", "two")).add(holds, np.full((64, 2), 0.5))
    power = (Power(BROKEN["argmax_draft"], 40), Power(BROKEN["clamped_q"], None))
    return EndToEnd(64, total, 2, evidence, 0, 1e-17, ((32, -0.1), (64, 0.2)), power)


def test_no_text_says_what_to_press():
    section = sound(check_texts.end_to_end(OPTIONS, "speculative_sampling", None, names))
    assert "Press Write and judge" in texts(section)


def test_texts_under_way_show_their_numbers_and_no_verdict():
    section = sound(check_texts.end_to_end(OPTIONS, "speculative_sampling", made_texts(total=500), names))
    assert kinds(section) == ["progress", "table", "chart", "details"]
    assert of_kind(section, "verdict") == []


def test_finished_texts_have_a_verdict_and_say_which_wrong_rules_they_would_show():
    section = sound(check_texts.end_to_end(OPTIONS, "speculative_sampling", made_texts(), names))
    assert of_kind(section, "verdict")[0].state == "unsure"
    table = of_kind(section, "table")[1]
    assert [row[-1] for row in table.rows] == ["yes", "no"]
    assert table.rows[0][1] == "about 40 tokens"


def test_a_difference_may_be_said_at_any_time_and_the_work_can_still_be_stopped():
    section = sound(check_texts.end_to_end(OPTIONS, "argmax_draft", made_texts(total=500, wrong=True), names))
    assert of_kind(section, "verdict")[0].state == "differs"
    assert kinds(section)[:2] == ["verdict", "progress"]
    section = sound(check_texts.end_to_end(OPTIONS, "argmax_draft", made_texts(total=64, wrong=True), names))
    assert "progress" not in kinds(section)


def test_two_checks_are_two_chances_to_be_wrong():
    section = check_texts.end_to_end(OPTIONS, "speculative_sampling", None, names)
    assert "under 2 in a million, both checks together" in section.lead


def test_the_evidence_is_a_chart_with_its_table_and_named_colours():
    figure = check_texts.evidence_chart(((32, -0.1), (64, 0.2)))
    run, limit = figure["data"]
    assert (run["x"], run["y"]) == ([0, 32, 64], [0.0, -0.1, 0.2])
    assert limit["y"] == [6, 6]
    assert run["line"]["color"] == colour(run["meta"]["status"])
    assert run["line"]["dash"] != limit["line"]["dash"]
    assert [column[0] for column in figure["layout"]["meta"]["table"]] == ["tokens", "log10 of E"]


def test_first_tokens_show_counts_until_the_last():
    for counts, done in (((10, 10, 5), False), ((500, 300, 200), True)):
        first = FirstToken(sum(counts), 1000, (3, 8), Cells(DISTRIBUTION, counts))
        section = sound(check_texts.end_to_end(OPTIONS, "speculative_sampling", None, names, first=first))
        (bars,) = of_kind(section, "bars")
        assert (len(bars.heads) == 3) is done
        assert bool(of_kind(section, "verdict")) is done


def test_greedy_texts_show_where_they_part():
    parted = Greedy(2, 2, 48, (TextDifference(1, 7, 30, 31, 4.5, 4.5),), (), ())
    section = sound(check_texts.end_to_end(OPTIONS, "speculative_sampling", None, names, greedy=Greedy(2, 2, 48)))
    assert of_kind(section, "verdict")[0].state == "exact"
    section = sound(check_texts.end_to_end(OPTIONS, "speculative_sampling", None, names, greedy=parted))
    assert of_kind(section, "verdict")[0].state == "consistent"
    assert of_kind(section, "table")[0].rows == [["2", "8", "30 (4.500000)", "31 (4.500000)"]]


# ---- the rest -------------------------------------------------------------------------------------------------------


def test_self_checks_are_shown_as_they_come():
    assert "Not checked yet" in texts(sound(check.self_checks([])))
    some = [SelfCheck("One", "consistent", "fine", 1, 2)]
    assert kinds(sound(check.self_checks(some))) == ["verdict", "progress"]
    every = [*some, SelfCheck("Two", "differs", "not fine", 2, 2)]
    assert [block.state for block in sound(check.self_checks(every)).blocks] == ["consistent", "differs"]


def test_another_decoder_is_judged_by_a_command_and_never_uploaded():
    section = sound(check.someone_else("fable-target"))
    assert "python -m specviz prove --target fable-target --samples samples.jsonl" in texts(section)
    (example,) = of_kind(section, "download")
    assert json.loads(example.text).keys() == {"prompt_ids", "ids", "sampling"}
    assert section.controls == ()


def test_a_long_name_stands_whole_in_the_command_and_no_name_ends_it():
    long = "somebody-with-a-long-name/a-model-with-an-even-longer-name-7B-Instruct"
    assert f"--target {long} --samples" in texts(check.someone_else(long))
    assert "--target 'a; rm b' --samples" in texts(check.someone_else("a; rm b"))
    assert "\u202e" not in check.someone_else("a\u202eb").blocks[1].words[1]


def test_the_example_line_is_one_that_the_check_reads(tmp_path, named_models):
    from specviz.checks.samples import read_samples

    path = tmp_path / "samples.jsonl"
    path.write_text(of_kind(check.someone_else("big"), "download")[0].text)
    assert len(read_samples(path, named_models.load("big"))) == 1
