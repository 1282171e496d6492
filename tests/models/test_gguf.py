"""GGUF files: read as the model that they hold; what lies is refused in words before memory is taken."""

import functools
import hashlib
import json
import struct
import sys
import tracemalloc
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import specviz
from specviz.errors import SpecvizError
from specviz.models.files.hub import find, ignore_progress
from specviz.models.gguf import convert, read_header
from specviz.models.pool import ModelPool
from tests.helpers.gguf_files import write_gguf
from tests.helpers.own_cache import own_cache
from tests.helpers.tiny_models import tiny, tiny_tokenizer

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


@pytest.fixture(scope="module")
def loaded_of(tmp_path_factory):
    """By a family's name: the loaded file, the file, and the model and the tokenizer that it was made of."""
    place = tmp_path_factory.mktemp("families")
    pool = ModelPool(10**9, allow_any=True)

    @functools.cache
    def load(family):
        file, model, tokenizer = made(place / family, family)
        return pool.load(str(file)), file, model, tokenizer

    with pytest.MonkeyPatch.context() as patch:
        own_cache(place, patch)
        yield load


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2"])
def test_a_file_is_the_model_that_it_was_made_of_within_its_rounding(family, loaded_of):
    loaded, _, model, tokenizer = loaded_of(family)
    ours = dict(loaded.model.named_parameters())
    for name, wanted in model.named_parameters():
        step = wanted.abs().max() / 127 if wanted.dim() > 1 else 0.0  # of Q8_0, at the most
        rounding = 2.0**-11 * (wanted.abs() + 1)  # of float16; gemma's norms are stored one higher
        assert ((ours[name] - wanted).abs() <= 0.51 * step + rounding).all(), name
    ids = torch.tensor([tokenizer.encode(TEXT)])
    assert (loaded.model(ids).logits - model(ids).logits).abs().max() < 0.05 * model(ids).logits.abs().max()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_its_tokenizer_end_and_chat_template_are_the_files_own(family, loaded_of):
    loaded, _, _, tokenizer = loaded_of(family)
    assert loaded.text.encode(TEXT) == tokenizer.encode(TEXT)
    assert loaded.text.eos_ids == {tokenizer.eos_token_id}
    assert loaded.tokenizer.chat_template == tokenizer.chat_template


def test_a_trace_knows_the_file_by_its_hash_and_the_format_of_its_weights(loaded_of):
    loaded, file, *_ = loaded_of("llama")
    info = loaded.info
    assert info.name == "tiny-Q8_0.gguf"
    assert info.revision == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert info.dtype == "float32, Q8_0, computed from its dequantised weights"


def test_it_is_converted_once_and_the_card_says_what_it_was(tmp_path, cache):
    file, *_ = made(tmp_path)
    folder = convert(file, "tiny", ignore_progress)
    assert folder.parent == cache
    assert folder.name.startswith("tiny-Q8_0-")
    assert list(cache.iterdir()) == [folder]  # nothing that was only needed on the way
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    card = (folder / "MODEL_CARD.md").read_text("utf-8")
    assert card == f"# tiny\n\nConverted from tiny-Q8_0.gguf, sha256 {sha256}, Q8_0. Stored in float16.\n"
    before = (folder / "model.safetensors").stat().st_mtime_ns
    assert convert(file, "tiny", ignore_progress) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_its_progress_is_told_and_transformers_prints_no_bar(tmp_path, capfd):
    file, *_ = made(tmp_path)
    told = []
    ModelPool(10**9, allow_any=True).load(str(file), lambda message, share: told.append((message, share)))
    shares = [share for message, share in told if message == "converting tiny-Q8_0.gguf"]
    assert shares[0] is None
    assert shares[1:] == sorted(shares[1:])
    assert shares[1] == 0
    assert shares[-1] > 0.9
    assert "GGUF tensors" not in capfd.readouterr().err


