"""Staged: every drafted token follows the draft model's own law, its row is q, and no draw is used twice."""

import json

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.drafter import Context
from specviz.decoding.draws import ACCEPT, DRAFT, FINAL, Seeded, distribution
from specviz.decoding.engine import speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.method import Part, Parts
from specviz.drafters.policy import Confidence
from specviz.drafters.prompt_lookup import PromptLookup
from specviz.drafters.staged import METHOD
from specviz.drafters.staged.drafter import InnerDraws, StagedDrafter
from specviz.errors import SpecvizError
from specviz.rules import RULES
from tests.helpers.printed_text import lines_during
from tests.helpers.tiny_models import tiny
from tests.helpers.toys import LoggedDraws, TableLM, plan_of, target_distribution, text_distribution, total_variation

PROMPT = (0, 1, 2, 0, 1)
EXACT = 1e-12
SAMPLINGS = [Sampling(), Sampling(0.7, top_k=2), Sampling(1.3, top_p=0.8), Sampling(1.3, min_p=0.6), Sampling(0.0)]
LOSSLESS = [rule for rule in RULES.values() if rule.lossless]


def lookup(seed=2, policy=None, vocab_size=3):
    return StagedDrafter(TableLM(seed, vocab_size), "small", PromptLookup(3, 1), "prompt_lookup", 2, policy)


def model(seed=2, vocab_sizes=(3, 3)):
    small, tiny_one = TableLM(seed, vocab_sizes[0]), TableLM(3, vocab_sizes[1])
    return StagedDrafter(small, "small", ModelDrafter(tiny_one), "tiny", 2)


def both():
    middle = StagedDrafter(TableLM(3), "tiny", PromptLookup(2, 1), "prompt_lookup", 2)
    return StagedDrafter(TableLM(2), "small", middle, "tiny", 2)


def chain_distribution(lm, prompt, k, sampling, width=3):
    """Products of the table's rows, cut or widened to the target's ids."""
    distributions = {(): 1.0}
    for _ in range(k):
        new = {}
        for text, chance in distributions.items():
            row = sampling.probs(lm.row([*prompt, *text])[:width])
            new |= {(*text, token): chance * float(q) for token, q in enumerate(row) if q > 0}
        distributions = new
    return distributions


@pytest.mark.parametrize("make", [lookup, model, both])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_the_draft_follows_the_draft_models_own_distribution(make, sampling):
    def experiment(draws):
        return make().draft(Context(list(PROMPT), sampling, draws, 3), 3).tokens

    assert total_variation(distribution(experiment), chain_distribution(TableLM(2), PROMPT, 3, sampling)) < EXACT


@pytest.mark.parametrize("make", [lookup, model, both])
def test_q_is_the_draft_models_row(make):
    for seed in range(20):
        draft = make().draft(Context(list(PROMPT), Sampling(0.7), Seeded(seed), 3), 4)
        assert len(draft) == 4
        assert draft.is_chain
        for node, q in enumerate(draft.probs):
            logits = TableLM(2).row([*PROMPT, *draft.tokens[:node]])
            assert torch.equal(draft.logits[node], logits)
            assert torch.equal(q, (logits / 0.7).softmax(-1)) or (q - (logits / 0.7).softmax(-1)).abs().max() < EXACT


@pytest.mark.parametrize("make", [lookup, model])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda rule: rule.name)
def test_the_text_has_the_targets_distribution(make, sampling, rule):
    mine = text_distribution(plan_of(TableLM(1), make(), 2, sampling, rule), PROMPT, 2)
    assert total_variation(mine, target_distribution(TableLM(1), PROMPT, 2, sampling)) < EXACT


def test_the_text_has_the_targets_distribution_with_three_stages_and_a_confidence_stop():
    for drafter in (both(), lookup(policy=Confidence(0.4))):
        mine = text_distribution(plan_of(TableLM(1), drafter, 2), PROMPT, 2)
        assert total_variation(mine, target_distribution(TableLM(1), PROMPT, 2, Sampling())) < EXACT


@pytest.mark.parametrize("vocab_sizes", [(2, 5), (5, 2), (4, 4)])
def test_other_numbers_of_ids_keep_the_distribution(vocab_sizes):
    drafter = model(vocab_sizes=vocab_sizes)
    width = min(vocab_sizes[0], 3)

    def experiment(draws):
        draft = drafter.draft(Context([0, 1], Sampling(), draws, 3), 2)
        assert all(len(q) == 3 for q in draft.probs)
        return draft.tokens

    expected = chain_distribution(TableLM(2, vocab_sizes[0]), (0, 1), 2, Sampling(), width)
    assert total_variation(distribution(experiment), expected) < EXACT


