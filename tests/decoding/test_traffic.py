"""What a step on a GPU brings to the host and takes there, counted on a device that only pretends to be one."""

import pytest
import torch
from pretend_device import DEVICE, There, moved, pretended
from tiny_models import CONTEXT_LIMIT, tiny

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import ROOT, Draft
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.rules import RULES

PROMPT = [5, 9, 12, 7, 3]
EXACT = RULES["speculative_sampling"]
K = 4
temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])


def steps(temperature, place=lambda model: model):
    target, draft = (CachedLM(place(tiny("llama", layers=n, seed=n)), CONTEXT_LIMIT) for n in (2, 1))
    plan = Plan(target, ModelDrafter(draft), EXACT, Sampling(temperature), K)
    return speculate(PROMPT, lambda: plan, Seeded(0), max_new_tokens=14)


@temperatures
def test_a_chain_step_copies_once_after_drafting_and_once_after_judging_and_waits_for_nothing_else(temperature):
    with pretended() as traffic:
        for step in steps(temperature, moved):
            assert traffic.hidden == []
            assert traffic.copies == (2 if len(step.draft) else 1)
            traffic.forget()


@temperatures
def test_a_chain_step_uploads_the_text_twice_a_u_per_drafted_token_and_what_the_rule_needs(temperature):
    with pretended() as traffic:
        run = steps(temperature, moved)
        next(run)
        traffic.forget()
        next(run)
        assert traffic.uploads == 2 + K + 3  # ids for both models; u to draft; ids to judge, u to accept, u of the last


@temperatures
def test_the_text_is_the_cpus(temperature):
    alone = [step.tokens for step in steps(temperature)]
    with pretended():
        assert [step.tokens for step in steps(temperature, moved)] == alone


# node 1 and 2 hang from node 0, the others from node 2: three levels
TREE = Draft((4, 5, 6, 7, 8), (ROOT, 0, 0, 2, 2), (None,) * 5)


@pytest.mark.parametrize(("name", "extra"), [("speculative_sampling", 1), ("sample_and_match", 1)])
def test_a_tree_is_judged_in_one_copy_per_level_and_one_for_all_the_rest(name, extra):
    rows = torch.rand(6, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows.scatter_add_(1, torch.tensor([[4], [6], [0], [8], [0], [0]]), torch.full((6, 1), 9.0, dtype=torch.float64))
    probs, reached = rows / rows.sum(-1, keepdim=True), set()
    for seed in range(20):
        told = RULES[name](TREE, probs, Seeded(seed), 3)
        with pretended() as traffic:
            verdict = RULES[name](TREE, There(probs), Seeded(seed), 3)
        assert verdict == told
        assert verdict.laws.node_p == told.laws.node_p
        levels = len({TREE.parents[check.node] for check in verdict.checks})
        assert (traffic.copies, traffic.hidden) == (levels + extra, [])
        reached.add(levels)
    assert reached >= {1, 3}


def test_typical_acceptance_judges_a_tree_in_two_copies():
    probs = torch.rand(6, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64).softmax(-1)
    with pretended() as traffic:
        RULES["typical"](TREE, There(probs), Seeded(0), 3)
        assert (traffic.copies, traffic.hidden) == (2, [])


# ---- the device that counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reads",
    [
        lambda values: values[1].item(),
        lambda values: bool(values[1] > 0),
        lambda values: float(values.sum()),
        lambda values: values.cpu(),
        lambda values: values[values > 1],
        lambda values: values.nonzero(),
    ],
    ids=["item", "bool", "float", "cpu", "a mask", "nonzero"],
)
def test_whatever_makes_the_host_wait_is_counted(reads):
    with pretended() as traffic, torch.inference_mode():
        values = torch.tensor([0.0, 1.0, 2.0], device=DEVICE)
        assert traffic.hidden == []
        reads(values)
        assert len(traffic.hidden) == 1


def test_what_is_read_before_its_copy_was_waited_for_is_not_there():
    with pretended() as traffic:
        host = torch.zeros(2, pin_memory=True)
        host.copy_(torch.ones(2, device=DEVICE), non_blocking=True)
        assert (host.tolist(), traffic.copies) == ([0.0, 0.0], 0)
        done = torch.cuda.Event()
        done.record()
        done.synchronize()
        assert (host.tolist(), traffic.copies) == ([1.0, 1.0], 1)


def test_the_cpus_tensors_cannot_be_mixed_with_its_own():
    with pretended(), pytest.raises(RuntimeError, match="given tensors of the CPU"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
