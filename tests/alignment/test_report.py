"""The report of an alignment job as sections: what is said, what is not said, texts from outside, limits."""

import argparse
import json
import math
from dataclasses import replace

import msgspec
import pandas
import pytest
from msgspec import UNSET

from specviz.alignment.report import (
    charts as alignment_charts,
)
from specviz.alignment.report import (
    overview as alignment_overview,
)
from specviz.alignment.report import (
    sections as alignment,
)
from specviz.alignment.report import (
    texts as alignment_texts,
)
from specviz.alignment.report.command import command_of
from specviz.alignment.summary import (
    DraftingMode,
    Finding,
    Floors,
)
from specviz.alignment.tables.columns import COLUMNS
from specviz.cli.align import add_arguments
from specviz.request import read_options
from specviz.views.blocks import (
    BarsBlock,
    ChartBlock,
    DetailsBlock,
    PlaceInText,
    TableBlock,
    TableCell,
    TextChunk,
    VerdictBlock,
    WordsBlock,
    dump,
)
from tests.helpers.made_summaries import (
    COSTS,
    HOSTILE,
    NAMES,
    REASONS,
    comparison,
    draft,
    made_summary,
    made_text,
    pattern,
    slices_of,
)
from tests.helpers.one_file import unpacked
from tests.helpers.page_records import check_record, every_block


def said(shown):
    return dump(shown)


def section_of(summary, name):
    return next(section for section in alignment.sections(summary) if section.id == name)


def tables(shown):
    return (block for block in every_block(shown) if isinstance(block, TableBlock))


def shown_texts(*numbers):
    """The block of texts with these numbers."""
    return alignment_texts.texts_block([made_text(number, 4) for number in numbers], NAMES, len(numbers))


def texts_of(row):
    return ["".join(text) if isinstance(text, list) else text for text in (_text(cell) for cell in row)]


def _text(cell):
    return cell.text if isinstance(cell, TableCell) else cell


def test_a_report_has_every_part_and_numbers_that_can_be_sent():
    made = alignment.sections(made_summary(), shown_texts(3))
    for section in made:
        check_record(section)
    names = [section.id for section in made]
    expected = ["overview", "against", "every-k", "slices", "reasons", "calibration", "training", "texts", "how"]
    assert names == expected
    assert "proved" not in said(alignment.sections(made_summary()))


def test_the_table_of_drafts_says_each_number():
    (table, *_) = tables(section_of(made_summary(), "overview").blocks)
    assert table.caption == "Bold: agrees most."
    assert texts_of(table.rows[0]) == [
        "fable-draft", "71\u00a0%", "68\u00a0% to 74\u00a0%", "67\u00a0%", "72\u00a0%", "2.83", "3 to 5", "1.40x", "40",
        "2,560",
    ]  # fmt: skip
    assert table.marked == 0
    assert [cell.sort for cell in (row[1] for row in table.rows)] == [0.71, 0.62, 0.48]
    assert [row[2].sort for row in table.rows] == pytest.approx([0.68, 0.59, 0.45])


def answers(summary):
    """The sentences about each draft."""
    shown = section_of(summary, "overview").blocks
    return [
        "".join(block.words) for block in shown if isinstance(block, WordsBlock) and " agrees " in "".join(block.words)
    ]


def test_the_overview_answers_its_title_for_each_draft():
    first, second, third = answers(made_summary())
    parts = "5.8 of it: target certain, draft picks another; 5.8: draft overconfident; 5.8: near-tie"
    lost = f"29\u00a0% disagreement; {parts}."
    more = "(10 to 30 points more, 95 % interval; agreement 51\u00a0%)"
    classes = f"The class name is 33\u00a0% of the tokens but 57\u00a0% of the loss {more}."
    best = "Best: K = 4, 1.40x the speed without a draft (predicted)."
    assert first == f"fable-draft agrees 71\u00a0%. {lost} {classes} {best}"
    assert third.endswith("Best: K = 4, 0.83x the speed without a draft (predicted), slower.")
    assert "".join(section_of(made_summary(), "overview").blocks[2].words) == first
    assert second.startswith("fable-draft-undistilled agrees 62")


