"""What the lab says without a speculative run, against runs of the real engine on the same prompts."""

import statistics

import pytest

import specviz.session.workbench as session
from specviz.alignment.job import align
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.models.score import score
from specviz.prompts import prompts_file
from specviz.rules import RULES

PROMPTS = [each["text"] for kind in prompts_file()["kinds"] for each in kind["prompts"]]
DRAFTS = (
    "fable-draft",
    "fable-draft-undistilled",
    "fable-draft-tiny",
    "fable-draft-code",
)  # as `zoo evaluate` has them
OWN = [f"Tom has {number} apples" for number in range(17)]  # for models that read few tokens
NUM_TOKENS, REPEATS = 48, 3


@pytest.fixture(scope="module")
def pool(named_models):
    """What align() finds in this process, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(session, "_shared", [session.Workbench(named_models)])
        yield named_models


def run(pool, pair, prompt, sampling, k, seed, num_tokens=NUM_TOKENS):
    """(prompt ids, emitted ids, target calls) of one real run."""
    target, small = map(pool.load, pair)
    plan = Plan(target.cached_lm(), ModelDrafter(small.cached_lm()), RULES["speculative_sampling"], sampling, k)
    ids = target.text.encode(prompt)
    steps = list(speculate(ids, lambda: plan, Seeded(seed), max_new_tokens=num_tokens, eos_ids=target.text.eos_ids))
    return ids, [token for step in steps for token in step.tokens], len(steps)


@pytest.mark.slow
def test_the_drafts_come_in_the_order_that_their_makers_found():
    sampled = align(PROMPTS * 2, draft=list(DRAFTS), max_new_tokens=NUM_TOKENS, costs={}).summary
    alphas = [sampled.draft(name).alpha for name in DRAFTS]
    assert alphas == sorted(alphas, reverse=True)
    assert [(each.a, each.b) for each in sampled.comparisons[:3]] == [(DRAFTS[0], other) for other in DRAFTS[1:]]
    assert all(each.slices[0].significant and each.slices[0].difference > 0 for each in sampled.comparisons)


# Any pair will do for the rest: one that looks at the last token alone makes many runs quickly

QUICK = ("quick", "quick-draft")


@pytest.fixture(scope="module")
def sampled(pool):
    target, draft = QUICK
    made = align(OWN * REPEATS, target=target, draft=draft, max_new_tokens=NUM_TOKENS, costs={})
    return made.summary.draft(draft)


@pytest.fixture(scope="module")
def runs(pool):
    """Real runs at temperature 1, by K; other seeds than the lab's."""
    seeds = range(1000, 1000 + REPEATS)
    return {k: [run(pool, QUICK, prompt, Sampling(), k, seed) for prompt in OWN for seed in seeds] for k in (2, 4)}


@pytest.mark.slow
def test_alpha_is_that_of_real_runs(pool, sampled, runs):
    target, draft = map(pool.load, QUICK)
    sums = {prompt: [0.0, 0] for prompt in range(len(OWN))}  # a prompt's runs belong together
    for number, (ids, text, _) in enumerate(runs[4]):
        overlap = score(target, draft, [*ids, *text], len(text), Sampling()).overlap
        own = sums[number // REPEATS]
        own[0], own[1] = own[0] + sum(overlap), own[1] + len(text)
    total, count = (sum(own[i] for own in sums.values()) for i in (0, 1))
    measured = total / count
    spread = statistics.stdev((own[0] - measured * own[1]) / (count / len(sums)) for own in sums.values())
    low, high = sampled.alpha_interval
    margin = 4 * spread / len(sums) ** 0.5  # false alarms: 6 in 100,000
    assert low - margin < measured < high + margin
    assert margin < 0.1


@pytest.mark.slow
def test_tokens_per_call_are_those_of_real_runs_within_five_percent(sampled, runs):
    for k, made in runs.items():
        measured = sum(len(text) for _, text, _ in made) / sum(calls for *_, calls in made)
        assert sampled.tokens_per_call[k - 1] == pytest.approx(measured, rel=0.05)


def test_at_temperature_0_every_number_of_calls_is_that_of_the_run(pool):
    options = {"target": "big", "draft": "near", "temperature": 0.0, "max_new_tokens": 24, "costs": {}}
    summary = align(OWN[:4], **options).summary
    for k in (1, 4):
        made = [run(pool, ("big", "near"), prompt, Sampling(0.0), k, 0, num_tokens=24) for prompt in OWN[:4]]
        assert sum(len(text) for _, text, _ in made) == summary.num_tokens
        calls = summary.num_tokens / summary.drafts[0].tokens_per_call[k - 1]
        assert calls == pytest.approx(sum(own for *_, own in made), rel=1e-6)
        assert summary.num_tokens / (k + 1) < calls < summary.num_tokens
