"""The library: what it loads, what it refuses and in which words, what it keeps in memory; check_pair."""

import gc
import json
import re
import threading
from pathlib import Path

import pytest
import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    BertConfig,
    BertForMaskedLM,
    DynamicCache,
    T5Config,
    T5ForConditionalGeneration,
)

import specviz
from specviz.decoding.forward.transformers_forward import asked_of
from specviz.errors import SpecvizError
from specviz.models import memory
from specviz.models.catalog import default_pair, resolve
from specviz.models.folder import check_kind
from specviz.models.pool import ModelPool, bytes_per_token, check_pair
from tests.helpers.tiny_classes import tiny_of
from tests.helpers.tiny_models import (
    CONTEXT_LIMIT,
    FAMILIES,
    tiny,
    tiny_folder,
    tiny_pair,
    tiny_tokenizer,
)

GB = 10**9


def loaded_pair(pool, **options):
    target, draft = tiny_pair(**options)
    return pool.load(target), pool.load(draft)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_supported_family_is_taken(pool, family):
    tokenizer = tiny_tokenizer()
    loaded = pool.load((tiny(family, vocab_size=len(tokenizer)), tokenizer))
    assert loaded.info.context_limit == CONTEXT_LIMIT
    assert loaded.info.vocab_size == len(tokenizer)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("rwkv", r"\(rwkv\) keeps a state outside transformers' cache, which cannot be undone"),
        ("mamba", "its numbers behind a cache are not those of the whole text"),  # it forgets the state
        ("jamba", "its numbers behind a cache are not those of the whole text"),
    ],
)
def test_a_state_that_cannot_be_followed_is_refused(pool, family, words):
    with pytest.raises(SpecvizError, match=words):
        pool.load((tiny(family), tiny_tokenizer()))


@pytest.mark.parametrize(
    ("family", "config", "words"),
    [
        ("llama", {"layer_types": ["indexed_attention"] * 2}, "has indexed attention, which specviz does not support"),
        ("gemma3n_text", {"num_kv_shared_layers": 2}, "is an assistant that reads the keys and values of"),
        ("llama", {"layer_types": ["heavily_compressed_attention"] * 2}, "keeps several tokens in one row"),
        ("llama", {"layer_types": ["slow_attention"] * 2}, "keeps a cache of a kind that specviz does not know"),
        ("rwkv", {}, "keeps a state outside transformers' cache"),
    ],
)
def test_a_refusal_names_what_the_layers_have(family, config, words):
    about = AutoConfig.for_model(family, num_hidden_layers=2, hidden_size=16, num_attention_heads=2)
    for name, value in config.items():
        setattr(about, name, value)
    with pytest.raises(SpecvizError, match=rf"own \({family}\) {words}"):
        check_kind(about, MODEL_FOR_CAUSAL_LM_MAPPING[type(about)], "own")


