"""What a step on a GPU brings to the host and takes there, counted on a device that only pretends to be one."""

from functools import cache

import pytest
import torch

from specviz.decoding.cached_lm import PRODUCTS, CachedLM
from specviz.decoding.draft import EMPTY, ROOT, Draft, chain
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.forward.compact_forward import Compact
from specviz.decoding.forward.transformers_forward import TransformersForward
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.drafters.tree import TreeDrafter
from specviz.rules import RULES
from tests.helpers.pretend_device import DEVICE, There, moved, pretended
from tests.helpers.tiny_models import CONTEXT_LIMIT, tiny

PROMPT = [5, 9, 12, 7, 3]
EXACT = RULES["speculative_sampling"]
K = 4
temperatures = pytest.mark.parametrize("temperature", [0.0, 1.0])
each_forward = pytest.mark.parametrize("forward", [Compact, TransformersForward])


model_of = cache(tiny)


def reader(model, forward=Compact):
    return CachedLM(model, CONTEXT_LIMIT, forward=forward(model, PRODUCTS))


def steps(temperature, place=lambda model: model, forward=Compact):
    target, draft = (reader(place(model_of("llama", layers=n, seed=n)), forward) for n in (2, 1))
    plan = Plan(target, ModelDrafter(draft), EXACT, Sampling(temperature), K)
    return speculate(PROMPT, lambda: plan, Seeded(0), max_new_tokens=9)


@temperatures
@each_forward
def test_a_chain_step_copies_once_after_drafting_and_once_after_judging_and_waits_for_nothing_else(
    temperature, forward
):
    with pretended() as traffic:
        for step in steps(temperature, moved, forward):
            assert traffic.hidden == []
            assert traffic.copies == (2 if len(step.draft) else 1)
            traffic.forget()


@temperatures
@each_forward
def test_a_chain_step_uploads_the_text_twice_and_every_u_at_once_and_the_ids_to_judge(temperature, forward):
    with pretended() as traffic:
        run = steps(temperature, moved, forward)
        next(run)
        traffic.forget()
        next(run)
        assert traffic.uploads == 4


@temperatures
def test_the_text_is_the_cpus(temperature):
    alone = [step.tokens for step in steps(temperature)]
    with pretended():
        assert [step.tokens for step in steps(temperature, moved)] == alone


@pytest.mark.parametrize("children", ["suited", "independent", "without_replacement"])
def test_drawn_trees_are_the_cpus_and_wait_for_nothing_but_their_copies(children):
    def texts(place):
        target, draft = (reader(place(model_of("llama", layers=n, seed=n))) for n in (2, 1))
        plan = Plan(target, TreeDrafter(draft, children, "dynamic", 3, 12), EXACT, Sampling(), K)
        return [step.tokens for step in speculate(PROMPT, lambda: plan, Seeded(0), max_new_tokens=9)]

    alone = texts(lambda model: model)
    with pretended() as traffic:
        assert (texts(moved), traffic.hidden) == (alone, [])


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_the_proof_allows_the_compact_forward_and_its_steps_have_the_cpus_numbers_and_wait_for_nothing(family):
    """A chain, a tree, rows gathered from it, and a chain past them."""
    model, text = tiny(family), [*range(3, 40)]
    calls = [(text, EMPTY), ([*text, 4], chain([5, 7, 9])), ([*text, 4, 5], TREE), ([*text, 4, 5, 4, 6, 8, 2], TREE)]
    lm = CachedLM(model, CONTEXT_LIMIT)
    told = [lm.forward(*call) for call in calls]
    with pretended() as traffic:
        lm = CachedLM(moved(model), CONTEXT_LIMIT)
        assert lm.path == "compact, CUDA graphs"
        traffic.forget()
        rows = [lm.forward(*call) for call in calls]
        assert (traffic.copies, traffic.hidden) == (0, [])
    assert lm.calls == len(calls)
    for own, row in zip(rows, told, strict=True):
        torch.testing.assert_close(own.values, row)


@pytest.mark.parametrize(
    ("error", "path"),
    [
        (
            NotImplementedError("Could not run 'rms_norm'\nwith arguments"),
            "fails on 15 tokens: NotImplementedError: Could not run 'rms_norm'",
        ),
        (RuntimeError("CUDA error"), "fails on 15 tokens: RuntimeError: CUDA error"),
    ],
)
def test_an_operation_that_fails_there_refuses_the_compact_forward_by_name(monkeypatch, error, path):
    def rms_norm(*_):
        raise error

    monkeypatch.setattr(torch, "rms_norm", rms_norm)
    with pretended():
        assert CachedLM(moved(tiny("llama")), CONTEXT_LIMIT).path == f"transformers (the compact one {path})"


def test_memory_that_runs_out_in_the_proof_refuses_nothing_for_good(monkeypatch):
    def rms_norm(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    model = tiny("llama")
    monkeypatch.setattr(torch, "rms_norm", rms_norm)
    with pytest.raises(torch.OutOfMemoryError):
        CachedLM(model, CONTEXT_LIMIT)
    monkeypatch.undo()
    assert CachedLM(model, CONTEXT_LIMIT).path == "compact (not compiled: none was built)"


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
        assert verdict.distributions.node_p == told.distributions.node_p
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
        done.record(torch.cuda.current_stream(DEVICE))
        done.synchronize()
        assert (host.tolist(), traffic.copies) == ([1.0, 1.0], 1)


def test_the_cpus_tensors_cannot_be_mixed_with_its_own():
    with pretended(), pytest.raises(RuntimeError, match="given tensors of the CPU"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