def test_a_group_of_tokens_is_named_openly_and_only_where_it_stands_out():
    summary = made_summary()
    words = "the class name is 33\u00a0% of the tokens but 57\u00a0% of the loss (10 to 30 points more"
    even = made_summary(slices=tuple(replace(each, stands_out=False) for each in summary.slices))
    told, told_even = (
        ["".join(each.words) for each in section_of(own, "slices").blocks if isinstance(each, VerdictBlock)]
        for own in (summary, even)
    )
    assert any(each.startswith(f"fable-draft: {words}") for each in told)
    assert "of the loss" not in "".join([*answers(even), *told_even])


def test_both_ways_of_drafting_stand_side_by_side_with_the_engines_names_for_them():
    way = DraftingMode(0.28, (1.3,) * 16, None, None, (0.3, 0.1))
    drafts = tuple(replace(each, by_argmax=way, by_position=(0.7, 0.5)) for each in made_summary().drafts)
    shown = section_of(made_summary(drafts=drafts), "ways")
    (table,) = tables(shown.blocks)
    assert texts_of(table.rows[1])[:4] == ["fable-draft", "most likely", "28\u00a0%", "1.30"]
    assert "draft_sample_method" in said(shown)


@pytest.mark.parametrize(
    ("fastest", "words"),
    [
        (
            (1.4, 1.27),
            "The predicted speedups of a and b differ by less than 10\u00a0%: too little to call one the fastest.",
        ),
        ((1.4, 1.25), "a is predicted to be fastest of the 2, 1.40x."),
        ((0.9, 0.8), "a is predicted to be fastest of the 2, 0.90x: still slower than no draft."),
    ],
)
def test_who_is_fastest_is_said_only_where_it_can_be_told(fastest, words):
    pair = tuple(draft(name, 0.6, fastest=speed) for name, speed in zip("ab", fastest, strict=True))
    shown = section_of(made_summary(drafts=pair, comparisons=(), slices=()), "overview").blocks
    assert words in ["".join(block.words) for block in shown if isinstance(block, WordsBlock)]


def test_drafts_whose_target_was_measured_at_different_speeds_are_not_ranked():
    for plain_ms, is_ranked in ((18.0, True), (23.8, False)):
        costs = {name: {**COSTS, "verify_ms": [ms, ms]} for name, ms in zip(NAMES, (16.5, 16.7, plain_ms), strict=True)}
        shown = dump(section_of(made_summary(costs=costs), "overview").blocks)
        assert ("too little to call one the fastest" in shown) == is_ranked
        assert ("So their speedups are not ranked: measure all in one job." in shown) != is_ranked


def test_what_was_read_looked_for_and_left_out_is_said_first():
    shown = section_of(made_summary(num_cut=12), "overview")
    words = "".join(shown.blocks[0].words)
    assert words == (
        "40 of 42 prompts (2 could not be used, see below), 2,560 tokens of text by fable-target, temperature 1. "
        "12 texts end where the target's context ends."
    )
    looked = "Looked for: a damaged layer, a different chat format, tokens out of reach."
    assert f"No fault was found. {looked}" in said(shown)
    whole = "".join(section_of(made_summary(num_refused=0, num_prompts=1, num_tokens=1), "overview").blocks[0].words)
    assert whole.startswith("1 prompt, 1 token of text by")


def test_nothing_is_called_found_or_not_found_where_nothing_was_looked_for():
    words = said(section_of(made_summary(looked_for=()), "overview"))
    assert "Too few prompts to look for" in words
    assert "No fault" not in words


def test_spare_fields_of_the_file_are_told_where_the_making_is_told():
    spare = f"{alignment_overview.IGNORED}: colour"
    summary = made_summary(warnings=(spare, "templates differ"))
    assert spare in said(section_of(summary, "how"))
    assert spare not in said(section_of(summary, "overview"))
    assert "templates differ" in said(section_of(summary, "overview"))


def test_a_machine_is_called_what_it_is():
    costs = {"a": {**COSTS, "device": "x86_64"}, "b": {**COSTS, "device": "Some GPU"}}
    table = list(tables(section_of(made_summary(costs=costs), "how").blocks))[1]
    assert [row[4] for row in table.rows] == ["CPU (x86_64)", "Some GPU"]


def test_a_draft_that_does_not_pay_is_said_as_plainly_as_one_that_does():
    (table, *_) = tables(section_of(made_summary(), "overview").blocks)
    assert table.rows[2][7] == TableCell("0.83x, slower", sort=0.83, tone="rejected")
    assert sum(told.endswith("(predicted), slower.") for told in answers(made_summary())) == 1


