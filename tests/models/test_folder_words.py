"""What a damaged folder is refused with: the file, what stands there, and what may. One case for each kind."""

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, BloomConfig, LlamaConfig, Mamba2Config, Qwen3MoeConfig

from specviz.errors import SpecvizError
from specviz.models.files import meta_build
from specviz.models.files.config_values import check_values
from specviz.models.files.meta_build import build_without_numbers
from specviz.models.folder import context_limit
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

INDEX = "model.safetensors.index.json"
SLIDING = {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}
CONFIGS = [
    ({"hidden_size": {"a": 1}}, r"damaged config.json: hidden_size must be a whole number from 1 \(got \{'a': 1\}\)"),
    ({"num_attention_heads": ["x"]}, r"num_attention_heads must be a whole number from 1 \(got \['x'\]\)"),
    ({"vocab_size": "320"}, r"vocab_size must be a whole number from 1 \(got '320'\)"),
    ({"head_dim": 0}, r"head_dim must be a whole number from 1 \(got 0\)"),
    ({"num_hidden_layers": 0}, r"num_hidden_layers must be a whole number from 1 \(got 0\)"),
    ({"num_hidden_layers": [1, 1]}, r"num_hidden_layers must be a whole number from 1 \(got \[1, 1\]\)"),
    ({"n_layer": 20_000}, r"at most 1,024 layers \('n_layer' is 20,000\)"),
    ({"num_labels": 10**9}, r"at most 100,000 labels \(num_labels is 1,000,000,000\)"),
    ({"text_config": []}, r"text_config must be an object of settings \(got \[\]\)"),
    ({"text_config": "x"}, r"text_config must be an object of settings \(got 'x'\)"),
    ({"text_config": {"hidden_size": 0}}, r"hidden_size must be a whole number from 1 \(got 0\)"),
    ({"layer_types": "full_attention"}, r"layer_types must be a list of names \(got 'full_attention'\)"),
    ({"layer_types": ["full_attention", 7]}, r"layer_types must be a list of names"),
    (
        {"layer_types": ["full_attention"]},
        r"must be a list of 2 kinds, one for each layer \(got \['full_attention'\]\)",
    ),
    ({"layer_types": ["sliding_attention"] * 2}, r"sliding_window in its config.json must be a whole .* \(got None"),
    ({**SLIDING, "sliding_window": None}, r"sliding_window in its config.json must be a whole number .* \(got None"),
    ({**SLIDING, "sliding_window": 0}, r"sliding_window in its config.json must be a whole number from 1 \(got 0"),
    ({"vision_config": {"depth": 10_000_000}}, r"at most 1,024 layers \('depth' is 10,000,000\)"),
    ({"encoder": {"own": [{"depths": [2, 10_000_000]}]}}, r"at most 1,024 layers \('depths' is 10,000,000\)"),
    ({"num_conv_blocks": 1_025}, r"at most 1,024 layers \('num_conv_blocks' is 1,025\)"),
    ({"n_routed_experts": 65_537}, r"'n_routed_experts' must be at most 65,536 \(got 65,537\)"),
    ({"pad_token_id": 5_000}, r"cannot be used: pad_token_id must be below vocab_size \(got 5000 and 320\)"),
    ({"architectures": {}}, r"architectures must be a list of names \(got \{\}\)"),
    ({"use_cache": {}}, r"config.json that cannot be used: .*'use_cache' expected bool, got dict"),
    ({"vocab_size": 1_000}, r"holds lm_head.weight as 320 x 32; by its config.json it is 1,000 x 32"),
    ({"vocab_size": 10**9}, r"has 39,072 numbers in its files; its config.json asks for 64,000,\d+,\d+"),
]


@pytest.mark.parametrize(("changes", "words"), CONFIGS, ids=lambda each: json.dumps(each)[:40])
def test_a_value_of_config_json_is_refused_by_name(pool, folder, changes, words):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(SpecvizError, match=f"^my-model .*{words}"):
        pool.load(str(folder))


