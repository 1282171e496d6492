"""The laws of the decoding loop on real transformers models."""

import itertools
from functools import cache

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import chain
from specviz.decoding.drafter import Drafter
from specviz.decoding.draws import DRAFT, Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters import METHODS
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Part, Parts
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.errors import SpecvizError
from tests.helpers.tiny_models import CONTEXT_LIMIT, FAMILIES, tiny
from tests.helpers.toys import RULE, TableLM, TreeDrafter, plan_of, top

PROMPT = [5, 9, 12, 7, 3]
GREEDY = Sampling(0.0)


model_of = cache(tiny)


def cached(family="llama", limit=CONTEXT_LIMIT, **config):
    """A new reader; the models are made, and proved, once."""
    return CachedLM(model_of(family, **config), limit)


def run(plan, prompt=PROMPT, num_tokens=40, seed=0, eos_ids=frozenset()):
    plans = plan if callable(plan) else lambda: plan
    return list(speculate(prompt, plans, Seeded(seed), max_new_tokens=num_tokens, eos_ids=eos_ids))


def text(steps):
    return [token for step in steps for token in step.tokens]


def generated(model, prompt=PROMPT, num_tokens=40):
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    return model.generate(ids, max_new_tokens=num_tokens, **options)[0, len(prompt) :].tolist()


OVER_ANY_TARGET = ("draft_model", "prompt_lookup", "none", "early_exit", "tree", "lookahead", "staged")
"""What needs neither trained heads nor words; the contract test runs all methods on one family."""
ON_EVERY_FAMILY = ("draft_model", "tree", "early_exit")
"""A chain, a tree and states from within: the others ask nothing else of a family's forward."""


@pytest.mark.parametrize(
    ("family", "name"),
    [(each, name) for each in FAMILIES for name in (OVER_ANY_TARGET if each == "gpt2" else ON_EVERY_FAMILY)],
)
def test_greedy_text_is_transformers_own(family, name):
    target, draft = cached(family), cached(family, layers=1, seed=1)
    parts = Parts(Part("target", target, lambda: target), Part("draft", draft, lambda: draft))
    drafter = METHODS[name].build(
        parts, METHODS[name].validate({"stages": "prompt_lookup"} if name == "staged" else {})
    )
    assert text(run(Plan(target, drafter, RULE, GREEDY, 4))) == generated_by(family)


@cache
def generated_by(family):
    return generated(cached(family).model)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(), Sampling(0.8, top_k=10, top_p=0.9)], ids=str)
def test_a_draft_equal_to_the_target_is_always_kept(sampling):
    model = tiny("llama").double()
    target, drafter = CachedLM(model, CONTEXT_LIMIT), CachedLM(model, CONTEXT_LIMIT)
    steps = run(Plan(target, ModelDrafter(drafter), RULE, sampling, 4))
    assert [len(step.tokens) for step in steps] == [5] * 8
    assert all(check.accepted for step in steps for check in step.verdict.checks)


def test_no_draft_is_one_target_call_per_token():
    steps = run(plan_of(cached(), sampling=GREEDY), num_tokens=12)
    assert [(len(step.tokens), step.target_work.calls, step.verdict.kind) for step in steps] == [(1, 1, "plain")] * 12


def test_each_step_makes_one_target_call_and_reads_only_what_is_new():
    target, draft = cached(), cached(layers=1, seed=1)
    steps = run(Plan(target, ModelDrafter(draft), RULE, Sampling(), 4))
    assert {step.target_work.calls for step in steps} == {1}
    for before, step in itertools.pairwise(steps):
        assert step.target_work.fed == 1 + len(step.draft)
        assert step.draft_work.calls == len(step.draft)
        kept_all = len(before.verdict.path) == len(before.draft)
        assert step.draft_work.fed == len(step.draft) + (1 if kept_all and len(step.draft) else 0)


def test_changes_of_k_drafter_and_target_keep_greedy_text():
    target = cached()
    one, two = ModelDrafter(cached(layers=1, seed=1)), ModelDrafter(cached("gpt2", layers=1, seed=2))
    tree = TreeDrafter(TableLM(3, vocab_size=64), (2, 2), top)
    drafters = itertools.cycle([one, two, one, PromptLookup(3, 1), tree])
    ks = itertools.cycle([4, 1, 7, 2, 2, 5, 1])
    steps = run(lambda: Plan(target, next(drafters), RULE, GREEDY, next(ks)))
    assert text(steps) == generated(target.model)
    assert len({len(step.draft) for step in steps}) > 3


