"""The numbers of runs and texts that the lessons and measured.md go by are what the bundled models make today."""

import pytest
import restated

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("temperature", restated.TEMPERATURES)
def test_the_agreements_are_made_again(temperature):
    assert restated.make_agreements(temperature) == pytest.approx(restated.agreements(temperature), rel=1e-3)


@pytest.mark.parametrize("k", restated.KS)
def test_the_calls_of_runs_are_made_again(k):
    assert restated.make_calls(k) == restated.calls_of_runs(k)


def test_what_is_kept_is_all_that_is_asked_for():
    assert {*restated.kept()["agreements"]} == {str(each) for each in restated.TEMPERATURES}
    assert {*restated.kept()["calls"]} == {str(k) for k in restated.KS}
