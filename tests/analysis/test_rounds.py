"""Laws of timing in rounds: whose turn it is, and how often a busy machine makes equal contenders look different."""

from collections import Counter
from random import Random

import numpy as np
import pytest
from scipy.stats import binom

from specviz.analysis.rounds import FEWEST, LEVEL, SpeedComparison, Timings, interval, is_far, log_median, turns

NUM_TRIES = 500
SIDES = "A", "B"


def spells(length):
    """A machine that is busy in spells of this many turns on average, and then takes 1.8 times as long."""

    def draw(generator, size):
        flips = generator.random(size) < 1 / length
        return 0.03 * generator.standard_normal(size) + np.log(1.8) * (np.cumsum(flips) % 2)

    return draw


NOISE = {
    "quiet": lambda generator, size: 0.03 * generator.standard_normal(size),
    "loud": lambda generator, size: 0.3 * generator.standard_normal(size),
    "spikes": lambda generator, size: (
        0.05 * generator.random(size) + np.log1p((generator.random(size) < 0.15) * generator.pareto(1.0, size))
    ),
    "slowing down by 40 %": lambda generator, size: (
        0.03 * generator.standard_normal(size) + np.log(np.linspace(1, 1.4, size))
    ),
    "short busy spells": spells(2),
    "busy spells": spells(4),
    "long busy spells": spells(30),
}
"""What a machine adds to the logarithm of each turn's time."""


def measured(noise, seed, num_rounds, speeds=lambda number: 1.0):
    """Timings of two contenders on such a machine; speeds: how many times as fast B is in this round."""
    made = Timings()
    added = iter(noise(np.random.default_rng(seed), 2 + 4 * num_rounds).tolist())
    for turn in turns(2, num_rounds, Random(seed)):
        time = float(np.exp(next(added)))
        made.add(SIDES[turn.contender], turn.round, time / speeds(turn.round) if turn.contender else time)
    return made


def verdicts(noise, num_rounds, speed=1.0):
    """How often each verdict falls, as a share."""
    found = (measured(noise, seed, num_rounds, lambda number: speed) for seed in range(NUM_TRIES))
    counts = Counter(each.compare("B", "A").verdict for each in found)
    return Counter({verdict: number / NUM_TRIES for verdict, number in counts.items()})


def most(level):
    """As many in NUM_TRIES as this level gives in all but one case of ten thousand."""
    return binom.ppf(0.9999, NUM_TRIES, level) / NUM_TRIES


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISE)
def test_equal_contenders_are_seldom_called_different_whatever_the_machine_does(name):
    for num_rounds in (2, 5, 6, 9, 12, 17):
        told = verdicts(NOISE[name], num_rounds)
        assert told["faster"] + told["slower"] <= most(LEVEL)
        if num_rounds < FEWEST:
            assert told == {"few": 1.0}


def test_a_fifth_is_found_on_a_quiet_machine_and_two_percent_are_about_as_fast():
    for name in ("quiet", "slowing down by 40 %"):
        for num_rounds in (6, 17):
            assert verdicts(NOISE[name], num_rounds, 1.2)["faster"] > 0.99
            assert verdicts(NOISE[name], num_rounds, 1 / 1.2)["slower"] > 0.99
            assert verdicts(NOISE[name], num_rounds, 1.02)["even"] > 0.97


def test_a_busy_machine_is_called_too_noisy_and_not_even():
    told = verdicts(NOISE["loud"], 6)
    assert told["noisy"] > 0.5
    assert told["noisy"] + told["even"] + told["faster"] + told["slower"] + told["unclear"] == pytest.approx(1)


SPEEDS = {
    "equal": lambda number: 1.0,
    "one much faster, the others equal": lambda number: 8.0 if number == 1 else 1.0,
    "half much faster, half equal": lambda number: 8.0 if number % 2 else 1.0,
}


@pytest.mark.slow
@pytest.mark.parametrize("speeds", SPEEDS.values(), ids=SPEEDS)
@pytest.mark.parametrize("name", NOISE)
def test_rounds_of_which_none_is_slower_are_seldom_called_divided(name, speeds):
    for num_rounds in (5, 9, 17):
        found = [measured(NOISE[name], seed, num_rounds, speeds).wins_and_losses("B", "A") for seed in range(NUM_TRIES)]
        assert sum(ahead > 0 for ahead, _ in found) / NUM_TRIES <= most(LEVEL)


def test_rounds_that_differ_in_sign_are_called_divided_on_a_quiet_machine():
    for name in ("quiet", "slowing down by 40 %"):
        found = {
            measured(NOISE[name], seed, 9, lambda number: 1 / 1.5 if number == 4 else 1.5).wins_and_losses("B", "A")
            for seed in range(100)
        }
        assert found == {(8, 1)}


