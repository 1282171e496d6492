"""Speculative sampling against the papers' algorithm with the same random draws, and that algorithm against p."""

import itertools
from collections import Counter
from fractions import Fraction

import pytest
import torch

from specviz.decoding.draft import ROOT, chain
from specviz.decoding.draws import ACCEPT, FINAL, Seeded
from specviz.rules import RULES
from specviz.rules.speculative_sampling import reference

RULE = RULES["speculative_sampling"]
POSITION = 7
NUM_CASES = 100  # of each kind


def random_rows(generator, num_rows, vocab_size, num_zeros=0):
    """Distributions of which each lacks so many tokens."""
    rows = torch.randn(num_rows, vocab_size, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
    for row in rows:
        row[torch.randperm(vocab_size, generator=generator)[:num_zeros]] = 0
    return rows / rows.sum(-1, keepdim=True)


def random_case(seed, p_zeros=0, q_zeros=0, same=False, any_token=False):
    """p [1+N, V], q [N, V] and N tokens from 0 to 6, drawn from q or, with any_token, any at all."""
    generator = torch.Generator().manual_seed(seed)
    size = seed % 7
    vocab_size = 3 + seed % 5
    p = random_rows(generator, size + 1, vocab_size, p_zeros)
    q = p[:-1].clone() if same else random_rows(generator, size, vocab_size, q_zeros)
    weights = torch.ones_like(q) if any_token else q
    tokens = torch.multinomial(weights, 1, generator=generator).flatten().tolist() if size else []
    return p, q, tokens


def both(seed, **kind):
    """(number accepted, last token) by the rule and by the papers, with the same draws."""
    p, q, tokens = random_case(seed, **kind)
    draws = Seeded(seed)

    def uniform(i):
        if i == len(tokens):
            return draws.uniform(FINAL, POSITION, ROOT)
        return draws.uniform(ACCEPT, POSITION + i, i)

    verdict = RULE(chain(tokens, q), p, draws, POSITION)
    return (len(verdict.path), verdict.token), reference(p, q, tokens, uniform)


KINDS = {
    "any rows": {},
    "zeros in p": {"p_zeros": 2},
    "zeros in q": {"q_zeros": 2},
    "zeros in both, tokens of probability 0": {"p_zeros": 1, "q_zeros": 1, "any_token": True},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_the_rule_judges_as_the_papers_do(kind):
    numbers_accepted = Counter()
    for seed in range(NUM_CASES):
        by_rule, by_papers = both(seed, **kind)
        assert by_rule == by_papers, f"seed {seed}"
        numbers_accepted[by_papers[0]] += 1
    assert len(numbers_accepted) > 3, "the cases differ"


def test_a_draft_from_the_targets_own_distribution_is_accepted_whole():
    for seed in range(NUM_CASES):
        by_rule, by_papers = both(seed, same=True)
        assert by_rule == by_papers
        assert by_papers[0] == len(random_case(seed, same=True)[2])


def test_the_papers_algorithm_writes_the_targets_distribution():
    """Counted in whole numbers: every x ~ q and every draw on a grid that all thresholds lie between."""
    p, q = [1, 2, 3], [3, 1, 2]  # sixths; the thresholds are 1/3 and above 1, the residual is 0, 1/2, 1/2
    rows = torch.tensor([p, p], dtype=torch.float64) / 6
    drafts = torch.tensor([q], dtype=torch.float64) / 6
    grid = [(place + 0.5) / 12 for place in range(12)]
    counts = Counter()
    for x, u, last in itertools.product(range(3), grid, grid):
        num_accepted, token = reference(rows, drafts, [x], [u, last].__getitem__)
        counts[x if num_accepted else token] += q[x]
    total = sum(counts.values())
    assert [Fraction(counts[token], total) for token in range(3)] == [Fraction(count, 6) for count in p]
