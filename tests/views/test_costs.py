"""The section of measured costs: every sentence and every point comes from the measured numbers."""

from dataclasses import replace

import pytest

from specviz.analysis.costs import BatchCost, Costs, Measured
from specviz.views.blocks import WordsBlock, dump
from specviz.views.compare.costs import chart, costs
from specviz.views.palette import colour
from tests.helpers.page_records import check_record, kind_of

VERIFY = tuple(4.0 + 0.5 * n for n in range(33))  # 4 ms for one token, 6 for five, 20 for 33
BATCH = tuple(BatchCost(b, n, 3.0 + b * n) for b in (1, 2, 8) for n in (1, 5, 9))
COSTS = Costs(
    target="big",
    draft="near",
    context_length=1200,
    device="test machine",
    threads=2,
    dtype="float32",
    draft_ms=1.0,
    verify_ms=VERIFY,
    overhead_ms=0.5,
    plain_overhead_ms=0.25,
    batch=BATCH,
    weight_bytes=20_000_000,
    bandwidth_gb_s=10.0,
    bandwidth_bytes=512_000_000,
    spread=0.02,
)


def section(measured=COSTS, **options):
    props = costs(measured, context_length=128, most_context=900, **options)
    check_record(props)
    return props


def said(props):
    """All words of a section, as a person reads them."""
    texts = [block.words for block in props.blocks if isinstance(block, WordsBlock)]
    return " ".join(text if isinstance(text, str) else "".join(text) for text in texts).replace("\u00a0", " ")


def test_what_a_target_was_read_from_is_told_in_full():
    words = "float32, Q4_1, computed from its dequantised weights"
    assert f"{words}. Medians" in said(section(replace(COSTS, dtype=words)))


def test_what_is_set_off_is_a_number():
    for block in section().blocks:
        if isinstance(block, WordsBlock) and not isinstance(block.words, str):
            assert all(any(char.isdigit() for char in text) for text in block.words[1::2])
            assert len(block.words) % 2 == 1


def test_the_growth_is_said_for_five_tokens_and_for_all():
    words = said(section())
    assert "takes 4.00 ms for one token; for 5 tokens at once 6.00 ms, 1.50 times as long" in words
    assert "for 33 tokens at once 20.0 ms, 5.00 times as long." in words


def test_a_measurement_of_one_token_says_nothing_of_more():
    words = said(section(replace(COSTS, verify_ms=(4.0,))))
    assert "takes 4.00 ms for one token." in words


def test_the_cost_ratio_and_the_rest_are_said():
    words = said(section())
    assert "A drafted token takes 1.00 ms, which is 0.25 of a target pass. This is the cost ratio c." in words
    assert "0.50 ms of every step is spent outside both models (13 % of a pass)." in words
    assert "No draft model was measured." in said(section(replace(COSTS, draft=None, draft_ms=0.0)))


@pytest.mark.parametrize(
    ("bandwidth", "told"),
    [
        (10.0, "this alone takes 2.00 ms, 50 % of the measured pass. The rest is arithmetic"),
        (6.0, "this alone takes 3.33 ms, 83 % of the measured pass. Reading is most of the work"),
        (100.0, "this alone takes 0.20 ms, 5.0 % of the measured pass. Reading does not limit this model"),
        (4.0, "this alone takes 5.00 ms, more than the measured pass: some of the weights stay in a faster cache"),
    ],
)
def test_the_roofline_is_read_out(bandwidth, told):
    words = said(section(replace(COSTS, bandwidth_gb_s=bandwidth)))
    assert (
        f"One pass must read 20.0 MB of weights. At the measured {bandwidth:.1f} GB/s (reading 512 MB), {told}" in words
    )


def test_a_bigger_batch_that_stops_gaining_is_explained():
    words = said(section())  # (3 + 5) / (3 + 1) = 2 and (3 + 40) / (3 + 8) = 3.91
    assert "With 1 text at once, a pass over 5 tokens of each takes 2.00 times as long" in words
    assert "with 8 texts 3.91 times. Checking drafts is nearly free while" in words


def test_a_bigger_batch_that_goes_on_gaining_is_not_explained_away():
    flat = tuple(replace(cost, ms=4.0) for cost in BATCH)
    words = said(section(replace(COSTS, batch=flat)))
    assert "as cheaply as with few texts" in words
    assert "A bigger batch uses it up" not in words


def test_the_batch_table_has_the_most_that_drafts_can_gain():
    (table,) = [block for block in section().blocks if kind_of(block) == "table"]
    assert table.columns[-2:] == ["upper limit for K = 4", "upper limit for K = 8"]
    first = [cell.replace("\u00a0", " ") for cell in table.rows[0]]
    assert first == ["1", "4.00 ms", "8.00 ms", "12.0 ms", "2.50x", "3.00x"]
    assert [row[0] for row in table.rows] == ["1", "2", "8"]


def test_without_batches_there_is_no_table_of_them():
    assert not [block for block in section(replace(COSTS, batch=())).blocks if kind_of(block) == "table"]


def test_the_chart_has_the_measured_times_beside_single_passes_and_the_floor():
    figure = chart(COSTS)
    measured, singly, floor = figure["data"]
    assert all(line["x"] == list(range(1, 34)) for line in figure["data"])
    assert measured["y"] == list(VERIFY)
    assert singly["y"] == [4.0 * n for n in range(1, 34)]
    assert floor["y"] == [2.0] * 33
    assert figure["layout"]["yaxis"]["range"][1] > max(VERIFY)
    assert len({line["line"].get("dash") for line in figure["data"]}) == 3  # never colour alone
    for line in figure["data"]:
        assert line["line"]["color"] == colour(line["meta"]["status"])
    assert figure["layout"]["meta"]["table"][0] == ["tokens", 0, "x"]


def test_doubtful_timings_are_called_doubtful():
    assert "verdict" not in [kind_of(block) for block in section().blocks]
    for doubtful in (replace(COSTS, spread=0.4), replace(COSTS, verify_ms=(315.0, 2749.0, 1521.0))):
        blocks = section(doubtful).blocks
        (told,) = [block for block in blocks if kind_of(block) == "verdict"]
        assert told.state == "unsure"
        assert told.words == f"{doubtful.doubt} Until then no speedup and no best K are given."
        assert [kind_of(block) for block in blocks] == ["words", "verdict", "chart", "details"]  # numbers, no reading


def test_names_from_outside_are_labelled():
    assert "⟨202E⟩" in said(section(replace(COSTS, target="\u202eevil", device="a\u0007")))
    assert "\u202e" not in dump(section(replace(COSTS, target="\u202eevil")))


def test_an_empty_section_says_what_is_missing_and_offers_it():
    empty = section(None)
    assert [(kind_of(control), getattr(control, "do", None)) for control in empty.controls] == [
        ("count", None),
        ("button", "measure"),
    ]
    assert (empty.controls[0].value, empty.controls[0].high) == (128, 900)
    assert "Nothing measured yet" in said(empty)


def test_a_measurement_under_way_shows_how_far_it_is():
    block = section(None, running=Measured(3, 12, "warming up")).blocks[0]
    assert (kind_of(block), block.width, block.words) == ("progress", 25.0, "warming up")
