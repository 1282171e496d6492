"""K policies: how long drafts become, and that no policy changes the law of the text."""

import itertools

import pytest
import torch

from specviz.decoding.draft import chain
from specviz.decoding.drafter import PhaseTimes
from specviz.decoding.draws import Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.rule import Distributions, Verdict
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import METHOD, ModelDrafter
from specviz.drafters.method import Part, Parts
from specviz.drafters.policy import BLIND_K_PARAMS, K_PARAMS, RESPELLED_K_PARAMS, make_policy
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.errors import SpecvizError
from specviz.rules import RULES
from tests.helpers.toys import TableLM, plan_of, target_distribution, total_variation

POLICIES = tuple(K_PARAMS[0].options)
LOSSLESS = [rule for rule in RULES.values() if rule.lossless]
TIMES = PhaseTimes(1.0, 1.0, 1.0)
NO_DISTRIBUTIONS = Distributions((), torch.zeros(2), (), ())


def policy(name, least=0.4):
    return make_policy({"k_policy": name, "least_confidence": least, "cost_ratio": 0.3})


def ks(name, kept, k=6, text=()):
    """K in force, step by step, where so many tokens are kept of every draft; "all" for a whole one."""
    one, used = policy(name), []
    for count in kept:
        used.append(one.most(k, text))
        count = used[-1] if count == "all" else min(count, used[-1])
        one.observe(chain(range(used[-1])), Verdict(tuple(range(count)), 0, "bonus", (), NO_DISTRIBUTIONS), TIMES)
    return used


def test_constant_is_k_whatever_happens():
    assert ks("constant", [0, "all", 3, 0]) == [6, 6, 6, 6]


def test_heuristic_adds_two_after_a_whole_draft_and_else_takes_one():
    assert ks("heuristic", [0, 1, 0, 0, 0, 0, 0, "all", "all", "all", 0, 2]) == [6, 5, 4, 3, 2, 1, 1, 1, 3, 5, 6, 5]


def test_moving_average_is_as_long_as_a_run_of_kept_tokens():
    assert ks("moving_average", [0] * 3) == [6, 1, 1]
    assert ks("moving_average", ["all"] * 4) == [6] * 4
    assert ks("moving_average", [1] * 4) == [6, 2, 2, 2]  # 1 of 2 judged: a = 1/2
    assert ks("moving_average", [3] * 4, k=9) == [9, 4, 4, 4]  # a = 3/4


def test_moving_average_moves_by_a_fifth_of_the_news():
    assert ks("moving_average", [1, 3, 3, 3], k=9) == [9, 2, 3, 4]  # a = 1/2, then 1/2 + (1 - 1/2)/5 = 3/5, 17/25


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_never_exceeds_k_and_never_silences_a_drafter(name):
    one = policy(name)
    text = [1, 2]
    for k, kept in itertools.product((5, 1, 32, 2, 0, -3), (0, 1, 40)):
        used = one.most(k, text)
        assert used == k if k < 2 else 1 <= used <= k
        if used > 0:
            one.observe(
                chain(range(used)), Verdict(tuple(range(min(kept, used))), 0, "bonus", (), NO_DISTRIBUTIONS), TIMES
            )


def test_an_empty_draft_teaches_nothing():
    one = policy("heuristic")
    text = [1]
    assert one.most(6, text) == 6
    one.observe(chain([]), Verdict((), 0, "plain", (), NO_DISTRIBUTIONS), TIMES)
    assert one.most(6, text) == 6


@pytest.mark.parametrize("name", ["heuristic", "moving_average"])
def test_another_text_starts_anew(name):
    one, first, second = policy(name), [1], [1]
    one.most(6, first)
    one.observe(chain(range(6)), Verdict((), 0, "resampled", (), NO_DISTRIBUTIONS), TIMES)
    assert one.most(6, first) < 6
    assert one.most(6, second) == 6


def test_confidence_keeps_the_token_that_it_stops_behind():
    table = TableLM(2)
    drafter = ModelDrafter(table, policy("confidence", least=0.5))
    lengths = set()
    steps = speculate((0, 1), lambda: plan_of(TableLM(1), drafter, k=5), Seeded(3), max_new_tokens=60)
    text = [0, 1]
    for step in steps:
        before, likely = list(text), []
        for token in step.draft.tokens:
            likely.append(float(table.row(before).softmax(-1)[token]))
            before.append(token)
        assert all(chance >= 0.5 for chance in likely[:-1])
        if len(likely) < min(5, 62 - len(text) - 1):
            assert likely[-1] < 0.5
        lengths.add(len(likely))
        text += step.tokens
    assert {1, 2} < lengths


