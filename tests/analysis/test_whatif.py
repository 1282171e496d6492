"""The what-if against brute force over every pattern of kept and cut, and against the real engine, all draws walked."""

import itertools
import math
import time
import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from specviz.analysis import whatif
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from tests.helpers.toys import TableLM, plan_of

EXACT = 1e-12
PROMPT = (0, 1, 2, 0, 1)


def random_chances(size, deepest, seed, by_start=False):
    generator = np.random.default_rng(seed)
    if not by_start:
        return whatif.chances_along_text(generator.random(size), deepest=deepest)
    keep = generator.random((size, deepest)) * (np.add.outer(np.arange(size), np.arange(deepest)) < size)
    return whatif.Chances(keep, np.minimum(whatif.draft_room(size), generator.integers(0, deepest + 1, size)))


def walk(size, k, drafted, kept):
    """The lengths of the steps, by the words of the rule: kept(start, j) says whether the token j behind start is."""
    lengths, at = [], 0
    while at < size:
        depth = min(k, drafted[at], size - at - 1)
        j = 0
        while j < depth and kept(at, j):
            j += 1
        lengths.append(j + 1)
        at += j + 1
    return lengths


def brute_force(chances, k):
    """{lengths of the steps: probability} over every pattern of flags that can matter."""
    size, distributions = len(chances), {}
    places = [(s, j) for s in range(size) for j in range(min(k, size - s - 1, chances.drafted[s]))]
    for pattern in itertools.product((False, True), repeat=len(places)):
        flags = dict(zip(places, pattern, strict=True))
        accept = chances.accept
        chance = math.prod(accept[place] if kept else 1 - accept[place] for place, kept in flags.items())
        lengths = tuple(walk(size, k, chances.drafted, lambda s, j, flags=flags: flags[s, j]))
        distributions[lengths] = distributions.get(lengths, 0.0) + chance
    return distributions


def brute_force_along_text(chances, k):
    size, distributions, a = len(chances), {}, chances.accept[:, 0]
    for pattern in itertools.product((False, True), repeat=size):
        chance = math.prod(a[t] if kept else 1 - a[t] for t, kept in enumerate(pattern))
        lengths = tuple(walk(size, k, chances.drafted, lambda s, j, pattern=pattern: pattern[s + j]))
        distributions[lengths] = distributions.get(lengths, 0.0) + chance
    return distributions


def expected_calls(chances, ks):
    return whatif.start_chances(chances, ks).sum(1)


CASES = [(random_chances(9, 5, 1), brute_force_along_text), (random_chances(5, 3, 2, by_start=True), brute_force)]


@pytest.mark.parametrize(("chances", "every_pattern"), CASES, ids=["along the text", "by start"])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_calls_and_their_distribution_are_those_of_every_pattern(chances, every_pattern, k):
    distributions = every_pattern(chances, k)
    counts = np.zeros(len(chances) + 1)
    for lengths, chance in distributions.items():
        counts[len(lengths)] += chance
    assert expected_calls(chances, [k])[0] == pytest.approx(counts @ np.arange(len(counts)), abs=EXACT)
    assert np.abs(whatif.calls_distribution(chances, k) - counts).max() < EXACT


@pytest.mark.parametrize(("chances", "every_pattern"), CASES, ids=["along the text", "by start"])
def test_the_distribution_of_a_step_is_that_of_every_pattern(chances, every_pattern):
    """Lengths of steps, weighted by how often a step begins where."""
    shares = np.zeros(4)
    for lengths, chance in every_pattern(chances, 3).items():
        for length in lengths:
            shares[length - 1] += chance
    got = whatif.start_chances(chances, [3])[0] @ whatif.step_distributions(chances, 3)
    assert np.abs(got - shares).max() < EXACT


