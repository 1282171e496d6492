"""The statistics of the checks: fair by enumeration, rarely wrong by simulation, and as sharp as they say."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from specviz.checks.statistics import (
    CHANCE,
    STAKES,
    Cells,
    Evidence,
    cells_differ,
    draws_needed,
    likeliest_outcomes,
    log_threshold,
    outcome_of_cells,
    p_values,
    pool_shares,
    smallest_cell_shift,
    tokens_needed,
)

RARE = 4.75  # standard deviations: once in a million


def adaptive(past):
    """Chances of two features that depend on everything before."""
    return [(1 + sum(past) % 3) / 7, (2 + len(past)) / 11]


def evidence_of(outcomes):
    """Evidence over tokens whose two features are given, under the adaptive law, and their probability."""
    evidence, past, probability = Evidence.empty(("one", "two")), [], 1.0
    for holds in outcomes:
        chances = adaptive(past)
        evidence = evidence.add(np.array([holds]), np.array([chances]))
        probability *= math.prod(p if held else 1 - p for held, p in zip(holds, chances, strict=True))
        past += holds
    return evidence, probability


def test_the_bets_are_fair_whatever_came_before():
    every = itertools.product(itertools.product((0, 1), repeat=2), repeat=4)
    results = [evidence_of(outcomes) for outcomes in every]
    assert sum(probability for _, probability in results) == pytest.approx(1, abs=1e-12)
    assert sum(probability * math.exp(evidence.level) for evidence, probability in results) == pytest.approx(
        1, abs=1e-12
    )


def streams(shares, claimed, num_streams, num_tokens, seed):
    """Evidence over independent streams of two features; `shares` are true, `claimed` are what the law says."""
    generator = np.random.default_rng(seed)
    chances = np.broadcast_to(claimed, (num_tokens, 2))
    for _ in range(num_streams):
        yield Evidence.empty(("one", "two")).add(generator.random((num_tokens, 2)) < shares, chances)


def test_a_correct_stream_watched_at_every_token_rarely_crosses_the_line():
    alpha, num_streams = 0.05, 4000
    crossed = sum(evidence.differs(alpha) for evidence in streams((0.3, 0.6), (0.3, 0.6), num_streams, 300, seed=1))
    assert crossed / num_streams < alpha + RARE * math.sqrt(alpha * (1 - alpha) / num_streams)
    assert crossed > 0  # the line is within reach


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_the_shift_that_would_have_been_seen_is_seen(share):
    distribution, n = (share, 0.5), 2000
    least = next(streams(distribution, distribution, 1, n, seed=2)).smallest_shifts()[0]
    direction = 1 if share < 0.5 else -1
    seen = [
        np.mean([e.differs() for e in streams((share + size * direction, 0.5), distribution, 300, n, seed=3)])
        for size in (least, least / 2)
    ]
    assert seen[0] > CHANCE - 0.06
    assert seen[1] < 0.5


def test_evidence_in_pieces_is_the_evidence_at_once():
    generator = np.random.default_rng(4)
    chances = generator.random((50, 3))
    holds = generator.random((50, 3)) < chances
    whole, pieces = Evidence.empty("abc").add(holds, chances), Evidence.empty("abc")
    for start in range(0, 50, 7):
        pieces = pieces.add(holds[start : start + 7], chances[start : start + 7])
    assert pieces.level == pytest.approx(whole.level)
    assert pieces.peak == pytest.approx(whole.peak)
    assert pieces.z == pytest.approx(whole.z)


def test_the_highest_point_counts_and_not_the_last():
    evidence = Evidence.empty(("one",)).add(np.ones((60, 1)), np.full((60, 1), 0.5))
    assert evidence.differs()
    evidence = evidence.add(np.tile([[0.0], [1.0]], (500, 1)), np.full((1000, 1), 0.5))
    assert evidence.level < evidence.peak
    assert evidence.differs()


def test_counts_between_chance_and_contradiction_are_suspicious():
    distribution = (0.5, 0.5)
    for counts, state in (((540, 460), "consistent"), ((560, 440), "suspicious"), ((590, 410), "differs")):
        assert outcome_of_cells(Cells(distribution, counts)).state == state


def test_too_few_tokens_would_have_seen_nothing():
    assert Evidence.empty(("one",)).smallest_shifts() == (math.inf,)
    few = Evidence.empty(("one",)).add(np.zeros((3, 1)), np.full((3, 1), 0.5))
    assert few.smallest_shifts() == (math.inf,)


@pytest.mark.parametrize("truth", [(0.35, 0.5), (0.3, 0.42)])
def test_the_tokens_that_are_needed_are_enough_nine_times_in_ten(truth):
    """400 streams of a wrong law at the number of tokens named: flagged with CHANCE, give or take four deviations; at
    the number where the mean alone meets the bar this is well below."""
    claimed = np.array((0.3, 0.5))
    chances, wrong = claimed[:, None], np.array(truth)[:, None]
    gain = STAKES * wrong - np.log(1 - chances + chances * np.exp(STAKES))
    n = math.ceil(tokens_needed(gain, STAKES**2 * wrong * (1 - wrong)))
    on_average = math.ceil(log_threshold(2) / gain.max())
    seen = [np.mean([each.differs() for each in streams(truth, claimed, 400, m, seed=8)]) for m in (n, on_average)]
    assert seen[0] > CHANCE - 0.06
    assert seen[1] < CHANCE - 0.06
    assert n < 3 * on_average


def test_no_gain_is_never_enough():
    assert tokens_needed(np.array([[-0.1, 0.0]]), np.array([[0.1, 0.1]])) == math.inf


def test_stakes_go_both_ways():
    assert sorted(STAKES) == pytest.approx(sorted(-STAKES))


# ---- cells ----------------------------------------------------------------------------------------------------------


def exact_p_value(count, n, p):
    tail = {k: math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)}
    assert sum(tail.values()) == 1
    low, high = (sum(tail[k] for k in side) for side in (range(count + 1), range(count, n + 1)))
    return min(1.0, float(2 * min(low, high)))


@pytest.mark.parametrize("p", [Fraction(1, 3), Fraction(1, 50), Fraction(0), Fraction(1)])
def test_p_values_are_those_of_exact_fractions(p):
    n = 25
    for count in range(n + 1):
        cells = Cells((float(p), 1 - float(p)), (count, n - count))
        assert p_values(cells)[0] == pytest.approx(exact_p_value(count, n, p), rel=1e-9, abs=1e-300)


def some_distribution(seed, size=21):
    return np.random.default_rng(seed).dirichlet(np.full(size, 0.4))


def share_flagged(distribution, truth, n, repeats, alpha, seed):
    counts = np.random.default_rng(seed).multinomial(n, truth, size=repeats)
    return np.mean([cells_differ(Cells(tuple(distribution), tuple(row)), alpha) for row in counts.tolist()])


def test_correct_cells_rarely_differ():
    alpha, repeats, distribution = 0.05, 3000, some_distribution(5)
    flagged = share_flagged(distribution, distribution, 400, repeats, alpha, seed=6)
    assert 0 < flagged < alpha + RARE * math.sqrt(alpha * (1 - alpha) / repeats)


def test_as_many_draws_as_are_needed_show_a_wrong_distribution():
    distribution = some_distribution(7)
    wrong = 0.8 * distribution + 0.2 * some_distribution(8)
    n = draws_needed(distribution, wrong)
    assert share_flagged(distribution, wrong, n, 400, 1e-6, seed=9) > CHANCE - 0.06
    assert share_flagged(distribution, wrong, n // 4, 400, 1e-6, seed=9) < 0.5


def test_equal_distributions_cannot_be_told_apart():
    distribution = some_distribution(7)
    assert draws_needed(distribution, distribution) is None
    assert draws_needed((0.5, 0.5), (0.5 + 1e-7, 0.5 - 1e-7)) is None


PEAKED = np.array([0.9, *[0.005] * 20])


def moved(distribution, cell, shift):
    """The law with one share moved, the others in proportion."""
    truth = distribution * (1 - shift / (1 - distribution[cell]))
    truth[cell] = distribution[cell] + shift
    return truth


@pytest.mark.parametrize(("distribution", "n"), [(some_distribution(10, size=6), 3000), (PEAKED, 1000), (PEAKED, 5000)])
def test_the_shift_that_would_have_been_seen_is_seen_in_every_cell_up_and_down(distribution, n):
    least, tried = smallest_cell_shift(distribution, n), 0
    for cell, share in enumerate(distribution[:2]):
        for shift in (least, -least):
            if 0 <= share + shift <= 1:
                tried += 1
                assert (
                    share_flagged(distribution, moved(distribution, cell, shift), n, 300, 1e-6, seed=11) > CHANCE - 0.06
                )
    assert tried >= 2


@pytest.mark.parametrize("n", [200, 1000])
def test_a_certain_distribution_may_only_fall_and_that_is_seen(n):
    least = smallest_cell_shift((1.0, 0.0), n)
    assert least == pytest.approx(1 - (1 - CHANCE) ** (1 / n))  # one other outcome is enough
    assert smallest_cell_shift((1.0,), n) == pytest.approx(least)


def test_a_cell_that_could_move_either_way_unseen_has_no_shift_to_name():
    assert smallest_cell_shift((0.5, 0.5), 20) == math.inf
    assert smallest_cell_shift((0.97, 0.03), 60) < math.inf  # no room to rise, and a fall shows


def test_a_feature_without_room_above_names_the_room_that_it_has():
    """A share of .95 in few tokens: a fall shows early, the five points above it never."""
    evidence = next(streams((0.95, 0.5), (0.95, 0.5), 1, 120, seed=2))
    assert evidence.smallest_shifts()[0] >= 0.05


def test_no_draw_would_have_shown_nothing():
    assert smallest_cell_shift((0.5, 0.5), 0) == math.inf
    assert smallest_cell_shift((0.5, 0.5), 3) == math.inf


def test_a_count_where_the_distribution_has_nothing_differs_at_once():
    assert cells_differ(Cells((1.0, 0.0), (50, 1)))
    assert not cells_differ(Cells((1.0, 0.0), (51, 0)))


def test_pooling_keeps_everything():
    distribution = some_distribution(12, size=300)
    outcomes = likeliest_outcomes(distribution)
    assert list(outcomes) == sorted(range(300), key=lambda i: -distribution[i])[:20]
    assert sum(pool_shares(distribution, outcomes)) == pytest.approx(1, abs=1e-12)
    assert likeliest_outcomes(np.array([0.0, 1.0, 0.0])) == (1,)