def test_without_costs_no_speedup_is_given():
    bare = replace(draft("only", 0.7), speedups=None, best_k=None)
    summary = made_summary(drafts=(bare,), costs={}, comparisons=())
    words = said(section_of(summary, "overview"))
    assert "No speedup is given for only: the summary does not say why." in words
    assert "press Measure costs above for each draft model, then Analyse again" in said(alignment.compact(summary))
    assert "not known" in words
    charts = [block for block in section_of(summary, "every-k").blocks if isinstance(block, ChartBlock)]
    assert [chart.figure["layout"]["meta"]["title"] for chart in charts] == ["Tokens per target call"]


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("left out", "the job was made with --no-costs"),
        ("states", "costs need the target's weights"),
        ("given", "the costs that were given leave it out"),
        ("measured", "costs are measured for draft models alone"),
    ],
)
def test_why_a_draft_has_no_speedup_is_said_as_it_is(source, why):
    head = replace(draft("head", 0.7), speedups=None, best_k=None)
    summary = made_summary(drafts=(head, draft("a", 0.6)), costs={"a": COSTS}, costs_from=source)
    assert f"No speedup is given for head: {why}." in said(section_of(summary, "overview"))


def test_where_the_machine_was_too_busy_its_costs_are_named_and_nothing_else():
    doubt = "a: no speedup and no best K. This machine was too busy: the middle half spans 80 %."
    bare = replace(draft("a", 0.7), speedups=None, best_k=None)
    words = said(section_of(made_summary(drafts=(bare,), costs={"a": COSTS}, warnings=(doubt,)), "overview"))
    assert doubt in words
    assert "No speedup is given" not in words


def test_one_draft_is_compared_with_none():
    summary = made_summary(drafts=(draft("only", 0.7),), comparisons=())
    assert "against" not in [section.id for section in alignment.sections(summary)]


@pytest.mark.parametrize(
    ("significant", "difference", "words"),
    [
        (None, 0.05, "not called significant: fewer than 30 prompts"),
        (False, 0.05, "no significant difference"),
        (True, 0.05, "a agrees more"),
        (True, -0.05, "b agrees more"),
    ],
)
def test_a_difference_is_called_what_it_is(significant, difference, words):
    pair = comparison("a", "b")
    pair = replace(pair, slices=(replace(pair.slices[0], significant=significant, difference=difference),))
    (table, *_) = tables(section_of(made_summary(comparisons=(pair,)), "against").blocks)
    assert texts_of(table.rows[0])[-1] == words
    assert texts_of(table.rows[0])[3] == f"{100 * difference:+.1f} points"


def test_findings_warnings_and_refused_lines_stand_in_the_overview():
    finding = Finding("fable-draft", "layer", "layer 3 differs from its neighbours", {"layer": 3.0})
    drafts = (draft("fable-draft", 0.7, findings=(finding,), verdict="broken", next_step="look at layer 3"),)
    floors = Floors(0.11, 0.25, 24)
    summary = made_summary(drafts=drafts, warnings=("templates differ",), exact=False, floors=floors)
    shown = section_of(summary, "overview").blocks
    states = [(block.state, "".join(block.words)) for block in shown if isinstance(block, VerdictBlock)]
    assert states[:2] == [
        (
            "differs",
            "fable-draft is broken: 30.0 points are lost, and no known fault explains them. Next: look at layer 3.",
        ),
        ("differs", "fable-draft: layer 3 differs from its neighbours"),
    ]
    assert [state for state, _ in states[2:]] == ["unsure", "unsure"]
    assert states[-1] == ("unsure", "templates differ")
    assert isinstance(shown[0], VerdictBlock)
    assert "25\u00a0%, counted and measured on 24 of the texts" in said(shown)
    assert "No fault" not in said(shown)
    assert "Faults found: 1, see above." in said(shown)
    assert "Lines that could not be used: 2" in said(shown)


