"""Draws are addressed, repeatable, uniform, and never pick what has probability zero."""

import math

import pytest
import torch
from scipy import stats

from specviz.decoding.device import argmax
from specviz.decoding.draws import ACCEPT, DRAFT, FINAL, Draws, Recorded, Seeded, distribution, enumerate_outcomes
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from tests.helpers.toys import TableLM, plan_of, target_distribution


def test_seeded_draws_depend_on_their_address_alone():
    one, other = Seeded(7), Seeded(7)
    addresses = [
        (role, position, node) for role in (DRAFT, ACCEPT, FINAL) for position in range(9) for node in range(-1, 5)
    ]
    drawn = {address: one.uniform(*address) for address in addresses}
    assert len(set(drawn.values())) == len(addresses)
    assert drawn == {address: other.uniform(*address) for address in reversed(addresses)}
    assert drawn != {address: Seeded(8).uniform(*address) for address in addresses}


def test_seeded_draws_are_uniform():
    u = [Seeded(3).uniform(ACCEPT, position, node) for position in range(4000) for node in range(2)]
    assert min(u) >= 0
    assert max(u) < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-4


def test_rows_drawn_together_equal_rows_drawn_alone():
    probs = torch.rand(4, 9, generator=torch.Generator().manual_seed(0))
    draws = Seeded(1)
    together = draws.sample(probs, DRAFT, 20, 0)
    assert together.tolist() == [int(draws.sample(row, DRAFT, 20 + i, i)) for i, row in enumerate(probs)]
    u, kept = draws.below(torch.full((4,), 0.5), ACCEPT, 20, 0)
    assert u.tolist() == [draws.uniform(ACCEPT, 20 + i, i) for i in range(4)]
    assert kept.tolist() == [value < 0.5 for value in u.tolist()]


class Extreme(Draws):
    """u as large as it can be."""

    def uniform(self, role, position, node):
        return 1 - 2**-53


@pytest.mark.parametrize("draws", [Extreme(), Seeded(0), Seeded(1)], ids=["largest u", "seed 0", "seed 1"])
@pytest.mark.parametrize("size", [3, 1000])
def test_a_token_of_probability_zero_is_never_drawn(draws, size):
    for dtype in (torch.float32, torch.float64):
        probs = torch.zeros(size, dtype=dtype)
        probs[size // 2] = 1e-30
        assert int(draws.sample(probs, FINAL, 5, 0)) == size // 2


def test_recorded_draws_replay_the_acceptance_u_only():
    draws = Recorded({(5, 0): 0.25}, Seeded(1))
    assert draws.uniform(ACCEPT, 5, 0) == 0.25
    assert draws.uniform(ACCEPT, 5, 1) == Seeded(1).uniform(ACCEPT, 5, 1)
    assert draws.uniform(DRAFT, 5, 0) == Seeded(1).uniform(DRAFT, 5, 0)


def test_enumeration_visits_every_outcome_once_with_its_weight():
    def experiment(draws):
        first = int(draws.sample(torch.tensor([0.5, 0.25, 0.0, 0.25]), DRAFT, 0, 0))
        kept = bool(draws.below(torch.tensor(0.75), ACCEPT, 0, 0)[1]) if first else None
        return first, kept

    outcomes = list(enumerate_outcomes(experiment))
    assert len(outcomes) == 5
    expected = {(0, None): 0.5, (1, True): 0.1875, (1, False): 0.0625, (3, True): 0.1875, (3, False): 0.0625}
    assert distribution(experiment) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling", [Sampling(0.8), Sampling(1.2, top_k=2), Sampling(1.0, top_p=0.7), Sampling(min_p=0.5)], ids=str
)
def test_seeded_runs_follow_the_targets_distribution(sampling):
    """Chi-square of three-token texts, n = 4,000 runs of the real loop, false alarm 1e-4 a case."""
    target, drafter, prompt, n = TableLM(1), ModelDrafter(TableLM(2)), (0, 1, 2), 4000
    counts: dict[tuple, int] = {}
    for seed in range(n):
        steps = speculate(prompt, lambda: plan_of(target, drafter, 2, sampling), Seeded(seed), max_new_tokens=3)
        words = tuple(token for step in steps for token in step.tokens)
        counts[words] = counts.get(words, 0) + 1
    expected = {words: n * p for words, p in target_distribution(target, prompt, 3, sampling).items() if p > 0}
    assert counts.keys() <= expected.keys()
    frequent = [words for words, number in expected.items() if number >= 5]
    rare = [words for words in expected if words not in set(frequent)]
    observed = [counts.get(words, 0) for words in frequent] + [sum(counts.get(words, 0) for words in rare)]
    predicted = [expected[words] for words in frequent] + [sum(expected[words] for words in rare)]
    if not rare:
        observed, predicted = observed[:-1], predicted[:-1]
    assert stats.chisquare(observed, [number * n / sum(predicted) for number in predicted]).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 1.7])