def test_confidence_goes_by_the_unfiltered_chance_at_temperature_0_too():
    drafter = ModelDrafter(TableLM(2), policy("confidence", least=1.0))
    steps = speculate((0, 1), lambda: plan_of(TableLM(1), drafter, 4, Sampling(0.0)), Seeded(0), max_new_tokens=9)
    assert {len(step.draft) for step in steps if not step.finish} == {1}


def policies_and_rules():
    """Quick: every policy, and every rule. Slow: the rest of the product."""
    for name, rule in itertools.product(POLICIES, LOSSLESS):
        is_quick = name == "heuristic" or rule is LOSSLESS[0]
        yield pytest.param(name, rule, id=f"{name}-{rule.name}", marks=() if is_quick else pytest.mark.slow)


@pytest.mark.parametrize(("name", "rule"), policies_and_rules())
def test_whole_runs_have_the_targets_distribution_under_every_policy(name, rule):
    target, prompt = TableLM(1, vocab_size=2), (0, 1)

    def experiment(draws):
        drafter = ModelDrafter(TableLM(2, vocab_size=2), policy(name, least=0.6))
        steps = speculate(prompt, lambda: plan_of(target, drafter, 2, rule=rule), draws, max_new_tokens=4)
        return tuple(token for step in steps for token in step.tokens)

    mine = distribution(experiment)
    assert abs(sum(mine.values()) - 1) < 1e-12
    assert total_variation(mine, target_distribution(target, prompt, 4, Sampling())) < 1e-12


def test_a_policy_that_drops_the_unsure_token_is_caught():
    """The same enumeration with the token thrown away: another law."""

    class Dropping(ModelDrafter):
        def draft(self, context, k):
            kept = super().draft(context, k)
            return kept if len(kept) == k else chain(kept.tokens[:-1], kept.probs[:-1])

    target, prompt = TableLM(1, vocab_size=2), (0, 1)

    def experiment(draws):
        drafter = Dropping(TableLM(2, vocab_size=2), policy("confidence", least=0.6))
        steps = speculate(prompt, lambda: plan_of(target, drafter, 2), draws, max_new_tokens=3)
        return tuple(token for step in steps for token in step.tokens)

    assert total_variation(distribution(experiment), target_distribution(target, prompt, 3, Sampling())) > 1e-3


@pytest.mark.parametrize("name", ["heuristic", "moving_average"])
def test_prompt_lookup_proposes_what_the_policy_allows(name):
    drafter = PromptLookup(3, 1, make_policy({"k_policy": name}))
    steps = list(speculate([1, 2, 3, 4] * 3, lambda: plan_of(TableLM(1, 5), drafter, 4), Seeded(0), max_new_tokens=40))
    for step in steps:
        if len(step.draft):
            assert step.draft.evidence["policy"] == name
            assert len(step.draft) <= step.draft.evidence["k"] <= 4
    assert len({step.draft.evidence.get("k") for step in steps}) > 2


def test_the_evidence_names_k_and_policy_unless_it_is_constant():
    for name in POLICIES:
        drafter = METHOD.build(parts_of(TableLM(2)), METHOD.validate({"k_policy": name}))
        step = next(
            speculate((0, 1), lambda drafter=drafter: plan_of(TableLM(1), drafter), Seeded(0), max_new_tokens=9)
        )
        told = {"k": 3, "policy": name} if name != "constant" else {}
        more = {"acceptance", "cost_ratio"} if name == "survival" else set()
        assert step.draft.evidence.keys() == told.keys() | more
        assert told.items() <= step.draft.evidence.items()


def parts_of(lm):
    return Parts(draft=Part("draft", lm, lambda: lm))


def test_names_and_numbers_that_are_not_allowed_are_refused():
    with pytest.raises(SpecvizError, match="k_policy must be one of constant"):
        METHOD.validate({"k_policy": "oracle"})
    with pytest.raises(SpecvizError, match="least_confidence must be a number from 0 to 1"):
        METHOD.validate({"least_confidence": 1.5})
    with pytest.raises(SpecvizError, match="cost_ratio must be a number from 0 to 10"):
        METHOD.validate({"cost_ratio": -0.1})
    assert not {"confidence", "survival"} & BLIND_K_PARAMS[0].options.keys()
    assert "survival" not in RESPELLED_K_PARAMS[0].options