def slow_distribution(chances, k):
    """The law of the number of calls, forward over all starts, with numbers of calls as keys."""
    size = len(chances)
    distributions = [{} for _ in range(size + 1)]
    distributions[0] = {0: 1.0}
    for start, calls_here in enumerate(distributions[:-1]):
        depth, reached = min(k, chances.drafted[start], size - start - 1), 1.0
        for j in range(depth + 1):
            cut = reached * (1 - chances.accept[start, j] if j < depth else 1)
            reached *= chances.accept[start, j] if j < depth else 1
            for calls, chance in calls_here.items():
                distributions[start + j + 1][calls + 1] = (
                    distributions[start + j + 1].get(calls + 1, 0.0) + chance * cut
                )
    return distributions[size]


@pytest.mark.parametrize("by_start", [False, True])
@pytest.mark.parametrize("k", [1, 5, 32])
def test_texts_longer_than_a_block_have_the_same_distribution(k, by_start):
    chances = random_chances(2 * whatif.BLOCK + 9, 32, 8, by_start)
    distribution, slow = whatif.calls_distribution(chances, k), slow_distribution(chances, k)
    assert max(abs(distribution[calls] - slow.get(calls, 0.0)) for calls in range(len(distribution))) < EXACT
    mean = math.fsum(calls * chance for calls, chance in slow.items())
    assert expected_calls(chances, [1, k] if k > 1 else [k])[-1] == pytest.approx(mean, rel=EXACT)


def test_all_ks_at_once_are_each_alone():
    chances = random_chances(30, 8, 4)
    together = expected_calls(chances, range(1, 9))
    alone = [expected_calls(chances, [k])[0] for k in range(1, 9)]
    assert np.abs(together - alone).max() < EXACT
    assert (np.diff(together) <= EXACT).all()


def test_sensitivity_is_the_difference_of_both_ends():
    """Expected calls are linear in every single chance, so a difference of two values is the exact derivative."""
    for chances in (random_chances(8, 4, 6), random_chances(8, 4, 7, by_start=True)):
        got = whatif.sensitivity(chances, 3)
        for s, j in itertools.product(range(8), range(3)):
            ends = []
            for value in (0.0, 1.0):
                keep = chances.accept.copy()
                keep[s, j] = value
                ends.append(expected_calls(whatif.Chances(keep, chances.drafted), [3])[0])
            assert got[s, j] == pytest.approx(ends[1] - ends[0], abs=EXACT)


def test_what_a_place_saves_is_what_the_calls_fall_by_when_it_is_always_kept():
    chances = random_chances(9, 4, 6)
    saved = whatif.saved_along_text(chances, 3)
    for place in range(9):
        kept = np.where(np.arange(9) == place, 1.0, chances.accept[:, 0])
        fall = expected_calls(chances, [3])[0] - expected_calls(whatif.chances_along_text(kept, deepest=4), [3])[0]
        assert saved[place] == pytest.approx(fall, abs=EXACT)


def test_lost_tokens_are_those_of_every_way_in_which_the_text_can_be_cut():
    chances = random_chances(7, 4, 6)
    a, lost = chances.accept[:, 0], np.zeros(7)
    for kept in itertools.product((False, True), repeat=7):
        likely = np.prod(np.where(kept, a, 1 - a))
        flags = whatif.chances_along_text(np.array(kept, dtype=float), deepest=4).accept > 0
        start = 0
        for length in whatif.split_into_steps(chances, flags, 3).lengths:
            most = min(3, 7 - 1 - start) + 1
            lost[start + length - 1] += likely * (most - length)
            start += length
    assert whatif.lost_along_text(chances, 3) == pytest.approx(lost, abs=EXACT)


# ---- against the engine ---------------------------------------------------------------------------------------------


def rows(model, text, sampling):
    return np.array([sampling.probs(model.row([*PROMPT, *text[:t]])).numpy() for t in range(len(text))])


def scored(target, draft, text, sampling):
    """(probability of the text, its chances) from the tables alone."""
    p, q = (rows(model, text, sampling)[np.arange(len(text)), text] for model in (target, draft))
    return float(np.prod(p)), whatif.chances_along_text(whatif.acceptance_chances(p, q), deepest=4)