@pytest.mark.parametrize("top_k", [0, 4, 6])
@pytest.mark.parametrize("top_p", [1.0, 0.8, 0.6])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 0.4, 1.0])
def test_sampling_equals_transformers_own_processors(temperature, top_k, top_p, min_p):
    """In the order in which `generate` builds them; over rows with equal logits, too."""
    from transformers import (
        LogitsProcessorList,
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 12, generator=generator) * 3
    if top_p == 1:  # which of two equal tokens top-p keeps is its sort's choice
        rows = torch.cat([rows, rows.round()])
    made = Sampling(temperature, top_k, top_p, min_p).probs(rows)
    if temperature == 0:
        expected = torch.nn.functional.one_hot(rows.argmax(-1), 12).float()
    else:
        warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
        if top_k:
            warpers.append(TopKLogitsWarper(top_k))
        if top_p < 1:
            warpers.append(TopPLogitsWarper(top_p))
        warpers.append(MinPLogitsWarper(min_p))
        expected = warpers(None, rows).softmax(-1)
    assert torch.equal(made > 0, expected > 0)
    torch.testing.assert_close(made, expected)


def test_min_p_keeps_what_is_likely_enough_beside_the_most_likely_token():
    """As its paper defines it, in exact fractions: 16, 8, 8, 4, 2, 1, 1 of 40."""
    row = torch.tensor([16.0, 8.0, 8.0, 4.0, 2.0, 1.0, 1.0]).double().log()
    kept = {0.0: 7, 0.06: 7, 0.07: 5, 0.13: 4, 0.24: 4, 0.26: 3, 0.49: 3, 0.51: 1, 1.0: 1}
    for min_p, number in kept.items():
        weights = [16, 8, 8, 4, 2, 1, 1][:number] + [0] * (7 - number)
        expected = torch.tensor(weights).double() / sum(weights)
        torch.testing.assert_close(Sampling(min_p=min_p).probs(row), expected)
    equals = torch.tensor([1.0, 3.0, 0.0, 3.0])
    assert Sampling(min_p=1.0).probs(equals).tolist() == [0.0, 0.5, 0.0, 0.5]
    assert Sampling(0.0, min_p=1.0).probs(equals).tolist() == [0.0, 1.0, 0.0, 0.0]
    assert Sampling(min_p=0.5).probs(torch.tensor([1.0, math.nan])).isnan().all()


@pytest.mark.parametrize("temperature", [1e-30, 1e-46, 5e-324])
def test_the_smallest_temperatures_are_greedy(temperature):
    logits = torch.tensor([[0.5, 2.0, 1.0], [3.0, 0.0, -1.0]])
    assert torch.equal(Sampling(temperature).probs(logits), Sampling(0.0).probs(logits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("size", [1, 7, 2048])
def test_the_most_likely_token_is_torchs_also_among_equals_and_beside_nan(size, dtype):
    rows = torch.randint(5, (3, 40, size), generator=torch.Generator().manual_seed(size)).to(dtype)
    rows[1][torch.rand(40, size) < 0.1] = math.nan
    rows[2] = -math.inf
    every_other = rows[..., ::2]
    for each in (rows, every_other, rows[0, 0]):
        assert torch.equal(argmax(each), each.max(-1).indices)
    has_none = rows.isnan().any(-1) | (rows == -math.inf).all(-1)
    assert torch.equal(Sampling(0.0).probs(rows).isnan().any(-1), has_none)
