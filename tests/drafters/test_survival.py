"""K by survival: when a draft ends, what the verdicts and the times teach it, and that the text stays the target's."""

import itertools
import math
import random
from operator import mul

import pytest
import torch

from specviz.decoding.draft import chain
from specviz.decoding.drafter import PhaseTimes
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.rule import Distributions, Verdict
from specviz.decoding.sampling import Sampling
from specviz.drafters.calibration import BINS, Calibration
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.policy import Survival
from specviz.rules import RULES
from tests.helpers.toys import TableLM, plan_of, target_distribution, total_variation

LOSSLESS = [rule for rule in RULES.values() if rule.lossless]
NO_DISTRIBUTIONS = Distributions((), torch.zeros(2), (), ())
TIMES = PhaseTimes(1.0, 1.0, 1.0)


def logits(probability):
    return torch.tensor([probability, 1 - probability], dtype=torch.float64).log()


def draft_length(policy, probabilities, text, k=None):
    """How many of these tokens the policy drafts; the draft gives each this probability."""
    k = policy.most(k or len(probabilities), text)
    for place, probability in enumerate(probabilities[:k]):
        if policy.stops(logits(probability), torch.tensor(0)):
            return place + 1
    return k


def judge(policy, num_drafted, num_accepted, timing=TIMES):
    verdict = Verdict(tuple(range(num_accepted)), 0, "bonus", (), NO_DISTRIBUTIONS)
    policy.observe(chain(range(num_drafted)), verdict, timing)


def teach(policy, text, acceptance, num=2000):
    """Drafts of one token each: of every 100 tokens with a probability, its acceptance in percent is accepted."""
    for probability, accepted in acceptance.items():
        for number in range(num):
            policy.most(1, text)
            policy.stops(logits(probability), torch.tensor(0))
            judge(policy, 1, int(number % 100 < 100 * accepted))


# ---- the decision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cost", [0.05, 0.1, 0.2, 0.35, 0.6, 1.5])
@pytest.mark.parametrize("acceptance", [0.2, 0.55, 0.8, 0.93])
def test_where_all_tokens_are_alike_the_draft_has_the_best_length(acceptance, cost):
    """By brute force: the length with the most expected tokens per time; at least one token is drafted."""
    policy, text, k = Survival(cost), [1], 12
    teach(policy, text, {0.7: acceptance}, num=10_000)
    rates = {n: sum(acceptance**i for i in range(n + 1)) / (1 + n * cost) for n in range(1, k + 1)}
    best, second = sorted(rates.values())[-1:-3:-1]
    assert best / second > 1.0005, "too close to tell"
    assert draft_length(policy, [0.7] * k, text) == max(rates, key=rates.get)


@pytest.mark.parametrize("cost", [0.1, 0.2, 0.3])
def test_it_comes_near_the_best_of_all_stopping_rules(cost):
    """Tokens come sure or unsure, as a coin falls. The best rule is found by brute force over all of them."""
    kinds, k = {0.95: 0.9, 0.35: 0.3}, 6  # probability -> acceptance
    policy, text = Survival(cost), [1]
    teach(policy, text, kinds)

    def rate(length_of):
        """Expected tokens per time over all drafts, where one has this length."""
        tokens = time = 0.0
        for draft in itertools.product(kinds, repeat=k):
            n = length_of(draft)
            survival = itertools.accumulate((kinds[probability] for probability in draft[:n]), mul)
            tokens += 1 + sum(survival)
            time += 1 + n * cost
        return tokens / time

    def gain(per_time, survival, left):
        """The most tokens behind this place, less `per_time` for each unit of time."""
        if not left:
            return 0.0
        following = [survival * acceptance for acceptance in kinds.values()]
        return -per_time * cost + sum(s + max(0.0, gain(per_time, s, left - 1)) for s in following) / len(kinds)

    low, high = 0.0, 10.0
    for _ in range(60):  # the rate at which the best rule gains nothing over it
        middle = (low + high) / 2
        low, high = (middle, high) if 1 - middle + gain(middle, 1.0, k) > 0 else (low, middle)
    mine = rate(lambda draft: draft_length(policy, draft, text))
    constant = [rate(lambda _, n=n: n) for n in range(1, k + 1)]
    assert max(constant) < mine <= low + 1e-9
    assert mine > 0.98 * low


