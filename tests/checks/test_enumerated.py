"""The enumerated check: right rules are exact by their own program, wrong ones differ, and so do those that no formula
of one token shows."""

import itertools

import pytest
import torch

from specviz.checks import enumerated as module
from specviz.checks.enumerated import NUM_CELLS, OPENING, enumerate_texts
from specviz.checks.side_by_side import side_by_side
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.rules import ANY_CHAIN, RULES
from specviz.rules.broken import BROKEN
from specviz.rules.speculative_sampling import SpeculativeSampling
from tests.helpers.broken_engines import Forgets, WritesP
from tests.helpers.pairs import pair_of
from tests.helpers.runs import made

EVERY = {**ANY_CHAIN, **BROKEN}
LOSSLESS = [name for name, rule in EVERY.items() if rule.lossless]
HARMLESS = {"untruncated_q", "clamped_q", "peeking_scheduler"}  # over three tokens of models that are nearly flat
PROMPTS = [tuple(range(5 + i, 25 + i)) for i in range(3)]
SAMPLINGS = (
    Sampling(),
    Sampling(0.3, top_k=5),
    Sampling(1.2, top_p=0.8),
    Sampling(0.9, min_p=0.1, draft_min_p=0.0),
    Sampling(0.0),
    Sampling(0.8, draft_temperature=1.6, draft_top_p=0.9),
)

TREES = [
    ("tree", {}),
    ("tree", {"children": "independent", "shape": "fan"}),
    ("medusa", {}),
    *(pytest.param(name, {}, marks=pytest.mark.slow) for name in ("eagle", "lookahead")),
]


@pytest.fixture
def pair(named_models):
    return pair_of(named_models.load("big"), named_models.load("far"))


def last(results):
    *_, result = results
    return result


def rules_and_samplings():
    """Quick: every rule, and every sampling. Slow: the rest of the product."""
    for name, sampling in itertools.product(LOSSLESS, SAMPLINGS):
        is_quick = name == LOSSLESS[0] or sampling.is_plain
        yield pytest.param(name, sampling, id=f"{name}-{sampling}", marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "sampling"), rules_and_samplings())
def test_a_lossless_rule_is_exact(pair, name, sampling):
    result = last(enumerate_texts(pair, RULES[name], PROMPTS[:1], sampling, 4))
    assert result.outcome.state == "exact"
    assert result.distance < 1e-12


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("method", ["prompt_lookup", "none"])
def test_certain_drafts_and_none_are_exact_too(named_models, name, method):
    alone = pair_of(named_models.load("big"), None, method)
    assert last(enumerate_texts(alone, RULES[name], PROMPTS[:1], Sampling(), 3)).outcome.state == "exact"


@pytest.mark.parametrize("name", [name for name in EVERY if name not in {*LOSSLESS, *HARMLESS}])
def test_a_wrong_rule_differs(pair, name):
    result = last(enumerate_texts(pair, EVERY[name], PROMPTS[:1], Sampling(0.5), 2))
    assert result.outcome.state == "differs"
    assert result.distance > 1e-3