def test_nothing_that_lies_beside_a_file_is_read_and_no_code_of_it_runs(tmp_path, cache):
    file, _, tokenizer = made(tmp_path / "models")
    other = tiny_tokenizer()
    other.add_tokens(["Once upon"])
    other.save_pretrained(file.parent)
    settings = file.parent / "tokenizer_config.json"
    code = {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}, "tokenizer_class": "Evil"}
    settings.write_text(json.dumps(json.loads(settings.read_text("utf-8")) | code), "utf-8")
    (file.parent / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()", "utf-8")
    folder = convert(file, "it", ignore_progress)
    assert not (tmp_path / "ran").exists()
    own = AutoTokenizer.from_pretrained(folder)
    assert (own(TEXT).input_ids, own.chat_template) == (tokenizer(TEXT).input_ids, tokenizer.chat_template)
    assert list(cache.iterdir()) == [folder]


def test_where_links_are_not_allowed_a_copy_is_converted(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("a required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    file, *_ = made(tmp_path)
    assert (convert(file, "it", ignore_progress) / "model.safetensors").is_file()


@pytest.mark.parametrize("least", [None, 0.5], ids=["at the beginning", "halfway"])
def test_a_conversion_that_is_stopped_ends_at_once_and_leaves_nothing(tmp_path, cache, least):
    file, *_ = made(tmp_path)
    told = []

    def stop(message, share):
        told.append(share)
        if message.startswith("converting") and (least is None or (share or 0) >= least):
            raise SpecvizError("cancelled")

    with pytest.raises(SpecvizError, match="cancelled"):
        convert(file, "tiny", stop)
    assert told[-1] is None if least is None else told[-1] < least + 0.1
    assert list(cache.iterdir()) == []


def test_weights_beyond_float16_are_stored_in_bfloat16(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer))
    with torch.no_grad():
        model.model.norm.weight[0] = 1e6
    folder = convert(write_gguf(tmp_path / "wide.gguf", model, tokenizer), "wide", ignore_progress)
    assert "Stored in bfloat16." in (folder / "MODEL_CARD.md").read_text("utf-8")


def test_a_folder_with_one_file_and_a_hub_id_with_its_name_are_that_model(pool, tmp_path, monkeypatch):
    file, *_ = made(tmp_path / "owner")
    sha256 = pool.load(str(file)).info.revision
    assert pool.load(str(tmp_path / "owner")).info.revision == sha256
    asked = []
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download",
        lambda *names, **options: asked.append((*names, options["allow_patterns"])) or str(tmp_path / "owner"),
    )
    loaded = pool.load("owner/model-GGUF/tiny-Q8_0.gguf")
    assert (loaded.info.name, loaded.info.revision) == ("owner/model-GGUF/tiny-Q8_0.gguf", sha256)
    assert asked == [("owner/model-GGUF", ["tiny-Q8_0.gguf"])]


def test_weights_in_bfloat16_stay_what_they_are(tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer)).bfloat16()
    folder = convert(
        write_gguf(tmp_path / "b.gguf", model, tokenizer, form=gguf.GGMLQuantizationType.BF16), "b", ignore_progress
    )
    assert "BF16. Stored in bfloat16." in (folder / "MODEL_CARD.md").read_text("utf-8")
    kept = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
    assert all(torch.equal(kept[name], weights) for name, weights in model.state_dict().items())


def test_of_two_files_in_a_folder_one_must_be_named(pool, tmp_path):
    file, *_ = made(tmp_path / "two")
    file.with_name("other.gguf").write_bytes(file.read_bytes())
    with pytest.raises(SpecvizError, match=r"two holds 2 GGUF files: name one .other.gguf, tiny-Q8_0"):
        pool.load(str(tmp_path / "two"))


def test_it_runs_as_target_and_draft(tmp_path):
    file, *_ = made(tmp_path)
    trace = specviz.run("Once", target=str(file), draft=str(file), temperature=0, max_new_tokens=8)
    assert specviz.metrics(trace)["acceptance_rate_judged"] == 1.0


def test_a_part_of_a_split_model_is_refused_with_how_to_join_it(pool, tmp_path):
    file, *_ = made(tmp_path, split_count=3)
    with pytest.raises(
        SpecvizError, match=r"is one of 3 parts of a model: .*`llama-gguf-split --merge FIRST-PART NEW-FILE`"
    ):
        pool.load(str(file))


def patched(content, place, new):
    return content[:place] + new + content[place + len(new) :]


def after(content, text):
    """The place of what follows this text."""
    return content.index(text) + len(text)


def lies(file):
    """Words of the refusal -> the file's content with one lie."""
    content, header = file.read_bytes(), read_header(file, "it")
    dims = after(content, header.tensors[0].name.encode()) + 4
    length = after(content, b"tokenizer.ggml.token_type") + 8
    swapped = np.frombuffer(content[4:8], "<u4").byteswap().tobytes()
    return {
        "GGUF magic invalid": patched(content, 0, b"FUGG"),
        "version 99 which we cannot handle": patched(content, 4, struct.pack("<I", 99)),
        r"it continues to byte [\d,]+, but the file has": patched(content, 8, struct.pack("<Q", 1 << 40)),
        r"it continues to byte 1,152,921,504,606,84\d,\d+": patched(content, 24, struct.pack("<Q", 1 << 60)),
        r"it continues to byte [\d,]+, but the file has [\d,]+$": content[: header.data_offset + 64],
        r"it claims lists of 1,152,921,504,606,84\d,\d+ values; the limit is 2,000,000": patched(
            content, length, struct.pack("<Q", 1 << 60)
        ),
        "it continues to byte|cannot reshape": patched(content, dims, struct.pack("<Q", 1 << 50)),
        "it continues to byte 4, but the file has 2": b"GG",
        "it continues to byte": patched(content, 4, swapped),
        "cannot mmap an empty file": b"",
    }