def test_a_target_changed_mid_run_writes_what_it_would_have_written():
    first, second = cached(), cached(seed=5)
    targets = itertools.chain([first] * 6, itertools.repeat(second))
    steps = run(lambda: plan_of(next(targets), sampling=GREEDY), num_tokens=20)
    assert text(steps)[6:] == generated(second.model, PROMPT + text(steps)[:6], 14)


def same_greedy():
    return ModelDrafter(cached())


def test_emitted_tokens_add_up():
    eos_ids = frozenset({11, 12, 13})
    for seed in range(8):
        steps = run(Plan(cached(), same_greedy(), RULE, Sampling(), 5), num_tokens=23, seed=seed, eos_ids=eos_ids)
        accepted, truncated = sum(len(step.verdict.path) for step in steps), sum(step.truncated for step in steps)
        assert len(text(steps)) == accepted + len(steps) - truncated


def test_gpt2_is_never_asked_beyond_its_positions():
    limit = 24
    target = CachedLM(tiny("gpt2", n_positions=limit), limit)
    draft = ModelDrafter(CachedLM(tiny("gpt2", n_positions=limit - 8, layers=1, seed=1), limit - 8))
    steps = run(Plan(target, draft, RULE, GREEDY, 8))
    assert len(PROMPT) + len(text(steps)) == limit
    assert len(steps[-1].draft) == 0  # beyond its own limit the draft model is silent


def test_an_id_that_the_draft_lacks_silences_it():
    target = cached(vocab_size=64)
    draft = ModelDrafter(cached(vocab_size=40, layers=1, seed=1))
    steps = run(Plan(target, draft, RULE, GREEDY, 4))
    assert text(steps) == generated(target.model)
    silent = [not len(step.draft) for step in steps]
    known = [max([*PROMPT, *text(steps)[: step.context_length - len(PROMPT)]]) < 40 for step in steps]
    assert silent[:-1] == [not all_known for all_known in known[:-1]]  # the last step may have no room to draft
    assert any(silent)


@pytest.mark.parametrize(("prompt", "words"), [([], "no tokens"), ([1] * 30, "reads at most 20")])
def test_prompts_without_room_are_refused_in_words(prompt, words):
    with pytest.raises(SpecvizError, match=words):
        run(plan_of(cached(limit=20)), prompt=prompt)


def test_a_rule_that_cannot_judge_a_draft_is_refused_by_name():
    class OnlyChains(type(RULE)):
        def supports(self, draft):
            return draft.is_chain

    with pytest.raises(SpecvizError, match="cannot judge"):
        run(Plan(cached(), TreeDrafter(TableLM(1, vocab_size=64), (2,), top), OnlyChains(), GREEDY, 2))


def test_a_target_that_returns_nan_is_an_error_in_words():
    target = cached()
    target.forward = lambda tokens, draft: torch.full((len(draft) + 1, 64), float("nan"))

    class Fixed(Drafter):
        def draft(self, context, k):
            return chain([1, 2][:k])

    with pytest.raises(SpecvizError, match="not-a-number"):
        run(Plan(target, Fixed(), RULE, Sampling(), 2))


class NoDraftDraws(Seeded):
    def uniform(self, role, position, node):
        assert role != DRAFT
        return super().uniform(role, position, node)


def test_a_greedy_draft_draws_nothing_and_a_sampled_one_does():
    def one(sampling):
        plan = Plan(cached(), ModelDrafter(cached(layers=1, seed=1)), RULE, sampling, 4)
        return next(speculate(PROMPT, lambda: plan, NoDraftDraws(0), max_new_tokens=64)).draft

    q = one(GREEDY).probs
    assert one(GREEDY).tokens == tuple(row.argmax().item() for row in q)
    with pytest.raises(AssertionError):
        one(Sampling())


def test_chain_and_tree_walk_judge_a_chain_alike():
    generator = torch.Generator().manual_seed(0)
    for seed in range(30):
        p, q = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64).mul(1.5).softmax(-1)
        tokens = Seeded(seed).sample(q[:4], "draft", 10, 0).tolist()
        draft = chain(tokens, q[:4])
        assert RULE(draft, p, Seeded(seed), 10) == RULE.judge_tree(draft, p, Seeded(seed), 10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_chain_step_never_synchronises_behind_our_back():
    target = CachedLM(tiny("llama").cuda(), CONTEXT_LIMIT)
    plan = Plan(
        target, ModelDrafter(CachedLM(tiny("llama", layers=1, seed=1).cuda(), CONTEXT_LIMIT)), RULE, Sampling(), 4
    )
    steps = speculate(PROMPT, lambda: plan, Seeded(0), max_new_tokens=50)
    next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")