@pytest.mark.parametrize("make", [lookup, model, both])
def test_no_address_is_drawn_from_twice(make):
    draws = LoggedDraws(5)
    list(speculate(PROMPT, lambda: plan_of(TableLM(1), make(), 4), draws, max_new_tokens=40))
    assert len(draws.addresses) == len(set(draws.addresses)) > 100


def test_a_switch_from_a_plain_draft_model_reuses_no_address():
    draws, drafters = LoggedDraws(5), [ModelDrafter(TableLM(2)), lookup(), both()] * 20
    plans = (plan_of(TableLM(1), drafter, 8) for drafter in drafters)
    list(speculate(PROMPT, lambda: next(plans), draws, max_new_tokens=60))
    assert len(draws.addresses) == len(set(draws.addresses))


def test_inner_addresses_are_all_different_and_fit_64_bits():
    outer = LoggedDraws(0)
    deep = InnerDraws(InnerDraws(InnerDraws(outer, 7), 9), 11)
    for role in (DRAFT, ACCEPT, FINAL):
        for position in range(11, 43):
            for node in (-1, 0, 1, 31):
                deep.uniform(role, position, node)
    assert len(outer.addresses) == len(set(outer.addresses)) == 3 * 32 * 4
    assert {(role, position) for role, position, _ in outer.addresses} == {(DRAFT, 7)}


def test_rows_drawn_at_once_have_the_addresses_of_single_ones():
    rows = torch.rand(3, 4, generator=torch.Generator().manual_seed(1)).softmax(-1)
    draws = InnerDraws(Seeded(3), 10)
    alone = [draws.sample(row, DRAFT, 12 + i, i) for i, row in enumerate(rows)]
    assert torch.equal(draws.sample(rows, DRAFT, 12, 0), torch.stack(alone))
    u, passed = draws.below(rows[:, 0], ACCEPT, 12, 0)
    singles = [draws.below(one, ACCEPT, 12 + i, i) for i, one in enumerate(rows[:, 0])]
    assert torch.equal(u, torch.stack([u for u, _ in singles]))
    assert passed.tolist() == [bool(passed) for _, passed in singles]


def tiny_parts(names=("tiny",), room=128):
    draft = CachedLM(tiny("llama", vocab_size=40, layers=1, seed=2), room)
    others = {}
    for seed, name in enumerate(names, start=3):
        loaded = tiny("llama", vocab_size=44, layers=1, seed=seed)
        others[name] = Part(name, CachedLM(loaded, room), lambda loaded=loaded: CachedLM(loaded, room))
    return Parts(draft=Part("small", draft, lambda: draft), others=others)


def built(room=128, **params):
    return METHOD.build(tiny_parts(room=room), METHOD.validate(params))


@pytest.mark.parametrize("stages", ["prompt_lookup", "tiny", "tiny, prompt_lookup"])
def test_greedy_text_is_the_targets_own(stages):
    target = tiny("llama", vocab_size=40, seed=1)
    prompt = [5, 6, 7, 5, 6]
    expected = target.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False, eos_token_id=None)[0, 5:]
    drafter, lm = built(stages=stages), CachedLM(target, 128)
    steps = list(speculate(prompt, lambda: plan_of(lm, drafter, 4, Sampling(0.0)), Seeded(1), max_new_tokens=40))
    assert [token for step in steps for token in step.tokens] == expected.tolist()
    assert drafter.work.calls == sum(sum(step.draft.evidence["calls"].values()) for step in steps if len(step.draft))


def test_the_evidence_tells_every_round():
    lm = CachedLM(tiny("llama", vocab_size=40, seed=1), 128)
    drafter = built(stages="tiny, prompt_lookup")
    for step in speculate([5, 6, 7, 5, 6], lambda: plan_of(lm, drafter, 4), Seeded(1), max_new_tokens=30):
        if not len(step.draft):
            continue
        rounds, written = step.draft.evidence["rounds"], []
        for one in (one for one in rounds if one["for"] == "small"):
            assert one["by"] == "tiny"
            written += [token["id"] for token in one["tokens"] if token["status"] == "accepted"] + [one["last"]["id"]]
        assert tuple(written) == step.draft.tokens
        assert {one["by"] for one in rounds if one["for"] == "tiny"} <= {"prompt_lookup"}
        assert step.draft.evidence["calls"]["small"] == sum(one["for"] == "small" for one in rounds)


def test_a_draft_model_that_drafts_for_itself_is_always_kept():
    parts = tiny_parts()
    same = Part("same", parts.draft.lm, lambda: CachedLM(parts.draft.lm.model, 128))
    drafter = METHOD.build(Parts(draft=parts.draft, others={"same": same}), METHOD.validate({"stages": "same"}))
    draft = drafter.draft(Context([1, 2, 3], Sampling(), Seeded(1), 40), 8)
    assert [one["kind"] for one in draft.evidence["rounds"]] == ["bonus", "bonus"]
    assert [token["status"] for one in draft.evidence["rounds"] for token in one["tokens"]] == ["accepted"] * 6