def engine_distribution(target, draft, num_tokens, k, sampling):
    """{(text, number of calls): probability} of the real decoding loop, step by step with every draw walked."""
    known = {}

    def after(context, remaining):
        if remaining == 0:
            return {((), 0): 1.0}
        if context not in known:

            def experiment(draws):
                plan = plan_of(target, ModelDrafter(draft), k, sampling)
                return next(speculate(context, lambda: plan, draws, max_new_tokens=remaining)).tokens

            known[context] = total = {}
            for tokens, weight in distribution(experiment).items():
                for (rest, calls), chance in after((*context, *tokens), remaining - len(tokens)).items():
                    total[tokens + rest, calls + 1] = total.get((tokens + rest, calls + 1), 0.0) + weight * chance
        return known[context]

    return after(PROMPT, num_tokens)


CUT = Sampling(0.7, top_k=2)
WAYS = [(k, Sampling()) for k in (1, 2, 3)] + [(3, CUT)]
SLOW_WAYS = [pytest.param(*way, marks=pytest.mark.slow) for way in [(4, Sampling()), (1, CUT), (2, CUT), (4, CUT)]]


@pytest.mark.parametrize(("k", "sampling"), WAYS + SLOW_WAYS, ids=str)
def test_the_engines_calls_have_this_distribution_given_every_text(k, sampling):
    target, draft = TableLM(1), TableLM(2)
    by_engine, mean = engine_distribution(target, draft, 5, k, sampling), 0.0
    for text in itertools.product(range(3), repeat=5):
        weight, chances = scored(target, draft, text, sampling)
        counts = whatif.calls_distribution(chances, k)
        mean += weight * expected_calls(chances, [k])[0]
        for calls in range(6):
            assert weight * counts[calls] == pytest.approx(by_engine.get((text, calls), 0.0), abs=EXACT)
    assert mean == pytest.approx(sum(calls * chance for (_, calls), chance in by_engine.items()), abs=EXACT)


def engine_run(target, draft, k, seed, num_tokens, sampling):
    plan = plan_of(target, ModelDrafter(draft), k, sampling)
    return list(speculate(PROMPT, lambda: plan, Seeded(seed), max_new_tokens=num_tokens))


@pytest.mark.parametrize("k", [1, 2, 4, 8])
def test_greedy_runs_make_exactly_these_calls(k):
    target, draft, sampling = TableLM(3, 12), TableLM(3, 12), Sampling(0.0)
    draft.table += 0.7 * TableLM(4, 12).table
    text = [token for step in engine_run(target, draft, 3, 0, 40, sampling) for token in step.tokens]
    p, q = (rows(model, text, sampling)[np.arange(40), text] for model in (target, draft))
    chances = whatif.chances_along_text(whatif.acceptance_chances(p, q))
    steps = engine_run(target, draft, k, 1, 40, sampling)
    assert expected_calls(chances, [k])[0] == len(steps)
    assert whatif.calls_distribution(chances, k)[len(steps)] == 1
    assert whatif.split_into_steps(chances, whatif.draw_flags(chances, np.full(40, 0.5)), k).lengths == tuple(
        len(step.tokens) for step in steps
    )


