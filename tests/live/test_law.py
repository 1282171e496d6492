"""The exact distribution of the texts that the page's engine writes is the target's own, every draw enumerated."""

import pytest

from specviz.decoding.sampling import Sampling
from tests.helpers.toys import TableLM, target_distribution, total_variation
from tests.live.engine import ask, sampling_of

PROMPT = (0, 1, 2, 0, 1)
EXACT = 1e-6  # rows are float32
WRONG = 1e-2
FILTERED = [Sampling(0.7, top_k=2), Sampling(1.3, top_p=0.8), Sampling(1.3, min_p=0.6)]
SAMPLINGS = [Sampling(), Sampling(0.7), *FILTERED, Sampling(0.0)]
TARGET, *DRAFTS = (TableLM(seed) for seed in (1, 2, 3))
MIXED = [(2, 0), (0, 0), (3, 1), (1, 0)]
EOS = 2
BROKEN = ("draws a replacement from p", "accepts all", "accepts by a fixed chance")


def packed(model, context_limit=64):
    return {"table": model.table.tolist(), "contextLimit": context_limit}


def order(plans, *, sampling=SAMPLINGS[0], num_tokens=4, eos=None, broken=None, limits=(64, 64, 64)):
    """plans: (K, number of the draft) for each step, the last one for all others; limits: how much each model reads."""
    target, *drafts = (packed(*each) for each in zip((TARGET, *DRAFTS), limits, strict=True))
    return {
        "target": target,
        "drafts": drafts,
        "plans": [{"k": k, "draft": draft} for k, draft in plans],
        "sampling": sampling_of(sampling),
        "prompt": PROMPT,
        "limits": {"maxNewTokens": num_tokens, "eos": eos},
        "broken": broken,
    }


def up_to_end(text):
    return text[: text.index(EOS) + 1] if EOS in text else text


def distances(orders):
    """The total variation between the engine's texts and the target's, for each order."""
    for each, found in zip(orders, ask("laws", asked=orders), strict=True):
        mine = {tuple(map(int, text.split())): chance for text, chance in found}
        assert abs(sum(mine.values()) - 1) < EXACT
        limits, values = each["limits"], each["sampling"]
        sampling = Sampling(*(values[name] for name in ("temperature", "topK", "topP", "minP")))
        room = each["target"]["contextLimit"] - len(PROMPT)
        texts = target_distribution(TARGET, PROMPT, min(limits["maxNewTokens"], room), sampling)
        right = {}
        for text, chance in texts.items():
            whole = text if limits["eos"] is None else up_to_end(text)
            right[whole] = right.get(whole, 0.0) + chance
        yield total_variation(mine, right)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_text_has_the_targets_distribution(sampling):
    orders = [order([(k, draft)], sampling=sampling) for k in (0, 1, 2, 3) for draft in (0, 1)]
    assert max(distances(orders)) < EXACT


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_k_and_the_draft_may_change_between_two_steps(sampling):
    assert max(distances([order(MIXED, sampling=sampling), order(MIXED[::-1], sampling=sampling)])) < EXACT


def test_a_text_that_may_end_has_the_targets_distribution():
    assert max(distances([order(plans, eos=EOS) for plans in ([(1, 0)], [(3, 1)], MIXED)])) < EXACT


@pytest.mark.parametrize("limits", [(64, 6, 64), (64, 8, 3), (8, 64, 64), (8, 7, 9)], ids=str)
def test_a_model_that_reads_no_more_changes_no_distribution(limits):
    assert max(distances([order([(3, 0)], limits=limits), order(MIXED, limits=limits)])) < EXACT


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_rule_has_another_distribution(broken):
    how = {"num_tokens": 3, "broken": broken}
    orders = [order([(k, 0)], sampling=each, **how) for k in (1, 3) for each in SAMPLINGS if each.temperature]
    assert min(distances(orders)) > WRONG


@pytest.mark.slow
def test_a_longer_text_has_the_targets_distribution():
    assert max(distances([order([(k, 0)], num_tokens=5) for k in (2, 4)])) < EXACT