def test_a_surer_token_never_ends_a_draft_that_a_less_sure_one_goes_on():
    for cost in (0.1, 0.3, 0.5):
        text, policy = [1], Survival(cost)
        lengths = [draft_length(policy, [first, 0.5], text) for first in (0.1, 0.3, 0.5, 0.7, 0.9)]
        assert lengths == sorted(lengths)


def test_without_a_number_drafting_ends():
    policy = Survival(0.1)
    policy.most(3, [1])
    assert policy.stops(torch.tensor([math.nan, 0.0]), torch.tensor(0))


# ---- what is learned ------------------------------------------------------------------------------------------------


def test_before_any_verdict_the_draft_is_believed_and_a_later_token_passes_half_the_time():
    fresh = Calibration()
    assert [fresh.estimate(share) for share in (0.0, 0.31, 1.0)] == [0.0, 0.31, 1.0]
    assert fresh.rate == 0.5


def test_estimates_come_near_the_truth_whatever_the_draft_believes():
    """A simulated text: tokens of every confidence, accepted as a curve says that neither rises nor falls alone."""
    chance, learned = random.Random(1), Calibration()
    truth = [0.9 if place in (0, 5, 9) else 0.2 + 0.05 * place for place in range(BINS)]
    for _ in range(20_000):
        probability = chance.random()
        learned.learn(probability, chance.random() < truth[int(probability * BINS)])
    for place, expected in enumerate(truth):
        assert abs(learned.estimate((place + 0.5) / BINS) - expected) < 0.05
    assert abs(learned.rate - sum(truth) / BINS) < 0.02


def test_tokens_behind_the_first_rejected_one_teach_nothing():
    """Of three tokens the second is rejected: the third keeps the draft's own word, the others do not."""
    policy, text = Survival(0.01), [1]
    assert draft_length(policy, [0.95, 0.75, 0.55], text) == 3
    judge(policy, 3, 1)
    assert draft_length(policy, [0.95, 0.75, 0.55], text) == 3
    first, second, third = policy.evidence(3)["acceptance"]
    assert first > 0.95
    assert second < 0.75
    assert third == 0.55


def test_another_text_starts_anew():
    policy, first, second = Survival(), [1], [1]
    for _ in range(9):
        n = draft_length(policy, [0.9, 0.2, 0.9], first)
        judge(policy, n, 0, PhaseTimes(3.0 * n, 1.0, 1.0))
    assert draft_length(policy, [0.9, 0.2, 0.9], first) == 1
    assert draft_length(policy, [0.9, 0.2, 0.9], second) == 3
    assert policy.evidence(3)["acceptance"] == pytest.approx([0.9, 0.2, 0.9])
    assert policy.evidence(3)["cost_ratio"] is None


# ---- times ----------------------------------------------------------------------------------------------------------


def test_the_cost_is_the_median_of_the_texts_steps_without_the_first():
    policy, text, seen = Survival(), [1], []
    for draft_ms in (400.0, 2.0, 90.0, 4.0):  # of two tokens; the first step reads the prompt
        policy.most(2, text)
        seen.append(policy.evidence(2)["cost_ratio"])
        judge(policy, 2, 2, PhaseTimes(draft_ms, 8.0, 2.0))
    policy.most(2, text)
    assert [*seen, policy.evidence(2)["cost_ratio"]] == [None, None, 0.1, 2.3, 0.2]


def test_a_cost_that_was_given_is_not_measured():
    policy, text = Survival(0.25), [1]
    for _ in range(4):
        policy.most(2, text)
        judge(policy, 2, 2, PhaseTimes(99.0, 1.0, 1.0))
    assert policy.evidence(2)["cost_ratio"] == 0.25


