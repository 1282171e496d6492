"""The short forms of the attack on a server and of the hostile folders; `python -m tests.chaos` has the long ones."""

import pytest

from tests.chaos.attack import attack
from tests.chaos.folders import try_folders

pytestmark = pytest.mark.slow


def test_a_server_stands_a_few_hundred_hostile_inputs():
    report = attack(250, seed=1)
    assert report.holds, report.words()


def test_hostile_folders_end_in_words_or_in_a_run():
    tally = try_folders(60, seed=1)
    assert tally.holds, tally.words()
    assert {"words", "ran"} == set(tally.outcomes)
