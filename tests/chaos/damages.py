"""Hostile model folders: seeded damage to the files of a tiny sound model. The same chance gives the same folder."""

from __future__ import annotations

import base64
import json
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

VALUES: tuple[Any, ...] = (
    0, -1, 1, 3, 1.5, 7_777, 20_000, 10**6, 10**9, 10**13, True, False, None, "", "x", "7", [], [1], ["x"], {},
    {"a": 1}, [[1]], float("nan"), float("inf"), "../../etc/passwd", "\x00", "n" * 300,
)  # fmt: skip
MORE_SETTINGS = (
    "num_experts", "num_labels", "text_config", "layer_types", "rope_parameters", "rope_scaling",
    "quantization_config",
    "sliding_window", "head_dim", "auto_map", "torch_dtype", "id2label", "attn_implementation", "pruned_heads",
    "n_positions", "num_layers", "is_encoder_decoder", "num_kv_shared_layers", "partial_rotary_factor",
)  # fmt: skip
KINDS = (
    "gpt2", "opt", "mistral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "mixtral", "gemma2", "gemma3",
    "gemma3_text", "phi3", "gpt_neox", "bloom", "falcon", "mamba", "deepseek_v3", "llama4", "gpt_oss", "t5", "bert",
    "olmo2", "cohere",
)  # fmt: skip
SHAPES: tuple[Any, ...] = ([], "x", 7, {}, None, [{}], {"model_type": "x"}, {"model_type": ["llama"]}, {"a": {"b": 1}})
EXPRESSIONS = (
    "(a|a)*$", "(.*)*x", "(\\p{L}+)+!", "(x+x+)+y", "((a{1000}){1000}){1000}", "(a?){60}a{60}", "(?=(.*)*z)", "[",
    "(?i",
    "\\p{Nothing}", "(\\s*)*\\S", "^(([a-z])+.)+[A-Z]([a-z])+$", "", "(?:(?:(?:.?)*)*)*!", "(a*)*b", "\\1(a)",
)  # fmt: skip
TEMPLATES: tuple[Any, ...] = (
    "{{ 9 ** (9 ** 9) }}", "{{ 2 ** 9999999999 }}", "{{ 'a' * 9999999999 }}", "{{ messages[9].content.x }}",
    "{% for",
    "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
    "{% endfor %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='abcdefgh') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}{{ n.x }}",
    "{% set n = namespace(x=9) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x }}",
    "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "{{ raise_exception('no') }}", "{{ 1 / 0 }}", "", 7, [],
    {}, True,
    "{{ 'x'|center(9999999999) }}", "{{ '%9999999999d'|format(1) }}", "{{ 'x'.ljust(9999999999) }}",
    "{% include 'x' %}",
    "{{ ''.__class__.__mro__ }}", "{{ lipsum(n=99999) }}", "{{ cycler.__init__.__globals__ }}", [{"name": "a"}],
    {"a": 1},
    [{"name": "default", "template": "{{ 9 ** (9 ** 9) }}"}], "{{" * 5_000, "{{ x }}" * 100_000,
    "{{ messages }}\ud800",
    "{{ (range(99999)|list|string) * 9999 }}", "{{ '" + "(" * 50 + "' }}", "{{ " + "(" * 900 + "1" + ")" * 900 + " }}",
)  # fmt: skip
NAMES_OF_CLASSES = (
    "LlamaTokenizer", "BertTokenizer", "GPT2Tokenizer", "T5Tokenizer", "XLNetTokenizer", "ByT5Tokenizer", "Nothing",
    "CodeGenTokenizer", "MBartTokenizer", "WhisperTokenizer", "PreTrainedTokenizerFast", "Qwen2Tokenizer", "",
)  # fmt: skip


def sound(folder: Path) -> Path:
    """A tiny model that works, with a chat template."""
    from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

    tokenizer = tiny_tokenizer(chat=True)
    return tiny_folder(folder, tiny("llama", vocab_size=len(tokenizer)), tokenizer)


