"""Damaged or foreign files and texts that no model reads are refused by an Error in words, never by a wrong text."""

import json
import re
import struct
from pathlib import Path

import pytest
import torch

from tests.live.engine import TARGET, ask, asked_run, folder_of, runs
from tests.live.test_forward import made_up

NAME = "model.safetensors"


def packed(header, numbers, size=None):
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if size is None else size) + head + numbers


def header_of(raw):
    (size,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + size]), raw[8 + size :]


def changed(raw, **tensor):
    """The same file, whose header says something else of the embedding."""
    header, numbers = header_of(raw)
    header["model.embed_tokens.weight"] |= tensor
    return packed(header, numbers)


def without(raw, name):
    header, numbers = header_of(raw)
    del header[name]
    return packed(header, numbers)


DAMAGES = {
    "empty": lambda raw: b"",
    "shorter than its length": lambda raw: raw[:5],
    "ends in the header": lambda raw: raw[:100],
    "ends in the numbers": lambda raw: raw[:-10],
    "a header of any length": lambda raw: packed(b"", raw[8:], size=2**63),
    "a header that is no JSON": lambda raw: packed(b"{ 'a': }", raw),
    "a header that is a list": lambda raw: packed([], raw),
    "another number format": lambda raw: changed(raw, dtype="BF16"),
    "a format that no one has": lambda raw: changed(raw, dtype="constructor"),
    "a place beyond the end": lambda raw: changed(raw, data_offsets=[0, 10**9]),
    "a place that ends before it begins": lambda raw: changed(raw, data_offsets=[400, 0]),
    "a place of another size": lambda raw: changed(raw, data_offsets=[0, 400]),
    "a place of part of a number": lambda raw: changed(raw, data_offsets=[0, 401]),
    "a shape of another size": lambda raw: changed(raw, shape=[52, 48]),
    "no embedding": lambda raw: without(raw, "model.embed_tokens.weight"),
    "no last matrix": lambda raw: without(raw, "lm_head.weight"),
    "no matrix in a layer": lambda raw: without(raw, "model.layers.1.mlp.down_proj.weight"),
    "no scale in a layer": lambda raw: without(raw, "model.layers.0.input_layernorm.weight"),
}
FOREIGN = {
    "another family": {"model_type": "qwen2"},
    "an older family": {"model_type": "gpt2", "rope_parameters": None, "hidden_act": None},
    "another activation": {"hidden_act": "gelu"},
    "scaled positions": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0}},
    "a bias": {"attention_bias": True},
    "another layer": {"num_hidden_layers": 4},
    "a wider model": {"hidden_size": 48},
    "other heads": {"num_key_value_heads": 1},
    "a wider layer": {"intermediate_size": 96},
    "a side that the products cannot take": {"hidden_size": 26},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    made_up(folder, torch.float32)
    return folder


def copy_of(model, folder, file=None, config=None):
    raw, settings = (model / NAME).read_bytes(), json.loads((model / "config.json").read_text("utf-8"))
    folder.mkdir()
    (folder / NAME).write_bytes(file(raw) if file else raw)
    (folder / "config.json").write_text(json.dumps({**settings, **(config or {})}), "utf-8")
    return str(folder)


def check_words(names, refusals):
    """Words, of the engine's own: what JavaScript itself says of a slip has another kind of error."""
    said = dict(zip(names, refusals, strict=True))
    assert {name: refusal for name, refusal in said.items() if (refusal or {}).get("kind") != "Error"} == {}
    assert [each["words"] for each in refusals if not re.search(r"[a-z]+ [a-z]+ [a-z]+", each["words"])] == []


def test_damaged_weights_are_refused_in_words(model, tmp_path):
    folders = [copy_of(model, tmp_path / str(number), damage) for number, damage in enumerate(DAMAGES.values())]
    check_words(DAMAGES, ask("refusals", folders=folders))


def test_a_model_that_is_not_what_its_config_says_or_of_another_kind_is_refused_in_words(model, tmp_path):
    folders = [copy_of(model, tmp_path / str(number), config=config) for number, config in enumerate(FOREIGN.values())]
    check_words(FOREIGN, ask("refusals", folders=folders))


def tokenizer_file(**changes):
    file = json.loads((Path(folder_of(TARGET)) / "tokenizer.json").read_text("utf-8"))
    return {**file, **changes}


OWN = tokenizer_file()["pre_tokenizer"]
SPLIT, BYTES = OWN["pretokenizers"]
TOKENIZERS = {
    "no splitting": {"pre_tokenizer": None},
    "bytes alone": {"pre_tokenizer": BYTES},
    "split at spaces": {"pre_tokenizer": {"type": "Whitespace"}},
    "bytes first": {"pre_tokenizer": {**OWN, "pretokenizers": [BYTES, SPLIT]}},
    "split by a text": {"pre_tokenizer": {**OWN, "pretokenizers": [{**SPLIT, "pattern": {"String": " "}}, BYTES]}},
    "what is split off is removed": {
        "pre_tokenizer": {**OWN, "pretokenizers": [{**SPLIT, "behavior": "Removed"}, BYTES]}
    },
    "split twice": {"pre_tokenizer": {**OWN, "pretokenizers": [SPLIT, {**BYTES, "use_regex": True}]}},
    "a space first": {"pre_tokenizer": {**OWN, "pretokenizers": [SPLIT, {**BYTES, "add_prefix_space": True}]}},
    "another text first": {"normalizer": {"type": "NFC"}},
    "words": {"model": {"type": "WordPiece", "vocab": {}, "merges": []}},
}


def test_a_tokenizer_of_another_kind_is_refused_in_words():
    refusals = ask("refusals", tokenizers=[tokenizer_file(**each) for each in TOKENIZERS.values()])
    check_words(TOKENIZERS, refusals)


PROMPTS = {
    "empty": "",
    "half a character": "Once \ud83d upon",
    "other half": "\ude00",
    "too long": "<|endoftext|>" * 1_024,
}


def test_a_prompt_that_cannot_be_read_is_refused_in_words():
    check_words(PROMPTS, runs([asked_run(prompt) for prompt in PROMPTS.values()], "refusedRuns"))


@pytest.mark.parametrize("is_plain", [False, True], ids=["kernel", "plain"])
def test_a_pass_gives_no_more_logits_than_there_is_room_for(model, is_plain):
    """More would be written over the weights."""
    with pytest.raises(AssertionError, match=r"a pass gives at most 32 rows of logits \(got 33\)"):
        ask("logits", folder=str(model), isPlain=is_plain, asked=[(list(range(40)), 33)])


def test_what_is_whole_is_not_refused(model, tmp_path):
    answers = ask("refusals", folders=[copy_of(model, tmp_path / "whole")], tokenizers=[tokenizer_file()])
    assert answers == [None, None]
    assert runs([asked_run("👩‍👩‍👧‍👦", max_new_tokens=1)], "refusedRuns") == [None]
