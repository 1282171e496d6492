"""Whole texts of tiny pairs by the real engine against laws recomputed by full forwards; fixed seeds, alpha 1e-6."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from specviz.checks import scoring
from specviz.checks.end_to_end import TEXT_LENGTH, end_to_end, first_token
from specviz.checks.scoring import ROUNDING, beyond_edge, features, find_outside, plain_logits, score_parts, score_text
from specviz.checks.statistics import COARSE
from specviz.decoding.draws import Seeded, seed_of
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.rules import ANY_CHAIN, RULES
from specviz.rules.broken import BROKEN, tamper_if_broken
from tests.helpers.pairs import pair_of

EVERY = {**ANY_CHAIN, **BROKEN}
LOSSLESS = [name for name, rule in EVERY.items() if rule.lossless]
ONE, *OTHERS = LOSSLESS  # what the others write is enumerated: see test_enumerated
HARMLESS = {"dropped_draft", "clamped_q"}  # where the draft is this far off
ALONE = {name for name, rule in EVERY.items() if rule.judges_alone and not rule.lossless}
"""Rules that a single place tells to be wrong."""
SHOWN = ["typical", "lenience", "ensemble", *sorted(ALONE & BROKEN.keys() - HARMLESS)]
PROMPTS = [tuple(range(5 + i, 25 + i)) for i in range(6)]
K = 3


@pytest.fixture
def pair(named_models):
    return pair_of(named_models.load("quick"), named_models.load("quick-draft"))


@pytest.fixture
def deep_pair(named_models):
    """Models that look at the whole text."""
    return pair_of(named_models.load("big"), named_models.load("far"))


def last(results):
    *_, result = results
    return result


def until_known(results):
    """The first result with an outcome."""
    return next(result for result in results if result.outcome is not None)


@pytest.mark.parametrize("name", [ONE, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_lossless_rule_is_consistent(pair, name):
    result = last(end_to_end(pair, RULES[name], PROMPTS, Sampling(0.5, top_k=60), K, 1100, seed=1))
    assert result.outcome.state == "consistent"
    assert max(result.evidence.smallest_shifts()) < COARSE
    assert result.distance < 1e-9


@pytest.mark.parametrize("name", SHOWN)
def test_a_wrong_rule_is_called_out_about_when_its_distribution_says_so(pair, name):
    result = until_known(end_to_end(pair, EVERY[name], PROMPTS, Sampling(), K, 2000, seed=1))
    assert result.outcome.state == "differs"
    needed = next(one.tokens_needed for one in result.power if one.rule.name == name)
    assert needed / 3 < result.done < 3 * needed + TEXT_LENGTH


def test_the_curve_reaches_what_the_verdict_rests_on(pair):
    for result in end_to_end(pair, EVERY["resample_p"], PROMPTS, Sampling(), K, 300, seed=1):
        places = [tokens for tokens, _ in result.track]
        assert places == sorted(set(places))
        assert max([0.0, *(level for _, level in result.track)]) == pytest.approx(result.evidence.peak / math.log(10))
    assert result.evidence.peak_at in places


def test_a_rule_that_does_no_harm_here_is_said_to_need_more(pair):
    result = last(end_to_end(pair, RULES["speculative_sampling"], PROMPTS, Sampling(), K, 200, seed=1))
    assert {one.rule.name for one in result.power} == ALONE
    assert next(one.tokens_needed for one in result.power if one.rule.name == "clamped_q") is None


def test_too_few_tokens_cannot_tell(pair):
    assert last(end_to_end(pair, RULES["block_verification"], PROMPTS, Sampling(), K, 60)).outcome.state == "unsure"


def test_there_is_no_word_of_consistency_before_the_last_token(pair):
    results = list(end_to_end(pair, RULES["speculative_sampling"], PROMPTS, Sampling(), K, 100))
    assert [result.outcome for result in results[:-1]] == [None] * (len(results) - 1)
    assert [result.done for result in results] == [0, 32, 64, 96, 100]
    assert {32, 64, 96, 100} <= {tokens for tokens, _ in results[-1].track}


def test_a_method_without_a_draft_model_is_judged_too(named_models):
    pair = pair_of(named_models.load("quick"), None, "prompt_lookup")
    result = last(end_to_end(pair, RULES["speculative_sampling"], PROMPTS, Sampling(0.5), K, 900))
    assert result.outcome.state == "consistent"
    assert (result.evidence.features, result.distance, result.power) == (features(False), None, ())


def test_closing_it_stops_the_work(pair):
    results = end_to_end(pair, RULES["speculative_sampling"], PROMPTS, Sampling(), K, 10**6)
    next(results)
    next(results)
    assert not torch.is_inference_mode_enabled()  # nothing is held across a yield
    results.close()
    assert list(results) == []


# ---- scoring a text -------------------------------------------------------------------------------------------------


def softmax(logits):
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def rows(loaded, text, num):
    """One forward per token, without a cache, in numpy."""
    with torch.inference_mode():
        every = [loaded.model(torch.tensor([text[: len(text) - i]])).logits[0, -1] for i in range(num, 0, -1)]
    return softmax(torch.stack(every).double().numpy() / 0.7)


def test_features_and_chances_are_those_of_the_models_alone(deep_pair):
    text = [3, 17, 40, 5, 5, 90, 12, 33]
    prompt, tokens = text[:3], text[3:]
    scored = score_text(deep_pair, prompt, tokens, Sampling(0.7))
    p, q = rows(deep_pair.target, text, 5), rows(deep_pair.draft, text, 5)
    flags = [p == p.max(1, keepdims=True), q > p, q == q.max(1, keepdims=True), q < 1e-4]
    expected = np.stack([(flag * p).sum(1) for flag in flags], 1)
    assert np.abs(scored.chances() - expected).max() < 1e-5
    assert np.array_equal(scored.holds, np.stack([flag[range(5), tokens] for flag in flags], 1))
    assert scored.outside == ()


def test_a_long_text_is_scored_part_by_part_as_it_is_at_once(deep_pair, monkeypatch):
    text = [int(token) for token in torch.randint(5, 90, (40,), generator=torch.Generator().manual_seed(1))]
    prompt, tokens, sampling = text[:3], text[3:], Sampling(0.7, top_k=30)
    whole = score_text(deep_pair, prompt, tokens, sampling)
    monkeypatch.setattr(scoring, "CHUNK", 8)
    parts = list(score_parts(deep_pair, prompt, tokens, sampling))
    assert [len(part.tokens) for part in parts] == [8, 8, 8, 8, 5]
    assert np.concatenate([part.chances() for part in parts]) == pytest.approx(whole.chances(), abs=1e-5)
    assert np.array_equal(np.concatenate([part.holds for part in parts]), whole.holds)
    found = [(token.place, token.token) for part in parts for token in part.outside]
    assert found == [(token.place, token.token) for token in whole.outside] != []


def test_a_text_that_the_draft_cannot_read_has_no_features_about_it(named_models):
    pair = pair_of(named_models.load("big"), named_models.load("brief"))
    scored = score_text(pair, range(5, 50), [7, 8], Sampling())
    assert scored.q is None
    assert not scored.holds[:, 1:].any()
    assert not scored.chances()[:, 1:].any()


def test_the_text_is_the_engines_own(deep_pair):
    """What is scored is what a plain run with the same seed writes."""
    rule, prompt = RULES["speculative_sampling"], list(PROMPTS[0])
    plan = deep_pair.plan(rule, Sampling(), K)
    steps = speculate(prompt, lambda: plan, tamper_if_broken(rule, Seeded(9)), max_new_tokens=TEXT_LENGTH)
    scored = score_text(deep_pair, prompt, [token for step in steps for token in step.tokens], Sampling())
    result = last(end_to_end(deep_pair, rule, PROMPTS[:1], Sampling(), K, TEXT_LENGTH, seed=9))
    assert np.array_equal(result.evidence.observed, scored.holds.sum(0))
    assert result.evidence.expected == pytest.approx(scored.chances().sum(0))


def test_a_token_behind_the_filter_differs_at_once(pair):
    row = plain_logits(pair.target, PROMPTS[0], 1)
    least = int(row.argmin())
    (found,) = score_text(pair, PROMPTS[0], [least], Sampling(top_k=20)).outside
    assert (found.place, found.token, found.most_likely, found.is_tie) == (0, least, int(row.argmax()), False)
    result = until_known(end_to_end(pair, BROKEN["softmax_residual"], PROMPTS, Sampling(top_k=5), K, 400))
    assert result.outcome.state == "differs"
    assert result.impossible > 0


ROW = torch.tensor([2.0, 1.0, 1.0, 0.0, -3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("sampling", "token", "beyond"),
    [
        (Sampling(0.0), 0, 0.0),
        (Sampling(0.0), 1, 1.0),
        (Sampling(top_k=3), 3, 1.0),
        (Sampling(top_k=3), 4, 4.0),
        (Sampling(top_k=3), 2, 0.0),
        (Sampling(0.5, min_p=math.exp(-1)), 0, 0.0),
        (Sampling(0.5, min_p=math.exp(-1)), 2, 0.5),
        (Sampling(0.5, min_p=math.exp(-1)), 4, 4.5),
        (Sampling(0.5, top_k=3, min_p=math.exp(-1)), 3, 1.5),
        (Sampling(0.5, top_k=3, min_p=math.exp(-6)), 3, 1.0),
    ],
)
def test_the_distance_from_the_edge_is_counted_in_logits(sampling, token, beyond):
    assert beyond_edge(ROW, sampling, token) == pytest.approx(beyond)


@pytest.mark.parametrize("top_p", [0.3, 0.7, 0.9, 0.99])
def test_the_distance_from_the_nucleus_is_the_mass_before_it(top_p):
    shares = softmax(ROW.numpy())
    for token in range(5):
        before = shares[shares > shares[token]].sum()
        assert beyond_edge(ROW, Sampling(top_p=top_p), token) == pytest.approx(max(0.0, before - top_p))


def test_a_token_within_rounding_of_the_edge_is_a_tie():
    near = torch.stack([ROW, ROW])
    near[0, 3] = 1 - 1e-5
    near[1, 3] = 1 - 1e-2
    found = find_outside(near, Sampling(top_k=3), [3, 3], ROUNDING[torch.float32])
    assert [token.is_tie for token in found] == [True, False]


# ---- the first token ------------------------------------------------------------------------------------------------


def test_first_tokens_of_a_right_rule_are_consistent(pair):
    result = last(first_token(pair, RULES["block_verification"], PROMPTS[0], Sampling(0.5), K, 1200, seed=1))
    assert result.outcome.state == "consistent"
    distribution = first_distribution(pair)
    assert result.cells.distribution[:-1] == pytest.approx([distribution[token] for token in result.tokens], abs=1e-6)
    assert sum(result.cells.counts) == 1200


def first_distribution(pair):
    with torch.inference_mode():
        return softmax(pair.target.model(torch.tensor([PROMPTS[0]])).logits[0, -1].double().numpy() / 0.5)


def test_first_tokens_of_a_wrong_rule_differ(pair):
    *before, result = first_token(pair, BROKEN["argmax_target"], PROMPTS[0], Sampling(1.5), K, 100, seed=1)
    assert result.outcome.state == "differs"
    assert {each.outcome for each in before} == {None}


def test_two_seeds_are_two_independent_tries(pair):
    """No seed of one is a seed of the other; a seed at the top of its range is one, too."""
    seeds = [{seed_of(seed, number) for number in range(500)} for seed in (0, 1, 2, 2**64 - 1)]
    assert sum(map(len, seeds)) == len(set.union(*seeds)) == 2000
    one, same, other = (
        last(first_token(pair, RULES["speculative_sampling"], PROMPTS[0], Sampling(), K, 200, seed)).cells.counts
        for seed in (1, 1, 2)
    )
    assert one == same
    assert sum(abs(mine - its) for mine, its in zip(one, other, strict=True)) > 10  # not all but one in common


def test_few_first_tokens_cannot_tell(pair):
    result = last(first_token(pair, RULES["speculative_sampling"], PROMPTS[0], Sampling(), K, 40))
    assert result.outcome.state == "unsure"


def test_results_are_plain_numbers(pair):
    result = last(end_to_end(pair, RULES["speculative_sampling"], PROMPTS, Sampling(), K, 40))
    json.dumps([result.track, [rule.tokens_needed for rule in result.power]], allow_nan=False)
    assert math.isfinite(result.evidence.peak)


def test_a_draft_of_another_vocabulary_is_not_laid_beside_the_target(named_models, monkeypatch):
    """Its rows are about other tokens: no odds and no feature come from them."""
    pair = pair_of(named_models.load("big"), named_models.load("stranger"), "cross_vocabulary")
    asked = []
    monkeypatch.setattr(scoring, "plain_logits", lambda model, *rest: asked.append(model) or plain_logits(model, *rest))
    scored = score_text(pair, PROMPTS[0], (7, 8, 9), Sampling())
    assert asked == [pair.target]
    assert scored.q is None
    assert scored.has.shape[1] == len(features(with_draft=False))
    result = last(end_to_end(pair, RULES["speculative_sampling"], PROMPTS, Sampling(), K, 20))
    assert result.evidence.features == features(with_draft=False)


def test_up_to_the_first_id_that_the_draft_lacks_its_features_are_asked(named_models):
    """What is asked at a place follows from the text before it alone."""
    target, draft = named_models.load("big"), named_models.load("far")
    unknown = target.info.vocab_size - 1
    small = replace(draft, info=replace(draft.info, vocab_size=unknown))
    prompt, tokens = (3, 17, 40), (5, 5, unknown, 12, 33)
    whole, cut = (score_text(pair_of(target, each), prompt, tokens, Sampling()) for each in (draft, small))
    assert cut.q is None
    assert torch.equal(cut.has[:3], whole.has[:3])
    assert cut.has[:3, 1].any()
    assert not cut.has[3:, 1:].any()


def test_a_token_that_rounding_lets_through_the_filter_is_no_contradiction(pair, monkeypatch):
    """In a coarse format the engine's own rows may leave another token at the edge."""
    target = pair.target
    rows = plain_logits(target, PROMPTS[0], 1)[0]
    tenth, eleventh = rows.topk(11).indices[-2:].tolist()
    gap = float(rows[tenth] - rows[eleventh])
    swapped = lambda model, *rest: swap(plain_logits(model, *rest), tenth, eleventh)  # noqa: E731
    monkeypatch.setattr("specviz.checks.end_to_end.plain_logits", swapped)
    rule = RULES["speculative_sampling"]
    for rounding, differs in ((2 * gap, False), (gap / 2, True)):
        monkeypatch.setitem(ROUNDING, torch.float32, rounding)
        result = last(first_token(pair, rule, PROMPTS[0], Sampling(top_k=10), K, 300))
        assert (result.outcome.state == "differs") is differs


def swap(logits, one, other):
    logits = logits.clone()
    logits[..., [one, other]] = logits[..., [other, one]]
    return logits
