"""The exact law of the real code, every draw enumerated: the target's where it is right, apart where it is wrong."""

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draws import distribution
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import CHAIN_RULES
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.rules import RULES
from specviz.rules.broken import BROKEN, ClampedQ, PeekingScheduler, UntruncatedQ
from tests.helpers.tiny_models import tiny
from tests.helpers.toys import (
    RULE,
    TableLM,
    TreeDrafter,
    independent,
    plan_of,
    pruned_by_value,
    target_distribution,
    text_distribution,
    top,
    total_variation,
    without_replacement,
)

PROMPT = (0, 1, 2, 0, 1)
EXACT = 1e-12
WRONG = 1e-2
SAMPLINGS = [Sampling(), Sampling(0.7, top_k=2), Sampling(1.3, top_p=0.8), Sampling(1.3, min_p=0.6), Sampling(0.0)]
FOR_THREE_TOKENS = {rule.name: rule for rule in (UntruncatedQ(2), ClampedQ(0.2), PeekingScheduler(0.65))}


def named(rule):
    return rule.name


def distance(drafter, k=2, num_tokens=3, sampling=None, rule=RULE, target=None):
    target, sampling = target or TableLM(1), sampling or Sampling()
    mine = text_distribution(plan_of(target, drafter, k, sampling, rule), PROMPT, num_tokens)
    assert abs(sum(mine.values()) - 1) < EXACT
    return total_variation(mine, target_distribution(target, PROMPT, num_tokens, sampling))


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_chain_has_the_targets_distribution(k, sampling):
    assert distance(ModelDrafter(TableLM(2)), k, num_tokens=4, sampling=sampling) < EXACT


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.lossless and rule is not RULE], ids=named)
def test_every_lossless_rule_has_the_targets_distribution(rule, k, sampling):
    assert distance(ModelDrafter(TableLM(2)), k, num_tokens=4, sampling=sampling, rule=rule) < EXACT


@pytest.mark.parametrize("rule", [rule for rule in RULES.values() if rule.lossless], ids=named)
def test_every_lossless_rule_has_the_targets_distribution_over_certain_drafts(rule):
    assert distance(PromptLookup(3, 1), k=3, num_tokens=4, rule=rule) < EXACT


@pytest.mark.parametrize("rule", [RULES[name] for name in CHAIN_RULES if not RULES[name].lossless], ids=named)
@pytest.mark.parametrize("k", [1, 3])
def test_every_lossy_rule_has_another_distribution(rule, k):
    assert distance(ModelDrafter(TableLM(2)), k, rule=rule) > WRONG


@pytest.mark.parametrize("rule", (BROKEN | FOR_THREE_TOKENS).values(), ids=named)
@pytest.mark.parametrize("k", [1, 3])
def test_every_broken_rule_has_another_distribution(rule, k):
    """A rule that looks at tokens behind the judged one has none to look at where one token is drafted."""
    apart = distance(ModelDrafter(TableLM(2)), k, rule=rule)
    assert apart > WRONG if rule.judges_alone or k > 1 else apart < EXACT


def test_a_longer_chain_has_the_targets_distribution():
    assert distance(ModelDrafter(TableLM(2)), k=3, num_tokens=5, target=TableLM(1)) < EXACT


@pytest.mark.parametrize("draft_vocab", [2, 5])
def test_a_draft_with_fewer_or_more_ids_has_the_targets_distribution(draft_vocab):
    prompt_safe = TableLM(2, vocab_size=draft_vocab)
    target = TableLM(1)
    mine = text_distribution(plan_of(target, ModelDrafter(prompt_safe), 2), (0, 1), 3)
    assert total_variation(mine, target_distribution(target, (0, 1), 3, Sampling())) < EXACT


@pytest.mark.parametrize("grow", [independent, without_replacement, top])
@pytest.mark.parametrize("widths", [(3,), (2, 1)])
def test_siblings_have_the_targets_distribution(grow, widths):
    assert distance(TreeDrafter(TableLM(2), widths, grow), num_tokens=2) < EXACT


@pytest.mark.parametrize("sampling", [Sampling(top_k=2), Sampling(0.0)], ids=str)
def test_children_beyond_an_exhausted_support_keep_the_distribution(sampling):
    assert distance(TreeDrafter(TableLM(2), (3,), without_replacement), num_tokens=2, sampling=sampling) < EXACT


def test_prompt_lookup_has_the_targets_distribution():
    assert distance(PromptLookup(3, 1), k=3, num_tokens=3) < EXACT


def test_a_whole_run_with_k_changed_live_has_the_targets_distribution():
    target, drafter = TableLM(1, vocab_size=2), ModelDrafter(TableLM(2, vocab_size=2))

    def experiment(draws):
        ks = iter([2, 1, 2])
        steps = speculate((0, 1), lambda: plan_of(target, drafter, next(ks)), draws, max_new_tokens=3)
        return tuple(token for step in steps for token in step.tokens)

    assert total_variation(distribution(experiment), target_distribution(target, (0, 1), 3, Sampling())) < EXACT


def test_a_real_model_with_its_cache_has_its_own_distribution():
    target = CachedLM(tiny("llama", vocab_size=3, seed=3).double(), 64)
    draft = CachedLM(tiny("llama", vocab_size=3, layers=1, seed=4).double(), 64)
    mine = text_distribution(plan_of(target, ModelDrafter(draft), 2), PROMPT, 2)
    expected = {}
    with torch.inference_mode():
        for first in range(3):
            rows = target.model(torch.tensor([[*PROMPT, first]])).logits[0, -2:].softmax(-1)
            expected |= {(first, second): float(rows[0, first] * rows[1, second]) for second in range(3)}
    assert total_variation(mine, expected) < EXACT


def test_drafts_pruned_after_drawing_are_caught():
    assert distance(TreeDrafter(TableLM(2), (3,), pruned_by_value)) > WRONG