def test_the_engine_tells_its_own_times():
    seen = []

    class Watching(ModelDrafter):
        def observe(self, draft, probs, verdict, timing):
            seen.append(timing)

    steps = [*speculate((0, 1), lambda: plan_of(TableLM(1), Watching(TableLM(2))), Seeded(0), max_new_tokens=20)]
    assert seen == [step.timing for step in steps]


# ---- the text -------------------------------------------------------------------------------------------------------


def run(cost, seed, k=5, num=40):
    """Steps, and how many tokens the draft model drew in each."""
    draft = TableLM(2)
    drafter = ModelDrafter(draft, Survival(cost))
    before = 0
    for step in speculate((0, 1), lambda: plan_of(TableLM(1), drafter, k), Seeded(seed), max_new_tokens=num):
        yield step, draft.work.calls - before
        before = draft.work.calls


@pytest.mark.parametrize("cost", [0.0, 0.1, 0.3, 0.9])
def test_every_drawn_token_stays_and_none_is_above_k(cost):
    for step, num_drawn in run(cost, seed=4):
        assert len(step.draft) == num_drawn <= step.draft.evidence.get("k", 0) <= 5
        assert len(step.draft.evidence.get("acceptance", ())) == num_drawn


def test_a_given_cost_repeats_the_run():
    one, other = ([step.tokens for step, _ in run(0.3, seed=4)] for _ in range(2))
    assert one == other
    assert len({num_drawn for _, num_drawn in run(0.3, seed=4)}) > 1


def costs_tables_and_rules():
    """Quick: every cost and table, and every rule. Slow: the rest of the product."""
    for cost, seed, rule in itertools.product((0.1, 0.15, 0.6), (2, 5), LOSSLESS):
        is_quick = rule is LOSSLESS[0] or (cost, seed) == (0.15, 2)
        yield pytest.param(
            cost, seed, rule, id=f"{cost}-{seed}-{rule.name}", marks=() if is_quick else pytest.mark.slow
        )


@pytest.mark.parametrize(("cost", "seed", "rule"), costs_tables_and_rules())
def test_whole_runs_have_the_targets_distribution(cost, seed, rule):
    """Every outcome of runs of several steps, in which verdicts of earlier steps change the length of later drafts."""
    target, prompt, lengths = TableLM(1, vocab_size=2), (0, 1), set()

    def experiment(draws):
        drafter = ModelDrafter(TableLM(seed, vocab_size=2), Survival(cost))
        steps = [*speculate(prompt, lambda: plan_of(target, drafter, 3, rule=rule), draws, max_new_tokens=4)]
        lengths.add(len(steps[0].draft))
        return tuple(token for step in steps for token in step.tokens)

    mine = distribution(experiment)
    assert abs(sum(mine.values()) - 1) < 1e-12
    assert total_variation(mine, target_distribution(target, prompt, 4, Sampling())) < 1e-12
    assert cost == 0.6 or len(lengths) > 1


def test_on_the_example_of_the_scheduler_that_peeks_it_writes_70_and_30():
    """A target of .7 and .3, a draft of .5 and .5 sure behind one token only; see tests/rules/test_broken.py."""
    target, draft = TableLM(1, vocab_size=2), TableLM(2, vocab_size=2)
    target.table[:] = torch.tensor([0.7, 0.3], dtype=torch.float64).log()
    draft.table[1, 0] = torch.tensor([0.5, 0.5], dtype=torch.float64).log()
    for cost in (0.01, 0.2, 0.35, 0.9):
        for behind in itertools.product(((0.9, 0.1), (0.5, 0.5)), repeat=2):
            draft.table[0, 0], draft.table[0, 1] = (torch.tensor(row, dtype=torch.float64).log() for row in behind)

            def first_token(draws, cost=cost):
                drafter = ModelDrafter(draft, Survival(cost))
                return next(speculate((1, 0), lambda: plan_of(target, drafter, 3), draws, max_new_tokens=4)).tokens[0]

            seen = distribution(first_token)
            assert seen == pytest.approx({0: 0.7, 1: 0.3}, abs=1e-12)