@pytest.mark.parametrize("rule", [WritesP(), Forgets()], ids=["writes p", "forgets"])
def test_a_chain_that_is_judged_wrongly_differs_though_its_formula_for_one_token_is_right(pair, rule):
    p, q = torch.randn(2, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    assert (rule.one_step_distribution(p, q) - p).abs().max() < 1e-12
    for k in (1, 2, 4):
        assert last(enumerate_texts(pair, rule, PROMPTS[:1], Sampling(), k)).outcome.state == "differs"


@pytest.mark.parametrize("rule", [WritesP(), Forgets()], ids=["writes p", "forgets"])
def test_such_a_chain_differs_side_by_side(bench, named_models, rule):
    recorded = made(bench, max_new_tokens=12)
    result = last(side_by_side(recorded, named_models.load("big"), named_models.load("near"), [rule]))
    assert result.rows[0].largest_distance < 1e-9 < result.rows[0].whole_distance
    assert result.rows[0].verdict == "differs"


def test_a_harmless_mistake_is_not_called_exact(pair):
    assert last(enumerate_texts(pair, BROKEN["untruncated_q"], PROMPTS[:1], Sampling(), 2)).outcome.state == "unsure"


def test_the_small_language_is_the_models_own(pair):
    """One row by a forward of the raw model and torch's softmax: the two likeliest tokens and all others."""
    language = finished(module.language_after(pair, PROMPTS[0], Sampling(0.7), 2))
    assert len(language.p) == len(language.q) == 1 + NUM_CELLS + NUM_CELLS**2
    for text, row in language.p.items():
        real = language.spelled[text]
        assert real[: len(PROMPTS[0])] == PROMPTS[0]
        assert len(real) == len(PROMPTS[0]) + len(text)
        p, q = (after(loaded, real) for loaded in (pair.target, pair.draft))
        first, second = torch.maximum(p, q).topk(2).indices.tolist()
        for pooled, full in ((row, p), (language.q[text], q)):
            expected = [full[first], full[second], 1 - full[first] - full[second]]
            assert pooled.tolist() == pytest.approx([float(share) for share in expected], abs=1e-6)


def after(loaded, text):
    with torch.inference_mode():
        return (loaded.model(torch.tensor([text])).logits[0, -1].double() / 0.7).softmax(-1)


def finished(work):
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value


def test_the_enumerated_distribution_is_what_the_engine_writes_with_seeds(pair):
    """Texts of a wrong rule over the same small language, by seeds: their shares are the enumerated ones."""
    language, rule = finished(module.language_after(pair, PROMPTS[0], Sampling(0.5), 2)), BROKEN["resample_p"]
    plan = module.plan_of(pair, rule, language)
    n, counts = 1500, {}
    for seed in range(n):
        steps = speculate(OPENING, lambda: plan, Seeded(seed), max_new_tokens=3)
        text = tuple(token for step in steps for token in step.tokens)
        counts[text] = counts.get(text, 0) + 1
    wrong = finished(module.distribution_of_texts(plan, 3))[0]
    for text, share in wrong.items():
        spread = (n * share * (1 - share)) ** 0.5
        assert abs(counts.get(text, 0) - n * share) < 5.6 * spread + 3  # 27 texts: once in a million seeds


def test_results_come_often_and_say_nothing_early(pair):
    results = list(enumerate_texts(pair, RULES["speculative_sampling"], PROMPTS, Sampling(), 2))
    assert [each.outcome for each in results[:-1]] == [None] * (len(results) - 1)
    assert (results[0].done, results[-1].done, results[-1].total) == (0, 4, 4)
    assert not torch.is_inference_mode_enabled()


class TreesMisjudged(SpeculativeSampling):
    """WRONG over trees alone: every node counts as drawn from even odds."""

    judged_as = staticmethod(lambda draft, node, rows: torch.full_like(rows[0], 1 / len(rows[0])))


@pytest.mark.parametrize(("method", "params"), TREES)
def test_methods_of_token_trees_are_enumerated_over_trees(named_models, method, params):
    draft = named_models.load("far") if method == "tree" else None
    pair = pair_of(named_models.load("big"), draft, method, params)
    results = {}
    for name, rule in (("right", RULES["speculative_sampling"]), ("wrong", TreesMisjudged())):
        results[name] = last(enumerate_texts(pair, rule, PROMPTS[:1], Sampling(0.5), 3))
        assert results[name].trees
        assert results[name].rule_alone == (method != "tree")
    assert results["right"].outcome.state == "exact"
    assert results["wrong"].outcome.state == "differs"


def test_a_rule_of_chains_alone_is_enumerated_over_chains(named_models):
    pair = pair_of(named_models.load("big"), named_models.load("far"), "tree")
    result = last(enumerate_texts(pair, BROKEN["resample_p"], PROMPTS[:1], Sampling(0.5), 2))
    assert not result.trees
    assert result.outcome.state == "differs"


def test_short_texts_are_looked_up_whatever_the_shortest_match_of_the_pair(named_models):
    params = {"max_ngram": 8, "min_ngram": 5}
    pair = pair_of(named_models.load("big"), None, "prompt_lookup", params)
    result = last(enumerate_texts(pair, BROKEN["resample_p"], PROMPTS[:1], Sampling(), 4))
    assert result.outcome.state == "differs"