def spoil(chance: Random, source: Path, folder: Path) -> str:
    """Copies the sound model to `folder` with one kind of damage; returns what was done, in a line."""
    shutil.copytree(source, folder)
    kind = chance.choice(list(DAMAGES))
    return f"{kind}: {DAMAGES[kind](chance, folder)}"


def _read(folder: Path, name: str) -> Any:
    file = folder / name
    return json.loads(file.read_text("utf-8")) if file.is_file() else {}


def _write(folder: Path, name: str, values: Any) -> str:
    text = json.dumps(values)
    (folder / name).write_text(text, "utf-8")
    return f"{name} {text[:200] if len(text) < 600 else ''}"


def _settings(chance: Random, folder: Path) -> str:
    values = _read(folder, "config.json")
    changed = {}
    for _ in range(chance.choice((1, 1, 1, 2))):
        changed[chance.choice([*values, *MORE_SETTINGS])] = chance.choice(VALUES)
    _write(folder, "config.json", values | changed)
    return json.dumps(changed)[:200]


def _sizes(chance: Random, folder: Path) -> str:
    values = _read(folder, "config.json")
    names = [name for name, value in values.items() if type(value) is int] + [
        "num_experts",
        "num_labels",
        "n_positions",
    ]
    changed = {chance.choice(names): chance.choice((0, -1, 999, 1_000, 20_000, 10**6, 10**8, 10**9, 10**12))}
    if chance.random() < 0.3:
        changed["model_type"] = chance.choice(KINDS)
    _write(folder, "config.json", values | changed)
    return json.dumps(changed)


def _kind(chance: Random, folder: Path) -> str:
    values = _read(folder, "config.json")
    changed: dict[str, Any] = {"model_type": chance.choice(KINDS)}
    if chance.random() < 0.5:
        changed["architectures"] = None
    if chance.random() < 0.5:
        changed["text_config"] = chance.choice(SHAPES)
    if chance.random() < 0.3:
        changed["layer_types"] = chance.choice(
            (["sliding_attention"] * 2, ["full_attention"], [], ["x", "y"], "full_attention", [1, 2], {}, [[]])
        )
    _write(folder, "config.json", values | changed)
    return json.dumps(changed)


def _layers(chance: Random, folder: Path) -> str:
    kinds = ("sliding_attention", "full_attention", "linear_attention", "chunked_attention", "x", "", 7, None, ["a"])
    changed: dict[str, Any] = {"layer_types": [chance.choice(kinds) for _ in range(chance.choice((0, 1, 2, 2, 2, 3)))]}
    if chance.random() < 0.5:
        changed["model_type"] = chance.choice(
            ("qwen3", "gemma2", "gemma3_text", "gpt_oss", "smollm3", "olmo3", "cohere2")
        )
    if chance.random() < 0.5:
        changed["sliding_window"] = chance.choice((None, 0, -1, "x", 10**9, [], 8))
    _write(folder, "config.json", _read(folder, "config.json") | changed)
    return json.dumps(changed)


def _expression(chance: Random, folder: Path) -> str:
    state = _read(folder, "tokenizer.json")
    pattern = {"Regex": chance.choice(EXPRESSIONS)}
    behavior = chance.choice(("Isolated", "Removed", "MergedWithNext", "Contiguous", "x"))
    split = {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": chance.random() < 0.3}
    place = chance.choice(("pre_tokenizer", "pre_tokenizer", "normalizer", "decoder"))
    if place == "pre_tokenizer":
        state[place] = {"type": "Sequence", "pretokenizers": [split, state[place]]}
    else:
        state[place] = {"type": "Replace", "pattern": pattern, "content": chance.choice(("", "b", "\x00"))}
    _write(folder, "tokenizer.json", state)
    return json.dumps([place, pattern, behavior])


def _normalizer(chance: Random, folder: Path) -> str:
    state = _read(folder, "tokenizer.json")
    letters = chance.choice((1, 2, 9, 100, 10**4, 10**6))
    replace = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * letters}
    steps: tuple[Any, ...] = (
        replace,
        {"type": "Sequence", "normalizers": [replace] * chance.choice((2, 4, 30))},
        {"type": "Prepend", "prepend": "p" * letters},
        {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "a" * letters}, replace]},
        {"type": "Sequence", "normalizers": [{"type": name} for name in ("NFKD", "NFC", "StripAccents", "Lowercase")]},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": ""}, "content": "aa"}] * 30},
        {"type": "x"},
        [],
        {"type": "Strip", "strip_left": 7, "strip_right": None},
        {"type": "BertNormalizer"},
        {"type": "ByteLevel"},
    )
    state["normalizer"] = chance.choice(steps)
    _write(folder, "tokenizer.json", state)
    return json.dumps(state["normalizer"])[:120]