def test_a_padding_token_beyond_the_rows_stops_no_model_that_runs_with_it(pool, tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("gpt2", vocab_size=len(tokenizer), pad_token_id=len(tokenizer))
    folder = tiny_folder(tmp_path / "my-model", model, tokenizer)
    assert json.loads((folder / "config.json").read_text())["pad_token_id"] == len(tokenizer)
    assert pool.load(str(folder)).name == "my-model"


HONEST = [
    LlamaConfig(num_hidden_layers=1_024),
    Qwen3MoeConfig(num_hidden_layers=128, num_experts=384),
    Mamba2Config(hidden_size=64, num_heads=2, n_groups=1, num_hidden_layers=2),  # the limit of its steps is infinite
]


@pytest.mark.parametrize("config", HONEST, ids=lambda config: config.model_type)
def test_the_largest_models_are_built_without_their_numbers(config):
    check_values(json.loads(config.to_json_string()), "my-model")
    model = build_without_numbers(lambda: AutoModelForCausalLM.from_config(config))
    assert len(model.get_decoder().layers) == config.num_hidden_layers


@pytest.fixture
def few_parts(monkeypatch):
    """A model may have no more than a thousand."""
    monkeypatch.setattr(meta_build, "MOST_PARTS", 1_000)


@pytest.mark.usefixtures("few_parts")
@pytest.mark.parametrize("part", [nn.Identity, lambda: nn.ParameterList([torch.zeros(1)])])
def test_a_model_of_endlessly_many_parts_is_not_built_to_its_end(part):
    built = nn.ModuleList()

    def make():
        for number in count():
            built.add_module(str(number), part())

    with pytest.raises(SpecvizError, match=r"config\.json asks for more than 1,000 modules"):
        build_without_numbers(make)
    assert len(built) <= 1_000


@pytest.mark.usefixtures("few_parts")
def test_only_the_parts_of_the_model_that_is_built_count():
    with ThreadPoolExecutor(1) as other:
        layer = build_without_numbers(
            lambda: other.submit(lambda: nn.ModuleList(nn.Identity() for _ in range(1_001))).result()
        )
    assert len(layer) == 1_001


@pytest.mark.parametrize("length", ["", "7", 0, -1, float("nan"), float("inf"), [], None, 10**30])
def test_a_tokenizers_own_length_counts_only_where_it_is_one(length):
    tokenizer, config = tiny_tokenizer(), BloomConfig()  # which names no length
    tokenizer.model_max_length = length
    assert context_limit(config, tokenizer) == 2_048
    tokenizer.model_max_length = 77
    assert context_limit(config, tokenizer) == 77


FILES = [
    ("config.json", "[]", "config.json that cannot be used"),
    ("config.json", "[" * 100_000, "config.json that cannot be used"),
    ("tokenizer.json", "{", "tokenizer that cannot be read: tokenizer.json is damaged"),
    ("tokenizer_config.json", '{"a":', "tokenizer that cannot be read: tokenizer_config.json is damaged"),
    (
        "tokenizer_config.json",
        '{"model_max_length": ""}',
        r"damaged tokenizer_config.json: model_max_length .* \(got ''\)",
    ),
    ("generation_config.json", '{"suppress_tokens": false}', "generation_config.json that cannot be used"),
    (INDEX, json.dumps({"weight_map": {"a": "n" * 300}}), rf"damaged {INDEX}: it must name files \(got \['nnn"),
    (INDEX, json.dumps({"weight_map": {"a": 7}}), rf"damaged {INDEX}: it must name files \(got \[7\]\)"),
    (INDEX, json.dumps({"weight_map": {}}), rf"damaged {INDEX}: it must name files \(got \[\]\)"),
    (INDEX, "[" * 100_000, f"damaged {INDEX}; fetch it again"),
]


@pytest.mark.parametrize(("file", "text", "words"), FILES, ids=lambda each: str(each)[:30])
def test_a_damaged_file_is_refused_by_name(pool, folder, file, text, words):
    (folder / file).write_text(text)
    with pytest.raises(SpecvizError, match=f"^my-model has a {words}"):
        pool.load(str(folder))
