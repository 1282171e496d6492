"""What a draft's files say: tensors and settings, read without a run."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, LlamaConfig

from specviz.alignment.causes.files import differences, faults
from specviz.alignment.causes.reading import twin
from specviz.cli.main import main
from specviz.models.catalog import MODELS, resolve
from specviz.models.pool import ModelPool
from specviz.session.workbench import workbench
from tests.helpers.planted_faults import FAULTS, planted


@pytest.fixture
def model():
    return copy.deepcopy(workbench().pool.load("fable-draft").model)


def test_a_matrix_of_zeros_is_named(model):
    model.model.layers[1].mlp.down_proj.weight.data.zero_()
    (words,) = faults(model)
    assert words == (
        "Every number is 0 in 1 tensor ('model.layers.1.mlp.down_proj.weight'): never trained, or lost when it was "
        "saved."
    )


def test_a_norm_of_ones_is_named_among_trained_ones_alone(model):
    model.model.layers[0].input_layernorm.weight.data.fill_(1.0)
    (words,) = faults(model)
    assert "Every number is 1 in 1 tensor ('model.layers.0.input_layernorm.weight')" in words
    for name, weight in model.named_parameters():
        if "norm" in name:
            weight.data.fill_(1.0)  # folded into the matrices, as some tools do
    assert list(faults(model)) == []


def test_a_copied_layer_is_named_and_a_shared_one_is_not(model):
    layers = model.model.layers
    layers[1].load_state_dict(layers[0].state_dict())
    assert list(faults(model)) == ["Layer 2 is an exact copy of layer 1."]
    layers[1] = layers[0]
    assert list(faults(model)) == []


@pytest.mark.parametrize(
    ("unused", "words"),
    [
        (("model.layers.2.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight"), "2 layers more than config.json"),
        (("model.layers.2.mlp.up_proj.weight",), "1 layer more than config.json says (num_hidden_layers = 2)."),
        (("model.layers.1.mlp.gate.weight",), "another kind of model, or for other settings than config.json has."),
    ],
)
def test_unused_tensors_are_named_with_what_they_mean(model, unused, words):
    (found,) = faults(model, unused)
    assert words in found


def test_what_the_files_have_no_place_for_comes_from_the_files(tmp_path):
    folder = planted(FAULTS["one layer more in the file"], tmp_path)
    loaded = ModelPool(allow_any=True).load(str(folder))
    assert len(loaded.unused) == 9
    assert all(name.startswith("model.layers.1.") for name in loaded.unused)


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.is_bundled])
def test_nothing_that_is_bundled_has_a_fault_in_its_files(name):
    if not MODELS[name].dial:
        loaded = workbench().pool.load(name)
        assert list(faults(loaded.model, loaded.unused)) == []


def test_settings_that_matter_are_compared_and_a_missing_theta_is_named(tmp_path):
    folder = resolve("fable-draft")
    own, target = AutoConfig.from_pretrained(folder), AutoConfig.from_pretrained(resolve("fable-target"))
    assert differences(own, target, folder) == {}
    own.rms_norm_eps = 1e-5
    own.sliding_window = 64
    found = differences(own, target)
    assert found == {
        "setting": "in config.json, rms_norm_eps is 1e-05, the target's is 1e-06",
        "narrow window": "in config.json, sliding_window is 64, the target's is None",
    }
    values = json.loads((folder / "config.json").read_text())
    del values["rope_parameters"]
    (tmp_path / "config.json").write_text(json.dumps(values))
    found = differences(AutoConfig.from_pretrained(tmp_path), target, tmp_path)
    assert found["rope"] == "config.json names no rope_theta, so 10,000 is taken"


@pytest.mark.parametrize("text", ["not json", "[1, 2]", "{}"])
def test_a_config_that_cannot_be_read_names_no_missing_theta(text, tmp_path):
    (tmp_path / "config.json").write_text(text)
    config = SimpleNamespace(get_text_config=lambda decoder: LlamaConfig(rope_parameters=None))
    differences(config, config, tmp_path)


def test_the_command_prints_settings_and_tensors(tmp_path, capsys):
    folder = planted(FAULTS["down_proj of zeros"], tmp_path)
    assert main(["models", "--check", "fable-target", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "Settings of the draft that are not the target's\n  none" in out
    assert "Tensors of the draft\n  Every number is 0 in 1 tensor" in out


def test_a_twin_shares_every_weight_and_takes_changes_alone(model):
    double = twin(model)
    own, others = dict(double.named_parameters()), dict(model.named_parameters())
    assert own.keys() == others.keys()
    assert all(own[name] is others[name] for name in own)
    ids = torch.tensor([[3, 4, 5]])
    before = model(ids).logits
    double.model.norm.weight = torch.nn.Parameter(torch.zeros(192), requires_grad=False)
    double.model.layers[0].register_forward_hook(lambda _, __, output: output * 0)
    double.model.layers[0], double.model.layers[1] = double.model.layers[1], double.model.layers[0]
    assert not torch.equal(double(ids).logits, before)
    assert torch.equal(model(ids).logits, before)
