"""Estimated against observed acceptance: counts by hand, and evidence that says something else."""

import json
import math

import pytest

from specviz.analysis.calibration import calibration, estimates_of
from specviz.views.explore.feed import Feed
from specviz.views.terminal import calibration_text
from tests.helpers.traces import Builder


def made(*steps):
    """A run of chains: (estimates, how many tokens are accepted) each."""
    builder = Builder()
    for estimates, accepted in steps:
        builder.chain(len(estimates), accepted, evidence={"acceptance": list(estimates)})
    return builder.finish()


def test_only_judged_tokens_count_each_in_the_bin_of_its_estimate():
    """Of the second draft the last token is not judged."""
    recorded = made(([0.81, 0.85], 2), ([0.89, 0.33, 0.85], 1), ([1.0], 1))
    rows = calibration(recorded.steps)
    assert [(row.low, row.high, row.judged, row.accepted) for row in rows] == [
        (0.3, 0.4, 1, 0),
        (0.8, 0.9, 3, 3),
        (0.9, 1.0, 1, 1),
    ]
    assert [row.estimate for row in rows] == pytest.approx([0.33, 0.85, 1.0])


def test_the_interval_is_wilsons():
    """Its ends p lie 1.96 standard errors, as p itself has them, from the observed share."""
    (row,) = calibration(made(*[([0.55], number % 4 > 0) for number in range(20)]).steps)
    for end in row.between:
        assert abs(row.accepted / 20 - end) == pytest.approx(1.959964 * math.sqrt(end * (1 - end) / 20), rel=1e-5)


@pytest.mark.parametrize("value", [None, "0.5", [0.5], [0.5, 1.2], [0.5, "x"], [0.5, True], [0.5, math.nan]])
def test_evidence_that_is_no_estimate_for_each_token_says_nothing(value):
    recorded = Builder().chain(2, 1, evidence={"acceptance": value}).finish()
    assert estimates_of(recorded.steps[0]) == ()
    assert calibration(recorded.steps) == []
    assert calibration_text(recorded) == ""


def test_the_table_in_a_terminal_has_a_line_for_each_bin():
    recorded = made(([0.81, 0.85], 2), ([0.89, 0.33], 1))
    head, low, high = calibration_text(recorded).splitlines()
    assert head.split("  ")[0] == "estimated acceptance"
    assert low.startswith("33\u00a0%")
    assert "0 of 1 " in low
    assert high.startswith("85\u00a0%")
    assert "3 of 3 " in high


def test_the_page_tells_what_the_terminal_does_step_by_step():
    recorded = made(([0.81, 0.85], 2), ([0.89, 0.33], 1))
    message = json.loads(Feed.from_trace(recorded, "run").message(0, None))
    last, titles = [], set()
    for step in message["steps"]:
        for part in step["made"]["parts"]:
            titles.add(part["title"])
            last = part["items"]
    assert "Estimates of this run so far (95 % interval)" in titles
    lines = calibration_text(recorded).splitlines()[1:]
    for (estimated, observed), line in zip(last, lines, strict=True):
        share, accepted, judged = estimated.removeprefix("estimated "), *observed.split()[:3:2]
        assert line.startswith(share)
        assert f"{accepted} of {judged} " in line
        assert observed.endswith(f"({line.split('  ')[-1].strip()})")