@pytest.mark.parametrize("num_seeds", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_sampled_runs_make_these_calls_on_average(num_seeds):
    """Two-sided z below 4.9 (a false alarm in 1 of 10^6) over five runs per seed: each run against the law given its
    own text, and the calls that texts made at K = 3 predict for every other K against runs at that K."""
    target, draft, sampling, size = TableLM(5, 8), TableLM(5, 8), Sampling(), 24
    draft.table += 1.0 * TableLM(6, 8).table
    surplus, spread, predicted, made = 0.0, 0.0, [], {k: [] for k in (1, 2, 4, 8)}
    for seed in range(num_seeds):
        for k in (3, 1, 2, 4, 8):
            steps = engine_run(target, draft, k, 1000 * k + seed, size, sampling)
            text = [token for step in steps for token in step.tokens]
            p, q = (rows(model, text, sampling)[np.arange(size), text] for model in (target, draft))
            chances = whatif.chances_along_text(whatif.acceptance_chances(p, q), deepest=8)
            counts, numbers = whatif.calls_distribution(chances, k), np.arange(size + 1)
            surplus += len(steps) - counts @ numbers
            spread += counts @ numbers**2 - (counts @ numbers) ** 2
            if k == 3:
                predicted.append(expected_calls(chances, [*made]))
            else:
                made[k].append(len(steps))
    assert abs(surplus) < 4.9 * math.sqrt(spread)
    for column, calls in zip(np.array(predicted).T, made.values(), strict=True):
        error = math.sqrt((column.var(ddof=1) + np.var(calls, ddof=1)) / num_seeds)
        assert abs(column.mean() - np.mean(calls)) < 4.9 * error


@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_runs_own_verdicts_give_back_its_own_steps(k):
    target, draft, sampling = TableLM(5, 8), TableLM(6, 8), Sampling()
    steps = engine_run(target, draft, k, 7, 40, sampling)
    text, verdicts = [], []
    for step in steps:
        text += step.tokens
        last = {"resampled": [False], "bonus": [None], "plain": [None]}[step.verdict.kind]
        verdicts += [True] * len(step.verdict.path) + last
    p, q = (rows(model, text, sampling)[np.arange(40), text] for model in (target, draft))
    chances = whatif.chances_along_text(whatif.acceptance_chances(p, q))
    cut = whatif.split_into_steps(chances, whatif.draw_flags(chances, np.full(40, 0.999), verdicts), k)
    assert cut.lengths == tuple(len(step.tokens) for step in steps)
    assert cut.kinds == tuple(step.verdict.kind for step in steps)


# ---- parts ----------------------------------------------------------------------------------------------------------


def test_chances_to_be_kept():
    got = whatif.acceptance_chances([0.5, 0.2, 0.0, 0.0, 0.4], [0.25, 0.9, 0.1, 0.0, 0.0])
    assert got.tolist() == [0.5, 1.0, 1.0, 0.0, 0.0]


def test_a_run_that_ended_early_had_room_to_draft_more():
    certain = whatif.chances_along_text([1.0] * 5, deepest=8, most_tokens=20)
    full = whatif.chances_along_text([1.0] * 5, deepest=8)
    every = np.ones((5, 8), dtype=bool)
    assert whatif.split_into_steps(certain, every, 8) == whatif.Cut((5,), ("accepted",))
    assert whatif.split_into_steps(full, every, 8) == whatif.Cut((5,), ("bonus",))
    assert whatif.split_into_steps(full, every, 3) == whatif.Cut((4, 1), ("bonus", "plain"))
    assert expected_calls(certain, [3, 8]).tolist() == expected_calls(full, [3, 8]).tolist() == [2, 1]


def test_acceptance_by_depth_is_a_mean_over_all_starts():
    a = [0.5, 0.2, 1.0]
    got = whatif.acceptance_by_depth(whatif.chances_along_text(a, deepest=4))
    expected = [(0.5 + 0.2 + 1.0) / 3, (0.5 * 0.2 + 0.2 * 1.0) / 2, 0.5 * 0.2 * 1.0, math.nan]
    assert np.allclose(got, expected, atol=EXACT, equal_nan=True)


def test_the_band_is_two_quantiles_of_the_distribution():
    assert [whatif.quantile(np.array([0, 0.04, 0.9, 0.06]), share) for share in (0.04, 0.05, 0.95)] == [1, 2, 3]


def test_speedup_is_time_one_by_one_over_time_of_the_steps():
    times = {"draft_ms": 2.0, "verify_ms": (10.0, 11.0, 13.0), "overhead_ms": 1.0, "plain_overhead_ms": 0.5}
    costs = SimpleNamespace(**times, doubt="")
    result = whatif.every_k(whatif.chances_along_text([0.0, 1.0, 0.5, 0.5], deepest=3), [1, 2, 3], costs)
    # K = 1: the first token is cut; steps then begin at 1 (kept: 1, 2), at 3 alone.
    assert result.at(1).expected_target_calls == 3
    assert result.at(1).speedup == pytest.approx(4 * 10.5 / (14 + 14 + 10.5))
    # K = 2, from 1: place 1 kept; 2 kept (one half) ends the text with 3 as the bonus, else 3 alone.
    assert result.at(2).speedup == pytest.approx(4 * 10.5 / (18 + 18 + 0.5 * 10.5))
    assert math.isnan(result.at(3).speedup)
    assert result.best == (1, 1)
    doubted = SimpleNamespace(**times, doubt="This machine was too busy.")
    result = whatif.every_k(whatif.chances_along_text([0.0, 1.0, 0.5, 0.5], deepest=3), [1, 2], doubted, note="Exact.")
    assert all(math.isnan(outcome.speedup) for outcome in result.outcomes)
    assert result.best is None
    assert result.note.startswith("Exact. ") and result.note.endswith(doubted.doubt)  # noqa: PT018


def test_without_costs_there_is_no_speedup():
    result = whatif.every_k(whatif.chances_along_text([0.5] * 4), [1, 2])
    assert all(math.isnan(outcome.speedup) for outcome in result.outcomes)
    assert result.best is None


def test_the_frame_has_a_row_per_k_and_says_what_it_rests_on():
    frame = whatif.every_k(whatif.chances_along_text([0.5] * 6), range(1, 5), exact=True, note="why").frame()
    assert list(frame.columns[:4]) == ["k", "expected_target_calls", "tokens_per_call", "speedup"]
    assert frame.k.tolist() == [1, 2, 3, 4]
    assert frame.attrs == {"exact": True, "note": "why", "num_tokens": 6, "best": None}
    assert ((frame.calls_low <= frame.expected_target_calls) & (frame.expected_target_calls <= frame.calls_high)).all()


def test_a_chance_of_one_everywhere_gives_the_ideal():
    calls = expected_calls(whatif.chances_along_text([1.0] * 60), range(1, 33))
    assert calls.tolist() == [math.ceil(60 / (k + 1)) for k in range(1, 33)]


@pytest.mark.parametrize(("size", "most_s"), [(256, 1.0), (2048, 15.0)])  # five times the aim, for a busy machine
def test_long_texts_take_little_time_and_the_distribution_adds_up(size, most_s):
    chances = whatif.chances_along_text(np.random.default_rng(0).random(size) ** 0.3)
    began = time.perf_counter()
    result = whatif.every_k(chances, range(1, 33))
    assert time.perf_counter() - began < most_s
    assert abs(whatif.calls_distribution(chances, 8).sum() - 1) < EXACT
    assert abs(whatif.calls_distribution(chances, 8) @ np.arange(size + 1) - result.at(8).expected_target_calls) < 1e-9


def test_very_long_texts_take_little_memory():
    chances = whatif.chances_along_text(np.random.default_rng(0).random(20_000) ** 0.3)
    tracemalloc.start()
    whatif.every_k(chances, [1, 32])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: whatif.acceptance_chances([0.5], [0.5, 0.1]), "equal length"),
        (lambda: whatif.acceptance_chances([-0.5], [0.5]), "must be probabilities"),
        (lambda: whatif.chances_along_text([]), "at least one number"),
        (lambda: whatif.chances_along_text([1.5]), "from 0 to 1"),
        (lambda: whatif.chances_along_text([0.5, 0.5], most_tokens=1), "must be >= 2"),
        (lambda: expected_calls(whatif.chances_along_text([0.5]), [33]), "from 0 to 32"),
        (lambda: whatif.every_k(whatif.chances_along_text([0.5]), []), "at least one"),
        (lambda: whatif.every_k(whatif.chances_along_text([0.5]), [2, 2]), "must be different"),
        (lambda: whatif.every_k(whatif.chances_along_text([0.5]), [1, 0]), r"from 1 to 256 \(got \[1, 0\]\)"),
        (lambda: whatif.every_k(whatif.chances_along_text([0.5]), [1.5]), "whole numbers"),
        (lambda: whatif.every_k(whatif.chances_along_text([0.5]), [257]), "from 1 to 256"),
        (lambda: whatif.draw_flags(whatif.chances_along_text([0.5]), [0.1, 0.2]), "one number per token"),
    ],
)
def test_what_cannot_be_is_said(call, says):
    with pytest.raises(ValueError, match=says):
        call()