def scaled(kind, **rope):
    """A tiny model of 64 positions, pre-trained on 32, and its tokenizer."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = None
    original = {"original_max_position_embeddings": 32} if kind == "longrope" else {}  # Phi-3 reads the one outside
    rope |= {"rope_type": kind, "rope_theta": 1e4, "factor": 2.0, **original}
    options = {"max_position_embeddings": 64, "rope_parameters": rope, "eos_token_id": None, **original}
    return tiny("phi3" if kind == "longrope" else "llama", vocab_size=len(tokenizer), **options), tokenizer


LONGROPE = {"kind": "longrope", "short_factor": [1.0] * 4, "long_factor": [4.0, 5.0, 6.0, 7.0]}


@pytest.mark.parametrize(("rope", "limit"), [(LONGROPE, 32), ({"kind": "dynamic"}, 64)], ids=["longrope", "dynamic"])
def test_up_to_its_limit_a_model_of_scaled_positions_writes_its_own_text(pool, rope, limit):
    """Past LongRoPE's switch the text of a run with drafts was another than the target's own."""
    target = pool.load(scaled(**rope))
    assert target.info.context_limit == limit
    prompt = target.text.encode("Once upon a time")
    run = specviz.run(
        prompt, target=(target.model, target.tokenizer), method="early_exit", temperature=0.0, max_new_tokens=100
    )
    alone, reader = list(prompt), target.cached_lm()
    while len(alone) < limit:
        alone.append(int(reader.forward(alone)[-1].argmax()))
    assert [token.id for token in run.tokens] == alone[len(prompt) :]
    assert run.footer.reason == "context"


def test_why_a_model_reads_less_is_told(pool, tmp_path):
    told = []
    pool.load(str(tiny_folder(tmp_path / "long", *scaled(**LONGROPE))), lambda *news: told.append(news))
    words, done = told[-1]
    assert words.startswith("loaded long; it reads at most 32 tokens here, as LongRoPE uses other factors beyond; ")
    assert done == 1.0


def test_a_refused_folder_is_refused_before_its_weights_are_read(pool, tmp_path):
    place = tiny_folder(tmp_path / "ssm", tiny("rwkv"), tiny_tokenizer())
    (place / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(SpecvizError, match=r"ssm .rwkv. keeps a state"):
        pool.load(str(place))


def test_a_folder_loads_with_its_own_numbers(pool, folder):
    loaded = pool.load(str(folder))
    info = loaded.info
    assert (info.name, info.revision, info.dtype, info.device) == ("my-model", None, "float32", "cpu")
    assert info.num_parameters == sum(parameter.numel() for parameter in loaded.model.parameters())
    assert not loaded.model.training
    assert loaded.text.eos_ids == {loaded.tokenizer.eos_token_id}
    assert str(folder) not in json.dumps(info.to_dict())


def test_half_precision_files_load_as_float32_on_the_cpu(pool, tmp_path):
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer)).half()
    loaded = pool.load(str(tiny_folder(tmp_path / "half", model, tokenizer)))
    assert loaded.model.dtype == torch.float32
    assert torch.equal(loaded.model.lm_head.weight, model.lm_head.weight.float())


@pytest.mark.parametrize(
    ("capability", "dtype"), [((7, 5), torch.float32), ((8, 0), torch.bfloat16), ((12, 0), torch.bfloat16)]
)
def test_a_gpu_that_only_emulates_bfloat16_computes_in_float32(monkeypatch, capability, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda on: capability)
    assert memory.dtype(torch.device("cuda", 1)) == dtype


def test_the_number_format_can_be_set(pool, folder, monkeypatch):
    monkeypatch.setenv("SPECVIZ_DTYPE", "bfloat16")
    assert pool.load(str(folder)).info.dtype == "bfloat16"


def test_a_model_is_loaded_once_and_known_by_its_base_name(pool, folder):
    loaded = pool.load(str(folder))
    assert pool.load("my-model") is loaded
    assert pool.load(f"{folder}/../my-model") is loaded


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B", "owner/model", "fable-target"])
def test_a_name_that_is_no_folder_is_shown_whole(pool, name):
    assert pool.shown_name(name) == name


def test_where_only_the_catalogue_is_allowed_a_shown_name_tells_nothing_of_the_disk(folder, tmp_path):
    pool = ModelPool(allow_any=False)
    assert pool.shown_name(str(folder)) == folder.name
    assert pool.shown_name(str(tmp_path / "missing" / folder.name)) == folder.name


def test_a_link_to_a_loaded_folder_is_the_same_model(pool, folder, tmp_path):
    (tmp_path / "latest").symlink_to(folder)
    assert pool.load(str(tmp_path / "latest")) is pool.load(str(folder))


def test_two_folders_of_one_name_get_two_names(pool, folder, tmp_path):
    tokenizer = tiny_tokenizer()
    other = tiny_folder(tmp_path / "other" / "my-model", tiny("llama", vocab_size=len(tokenizer)), tokenizer)
    names = [pool.load(str(place)).name for place in (folder, other, folder)]
    assert names == ["my-model", "my-model (2)", "my-model"]
    assert pool.load("my-model (2)").info.name == "my-model (2)"


def tiny_model(**options):
    tokenizer = tiny_tokenizer()
    return tiny("llama", vocab_size=len(tokenizer), layers=1, **options), tokenizer


def test_a_name_never_comes_to_mean_another_model(tmp_path):
    """A run that names a model is asked again by that name, also when the model left the memory in between."""
    folders = [str(tiny_folder(tmp_path / str(seed) / "mine", *tiny_model(seed=seed))) for seed in range(2)]
    pool = room_for(1, folders[0])
    assert [pool.load(folder).info.name for folder in folders] == ["mine", "mine (2)"]
    assert pool.loaded_names() == ["mine (2)"]
    assert pool.shown_name(folders[0]) == "mine"


def test_a_folder_or_a_pair_never_takes_a_bundled_models_name(pool, tmp_path):
    """Its name would find the bundled model: wherever a run, a trace or a job is asked again."""
    model, tokenizer = tiny_model()
    place = tiny_folder(tmp_path / "fable-draft", model, tokenizer)
    from_folder = pool.load(str(place))
    assert pool.load(from_folder.name) is from_folder
    model.name_or_path = "somewhere/fable-draft"
    handed_over = pool.load((model, tokenizer))
    assert pool.load(handed_over.name) is handed_over
    assert {"fable-draft"}.isdisjoint({from_folder.name, handed_over.name, pool.shown_name(str(place))})


def test_a_folder_elsewhere_does_not_take_the_name_of_one_that_lies_here(pool, tmp_path, monkeypatch):
    here, there = (tiny_folder(tmp_path / where / "mine", *tiny_model()) for where in ("here", "there"))
    monkeypatch.chdir(here.parent)
    elsewhere, own = pool.load(str(there)), pool.load("mine")
    assert (own.name, elsewhere.name) == ("mine", "mine (folder)")
    assert own is not elsewhere


def test_a_pair_is_known_by_its_name(pool):
    target, draft = tiny_pair()
    first, second = pool.load(target), pool.load(draft)
    assert first.name != second.name
    assert pool.load(first.name).model is target[0]
    assert pool.load(target) is first


def test_threads_that_ask_at_once_share_one_load(pool, folder):
    found = []
    threads = [threading.Thread(target=lambda: found.append(pool.load(str(folder)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_progress_is_reported(pool, folder):
    messages = []
    loaded = pool.load(str(folder), on_progress=lambda message, fraction: messages.append((message, fraction)))
    assert messages == [("loading my-model", None), (f"loaded my-model; {loaded.proof.words()}", 1.0)]


def three_folders(tmp_path):
    tokenizer = tiny_tokenizer()
    places = [tmp_path / name for name in ("one", "two", "three")]
    return [str(tiny_folder(place, tiny("llama", vocab_size=len(tokenizer)), tokenizer)) for place in places]


def room_for(num_models, path):
    size = ModelPool(GB).load(path).model.get_memory_footprint()
    return ModelPool(int((num_models + 0.5) * size), allow_any=True)


def test_the_least_recently_used_model_makes_room(tmp_path):
    one, two, three = three_folders(tmp_path)
    pool = room_for(2, one)
    for path in (one, two, one, three):
        pool.load(path)
    assert pool.loaded_names() == ["one", "three"]
    assert pool.load("two").name == "two"


def test_a_model_in_use_is_never_evicted(tmp_path):
    one, two, three = three_folders(tmp_path)
    pool = room_for(2, one)
    used = pool.load(one).model
    for path in (two, three):
        pool.load(path)
    assert sorted(pool.loaded_names()) == ["one", "three"]
    assert pool.load("one").model is used


def test_what_does_not_fit_beside_the_models_in_use_is_refused(tmp_path):
    one, two, _ = three_folders(tmp_path)
    pool = room_for(1, one)
    used = pool.load(one)
    with pytest.raises(SpecvizError, match=r"two needs .* GB. Models may take .* SPECVIZ_MODEL_MEMORY_GB"):
        pool.load(two)
    del used
    assert pool.load(two).name == "two"


def test_a_pair_that_its_owner_dropped_makes_room(folder):
    model = tiny("llama", vocab_size=len(tiny_tokenizer()))
    pool = ModelPool(int(1.5 * model.get_memory_footprint()))
    name = pool.load((model, tiny_tokenizer())).name
    del model
    pool.load(str(folder))
    gc.collect()
    with pytest.raises(SpecvizError, match="no longer in memory: pass the model"):
        pool.load(name)


def test_damaged_files_are_named_without_the_path(pool, folder):
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:-100])
    with pytest.raises(SpecvizError, match="my-model could not be loaded: a weight file is damaged or incomplete"):
        pool.load(str(folder))
    (folder / "config.json").write_text("{")
    with pytest.raises(SpecvizError, match=r"my-model has a config.json that cannot be used") as caught:
        pool.load(str(folder))
    assert str(folder) not in str(caught.value)


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux tells what is mapped")
def test_no_file_of_a_loaded_model_stays_mapped(pool, folder):
    """So that one which is cut later ends no process."""
    held = pool.load(str(folder))
    assert str(folder) not in Path("/proc/self/maps").read_text()
    assert held


def test_missing_weights_are_refused_instead_of_made_up(pool, folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(SpecvizError, match="my-model lacks 9 of its weights"):
        pool.load(str(folder))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model_type": "nonesuch"}, "of the kind 'nonesuch', which this transformers does not know"),
        ({"model_type": "mine", "auto_map": {"AutoConfig": "m.C"}}, "needs its own program code"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "does not generate text"),
        ({"num_hidden_layers": 10**6}, r"at most 1,024 layers \('num_hidden_layers' is 1,000,000\)"),
        ({"text_config": {"num_hidden_layers": 10**6}}, "at most 1,024 layers"),
        ({"hidden_size": 10**15}, "impossible number .*: 'hidden_size' is 1e\\+15"),
        ({"sliding_window": float("inf")}, "impossible number .*: 'sliding_window' is inf"),
        ({"sliding_window": 1e300}, "impossible number .*: 'sliding_window' is 1e\\+300"),
        ({"rope_theta": float("nan")}, "impossible number .*: 'rope_theta' is nan"),
        ({"attn_implementation": "someone/kernels"}, "program code of others .*, which specviz never fetches"),
        ({"_attn_implementation": "someone/kernels"}, "which specviz never fetches"),
        ({"experts_implementation": "someone/kernels"}, "which specviz never fetches"),
    ],
)
def test_other_kinds_are_refused(pool, folder, change, words):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(SpecvizError, match=words):
        pool.load(str(folder))


def change_tokenizer(folder, change):
    file = folder / "tokenizer.json"
    parts = json.loads(file.read_text("utf-8"))
    change(parts)
    file.write_text(json.dumps(parts))


def test_a_vocabulary_with_an_absurd_id_is_refused(pool, folder):
    def number(parts):
        vocabulary = parts["model"]["vocab"]
        vocabulary[next(iter(vocabulary))] = 4_000_000_000

    change_tokenizer(folder, number)
    with pytest.raises(SpecvizError, match="at most 8,388,608 ids"):
        pool.load(str(folder))


DOUBLING = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BETWEEN = {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "xxxxxxxxxxxxxxxx"}
USUAL = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}


@pytest.mark.parametrize(("steps", "is_taken"), [([DOUBLING] * 40, False), ([BETWEEN] * 2, False), ([USUAL] * 4, True)])
def test_a_tokenizer_that_grows_texts_without_bound_is_refused(pool, folder, steps, is_taken):
    change_tokenizer(folder, lambda parts: parts.update(normalizer={"type": "Sequence", "normalizers": steps}))
    if is_taken:
        assert pool.load(str(folder))
    else:
        with pytest.raises(SpecvizError, match="times as long"):
            pool.load(str(folder))


def test_encoder_decoder_and_encoder_models_are_refused(pool, tmp_path):
    small = {"num_layers": 1, "d_model": 8, "d_ff": 8, "d_kv": 4, "num_heads": 2, "vocab_size": 320}
    place = tiny_folder(tmp_path / "t5", T5ForConditionalGeneration(T5Config(**small)), tiny_tokenizer())
    with pytest.raises(SpecvizError, match="t5 is an encoder-decoder model"):
        pool.load(str(place))
    small = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 2}
    place = tiny_folder(tmp_path / "bert", BertForMaskedLM(BertConfig(vocab_size=320, **small)), tiny_tokenizer())
    with pytest.raises(SpecvizError, match=r"bert does not generate text .BertForMaskedLM"):
        pool.load(str(place))


def test_out_of_memory_is_said(pool, folder, monkeypatch):
    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("specviz.models.folder.AutoModelForCausalLM.from_pretrained", fail)
    with pytest.raises(SpecvizError, match=r"my-model could .* its weights take \S+ GB; choose a smaller"):
        pool.load(str(folder))


@pytest.mark.parametrize(("family", "heads"), [*((family, 4) for family in FAMILIES), ("llama", 2), ("gemma2", 1)])
def test_the_bytes_of_a_token_are_those_that_its_cache_takes(family, heads):
    assert_takes_its_bytes(tiny(family, num_key_value_heads=heads))


def test_the_bytes_of_a_token_are_summed_over_layers_of_different_sizes():
    assert_takes_its_bytes(tiny_of("gemma4_text"))


def assert_takes_its_bytes(model):
    cache = DynamicCache()
    model(torch.arange(3, 10)[None], **asked_of(model, cache))
    held = sum(rows.nbytes for layer in cache.layers for rows in (layer.keys, layer.values))
    assert bytes_per_token(model) == held / 7


def test_what_a_model_takes_is_said_in_words(pool):
    loaded, _ = loaded_pair(pool)
    assert re.fullmatch(r"\S+ takes \S+ GB and \S+ GB more for 100 tokens", loaded.memory_words(100))


def test_a_pair_of_one_vocabulary_passes(pool):
    check_pair(*loaded_pair(pool))


def test_padding_of_the_models_tables_passes(pool):
    target, draft = loaded_pair(pool, padding=13)
    assert target.info.vocab_size == draft.info.vocab_size + 13
    check_pair(target, draft)


def test_a_vocabulary_that_only_goes_on_longer_passes(pool):
    tokenizer, longer = tiny_tokenizer(), tiny_tokenizer()
    longer.add_tokens(["<think>"])
    pair = [pool.load((tiny("llama", vocab_size=len(tok)), tok)) for tok in (longer, tokenizer)]
    check_pair(*pair)
    check_pair(*reversed(pair))


def test_a_mismatch_is_refused_with_the_first_ids_and_both_texts(pool):
    plain, swapped = tiny_tokenizer(), tiny_tokenizer(swap=(280, 290))
    target = pool.load((tiny("llama", vocab_size=len(plain)), plain))
    draft = pool.load((tiny("llama", vocab_size=len(plain)), swapped))
    first, second = target.text.label(280), target.text.label(290)
    with pytest.raises(SpecvizError) as caught:
        check_pair(target, draft)
    message = str(caught.value)
    assert f"id 280: {first!r} and {second!r}; id 290: {second!r} and {first!r}" in message
    assert "Choose a draft model of the target's own family" in message


def test_the_bundled_pair_loads_and_shares_its_vocabulary(pool):
    target, draft = default_pair()
    if not (resolve(target) / "config.json").is_file():
        pytest.skip("the bundled models are not in the assets folder")
    check_pair(pool.load(target), pool.load(draft))
