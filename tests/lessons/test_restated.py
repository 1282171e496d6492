"""The numbers of runs and texts that the lessons and measured.md go by are what the bundled models make today."""

import pytest

from tests.helpers import restated_numbers

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("temperature", restated_numbers.TEMPERATURES)
def test_the_agreements_are_made_again(temperature):
    assert restated_numbers.make_agreements(temperature) == pytest.approx(
        restated_numbers.agreements(temperature), rel=1e-3
    )


@pytest.mark.parametrize("k", restated_numbers.KS)
def test_the_calls_of_runs_are_made_again(k):
    assert restated_numbers.make_calls(k) == restated_numbers.calls_of_runs(k)


def test_what_is_kept_is_all_that_is_asked_for():
    assert {*restated_numbers.kept()["agreements"]} == {str(each) for each in restated_numbers.TEMPERATURES}
    assert {*restated_numbers.kept()["calls"]} == {str(k) for k in restated_numbers.KS}