@pytest.mark.parametrize("nothing", [math.nan, None])
def test_what_is_not_a_number_is_a_dash_and_sorts_last(nothing):
    unknown = dict.fromkeys(("alpha", "alpha_interval", "mean_acceptance", "greedy_agreement", "ceiling"), nothing)
    unknown["alpha_interval"] = None
    lame = replace(draft("lame", 0.5), **unknown, tokens_per_call=(math.nan,) * 16)
    shown = alignment.sections(made_summary(drafts=(lame, draft("other", 0.6)), slices=()))
    (table, *_) = tables(shown[0].blocks)
    assert table.rows[0][1] == TableCell("–")
    assert table.marked == 1
    assert "nan" not in said(shown[:-1]).lower()


def test_texts_from_outside_cannot_steer_the_page():
    found = pattern(3, id=HOSTILE, token=HOSTILE, before=HOSTILE, draft_token=HOSTILE)
    hostile = draft(HOSTILE, 0.6, patterns=(found,), findings=(Finding(HOSTILE, "layer", HOSTILE, {}),))
    summary = made_summary(
        target=HOSTILE, note=HOSTILE, warnings=(HOSTILE,), refused=((1, HOSTILE),), drafts=(hostile, draft("b", 0.5)),
        slices=tuple(replace(each, value=HOSTILE, draft=HOSTILE) for each in slices_of(HOSTILE, 0.5)),
        comparisons=(comparison(HOSTILE, "b"),), costs={HOSTILE: {"device": HOSTILE, "dtype": HOSTILE}},
    )  # fmt: skip
    text = made_text(2, 4, (HOSTILE, "b"), id=HOSTILE, prompt=HOSTILE, columns={"text": [HOSTILE] * 4})
    block = alignment_texts.texts_block([text], [HOSTILE, "b"], 1)
    words = said(alignment.sections(summary, block)) + said([unpacked(chunk) for chunk in block.chunks])
    assert "\u202e" not in words
    assert "⟨202E⟩" in words


def test_the_saved_columns_are_listed():
    listed = said(section_of(made_summary(), "how"))
    for name in ("tokens", "prompts", "slices"):
        assert all(column in listed and each.meaning in listed for column, each in COLUMNS[name].items())


