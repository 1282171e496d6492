"""The paper's formulas against fractions over every pattern of kept and cut, and against its printed tables."""

import itertools
import math
from fractions import Fraction
from types import SimpleNamespace

import pytest

from specviz.analysis import theory, whatif

GRID = list(itertools.product((0.0, 0.1, 0.35, 0.5, 0.8, 0.95, 1.0), (0.0, 0.05, 0.2, 0.5)))
RECOMPUTED = (3.158, 3.251, 2.497, 2.258, 2.347, 1.934, 2.402, 2.619, 2.025, 1.891, 1.803, 1.541)


def mean_length(alpha: Fraction, k: int) -> Fraction:
    """Every pattern of k flags, each with its weight: kept ones up to the first that is cut, and one token more."""
    total = Fraction(0)
    for pattern in itertools.product((True, False), repeat=k):
        weight = math.prod((alpha if kept else 1 - alpha for kept in pattern), start=Fraction(1))
        total += weight * (len(list(itertools.takewhile(bool, pattern))) + 1)
    return total


@pytest.mark.parametrize("alpha", [Fraction(0), Fraction(1, 3), Fraction(4, 5), Fraction(1)])
@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_expected_tokens(alpha, k):
    assert theory.expected_tokens(float(alpha), k) == pytest.approx(float(mean_length(alpha, k)), abs=1e-12)


@pytest.mark.parametrize("k", [1, 4])
def test_speed_and_operations_are_tokens_over_what_a_step_costs(k):
    tokens = mean_length(Fraction(7, 10), k)
    assert theory.walltime_improvement(0.7, k, 0.25) == pytest.approx(float(tokens / (Fraction(k, 4) + 1)))
    assert theory.arithmetic_factor(0.7, k, 0.25) == pytest.approx(float((Fraction(k, 4) + k + 1) / tokens))


@pytest.mark.parametrize("row", theory.TABLE_1, ids=str)
def test_table_1_as_printed(row):
    assert abs(theory.arithmetic_factor(row.alpha, row.k, 0) - row.operations) <= 0.0051
    assert abs(theory.walltime_improvement(row.alpha, row.k, 0) - row.speed) <= 0.0051


@pytest.mark.parametrize(("row", "recomputed"), list(zip(theory.TABLES_2_AND_4, RECOMPUTED, strict=True)), ids=str)
def test_tables_2_and_4_by_the_formula(row, recomputed):
    a = Fraction(row.alpha).limit_denominator(100)
    exact = (1 - a ** (row.k + 1)) / (1 - a) / (row.k * Fraction(row.c).limit_denominator(100) + 1)
    assert row.by_formula == pytest.approx(float(exact))
    assert abs(row.by_formula - recomputed) < 0.001
    assert abs(row.by_formula - row.expected) < 0.07  # the paper rounds alpha and c before printing them


@pytest.mark.parametrize(("alpha", "c"), GRID)
def test_an_improvement_is_possible_exactly_when_alpha_is_above_c(alpha, c):
    best = max(theory.walltime_improvement(alpha, k, c) for k in range(1, 60))
    assert theory.can_improve(alpha, c) == (best > 1 + 1e-12)
    if theory.can_improve(alpha, c):
        assert best >= theory.least_improvement(alpha, c) - 1e-12 == pytest.approx((1 + alpha) / (1 + c))


@pytest.mark.parametrize(("alpha", "c"), GRID)
def test_the_best_k_beats_every_other(alpha, c):
    best = theory.best_k(alpha, c)
    speed = theory.walltime_improvement(alpha, best, c)
    assert all(theory.walltime_improvement(alpha, k, c) <= speed for k in range(1, 33))


def test_an_oracle_waits_for_the_first_cut():
    assert theory.oracle_tokens(0.8) == pytest.approx(theory.expected_tokens(0.8, 400))
    assert theory.oracle_tokens(1.0) == math.inf


def test_with_measured_times_flat_ones_give_the_paper_back():
    costs = SimpleNamespace(draft_ms=0.5, verify_ms=(10.0,) * 6, overhead_ms=0.0, plain_overhead_ms=0.0)
    assert theory.cost_ratio(costs) == 0.05
    for k in range(6):
        assert theory.measured_speedup(0.8, k, costs) == pytest.approx(theory.walltime_improvement(0.8, k, 0.05))
    assert math.isnan(theory.measured_speedup(0.8, 6, costs))


def test_a_steps_time_has_three_parts():
    costs = SimpleNamespace(draft_ms=0.5, verify_ms=(10.0, 12.0, 15.0), overhead_ms=0.25, plain_overhead_ms=0.125)
    assert theory.step_ms(costs, 2) == 0.5 + 0.5 + 15.0 + 0.25
    assert theory.cost_ratio(costs) == 0.5 / 10.0


def test_on_a_long_text_of_equal_chances_the_what_if_comes_to_the_formula():
    chances = whatif.chances_along_text([0.7] * 2000)
    for k in (1, 4, 8):
        calls = whatif.start_chances(chances, [k]).sum()
        assert 2000 / calls == pytest.approx(theory.expected_tokens(0.7, k), rel=2e-3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: theory.expected_tokens(1.1, 2), "alpha must be from 0 to 1"),
        (lambda: theory.expected_tokens(float("nan"), 2), "alpha must be from 0 to 1"),
        (lambda: theory.expected_tokens(0.5, -1), "k must be >= 0"),
        (lambda: theory.walltime_improvement(0.5, 1, -0.1), "c must be >= 0"),
    ],
)
def test_what_cannot_be_is_said(call, says):
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize(("speedup", "c"), [(1.2, 0.3), (2.0, 0.05), (2.53, 0.0), (4.0, 0.02)])
def test_the_least_alpha_is_the_first_at_which_some_k_is_that_fast(speedup, c):
    least = theory.least_alpha(speedup, c)
    enough, short = (theory.walltime_improvement(alpha, theory.best_k(alpha, c), c) for alpha in (least, least - 0.001))
    assert short < speedup <= enough


def test_no_alpha_makes_a_draft_faster_than_its_own_cost_allows():
    """K accepted tokens for K drafted ones and a call: never more than 1 / c."""
    assert theory.least_alpha(2.0, 0.5) is None
    assert theory.least_alpha(1.0, 0.5) == 0.5 == theory.least_alpha(1.0, 0.5, [1])


def test_a_claims_own_numbers_come_to_what_it_says():
    """Five candidates in 2 ms, checked in 33 ms, four accepted: 114 tokens per second, as printed."""
    stated, whole, alone = theory.stated_rates(5, 2.0, 33.0, 4)
    assert round(stated) == 114
    assert whole == pytest.approx(5 / 0.035)
    assert alone == pytest.approx(1 / 0.033)


@pytest.mark.parametrize("given", [(5, 2.0, 33.0, 6), (5, 2.0, 0.0, 4), (5, -1.0, 33.0, 4), (5, 2.0, 33.0, -1)])
def test_numbers_that_no_step_has_are_refused(given):
    with pytest.raises(ValueError, match="num_accepted must be from 0 to num_drafted"):
        theory.stated_rates(*given)
