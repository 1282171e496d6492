"""The cost dial: deeper targets with the same text at a higher price."""

import pytest
import torch

from specviz.models import catalog
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from tests.helpers.runs import PROMPT, finish, ids, make_steps

BASE = "fable-target"
TIMES = {name: model.dial[1] for name, model in catalog.MODELS.items() if model.dial}


@pytest.fixture(scope="module")
def bench():
    return Workbench(ModelPool(2 * 10**9, allow_any=False))


def begin(bench, target, temperature=0.0):
    names = {"target": target, "draft": "fable-draft"}
    request = Request(prompt=PROMPT, max_new_tokens=24, seed=3, temperature=temperature, **names)
    return open_run(request, bench=bench)


@pytest.mark.parametrize(("name", "times"), TIMES.items())
def test_a_deeper_target_has_the_same_logits_to_the_last_bit(bench, name, times):
    own, deep = (bench.pool.load(each).model for each in (BASE, name))
    assert deep.config.num_hidden_layers == len(deep.model.layers) == times * len(own.model.layers)
    tokens = torch.tensor([[5, 9, 300, 17, 4]])
    with torch.inference_mode():
        assert torch.equal(own(tokens).logits, deep(tokens).logits)


def test_its_layers_share_no_weights_so_that_each_is_read_from_memory(bench):
    layers = bench.pool.load("fable-target-x4").model.model.layers
    places = [weight.data_ptr() for weight in layers.parameters()]
    assert len(places) == len(set(places))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_dial_changes_neither_text_nor_verdicts(bench, temperature):
    runs = [finish(begin(bench, name, temperature)) for name in (BASE, "fable-target-x2")]
    text, deeper = ([(step.draft, step.emitted) for step in run.steps] for run in runs)
    assert text == deeper


def test_a_run_may_turn_the_dial_between_two_steps(bench):
    run = begin(bench, BASE)
    make_steps(run, 2)
    run.controls.set("target", "fable-target-x4")
    turned = finish(run)
    assert [models.target.name for models in turned.models] == [BASE, "fable-target-x4"]
    assert ids(turned) == ids(finish(begin(bench, BASE)))


def test_the_heads_of_the_bundled_target_are_not_offered_for_a_deeper_one():
    assert catalog.names_for(BASE, "eagle") == ("fable-eagle",)
    assert not any(catalog.names_for(name, kind) for name in TIMES for kind in ("eagle", "medusa"))