def test_how_it_was_made_names_hashes_formats_the_file_and_a_command_that_makes_it_again():
    models = {"fable-target": "0123456789abcdef", "fable-draft": "fedcba9876543210"}
    summary = made_summary(
        drafts=(draft("fable-draft", 0.7),), models=models, prompt_file="prompts.jsonl", seed=3, k=6, chat=True,
        number_formats=dict.fromkeys(models, "bfloat16"), chat_options={"thinking": False},
        sampling={"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0},
    )  # fmt: skip
    listed = said(section_of(summary, "how"))
    for words in ("fable-target (bfloat16, 01234567)", "fable-draft (bfloat16, fedcba98)", "prompts.jsonl (ffffffff)"):
        assert words in listed
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(command_of(summary).split()[4:])
    assert (options.target, options.draft, options.prompts.name) == ("fable-target", ["fable-draft"], "prompts.jsonl")
    assert (options.temperature, options.top_p, options.top_k, options.min_p) == (0.7, 0.9, 0, 0.0)
    assert (options.seed, options.k, options.max_new_tokens, options.chat) == (3, 6, 64, True)
    assert read_options(options.chat_option) == {"thinking": False}


def test_the_page_shows_the_same_blocks_as_the_report():
    summary = made_summary()
    whole = {section.title: section.blocks for section in alignment.sections(summary)}
    shown = alignment.compact(summary)
    folds = [block for block in shown if isinstance(block, DetailsBlock) and block.title in whole]
    assert [fold.title for fold in folds] == list(whole)[1:]
    assert all(fold.blocks[1:] == whole[fold.title] for fold in folds)
    assert shown[: len(whole["Overview"])] == whole["Overview"]


def test_reasons_keep_their_colour_and_order_from_draft_to_draft():
    two = (draft("a", 0.6), draft("b", 0.5))
    two = (two[0], replace(two[1], reasons=tuple(replace(each, share=0.1) for each in reversed(two[1].reasons[1:]))))
    table = next(tables(section_of(made_summary(drafts=two), "reasons").blocks))
    assert [texts_of(row)[2] for row in table.rows] == [*REASONS, *REASONS[1:]]
    bars = next(b for b in section_of(made_summary(drafts=two), "reasons").blocks if isinstance(b, BarsBlock))
    tones = [tone for tone, _ in bars.key]
    assert [words for _, words in bars.key] == list(REASONS)
    assert len(set(tones)) == len(REASONS)
    assert [row.parts for row in bars.rows] == [
        [(tone, 20.0) for tone in tones],
        [(tone, 0.0 if place == 0 else 10.0) for place, tone in enumerate(tones)],
    ]


def test_a_difference_that_rounds_to_nothing_has_no_minus():
    pair = comparison("a", "b")
    pair = replace(pair, slices=(replace(pair.slices[0], difference=-0.0001, interval=(-0.0002, 0.0001)),))
    (table, *_) = tables(section_of(made_summary(comparisons=(pair,)), "against").blocks)
    assert texts_of(table.rows[0])[3:5] == ["+0.0 points", "+0.0 to +0.0"]
    assert table.rows[0][4].sort == -0.0002


def test_how_many_places_a_comparison_is_over_is_said():
    pair = replace(comparison("a", "b"), words="Over the 120 places that all drafts can read.")
    words = [block.words for block in section_of(made_summary(comparisons=(pair, pair)), "against").blocks
             if isinstance(block, WordsBlock)]  # fmt: skip
    assert words == [pair.words]


def test_a_slice_of_few_tokens_or_of_endings_has_no_k_and_no_speed():
    base = slices_of("a", 0.6)[-3]
    assert base.kind == "class"
    few = [replace(base, num_tokens=30), replace(base, num_tokens=29), replace(base, value="special")]
    shown = section_of(made_summary(drafts=(draft("a", 0.6),), slices=tuple(few), comparisons=()), "slices")
    assert [texts_of(row)[8:10] for row in next(tables(shown.blocks)).rows] == [
        ["4", "1.45x"],
        ["–", "–"],
        ["–", "–"],
    ]


def test_a_confidence_stop_is_judged_in_a_sentence_and_no_gap_is_called_an_error():
    shown = section_of(made_summary(), "calibration")
    verdicts = ["".join(block.words) for block in shown.blocks if isinstance(block, VerdictBlock)]
    names = "fable-draft, fable-draft-undistilled, fable-draft-tiny"
    assert verdicts == [f"{names}: A confidence stop would help: 12 % is accepted too seldom."]  # of all, said once
    table = next(tables(shown.blocks))
    assert table.columns == ["draft model", "mean gap between confidence and acceptance (ECE)"]
    assert "acceptance above confidence is no fault" in shown.lead


def test_what_to_train_on_says_what_the_patterns_come_to_and_what_all_rejections_lose():
    one = made_summary(drafts=(draft("a", 0.6),), comparisons=())
    shown = section_of(one, "training").blocks
    saved = sum(each.saved for each in one.drafts[0].patterns)
    assert "".join(shown[0].words) == f"a: these 20 groups cost {saved:.1f} of 900 target calls (7.2\u00a0%)."
    listed, losses = tables(shown)
    assert [texts_of(row) for row in losses.rows] == [
        ["class: word", "60.5", "60\u00a0%"],
        ["class: name", "40.3", "40\u00a0%"],
        ["reason: near-tie", "70.0", "100\u00a0%"],
    ]  # fmt: skip
    assert texts_of(listed.rows[1]) == ["word", "␣fox", "␣dog", "4.1", "1.5 to 6.8", "7", "6", "story-1"]
    none = section_of(made_summary(drafts=(draft("a", 0.6, patterns=()),), comparisons=()), "training").blocks
    assert "no group of rejections recurs" in said(none)


def opens(shown):
    return [cell.opens for table in tables(shown) for row in table.rows for cell in row
            if isinstance(cell, TableCell) and cell.opens is not UNSET]  # fmt: skip


def test_a_text_that_the_page_shows_is_opened_at_its_token():
    summary = made_summary()
    assert all(opens(section.blocks) == [] for section in alignment.sections(summary))
    block = shown_texts(7, 3)
    shown = {section.id: section.blocks for section in alignment.sections(summary, block)[:-2]}
    assert opens(shown["training"]) == [PlaceInText(at, one, at) for one in range(3) for at in (3, 7)]
    assert opens(shown["against"]) == [PlaceInText(at, 0, 0) for at in (3, 7)] * 2
    folds = [block.blocks for block in alignment.compact(summary, block) if isinstance(block, DetailsBlock)]
    assert sum(map(len, map(opens, folds))) == 10


def test_checkpoints_stand_on_one_curve_in_the_order_of_their_numbers():
    steps = [draft(f"step-{number}", number / 20) for number in (1, 10, 2)]
    summary = made_summary(drafts=(*steps, draft("other", 0.5)), comparisons=(comparison("step-1", "step-10"),))
    (chart,) = [block.figure for block in section_of(summary, "against").blocks if isinstance(block, ChartBlock)]
    agreement, tokens = chart["data"]
    assert agreement["x"] == tokens["x"] == ["step-1", "step-2", "step-10"]
    assert agreement["y"] == [0.05, 0.1, 0.5]
    assert tokens["y"] == [round(each.tokens_per_call[3], 4) for each in (steps[0], steps[2], steps[1])]
    assert agreement["error_y"]["array"] == pytest.approx([0.03] * 3)
    two = made_summary(drafts=tuple(steps[:2]), comparisons=(comparison("step-1", "step-10"),))
    assert all(not isinstance(block, ChartBlock) for block in section_of(two, "against").blocks)


# ---- charts ---------------------------------------------------------------------------------------------------------


def test_a_slice_that_a_draft_lacks_leaves_a_gap_and_few_prompts_are_hollow():
    base = slices_of("a", 0.6)[1]
    found = [replace(base, value="0-15"), replace(base, value="16-31", num_prompts=29, alpha_interval=None, cliff=True)]
    other = [replace(base, draft="b", value="16-31", num_prompts=30)]
    chart = alignment_charts.slices_chart("by depth", "before", [*found, *other], ["a", "b"])
    a, b, marks = chart["data"]
    assert a["x"] == b["x"] == marks["x"] == ["0-15", "16-31"]
    assert b["y"] == [None, a["y"][0]]
    assert [symbol.endswith("-open") for symbol in a["marker"]["symbol"]] == [False, True]
    assert b["marker"]["symbol"][1].endswith("open") is False
    assert marks["y"] == [None, a["y"][1]]
    low, high = base.alpha_interval
    assert a["error_y"]["array"] == [pytest.approx(high - base.alpha, abs=1e-4), 0.0]
    assert a["error_y"]["arrayminus"] == [pytest.approx(base.alpha - low, abs=1e-4), 0.0]


def test_a_bin_that_nothing_fell_into_is_not_drawn():
    one = draft("a", 0.6)
    bins = (replace(one.calibration.bins[0], share=0.0), *one.calibration.bins[1:3])
    chart = alignment_charts.calibration_chart(replace(one, calibration=replace(one.calibration, bins=bins)))
    assert [trace["x"] for trace in chart["data"]] == [["10–20", "20–30"]] * 3
    assert chart["data"][1]["y"] == [round(each.accepted, 4) for each in bins[1:]]


def test_the_numbers_of_a_chart_are_words_too():
    one, two = made_summary().drafts[:2]
    bins = (replace(one.calibration.bins[0], share=0.12345, accepted=0.6789, confidence=0.5),)
    calibrated = replace(one, calibration=replace(one.calibration, bins=bins))
    charts = [alignment_charts.tokens_chart((one, two)), alignment_charts.speed_chart((one, two))]
    charts.append(alignment_charts.calibration_chart(calibrated))
    told = [[chart["data"][trace][name][0][inner] for _, trace, name, inner in chart["layout"]["meta"]["table"][1:]]
            for chart in charts]  # fmt: skip
    assert told == [["1.71", "1.62"], ["1.34", "1.34", "1.00"], ["50\u00a0%", "68\u00a0%", "12\u00a0%"]]


@pytest.mark.parametrize("make", [alignment_charts.tokens_chart, alignment_charts.speed_chart])
def test_drafts_are_never_told_apart_by_colour_alone(make):
    lines = make(made_summary().drafts)["data"][:3]
    assert len({line["line"]["dash"] for line in lines}) == 3
    assert len({line["marker"]["symbol"] for line in lines}) == 3


# ---- texts ----------------------------------------------------------------------------------------------------------


def word_columns(block, place):
    chunk = unpacked(block.chunks[place // block.per_chunk])
    return chunk["words"], chunk["texts"][place % block.per_chunk]


def test_every_token_tells_what_both_models_said():
    texts = [made_text(number, 5 + number) for number in range(20)]
    block = alignment_texts.texts_block(texts, NAMES, 20)
    assert (len(block.entries), len(block.chunks), block.rest) == (20, 2, "")
    words, shown = word_columns(block, 18)
    wanted = texts[18]
    assert [words[each] for each in shown["facts"][0]] == [str(place) for place in range(1, 24)]
    assert [words[each] for each in shown["facts"][1]] == wanted.tokens["text"]
    assert block.numbers == list(range(20))
    assert block.entries[18][1].startswith("story · Tell me about Rusty the fox. · 23 tokens, agreement: fable-draft ")
    for one, given in zip(shown["drafts"], wanted.drafts.values(), strict=True):
        assert len(one["steps"]) == len(wanted.tokens["text"]) == 23
        for sign, overlap in zip(one["steps"], given["overlap"], strict=True):
            assert sign == str(min(4, int(5 * overlap)))
        costs = [words[each] for each in one["facts"][4]]
        assert costs == [f"{saved:.2f} target calls" for saved in given["saved"]]
    assert block.entries[18][0] == "story-18"
    assert {len(column) for one in shown["drafts"] for column in one["facts"]} == {23}
    assert len(block.draft_facts) == len(shown["drafts"][0]["facts"])
    assert len(block.facts) == len(shown["facts"])


def test_a_chunk_of_texts_is_what_its_record_declares():
    block = shown_texts(*range(20))
    chunks = [msgspec.convert(unpacked(chunk), TextChunk) for chunk in block.chunks]
    assert [len(chunk.texts) for chunk in chunks] == [16, 4]


def test_places_that_the_draft_cannot_read_are_marked_and_left_out_of_the_mean():
    columns = {"overlap": [0.9, 0.5, 0.0, 0.0], "readable": [True, True, False, False]}
    block = alignment_texts.texts_block([made_text(3, 4, ("a",), columns)], ["a"], 1)
    words, shown = word_columns(block, 0)
    assert shown["drafts"][0]["steps"] == "42xx"
    assert words[shown["drafts"][0]["words"]] == "a: agreement 70\u00a0% on this text, over 2 tokens."


def test_the_list_of_texts_is_kept_short():
    text = made_text(1, 1, ("a",), prompt="so \n" * 99, tags=["t"] * 9)
    ((_, words),) = alignment_texts.texts_block([text], ["a"], 1).entries
    assert words.count("t · ") == 8
    assert words.count("so") == 20
    assert " · 1 token, agreement: a " in words


def test_a_page_of_texts_stops_at_its_limit_and_says_so():
    asked = []

    def texts():
        for number in range(10_000):
            asked.append(number)
            yield made_text(number, 30, ("a",))

    block = alignment_texts.texts_block(texts(), ["a"], 10_000, most_bytes=50_000)
    shown = len(block.entries)
    size = sum(len(json.dumps(unpacked(chunk))) for chunk in block.chunks)
    assert 50_000 < size < 100_000  # a chunk beyond it at most
    assert len(asked) == shown < 200
    assert block.rest == f"The first {shown} of 10,000 texts; the rest are in tokens.parquet."


def test_no_texts_no_block():
    assert alignment_texts.texts_block([], ["a"], 0) is None


def test_views_are_read_from_the_rows_of_the_tables():
    views = [made_text(number, 3 + number, NAMES[:2]) for number in range(3)]
    tokens = {name: [] for name in COLUMNS["tokens"]}
    for number, view in enumerate(views):
        for name, rows in view.drafts.items():
            for place in range(len(view.tokens["text"])):
                row = {"prompt": number, "place": place, "draft": name} | {
                    column: rows[column][place] for column in rows
                }
                for column, cells in tokens.items():
                    cells.append(row.get(column))
    prompts = {"prompt": [0, 0, 1, 1, 2, 2], "id": [f"story-{at // 2}" for at in range(6)], "tags": ["story"] * 6,
               "prompt_text": [view.prompt for view in views for _ in range(2)]}  # fmt: skip
    found = list(alignment_texts.read_texts(pandas.DataFrame(tokens), pandas.DataFrame(prompts)))
    both = (alignment_texts.texts_block(each, NAMES[:2], 3) for each in (views, found))
    assert next(both) == next(both)
