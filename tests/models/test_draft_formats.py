"""Draft heads and assistants that are named where a model is wanted are called what they are; models are not."""

import json

import pytest
import torch
from safetensors.torch import save_file
from transformers import CONFIG_MAPPING

from specviz.errors import SpecvizError
from specviz.models.files.draft_formats import draft_format, format_of
from specviz.models.folder import ModelFolder
from tests.helpers.eagle_heads import eagle, eagle3, target_of
from tests.helpers.head_formats import (
    SAMPLES,
    dflash,
    dflash2,
    dspark,
    folder_of,
    open_spec,
    open_spec_of_another_method,
    speculators_dflash,
    speculators_eagle3,
    vllm_medusa,
)
from tests.helpers.tiny_models import FAMILIES, tiny, tiny_tokenizer

FOREIGN = {
    "Open Spec Config": (open_spec_of_another_method, "a head in the Open Spec Config .method: 'eagle9'."),
    "speculators": (
        lambda target: ({"speculators_model_type": "independent"}, {"fc.weight": torch.ones(2, 2)}),
        "a head in the format speculators 'independent'",
    ),
}


@pytest.fixture(scope="module")
def target():
    return target_of(layers=8)


@pytest.mark.parametrize("name", FOREIGN)
def test_what_no_method_runs_is_named_where_a_model_is_wanted_even_with_a_tokenizer(name, target, tmp_path):
    make, held = FOREIGN[name]
    folder = folder_of(tmp_path / "held", *make(target))
    tiny_tokenizer().save_pretrained(folder)
    words = f"^held is {held}, which specviz does not run: take a draft model or a head of another format"
    with pytest.raises(SpecvizError, match=words):
        ModelFolder(tmp_path / "held", "held")


ASSISTANT = "Gemma 4's assistant, a head that reads the target's own keys and values"
HEADS = {
    "Gemma 4's assistant": (SAMPLES["Gemma 4's assistant"], ASSISTANT, "assistant"),
    "EAGLE-1": (eagle, "an EAGLE head", "eagle"),
    "EAGLE-3": (lambda target: eagle3(target, [1, 2, 5]), "an EAGLE head", "eagle"),
    "speculators": (speculators_eagle3, "a head in the format speculators eagle3", "eagle"),
    "Medusa": (vllm_medusa, "a set of Medusa heads", "medusa"),
    "DFlash": (dflash, "a DFlash head", "block"),
    "DSpark": (dspark, "a DSpark head", "block"),
    "speculators dflash": (speculators_dflash, "a head in the format speculators dflash", "block"),
    "DFlash2": (dflash2, "a DFlash head", "block"),
    "Open Spec Config": (open_spec, "a DFlash head in the Open Spec Config", "block"),
}


@pytest.mark.parametrize("name", HEADS)
def test_heads_that_are_named_as_a_model_are_told_the_method_that_runs_them(name, target, tmp_path):
    make, held, method = HEADS[name]
    config, state = make(target)
    folder_of(tmp_path / "held", {**config, "architectures": ["LlamaForCausalLM"]}, state)
    words = (
        f"^held is {held}, not a model of its own: choose the method {method} with it as the heads, or write {method}:"
    )
    with pytest.raises(SpecvizError, match=words):
        ModelFolder(tmp_path / "held", "held")


def test_a_torch_file_tells_a_head_without_the_words_of_its_settings(target, tmp_path):
    config, state = eagle3(target, [1, 2, 5])
    (tmp_path / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"]}))
    torch.save(state, tmp_path / "pytorch_model.bin")
    assert format_of(tmp_path).method == "eagle"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_is_no_head(family):
    model = tiny(family)
    assert draft_format(model.config.to_dict(), model.state_dict().keys()) is None


NO_OWN_INPUTS = {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 30}
ASSISTANTS = {
    "gemma4_assistant": (
        "Gemma 4's assistant",
        "assistant",
        {"text_config": {"model_type": "gemma4_text", **NO_OWN_INPUTS}},
    ),
    "muse_glimmer_assistant": ("a DFlash head", "block", {}),
}


@pytest.mark.parametrize("kind", ASSISTANTS)
def test_the_assistants_of_transformers_are_told_by_the_settings_that_it_saves(kind):
    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers does not know it")
    words, method, settings = ASSISTANTS[kind]
    told = draft_format(CONFIG_MAPPING[kind](**settings).to_dict())
    assert words in told.name
    assert told.method == method


def test_settings_and_files_that_cannot_be_read_tell_nothing(tmp_path):
    assert format_of(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    assert format_of(tmp_path) is None
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    assert format_of(tmp_path) is None
    save_file({"fc.weight": torch.ones(1)}, tmp_path / "model.safetensors")
    assert format_of(tmp_path) is None
