"""The page's draws are those of Python, and its probabilities those of `Sampling`, with the same tokens kept."""

import random
from itertools import product

import numpy as np
import torch

from specviz.decoding.draws import _ROLES, Seeded
from specviz.decoding.sampling import Sampling
from tests.live.engine import ask, numbers, sampling_of

CLOSE = 1e-6  # probabilities
ON_THE_EDGE = 1e-6  # so near to 1 - top_p, a sum of floats may lie on its other side
SEEDS = (0, 1, 2**32 - 1, 2**32, 2**53 - 1)
TEMPERATURES = (0.0, 0.01, 0.3, 1.0, 2.5)
TOP_K = (0, 1, 2, 5, 40, 10_000)
TOP_P = (1.0, 0.9, 0.5, 0.1, 0.0)
MIN_P = (0.0, 0.1, 1.0)


def test_a_draw_has_the_u_of_python():
    generator = random.Random(1)
    places = [
        (seed, role, place, node)
        for seed in SEEDS
        for role in (0, 1, 2)
        for place, node in ((1, -1), (0, 0), (1023, 12))
    ]
    for _ in range(500):
        seed = generator.choice((*SEEDS, generator.randrange(2**53)))
        places.append((seed, generator.randrange(3), generator.randrange(2_000), generator.randrange(-1, 13)))
    roles = {number: name for name, number in _ROLES.items()}
    expected = [Seeded(seed).uniform(roles[role], place, node) for seed, role, place, node in places]
    assert ask("draws", places=places) == expected
    assert len(set(expected)) > 500


def rows(seed=0):
    """Rows of logits in float32, most of them with ties."""
    generator = np.random.default_rng(seed)
    for size in (3, 64, 700):
        for width in (0.5, 4.0, 30.0):
            row = width * generator.standard_normal(size)
            yield row
            yield np.round(row)
            yield np.round(2 * row) / 2 - 100
    yield np.zeros(12)
    yield np.array([2.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    yield np.array([1.0, 3.0, 3.0, 3.0, 3.0, 2.0])


def dropped(row, sampling):
    """The sums of the least likely tokens' probabilities, in float64, as top-p adds them up."""
    wide = torch.from_numpy(row.astype(np.float64))
    return Sampling(sampling.temperature, sampling.top_k).probs(wide).sort().values.cumsum(0).numpy()


def ratios(row, sampling):
    """The probabilities as shares of the largest one, in float64, as min-p compares them."""
    p = Sampling(sampling.temperature).probs(torch.from_numpy(row.astype(np.float64))).numpy()
    return p / p.max()


def clear_cases():
    """Rows with samplings, but for those where a sum or a ratio lies on the edge of a filter to six digits."""
    for row, (temperature, top_k, top_p, min_p) in product(rows(), product(TEMPERATURES, TOP_K, TOP_P, MIN_P)):
        row, sampling = row.astype(np.float32), Sampling(temperature, top_k, top_p, min_p)
        has_clear_sums = np.abs(dropped(row, sampling) - (1 - top_p)).min() > ON_THE_EDGE
        has_clear_ratios = np.abs(ratios(row, sampling) - min_p).min() > ON_THE_EDGE
        if temperature == 0 or ((top_p in (0.0, 1.0) or has_clear_sums) and (min_p in (0.0, 1.0) or has_clear_ratios)):
            yield row, sampling


def test_a_row_of_logits_has_the_probabilities_of_sampling():
    """Where equal logits lie on both sides of top-p's edge, torch's sort decides which of them stay."""
    cases = [*clear_cases()]
    asked = [{"logits": row.tolist(), "sampling": sampling_of(each)} for row, each in cases]
    num_divided = 0
    for (row, sampling), packed in zip(cases, ask("probabilities", asked=asked), strict=True):
        mine, right = numbers(packed), sampling.probs(torch.from_numpy(row)).numpy()
        if sampling.top_p < 1 and row[right > 0].min() in row[right == 0]:
            num_divided += 1
            mine, right = (each[np.lexsort((each, row))] for each in (mine, right))
        assert (mine > 0).tolist() == (right > 0).tolist(), (row, sampling)
        np.testing.assert_allclose(mine, right, rtol=0, atol=CLOSE, err_msg=str(sampling))
    assert len(cases) > 4_000
    assert 0 < num_divided < len(cases) / 4