def _map(chance: Random, folder: Path) -> str:
    """A precompiled map of characters: the size of a search tree, the tree, the texts that it leads to."""
    state = _read(folder, "tokenizer.json")
    num_units = chance.choice((0, 1, 2, 256, 4_096))
    tree = b"".join(
        struct.pack("<I", chance.choice((0, 1, 0xFFFFFFFF, chance.getrandbits(32)))) for _ in range(num_units)
    )
    size = chance.choice((len(tree), len(tree), 0, 2, 0xFFFFFFFF, 4 * num_units + 4))
    table = struct.pack("<I", size) + tree + chance.choice((b"", b"a\0", b"\xff" * 9, b"abc", b"b\0" * 99))
    packed = chance.choice((base64.b64encode(table).decode(), base64.b64encode(table).decode(), "!", "", None, "AAAA"))
    state["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": packed}
    _write(folder, "tokenizer.json", state)
    return str(packed)[:60]


def _vocabulary(chance: Random, folder: Path) -> str:
    state = _read(folder, "tokenizer.json")
    model = state["model"]
    vocabulary, pieces = model["vocab"], list(model["vocab"])
    last = 1 + max(vocabulary.values())
    models: Mapping[str, Any] = {
        "a negative id": {**model, "vocab": vocabulary | {"zz": -1}},
        "an id beyond the rows": {**model, "vocab": vocabulary | {"zz": last + 900}},
        "an absurd id": {**model, "vocab": vocabulary | {"zz": 2**32 - 1}},
        "an id that is a text": {**model, "vocab": vocabulary | {"zz": "7"}},
        "no vocabulary": {**model, "vocab": {}},
        "half a vocabulary": {**model, "vocab": {piece: vocabulary[piece] for piece in pieces[::2]}},
        "one id for all": {**model, "vocab": dict.fromkeys(pieces, 0)},
        "no merges": {**model, "merges": []},
        "merges of nothing": {**model, "merges": [["q" * 9, "z"]]},
        "a merge of one": {**model, "merges": [["a"]]},
        "merges that are numbers": {**model, "merges": [[1, 2]]},
        "an unknown kind": {**model, "type": "x"},
        "word pieces": {"type": "WordPiece", "vocab": vocabulary, "unk_token": "x", "continuing_subword_prefix": "##",
                        "max_input_chars_per_word": 10**12},
        "words": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[nothing]"},
        "unigrams": {"type": "Unigram", "unk_id": 10**6, "vocab": [[piece, -1.0] for piece in pieces]},
        "unigrams without a chance": {"type": "Unigram", "unk_id": 0, "vocab": [[piece, -1e308] for piece in pieces]},
        "no unigrams": {"type": "Unigram", "unk_id": 0, "vocab": []},
        "unigrams that fall back to bytes": {"type": "Unigram", "unk_id": None, "byte_fallback": True,
                                             "vocab": [["a", 0.0]]},
        "dropout": {**model, "dropout": 1.0},
        "a wrong unknown token": {**model, "unk_token": "[nothing]", "byte_fallback": True, "vocab": {"a": 0},
                                  "merges": []},
    }  # fmt: skip
    name = chance.choice(list(models))
    state["model"] = models[name]
    _write(folder, "tokenizer.json", state)
    return name