def test_files_that_lie_are_refused_in_words_before_memory_is_taken(tmp_path):
    file, *_ = made(tmp_path)
    for number, (words, content) in enumerate(lies(file).items()):
        bad = tmp_path / f"bad-{number}.gguf"
        bad.write_bytes(content)
        tracemalloc.start()
        with pytest.raises(SpecvizError, match=f"bad is damaged or not a GGUF file: .*({words})"):
            convert(bad, "bad", ignore_progress)
        assert tracemalloc.get_traced_memory()[1] < FEW_BYTES, words
        tracemalloc.stop()


def test_a_list_within_the_file_that_no_vocabulary_has_is_refused(tmp_path):
    file, *_ = made(tmp_path)
    content = file.read_bytes()
    length = after(content, b"tokenizer.ggml.token_type") + 4
    file.write_bytes(patched(content, length, struct.pack("<IQ", 0, 2_000_001)) + bytes(2_000_001))
    with pytest.raises(SpecvizError, match=r"it claims lists of 2,000,\d+ values; the limit is 2,000,000"):
        read_header(file, "it")


def test_lists_that_are_short_alone_but_long_together_are_refused(tmp_path, monkeypatch):
    writer = gguf.GGUFWriter(str(tmp_path / "many.gguf"), "llama")
    for number in range(8):
        writer.add_array(f"list.{number}", list(range(100, 400)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    read_header(tmp_path / "many.gguf", "it")
    monkeypatch.setattr("specviz.models.gguf.MOST_VALUES", 2_000)
    with pytest.raises(SpecvizError, match="it claims lists of 2,100 values; the limit is 2,000"):
        read_header(tmp_path / "many.gguf", "it")


@pytest.mark.skipif(sys.byteorder != "little", reason="the made file is of the other order")
def test_a_file_of_the_other_byte_order_is_refused(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "big.gguf"), "llama", endianess=gguf.GGUFEndian.BIG)
    writer.add_tensor("a", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SpecvizError, match="in another machine's byte order"):
        read_header(tmp_path / "big.gguf", "it")


def test_tensors_over_each_other_would_take_more_than_the_file_has(tmp_path):
    file, *_ = made(tmp_path)
    content = bytearray(file.read_bytes())
    for tensor in read_header(file, "it").tensors:  # all at the beginning of the data
        name = struct.pack("<Q", len(tensor.name)) + tensor.name.encode()
        place = after(content, name) + 4 + 8 * len(tensor.shape) + 4
        content[place : place + 8] = struct.pack("<Q", 0)
    file.write_bytes(content)
    with pytest.raises(SpecvizError, match="its tensors overlap"):
        read_header(file, "it")


def test_what_transformers_would_make_another_model_of_is_refused_by_name(tmp_path):
    file, *_ = made(tmp_path / "a", arch="made-up")
    with pytest.raises(
        SpecvizError, match=r"it could not be converted: GGUF model with architecture made-up is not supported"
    ):
        convert(file, "it", ignore_progress)
    file, *_ = made(tmp_path / "b", rope_freqs__weight=np.ones(4, np.float32))
    with pytest.raises(SpecvizError, match=r"scales its positions by rope_freqs.weight, which transformers ignores"):
        convert(file, "it", ignore_progress)
    file, *_ = made(tmp_path / "d", rope_scaling=8.0)
    with pytest.raises(SpecvizError, match=r"scales its positions by llama.rope.scaling.factor, which transformers"):
        convert(file, "it", ignore_progress)
    file, *_ = made(tmp_path / "e", rope_scaling=1.0)
    convert(file, "it", ignore_progress)
    file, *_ = made(tmp_path / "c", blk__0__more__weight=np.ones(4, np.float32))
    with pytest.raises(SpecvizError, match=r"holds [\d,]+ weights; transformers would make a model of [\d,]+"):
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
        ModelPool(10**9, allow_any=False).load(str(file))