def test_a_draft_ends_behind_a_token_that_the_draft_model_doubts():
    for seed in range(30):
        draft = lookup(policy=Confidence(0.4)).draft(Context(list(PROMPT), Sampling(), Seeded(seed), 3), 6)
        whole = lookup().draft(Context(list(PROMPT), Sampling(), Seeded(seed), 3), 6)
        chances = [float(q[token]) for q, token in zip(whole.probs, whole.tokens, strict=True)]
        expected = next((place + 1 for place, chance in enumerate(chances) if chance < 0.4), 6)
        assert draft.tokens == whole.tokens[:expected]


def test_what_it_cannot_read_gets_no_draft():
    short = TableLM(2, context_limit=6)
    drafter = StagedDrafter(short, "small", PromptLookup(3, 1), "prompt_lookup", 2)
    assert len(drafter.draft(Context(list(PROMPT), Sampling(), Seeded(1), 3), 4)) == 1
    assert len(drafter.draft(Context([*PROMPT, 0], Sampling(), Seeded(1), 3), 4)) == 0
    assert len(lookup(vocab_size=2).draft(Context([0, 2], Sampling(), Seeded(1), 3), 4)) == 0
    assert len(lookup().draft(Context([0, 2], Sampling(), Seeded(1), 3), 0)) == 0


def test_asked_again_it_says_the_same():
    drafter = built(stages="tiny, prompt_lookup")
    context = Context([5, 6, 7, 5, 6], Sampling(), Seeded(4), 40)
    assert drafter.draft(context, 5).tokens == drafter.draft(context, 5).tokens
    other = Context([9, 8], Sampling(), Seeded(4), 40)
    assert drafter.draft(other, 5).tokens == built(stages="tiny, prompt_lookup").draft(other, 5).tokens


@pytest.mark.parametrize("stages", ["prompt_lookup, tiny", "a, b, c, d", ""])
def test_stages_that_make_no_sense_are_refused(stages):
    with pytest.raises(SpecvizError, match="stages must"):
        built(stages=stages)


@pytest.mark.parametrize("stages", ["small", "tiny, tiny", "tiny, small, prompt_lookup"])
def test_a_stage_that_is_there_already_is_refused(stages):
    with pytest.raises(SpecvizError, match="stages must name each model once, and not the draft"):
        built(stages=stages)


@pytest.mark.parametrize("stages", ["prompt_lookup", "same"])
def test_python_work_does_not_grow_with_the_text(stages):
    """The inner run has a list of its own at every draft: what both texts begin with is not gone through again.

    A stage with the draft model's own weights, so that every length takes as many rounds.
    """

    def work(length):
        draft = tiny_parts(room=2048).draft
        same = Part("same", draft.another(), lambda: CachedLM(draft.lm.model, 2048))
        drafter = METHOD.build(Parts(draft=draft, others={"same": same}), METHOD.validate({"stages": stages}))
        tokens = [3 + (7 * i * i) % 31 for i in range(length)]
        for token in (5, 6, 7):
            drafter.draft(Context(tokens, Sampling(0.0), Seeded(1), 40), 4)
            tokens.append(token)
        return lines_during(lambda: drafter.draft(Context(tokens, Sampling(0.0), Seeded(1), 40), 4))

    assert work(1500) < work(200) + 500  # of thousands of tokens that both begin with


@pytest.mark.parametrize("k", [4, 16, 32])
def test_the_evidence_stays_small(k):
    drafter = built(stages="tiny, prompt_lookup", inner_k=16)
    draft = drafter.draft(Context([5, 6, 7] * 12, Sampling(), Seeded(3), 40), k)
    shown = [{**each, "text": " token"} for row in draft.evidence["rounds"] for each in [*row["tokens"], row["last"]]]
    rest = [{**row, "tokens": [], "last": {}} for row in draft.evidence["rounds"]]
    assert len(draft) == k
    assert draft.evidence["rounds"]
    assert len(json.dumps([shown, rest])) < 5_000


@pytest.mark.parametrize(("broken", "words"), [(2, "the draft model small"), (3, "the draft model tiny")])
def test_who_gave_no_numbers_is_named(broken, words):
    small, tiny_one = TableLM(2), TableLM(3)
    {2: small, 3: tiny_one}[broken].table[:] = float("nan")
    drafter = StagedDrafter(small, "small", ModelDrafter(tiny_one), "tiny", 2)
    with pytest.raises(SpecvizError, match=f"{words} returned not-a-number"):
        drafter.draft(Context(list(PROMPT), Sampling(), Seeded(1), 3), 3)
