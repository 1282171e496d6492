"""GGUF files: read as the model that they hold; what lies is refused in words before memory is taken."""

import hashlib
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf_files import write_gguf
from tiny_models import tiny, tiny_tokenizer

import specviz
from specviz.errors import SpecvizError
from specviz.models.gguf.convert import convert
from specviz.models.gguf.header import parts_of, read_headers
from specviz.models.hub import find, ignore_progress
from specviz.models.library import Library

FEW_BYTES = 8 << 20
TEXT = (
    "Once upon a time Tom has apples."  # no digits: transformers cuts them as the family does, whatever the file says
)

ALWAYS = {
    "qwen3": {"head_dim": 128},
    "gemma2": {"tie_word_embeddings": True, "query_pre_attn_scalar": 256},
}
"""What transformers takes for granted in these families, whatever a file says."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SPECVIZ_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def made(place, family="llama", **more):
    """A file, and the model and the tokenizer that it was made of."""
    place.mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer(chat=True)
    model = tiny(family, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **ALWAYS.get(family, {}))
    return write_gguf(place / "tiny-Q8_0.gguf", model, tokenizer, **more), model, tokenizer


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2"])
def test_a_file_is_the_model_that_it_was_made_of_within_its_rounding(family, library, tmp_path):
    file, model, tokenizer = made(tmp_path / "models", family)
    loaded = library.load(str(file))
    ours = dict(loaded.model.named_parameters())
    for name, wanted in model.named_parameters():
        step = wanted.abs().max() / 127 if wanted.dim() > 1 else 0.0  # of Q8_0, at the most
        rounding = 2.0**-11 * (wanted.abs() + 1)  # of float16; gemma's norms are stored one higher
        assert ((ours[name] - wanted).abs() <= 0.51 * step + rounding).all(), name
    ids = torch.tensor([tokenizer.encode(TEXT)])
    assert (loaded.model(ids).logits - model(ids).logits).abs().max() < 0.05 * model(ids).logits.abs().max()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_its_tokenizer_end_and_chat_template_are_the_files_own(family, library, tmp_path):
    file, _, tokenizer = made(tmp_path, family)
    loaded = library.load(str(file))
    assert loaded.text.encode(TEXT) == tokenizer.encode(TEXT)
    assert loaded.text.eos_ids == {tokenizer.eos_token_id}
    assert loaded.tokenizer.chat_template == tokenizer.chat_template


def test_a_trace_knows_the_file_by_its_hash_and_the_format_of_its_weights(library, tmp_path):

    file, *_ = made(tmp_path)
    info = library.load(str(file)).info
    assert info.name == "tiny-Q8_0.gguf"
    assert info.revision == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert info.dtype == "float32, Q8_0, computed from its dequantised weights"


def test_it_is_converted_once_and_the_card_says_what_was_lost(tmp_path, cache):
    file, *_ = made(tmp_path)
    told = []
    folder = convert(file, "tiny", lambda message, _: told.append(message))
    assert folder.parent == cache
    assert folder.name.startswith("tiny-Q8_0-")
    assert list(cache.iterdir()) == [folder]  # nothing that was only needed on the way
    assert "converting tiny" in told
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    assert "Stored in float16. A weight's rounding error, root mean square: " in card
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert(file, "tiny", ignore_progress) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_conversion_that_fails_leaves_nothing(tmp_path, cache):
    file, *_ = made(tmp_path)

    def stop(message, fraction):
        if message.startswith("converting"):
            raise SpecvizError("cancelled")

    with pytest.raises(SpecvizError, match="cancelled"):
        convert(file, "tiny", stop)
    assert list(cache.iterdir()) == []


def test_weights_beyond_float16_are_stored_in_bfloat16(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer))
    with torch.no_grad():
        model.model.norm.weight[0] = 1e6
    folder = convert(write_gguf(tmp_path / "wide.gguf", model, tokenizer), "wide", ignore_progress)
    assert "Stored in bfloat16." in (folder / "MODEL_CARD.md").read_text("utf-8")


def test_a_folder_with_one_file_and_a_hub_id_with_its_name_are_that_model(library, tmp_path, monkeypatch):
    file, *_ = made(tmp_path / "owner")
    sha256 = library.load(str(file)).info.revision
    assert library.load(str(tmp_path / "owner")).info.revision == sha256
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *names, **options: asked.append((*names, options["allow_patterns"])) or str(tmp_path / "owner"),
    )
    loaded = library.load("owner/model-GGUF/tiny-Q8_0.gguf")
    assert (loaded.info.name, loaded.info.revision) == ("owner/model-GGUF/tiny-Q8_0.gguf", sha256)
    assert asked == [("owner/model-GGUF", ["tiny-Q8_0.gguf"])]


def test_of_two_files_in_a_folder_one_must_be_named(library, tmp_path):
    file, *_ = made(tmp_path / "two")
    file.with_name("other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(SpecvizError, match=r"two holds 2 GGUF models: name the file of one .other.gguf, tiny-Q8_0"):
        library.load(str(tmp_path / "two"))


def test_it_runs_as_target_and_draft(tmp_path):
    file, *_ = made(tmp_path)
    trace = specviz.run("Once", target=str(file), draft=str(file), temperature=0, max_new_tokens=8)
    assert specviz.metrics(trace)["acceptance_rate_judged"] == 1.0


def split(file, place):
    """The file's tensors over two files, as llama.cpp's gguf-split names them."""
    (header,) = read_headers([file], "it")
    content, half = file.read_bytes(), len(header.tensors) // 2
    for number, tensors in enumerate((header.tensors[:half], header.tensors[half:]), 1):
        head = content[:8] + struct.pack("<Q", len(tensors)) + content[16 : header.settings_end]
        data = b""
        for tensor in tensors:
            name = tensor.name.encode()
            dims = struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
            head += struct.pack("<Q", len(name)) + name + dims + struct.pack("<IQ", tensor.kind, len(data))
            part = content[header.data_start + tensor.offset :][: tensor.num_bytes]
            data += part + bytes(-len(part) % 32)
        (place / f"tiny-{number:05}-of-00002.gguf").write_bytes(head + bytes(-len(head) % 32) + data)
    return [place / f"tiny-{number:05}-of-00002.gguf" for number in (1, 2)]


def test_a_split_model_is_the_whole_one(library, tmp_path):
    file, *_ = made(tmp_path / "whole")
    parts = split(file, tmp_path)
    whole, joined = (dict(library.load(str(each)).model.named_parameters()) for each in (file, parts[1]))
    assert all(torch.equal(joined[name], whole[name]) for name in whole)


def test_a_missing_part_is_named(library, tmp_path):
    file, *_ = made(tmp_path / "whole")
    first, second = split(file, tmp_path)
    second.unlink()
    with pytest.raises(SpecvizError, match=r"incomplete: 1 of 2 files are missing .'tiny-00002-of-00002.gguf'"):
        library.load(str(first))


def patched(content, place, new):
    return content[:place] + new + content[place + len(new) :]


def lies(file):
    """Words of the refusal -> the file's content with one lie."""
    (header,) = read_headers([file], "it")
    content, info = file.read_bytes(), len(header.tensors[-1].name) + 12
    first = content.index(header.tensors[0].name.encode()) + len(header.tensors[0].name) + 4
    last = header.data_start - (-info % 1)
    return {
        "must begin with the letters GGUF": patched(content, 0, b"FUGG"),
        r"its version must be 2 or 3 .got 99": patched(content, 4, struct.pack("<I", 99)),
        "it claims 1,099,511,627,776 tensors": patched(content, 8, struct.pack("<Q", 1 << 40)),
        r"its header goes on to byte 1,152,921,504,606,84\d,\d+": patched(content, 24, struct.pack("<Q", 1 << 60)),
        r"goes on to byte [\d,]+, and the file has": content[: last + 64],
        "is not made of blocks|goes on to byte|lie over each other": patched(
            content, first, struct.pack("<Q", 1 << 50)
        ),
        "and the file has 2": b"GG",
        "cannot mmap an empty file": b"",
    }


