"""What the page says of a pass over five tokens comes from blocks that agree, or it says nothing."""

import pytest

from tests.live.engine import ask

STEADY = [(1.0, 2.5)] * 8  # milliseconds of a pass over one token and over five, block by block
SLOW = (9.0, 4.0)


def test_the_fastest_blocks_are_what_is_said():
    assert ask("timing", blocks=STEADY) == pytest.approx(2.5)


@pytest.mark.parametrize("place", range(7))
def test_blocks_that_were_disturbed_change_nothing(place):
    assert ask("timing", blocks=[*STEADY[:place], SLOW, (1.3, 7.0), *STEADY[place + 2 :]]) == pytest.approx(2.5)


@pytest.mark.parametrize(
    "blocks",
    [
        pytest.param([(3.0, 2.4)] * 8, id="more tokens seem to take less time"),
        pytest.param([SLOW] * 7 + [(1.0, 2.5)], id="one block alone is fast"),
        pytest.param([(1.0, 2.5 + block) for block in range(8)], id="the blocks over five do not agree"),
        pytest.param([(0.2, 0.5)] * 8, id="a block is too short for the clock"),
    ],
)
def test_what_was_not_measured_well_is_not_said(blocks):
    assert ask("timing", blocks=blocks) is None


def test_a_run_that_begins_comes_first():
    assert ask("timing", blocks=STEADY, stopsAt=2) is None
