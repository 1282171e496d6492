"""A draft beside a sound ancestor: which tensors differ, what they cost, and what cannot be compared."""

import copy

import pytest
import torch

from specviz.alignment.causes.reading import Reading, Subject
from specviz.alignment.causes.reference import Reference
from specviz.alignment.causes.sample import TargetTexts
from specviz.alignment.job import align
from specviz.decoding.sampling import Sampling
from specviz.errors import SpecvizError
from specviz.models.score import TextIds
from specviz.session.workbench import workbench
from tests.helpers.planted_faults import rows


@pytest.fixture(scope="module")
def pool():
    return workbench().pool


@pytest.fixture(scope="module")
def halves(pool):
    """Texts behind ready prompts, which the target would write most likely."""
    target = pool.load("fable-target")
    prompts = [target.text.encode(row.prompt)[:40] for row in rows(16)]
    texts = [TextIds(prompt, ids) for prompt, ids in zip(prompts, target.generate(prompts, 24), strict=True)]
    return [TargetTexts(target, texts[half::2], Sampling()) for half in (0, 1)]


def changed(pool, change, name="changed-draft"):
    sound = pool.load("fable-draft")
    model = copy.deepcopy(sound.model)
    with torch.no_grad():
        change(model)
    model.name_or_path = name
    return pool.load((model, sound.tokenizer))


def compare(pool, halves, draft):
    subject = Subject(draft, pool.load("fable-target"))
    return Reference(subject, pool.load("fable-draft").model, "fable-draft", halves).compare()


def noise(model, name, size=1.0):
    weight = model.get_parameter(name)
    weight += size * weight.std() * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))


def test_the_one_tensor_that_differs_is_named_with_all_that_it_costs(pool, halves):
    name = "model.layers.1.mlp.up_proj.weight"
    broken = changed(pool, lambda model: noise(model, name, 2.0))
    words, numbers = compare(pool, halves, broken)
    assert words.startswith("Beside fable-draft, 1 of 20 tensors differ. ")
    assert "mlp of layer 2" in words
    sound, own = (
        Subject(draft, halves[1].target).agreements([Reading(draft.model, 1, halves[1].texts)], halves[1])[0].mean()
        for draft in (pool.load("fable-draft"), broken)
    )
    assert numbers["explained"] == pytest.approx(sound - own, abs=1e-6)


def add_low_rank(model, times):
    """Adds a low-rank change to every value matrix, so often."""
    for layer in model.model.layers:
        weight = layer.self_attn.v_proj.weight
        generator = torch.Generator().manual_seed(1)
        change = torch.randn(192, 4, generator=generator) @ torch.randn(4, 192, generator=generator)
        weight += times * 0.5 * weight.norm() / change.norm() * change


def test_a_change_of_low_rank_is_called_one(pool, halves):
    words, numbers = compare(pool, halves, changed(pool, lambda model: add_low_rank(model, 2)))
    assert "self_attn.v_proj.weight of every layer" in words
    assert "changes of rank 4 at most" in words
    assert "added twice" not in words  # half of it is no better than none: the ancestor is the sound one
    assert numbers["low"] > 0


def test_a_change_that_was_added_twice_is_called_one(pool, halves):
    """The target's draft is fable-draft; its ancestor lacks a change that this draft has twice."""
    subject = Subject(changed(pool, lambda model: add_low_rank(model, 2)), pool.load("fable-target"))
    ancestor = changed(pool, lambda model: add_low_rank(model, -2), "ancestor")
    words, _ = Reference(subject, ancestor.model, "ancestor", halves).compare()
    assert "as when a change was added twice" in words


def test_equal_weights_and_a_harmless_change_cost_nothing(pool, halves):
    words, numbers = compare(pool, halves, pool.load("fable-draft"))
    assert (words, numbers) == ("Beside fable-draft, 0 of 20 tensors differ: the weights are the same.", {})
    words, numbers = compare(pool, halves, changed(pool, lambda model: noise(model, "model.norm.weight", 1e-3)))
    assert "cost nothing that can be measured" in words
    assert numbers == {}


def test_a_reference_of_another_shape_or_kind_is_refused(pool, tmp_path):
    prompts = [row.prompt for row in rows(8)]
    options = {"target": "fable-target", "costs": {}, "max_new_tokens": 8}
    with pytest.raises(SpecvizError, match="must have the tensors of the draft, in the same shapes"):
        align(prompts, draft="fable-draft", reference="fable-draft-tiny", **options)
    with pytest.raises(SpecvizError, match="reference must be a model"):
        align(prompts, draft="fable-draft", reference="fable-eagle", **options)
    (warning,) = align(prompts, draft="fable-eagle", reference="fable-draft", **options).summary.warnings
    assert warning == "fable-eagle: a reference is for draft models alone, so it was not compared."