def _added(chance: Random, folder: Path) -> str:
    state = _read(folder, "tokenizer.json")
    contents = ("", "a", "a" * 10**4, " ", "\x00", "\ud83d", 7, None, "<|end|>", "é")
    for _ in range(chance.choice((1, 1, 2, 3_000))):
        state["added_tokens"].append({
            "id": chance.choice((0, -1, 319, 320, 321, 5_000, 2**31, 2**32 - 1, 2**40, "x", chance.randrange(9_999))),
            "content": chance.choice(contents), "single_word": chance.random() < 0.5, "lstrip": chance.random() < 0.5,
            "rstrip": chance.random() < 0.5, "normalized": chance.random() < 0.5, "special": chance.random() < 0.5,
        })  # fmt: skip
    _write(folder, "tokenizer.json", state)
    return json.dumps([state["added_tokens"][-1], len(state["added_tokens"])])[:120]


def _steps(chance: Random, folder: Path) -> str:
    state = _read(folder, "tokenizer.json")
    deep: Any = {"type": "Fuse"}
    for _ in range(chance.choice((3, 50, 200))):
        deep = {"type": "Sequence", "decoders": [deep]}
    texts = {"A": {"id": "A", "ids": [10**6], "tokens": ["x"]}}
    changes: tuple[Mapping[str, Any], ...] = (
        {"padding": {"strategy": {"Fixed": 10**10}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "x"}},
        {"padding": {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 10**9, "pad_id": 0,
                     "pad_type_id": 0, "pad_token": "x"}},
        {"truncation": {"max_length": 2, "stride": 5, "strategy": "LongestFirst", "direction": "Right"}},
        {"truncation": {"max_length": 0, "stride": 0, "strategy": "OnlySecond", "direction": "Left"}},
        {"decoder": deep}, {"decoder": None}, {"decoder": {"type": "x"}}, {"decoder": []},
        {"decoder": {"type": "Strip", "content": "a", "start": 10**9, "stop": 10**9}},
        {"decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True}},
        {"decoder": {"type": "CTC", "pad_token": "a", "word_delimiter_token": "b", "cleanup": True}},
        {"decoder": {"type": "ByteFallback"}}, {"decoder": {"type": "BPEDecoder", "suffix": ""}},
        {"pre_tokenizer": None}, {"pre_tokenizer": {"type": "x"}},
        {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
        {"pre_tokenizer": {"type": "Metaspace", "replacement": "aa", "prepend_scheme": "always", "split": True}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "A", "type_id": 0}}],
                            "pair": [], "special_tokens": texts}},
        {"post_processor": {"type": "TemplateProcessing", "pair": [],
                            "single": [{"SpecialToken": {"id": "B", "type_id": 0}}] * 9_999,
                            "special_tokens": {"B": {"id": "B", "ids": [1] * 999, "tokens": ["x"] * 999}}}},
        {"post_processor": {"type": "RobertaProcessing", "sep": ["x", 10**6], "cls": ["y", 0], "trim_offsets": True,
                            "add_prefix_space": True}},
        {"post_processor": {"type": "x"}}, {"version": "9.0"}, {"model": None}, {"added_tokens": None},
    )  # fmt: skip
    change = chance.choice(changes)
    _write(folder, "tokenizer.json", state | change)
    return str(change)[:160]


def _bytes(chance: Random, folder: Path) -> str:
    """Some bytes of a file are others, or it ends early."""
    files = sorted(file for file in folder.iterdir() if file.is_file())
    file = chance.choice(files)
    content = bytearray(file.read_bytes())
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(min(len(content), 4_000))
        content[place : place + chance.randint(0, 3)] = bytes(chance.choices(b'0123456789.,:"{}[]-eE\\u\xff\x00 ', k=2))
    kind = chance.choice(("changed", "changed", "cut", "empty", "null", "deep", "long number"))
    others = {
        "cut": bytes(content[: chance.randrange(len(content))]), "empty": b"", "null": b"null", "deep": b"[" * 200_000,
        "long number": b'{"model_type":"llama","hidden_size":' + b"9" * 5_000 + b"}",
    }  # fmt: skip
    file.write_bytes(others.get(kind, bytes(content)))
    return f"{file.name} {kind}"


def _template(chance: Random, folder: Path) -> str:
    template = chance.choice(TEMPLATES)
    if isinstance(template, str) and chance.random() < 0.5:
        (folder / "chat_template.jinja").write_text(template, "utf-8", errors="replace")
    else:
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        _write(folder, "tokenizer_config.json", _read(folder, "tokenizer_config.json") | {"chat_template": template})
    return f"{template!a:.120}"


