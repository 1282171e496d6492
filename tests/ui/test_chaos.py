"""The short form of the attack on a whole server; `python -m tests.chaos` is the long one."""

import pytest

from tests.chaos.attack import attack

pytestmark = pytest.mark.slow


def test_a_server_stands_a_few_hundred_hostile_inputs():
    report = attack(250, seed=1)
    assert report.holds, report.words()