def test_files_that_lie_are_refused_in_words_before_memory_is_taken(tmp_path):
    file, *_ = made(tmp_path)
    for number, (words, content) in enumerate(lies(file).items()):
        bad = tmp_path / f"bad-{number}.gguf"
        bad.write_bytes(content)
        tracemalloc.start()
        with pytest.raises(SpecvizError, match=f"bad is a damaged GGUF file, or none: .*({words})"):
            convert(bad, "bad", ignore_progress)
        assert tracemalloc.get_traced_memory()[1] < FEW_BYTES, words
        tracemalloc.stop()


def test_tensors_over_each_other_would_take_more_than_the_file_has(tmp_path):
    file, *_ = made(tmp_path)
    (header,) = read_headers([file], "it")
    content = bytearray(file.read_bytes())
    for tensor in header.tensors:  # all at the beginning of the data
        place = content.index(struct.pack("<Q", len(tensor.name)) + tensor.name.encode())
        end = place + 8 + len(tensor.name) + 4 + 8 * len(tensor.dims) + 4
        content[end : end + 8] = struct.pack("<Q", 0)
    file.write_bytes(content)
    with pytest.raises(SpecvizError, match="lie over each other"):
        read_headers([file], "it")


def test_what_transformers_would_make_another_model_of_is_refused_by_name(tmp_path):
    file, *_ = made(tmp_path / "a", arch="made-up")
    with pytest.raises(SpecvizError, match=r"it is of the kind 'made-up'; transformers reads GGUF of .*llama"):
        convert(file, "it", ignore_progress)
    file, *_ = made(tmp_path / "b", rope_freqs__weight=np.ones(4, np.float32))
    with pytest.raises(SpecvizError, match=r"scales its positions by rope_freqs.weight, which transformers leaves out"):
        convert(file, "it", ignore_progress)
    file, *_ = made(tmp_path / "c", blk__0__more__weight=np.ones(4, np.float32))
    with pytest.raises(
        SpecvizError, match=r"holds [\d,]+ weights, and transformers would make a model of [\d,]+ of it"
    ):
        convert(file, "it", ignore_progress)


def test_a_file_that_claims_more_layers_than_it_has_tensors_builds_no_model(tmp_path):
    file, *_ = made(tmp_path)
    content, key = file.read_bytes(), b"llama.block_count"
    place = content.index(key) + len(key) + 4
    file.write_bytes(patched(content, place, struct.pack("<I", 1 << 30)))
    with pytest.raises(SpecvizError, match=r"it claims 1073741824 layers and holds \d+ tensors"):
        convert(file, "it", ignore_progress)


@pytest.mark.parametrize("name", ["owner/model/../x.gguf", "owner/model/x.gguf/y", "a.gguf"])
def test_what_names_no_file_is_refused(name):
    with pytest.raises(SpecvizError, match="there is no folder"):
        find(name, allow_any=True)


def test_a_server_of_its_own_models_opens_no_file(tmp_path):
    file, *_ = made(tmp_path)
    with pytest.raises(SpecvizError, match="offers only its own models"):
        Library(10**9, allow_any=False).load(str(file))


def test_parts_are_named_by_their_number():
    assert parts_of(Path("a.gguf")) == [Path("a.gguf")]
    assert [file.name for file in parts_of(Path("b-00002-of-00003.gguf"))] == [
        f"b-0000{number}-of-00003.gguf" for number in (1, 2, 3)
    ]