@pytest.mark.parametrize(
    ("ours", "others", "told"),
    [
        ([(50, 60), (100, 110)], [(100, 110), (50, 60)], (1, 1)),
        ([(50, 60), (100, 110)], [(100, 110), (90, 99)], (0, 0)),  # behind, but not by 15 %
        ([(50, 60), (100, 110), (40, 80)], [(100, 110), (50, 60), (40, 40)], (0, 0)),  # two turns of ours lay further
        ([(50, 60), (50, 60)], [(100, 110), (100, 110)], (0, 0)),
    ],
)
def test_a_round_is_won_when_both_turns_beat_both_of_the_other_by_more_than_one_side_ever_varies(ours, others, told):
    made = Timings()
    for name, rounds in (("ours", ours), ("others", others)):
        for number, times in enumerate(rounds, 1):
            for time in times:
                made.add(name, number, time)
    assert made.wins_and_losses("ours", "others") == told
    assert made.wins_and_losses("others", "ours") == told[::-1]


def test_every_round_goes_there_and_back_and_the_lot_says_in_which_order():
    found = list(turns(3, 50, Random(1)))
    assert [(turn.done, turn.total) for turn in found] == [(done, 303) for done in range(303)]
    assert [(turn.round, turn.contender) for turn in found[:3]] == [(0, 0), (0, 1), (0, 2)]
    orders = [[turn.contender for turn in found if turn.round == number] for number in range(1, 51)]
    assert all(sorted(order[:3]) == [0, 1, 2] and order[3:] == order[2::-1] for order in orders)
    assert len({tuple(order) for order in orders}) == 6


def test_the_quicker_turn_counts_the_other_tells_the_spread_and_what_warmed_up_is_forgotten():
    made = Timings()
    for number, time in ((0, 1.0), (1, 10.0), (1, 12.0), (2, 30.0), (2, 20.0)):
        made.add("A", number, time)
    for number, time in ((1, 5.0), (1, 5.0), (2, 40.0), (2, 44.0)):
        made.add("B", number, time)
    assert made.quicker("A") == {1: 10.0, 2: 20.0}
    assert made.median("A") == 15.0
    assert made.ratios("B", "A") == {1: 2.0, 2: 0.5}
    assert made.spread == pytest.approx(0.15)  # the median of 0.2, 0.5, 0 and 0.1
    assert made.compare("B", "A") == SpeedComparison((2.0, 0.5), made.spread)
    assert made.compare("B", "A").ratio == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("ratios", "spread", "verdict", "cell"),
    [
        ((1.1, 1.2, 1.3, 1.2, 1.2, 1.2), 0.5, "faster", "1.20x (1.10-1.30)"),
        ((0.8,) * 6, 0.0, "slower", "0.80x (0.80-0.80)"),
        ((1.2,) * 5, 0.0, "few", "1.20x (1.20-1.20), too few to tell"),
        ((1.04,) * 6, 0.0, "even", "1.04x (1.04-1.04), about as fast"),
        ((0.9, 1.1, 1.1, 1.1, 1.1, 1.3), 0.2, "even", "1.10x (0.90-1.30), about as fast"),
        ((0.5, 1.1, 1.1, 1.1, 1.1, 2.2), 0.2, "noisy", "1.10x (0.50-2.20), too noisy to tell"),
        ((0.5, 1.1, 1.1, 1.1, 1.1, 2.2), 0.1, "unclear", "1.10x (0.50-2.20), no clear difference"),
        ((0.99, 2, 2, 2, 2, 2), 0.1, "unclear", "2.00x (0.99-2.00), no clear difference"),
    ],
)
def test_a_verdict_is_given_with_its_interval(ratios, spread, verdict, cell):
    found = SpeedComparison(ratios, spread)
    assert (found.verdict, str(found)) == (verdict, cell)
    swapped = {"faster": "slower", "slower": "faster"}
    assert SpeedComparison(tuple(1 / ratio for ratio in ratios), spread).verdict == swapped.get(verdict, verdict)


@pytest.mark.parametrize(("number", "left_out"), [(1, 0), (2, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (17, 3)])
def test_the_interval_of_a_median_leaves_out_what_the_binomial_distribution_allows(number, left_out):
    values = [float(value) for value in range(number, 0, -1)]
    assert interval(values) == (1.0 + left_out, number - left_out)
    if number >= FEWEST:
        missed, more = (2 * binom.cdf(out, number, 0.5) for out in (left_out, left_out + 1))
        assert missed <= LEVEL < more
    assert 2 * 0.5 ** (FEWEST - 1) > LEVEL >= 2 * 0.5**FEWEST


def test_far_is_far_on_both_sides_and_the_middle_lies_halfway_by_ratio():
    assert is_far(1.151) and is_far(1 / 1.151) and is_far(0.0)  # noqa: PT018
    assert not is_far(1.149) and not is_far(1 / 1.149)  # noqa: PT018
    assert log_median([0.5, 2.0]) == pytest.approx(1)
    assert log_median([0.5, 2.0, 3.0]) == pytest.approx(2)