def _tokenizer_settings(chance: Random, folder: Path) -> str:
    values = _read(folder, "tokenizer_config.json")
    names = ("model_max_length", "tokenizer_class", "eos_token", "bos_token", "pad_token", "added_tokens_decoder",
             "extra_special_tokens", "additional_special_tokens", "add_bos_token", "auto_map", "padding_side",
             "truncation_side", "clean_up_tokenization_spaces", "model_input_names", "add_prefix_space", "unk_token",
             "split_special_tokens", "fix_mistral_regex", "tokenizer_file", "name_or_path", "backend",
             "legacy")  # fmt: skip
    changed = {chance.choice(names): chance.choice(VALUES) for _ in range(chance.choice((1, 1, 2)))}
    if chance.random() < 0.4:
        changed["tokenizer_class"] = chance.choice(NAMES_OF_CLASSES)
    if chance.random() < 0.2:
        token = {"content": chance.choice(("x", "", 7)), "lstrip": 1, "special": True}
        changed["added_tokens_decoder"] = {chance.choice(("0", "x", "-1", str(10**9), "400")): token}
    _write(folder, "tokenizer_config.json", values | changed)
    return json.dumps(changed)[:200]


def _ending(chance: Random, folder: Path) -> str:
    names = ("eos_token_id", "bos_token_id", "temperature", "top_k", "top_p", "max_length", "stop_strings", "num_beams",
             "bad_words_ids", "forced_eos_token_id", "suppress_tokens", "cache_implementation", "min_p")  # fmt: skip
    changed = {chance.choice(names): chance.choice((*VALUES, [10**9], [-1], [None], [[2]])) for _ in range(2)}
    _write(folder, "generation_config.json", _read(folder, "generation_config.json") | changed)
    return json.dumps(changed)[:200]


def _weights(chance: Random, folder: Path) -> str:
    file = folder / "model.safetensors"
    content = file.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header, rest = json.loads(content[8 : 8 + size]), content[8 + size :]
    name = chance.choice([key for key in header if key != "__metadata__"])
    changes: tuple[Any, ...] = (
        {"dtype": "F13"}, {"dtype": "I64"}, {"dtype": "BOOL"}, {"dtype": "F8_E4M3"}, {"shape": [-1]}, {"shape": []},
        {"shape": [10**9, 10**9]}, {"shape": [2**63, 4]}, {"data_offsets": [0, 10**12]}, {"data_offsets": [9, 1]},
        {"data_offsets": ["x"]}, None, "gone", "NaN", "huge header", "cut", "index",
    )  # fmt: skip
    change = chance.choice(changes)
    if isinstance(change, dict):
        header[name] |= change
    elif change is None:
        header[name] = None
    elif change == "gone":
        del header[name]
    elif change == "NaN":
        rest = struct.pack("<f", float("nan")) * (len(rest) // 4)
    packed = json.dumps(header).encode()
    length = struct.pack("<Q", 2**62 if change == "huge header" else len(packed))
    whole = length + packed + rest
    file.write_bytes(whole[: len(whole) // 2] if change == "cut" else whole)
    if change == "index":
        names: tuple[Any, ...] = ("n" * 300, "../x", "\x00", "", 7, None, "model.safetensors", "a/b", ["x"])
        shard = chance.choice(names)
        maps = chance.choice(({"weight_map": {name: shard}}, {"weight_map": [shard]}, [shard], {}, {"weight_map": {}}))
        return _write(folder, "model.safetensors.index.json", maps)
    return f"{name} {change}"


DAMAGES: Mapping[str, Callable[[Random, Path], str]] = {
    "settings": _settings, "sizes": _sizes, "kind": _kind, "layers": _layers, "expression": _expression,
    "normalizer": _normalizer, "map": _map, "vocabulary": _vocabulary, "added": _added, "steps": _steps,
    "bytes": _bytes, "template": _template, "tokenizer settings": _tokenizer_settings, "ending": _ending,
    "weights": _weights,
}  # fmt: skip
