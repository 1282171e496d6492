"""What a damaged folder is refused with: the file, what stands there, and what may. One case for each kind."""

import json

import pytest
from tiny_models import tiny_tokenizer
from transformers import BloomConfig

from specviz.errors import SpecvizError
from specviz.models.folder import context_limit

INDEX = "model.safetensors.index.json"
SLIDING = {"model_type": "qwen3", "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}
CONFIGS = [
    ({"hidden_size": {"a": 1}}, r"damaged config.json: hidden_size must be a whole number from 1 \(got \{'a': 1\}\)"),
    ({"num_attention_heads": ["x"]}, r"num_attention_heads must be a whole number from 1 \(got \['x'\]\)"),
    ({"vocab_size": "320"}, r"vocab_size must be a whole number from 1 \(got '320'\)"),
    ({"head_dim": 0}, r"head_dim must be a whole number from 1 \(got 0\)"),
    ({"num_hidden_layers": 0}, r"num_hidden_layers must be a whole number from 1 \(got 0\)"),
    ({"num_hidden_layers": [1, 1]}, r"num_hidden_layers must be a whole number from 1 \(got \[1, 1\]\)"),
    ({"n_layer": 20_000}, r"at most 1,024 layers \(n_layer is 20,000\)"),
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
    ({"pad_token_id": 5_000}, r"pad_token_id must be below its vocab_size of 320 \(got 5,000\)"),
    ({"architectures": {}}, r"architectures must be a list of names \(got \{\}\)"),
    ({"use_cache": {}}, r"config.json that cannot be used: .*'use_cache' expected bool, got dict"),
    ({"vocab_size": 1_000}, r"holds lm_head.weight as 320 x 32; by its config.json it is 1,000 x 32"),
    ({"vocab_size": 10**9}, r"has 39,072 numbers in its files; its config.json asks for 64,000,\d+,\d+"),
]


@pytest.mark.parametrize(("changes", "words"), CONFIGS, ids=lambda each: json.dumps(each)[:40])
def test_a_value_of_config_json_is_refused_by_name(library, folder, changes, words):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(SpecvizError, match=f"^my-model .*{words}"):
        library.load(str(folder))


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
def test_a_damaged_file_is_refused_by_name(library, folder, file, text, words):
    (folder / file).write_text(text)
    with pytest.raises(SpecvizError, match=f"^my-model has a {words}"):
        library.load(str(folder))
