"""Laws of weights in fewer bits and of several devices: what a name asks for, what is held, what is said of it.

The libraries that quantise are not needed to run specviz: laws of their weights are tested where they are installed.
"""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import EMPTY, ROOT, Draft
from specviz.errors import SpecvizError
from specviz.models import catalog
from specviz.models import folder as folders
from specviz.models import memory as machine
from specviz.models import quantisation as quantised
from specviz.models.pool import ModelPool, _Entry
from specviz.request import Request
from specviz.session.run import open_run
from specviz.session.workbench import Workbench
from tests.helpers.runs import finish, greedy, probabilities
from tests.helpers.tiny_models import tiny, tiny_folder, tiny_tokenizer

WIDE = 64
IDS = list(range(3, 43))
FORMATS = [("int8", "torchao"), ("int8", "bitsandbytes"), ("int4", "bitsandbytes")]


def needs(pool):
    lacking = [package for package in quantised.READERS[pool] if not quantised.is_installed(package)]
    return pytest.mark.skipif(bool(lacking), reason=f"{' and '.join(lacking)} not installed here")


EVERY_FORMAT = [pytest.param(*pair, marks=needs(pair[1]), id=" by ".join(pair)) for pair in FORMATS]
ONE_FORMAT = EVERY_FORMAT[2]


@pytest.fixture
def plain(tmp_path):
    """A folder with a model wide enough that its weights outweigh its tables."""
    tokenizer = tiny_tokenizer()
    model = tiny("llama", vocab_size=len(tokenizer), hidden=WIDE, layers=3, initializer_range=0.05)
    return tiny_folder(tmp_path / "wide", model, tokenizer)


@pytest.fixture
def only(monkeypatch):
    """Makes one library alone seem installed."""

    def choose(*libraries):
        allowed = {package for pool in libraries for package in quantised.READERS[pool]}
        monkeypatch.setattr(quantised, "is_installed", lambda package: package in allowed)

    return choose


@pytest.fixture
def held(plain, pool, only):
    """Loads the folder in the format that a test asks for, by the library that it asks for."""

    def load(bits, by):
        only(by)
        return pool.load(f"{plain}:{bits}")

    return load


# Names


@pytest.mark.parametrize(
    ("wanted", "parts"),
    [
        ("owner/model:int8", ("owner/model", "int8")),
        ("fable-target:int4", ("fable-target", "int4")),
        ("smollm2:bfloat16", ("smollm2", "bfloat16")),
        ("owner/model", ("owner/model", None)),
        ("owner/model:int2", ("owner/model:int2", None)),
        ("C:models", ("C:models", None)),
        (":int8", (":int8", None)),
    ],
)
def test_only_the_endings_that_mean_a_format_are_taken_off(wanted, parts):
    assert quantised.split_format(wanted) == parts
    assert quantised.with_format(*parts) == wanted


def test_bfloat16_needs_no_library_and_stands_beside_the_same_model_in_float32(pool, plain, only):
    only()
    model, half = pool.load(str(plain)), pool.load(f"{plain}:bfloat16")
    assert (half.name, half.info.dtype, model.info.dtype) == ("wide:bfloat16", "bfloat16", "float32")
    for ours, theirs in zip(half.model.parameters(), model.model.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16())
    sizes = [sum(quantised.bytes_by_device(each.model).values()) for each in (half, model)]
    assert 0.4 < sizes[0] / sizes[1] < 0.6  # the angles of positions stay in float32


@pytest.mark.parametrize(
    ("dtype", "has_code", "gains"), [("auto", True, True), ("auto", False, False), ("bfloat16", True, False)]
)
def test_bfloat16_is_faster_where_compiled_code_reads_float32_now(monkeypatch, dtype, has_code, gains):
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this processor has no bfloat16")
    built = SimpleNamespace(found=(object() if has_code else None, ""))
    monkeypatch.setattr(machine.compiler, "build", lambda: built)
    monkeypatch.setenv("SPECVIZ_DEVICE", "cpu")
    monkeypatch.setenv("SPECVIZ_DTYPE", dtype)
    assert machine.gains_by_bfloat16() is gains


def test_a_shown_name_tells_the_format_and_nothing_of_the_disk(pool, plain):
    assert pool.shown_name(f"{plain}:int8") == "wide:int8"


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        ("int8", "`pip install torchao accelerate` or `pip install bitsandbytes accelerate`"),
        ("int4", "run `pip install bitsandbytes accelerate`, or name"),
    ],
)
def test_what_is_not_installed_is_named(pool, plain, only, bits, words):
    only()
    with pytest.raises(SpecvizError, match=f"wide:{bits} cannot be held in {bits} here: run") as caught:
        pool.load(f"{plain}:{bits}")
    assert words in str(caught.value)
    assert pool.load(str(plain)).info.dtype == "float32"


def test_a_format_that_only_the_other_library_makes_is_found_there(only):
    only("torchao", "bitsandbytes")
    assert [quantised.library_for(bits, "m") for bits in ("int8", "int4")] == ["torchao", "bitsandbytes"]
    only("bitsandbytes")
    assert quantised.library_for("int8", "m") == "bitsandbytes"


# Checkpoints that hold fewer bits already


def configured(folder, about):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": about}))


@pytest.mark.parametrize(
    ("about", "installed", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, (), "quantised by gptq: run `pip install gptqmodel optimum accelerate`"),
        ({"load_in_8bit": True}, (), "quantised by bitsandbytes: run `pip install bitsandbytes accelerate`"),
        ({"quant_method": "mxfp4"}, ("torchao",), "quantised by mxfp4, which specviz does not read; choose one by"),
        ({"quant_method": 7}, (), "quantised by 7, which specviz does not read"),
        ([1], (), "quantised by an unknown kind, which specviz does not read"),
    ],
)
def test_a_checkpoint_that_cannot_be_read_is_refused_before_its_weights(pool, plain, only, about, installed, words):
    configured(plain, about)
    (plain / "model.safetensors").write_bytes(b"damaged")
    only(*installed)
    with pytest.raises(SpecvizError, match=f"wide holds weights {words}"):
        pool.load(str(plain))


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "modules_to_not_convert": ["lm_head"]}
WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, "dynamic": False}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
}


@pytest.mark.parametrize(
    ("about", "scale_name", "by_row"),
    [
        pytest.param(FP8, "_scale_inv", False, marks=needs("fp8"), id="fp8"),
        pytest.param(COMPRESSED, "_scale", True, marks=needs("compressed-tensors"), id="compressed-tensors"),
    ],
)
def test_an_fp8_checkpoint_is_the_model_of_its_numbers(pool, plain, tmp_path, about, scale_name, by_row):
    state = load_file(plain / "model.safetensors")
    stored, exact = dict(state), tiny("llama", vocab_size=len(tiny_tokenizer()), hidden=WIDE, layers=3)
    for name in [name for name in state if name.endswith("_proj.weight")]:
        most = state[name].abs().amax(1, keepdim=True) if by_row else state[name].abs().max().reshape(1, 1)
        scale = most / 448
        stored |= {name: (state[name] / scale).to(torch.float8_e4m3fn), f"{name}{scale_name}": scale}
        state[name] = stored[name].float() * scale
    exact.load_state_dict(state)
    save_file(stored, plain / "model.safetensors", metadata={"format": "pt"})
    configured(plain, about)
    got = pool.load(str(plain))
    expected = exact.eval()(torch.tensor([IDS])).logits[0, -1:]
    torch.testing.assert_close(got.cached_lm().forward(IDS), expected, rtol=1e-4, atol=1e-5)


def test_memory_for_fp8_is_counted_as_it_will_be_held(tmp_path, monkeypatch):
    weight = torch.zeros(128, 128).to(torch.float8_e4m3fn)
    save_file({"a.weight": weight, "a.weight_scale_inv": torch.zeros(1, 1), "b.weight": weight.clone()}, tmp_path / "x")
    for has_gpu, expected in [(False, 4 * 128 * 128 + 4 + 128 * 128), (True, 2 * 128 * 128 + 4)]:
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert quantised.needed_bytes([tmp_path / "x"], torch.float32, None) == expected


@pytest.mark.parametrize(("bits", "by"), EVERY_FORMAT)
def test_a_saved_checkpoint_gives_the_same_rows(held, only, tmp_path, bits, by):
    loaded = held(bits, by)
    saved = tiny_folder(tmp_path / "saved", loaded.model, loaded.tokenizer)
    again = ModelPool(10**9).load(str(saved))
    assert again.info.dtype == f"float32, weights quantised ({by})"
    assert again.info.num_parameters == loaded.info.num_parameters
    expected, got = (probabilities(each.model, IDS) for each in (loaded, again))
    assert abs(expected - got).max() < 1e-5
    with pytest.raises(SpecvizError, match=f"saved:{bits} holds fewer bits already; name it without :{bits}"):
        ModelPool(10**9).load(f"{saved}:{bits}")


# Weights made smaller


@pytest.mark.parametrize(("bits", "by"), EVERY_FORMAT)
def test_a_smaller_model_is_near_the_whole_one_and_takes_less(held, pool, plain, bits, by):
    small, whole = held(bits, by), pool.load(str(plain))
    assert (small.name, whole.name) == (f"wide:{bits}", "wide")
    assert small.info.dtype == f"float32, weights {bits} ({by})"
    assert small.info.vocab_size == whole.info.vocab_size
    assert small.info.num_parameters == whole.info.num_parameters
    p, q = (probabilities(loaded.model, IDS) for loaded in (whole, small))
    overlap = (p * (p < q) + q * (p >= q)).sum(-1).mean()
    assert {"int8": 0.9, "int4": 0.6}[bits] < overlap < 1 - 1e-6
    sizes = [sum(quantised.bytes_by_device(loaded.model).values()) for loaded in (small, whole)]
    assert sizes[0] < {"int8": 0.6, "int4": 0.5}[bits] * sizes[1]


@pytest.mark.parametrize(("bits", "by"), EVERY_FORMAT)
def test_what_was_foreseen_is_what_is_held(held, pool, plain, bits, by):
    loaded = held(bits, by)
    foreseen = quantised.needed_bytes([plain / "model.safetensors"], torch.float32, bits)
    taken = sum(quantised.bytes_by_device(loaded.model).values())
    assert foreseen <= taken < 1.35 * foreseen  # scales, and the rounding of so small a model, come on top
    assert pool._used(torch.device("cpu")) == taken


@pytest.mark.parametrize(("bits", "by"), EVERY_FORMAT)
def test_rows_do_not_depend_on_what_is_read_beside_them(held, bits, by):
    """Otherwise the target has no p of its own, and no rule could keep it: bitsandbytes' default int8 fails this."""
    loaded = held(bits, by)
    lm = CachedLM(loaded.model, loaded.info.context_limit)
    whole = loaded.model(torch.tensor([IDS]), use_cache=False).logits[0]
    for length in (1, 2, 7, 8, 30):
        assert torch.allclose(lm.forward(IDS[:length])[0], whole[length - 1], atol=1e-4)


@pytest.mark.parametrize(("bits", "by"), EVERY_FORMAT)
def test_a_run_with_a_smaller_target_writes_what_it_alone_would(held, pool, plain, bits, by):
    target, draft = held(bits, by), pool.load(str(plain))
    request = Request(prompt="The fox said", target=target.name, draft=draft.name, temperature=0.0, max_new_tokens=24)
    recorded = finish(open_run(request, bench=Workbench(pool)))
    prompt = [token.id for token in recorded.header.prompt.tokens]
    written = [token.id for token in recorded.tokens]
    assert written == greedy(target.model, prompt, 24)[: len(written)]
    assert recorded.models[0].target.dtype == f"float32, weights {bits} ({by})"
    assert recorded.models[0].draft_model.dtype == "float32"


@pytest.mark.parametrize(("bits", "by"), [ONE_FORMAT])
def test_a_model_and_its_smaller_self_are_two_models(held, pool, plain, bits, by):
    small, whole = held(bits, by), pool.load(str(plain))
    assert small.model is not whole.model
    assert held(bits, by) is small
    assert pool.load(f"wide:{bits}") is small
    assert pool.loaded_names() == ["wide", f"wide:{bits}"]


@pytest.mark.parametrize(("bits", "by"), EVERY_FORMAT[:1])
def test_a_model_without_such_layers_is_refused_in_words(pool, tmp_path, only, bits, by):
    tokenizer = tiny_tokenizer()
    folder = tiny_folder(tmp_path / "old", tiny("gpt2", vocab_size=len(tokenizer), hidden=WIDE), tokenizer)
    only(by)
    with pytest.raises(SpecvizError, match="nothing in old:int8 can be held in int8; name it without :int8"):
        pool.load(f"{folder}:int8")


# What the headers tell


def test_needed_bytes_follow_from_names_shapes_and_formats(tmp_path):
    tensors = {
        "model.embed_tokens.weight": torch.zeros(10, 8),
        "model.layers.0.mlp.up_proj.weight": torch.zeros(16, 8),
        "model.layers.0.mlp.packed": torch.zeros(16, 8, dtype=torch.uint8),
        "model.norm.weight": torch.zeros(8),
        "lm_head.weight": torch.zeros(10, 8, dtype=torch.float16),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    files = [tmp_path / "model.safetensors"]
    assert quantised.needed_bytes(files, torch.float32, None) == 4 * (80 + 128 + 8 + 80) + 128
    assert quantised.needed_bytes(files, torch.bfloat16, None) == 2 * (80 + 128 + 8 + 80) + 128
    assert quantised.needed_bytes(files, torch.bfloat16, "int4") == 2 * (80 + 8 + 80) + 128 // 2 + 128 // 2


def test_plain_weights_take_what_torch_says():
    model = tiny("llama", tie_word_embeddings=True)
    assert quantised.bytes_by_device(model) == {torch.device("cpu"): model.get_memory_footprint()}
    assert quantised.number_format(model, None) == "float32"
    assert not quantised.is_quantised(model)


# Devices


CPU, FIRST, SECOND = torch.device("cpu"), torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture
def two_gpus(monkeypatch, plain):
    """A machine that seems to have two GPUs, each with room for three fifths of the model."""
    share = int(0.6 * quantised.needed_bytes([plain / "model.safetensors"], torch.float32, None))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda on: (7, 5))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(machine, "device_share", lambda on: share)
    monkeypatch.delenv("SPECVIZ_MODEL_MEMORY_GB", raising=False)
    return share


def told(monkeypatch, pool, name):
    """The options with which transformers would have read the model."""
    options = {}

    def note(folder, **given):
        options.update(given)
        raise ValueError("as far as this test goes")

    monkeypatch.setattr(folders.AutoModelForCausalLM, "from_pretrained", note)
    with pytest.raises(SpecvizError, match="as far as this test goes"):
        pool.load(name)
    return options


def test_a_model_too_large_for_one_gpu_is_spread_over_all(monkeypatch, two_gpus, plain, only):
    only("torchao")
    options = told(monkeypatch, ModelPool(), str(plain))
    assert (options["device_map"], options["max_memory"]) == ("auto", {0: two_gpus, 1: two_gpus})


def test_what_is_held_there_is_taken_off_the_room(two_gpus):
    pool = ModelPool()
    pool._entries["other"] = _Entry.__new__(_Entry)
    pool._entries["other"].sizes = {SECOND: 1000}
    pool._entries["other"]._model = pool._entries["other"].get = lambda: object()
    assert {home: pool._left(home) for home in (FIRST, SECOND)} == {FIRST: two_gpus, SECOND: two_gpus - 1000}


def test_spreading_needs_a_package_and_says_so(two_gpus, plain, only):
    only()
    with pytest.raises(SpecvizError, match=r"wide is too large for one GPU, .* over 2 needs accelerate"):
        ModelPool().load(str(plain))


def test_a_gpu_that_was_named_is_the_only_one(monkeypatch, two_gpus, plain):
    monkeypatch.setenv("SPECVIZ_DEVICE", "cuda:1")
    pool = ModelPool()
    assert pool.device == SECOND
    with pytest.raises(SpecvizError, match=r"wide needs .* GB. Models may take .* GB together"):
        pool.load(str(plain))


def test_a_model_that_fits_one_gpu_is_not_spread(monkeypatch, two_gpus, plain):
    monkeypatch.setattr(machine, "device_share", lambda on: 2 * two_gpus)
    assert "device_map" not in told(monkeypatch, ModelPool(), str(plain))


def test_draft_models_have_a_device_of_their_own(monkeypatch, two_gpus):
    assert ModelPool().draft_device == FIRST
    monkeypatch.setenv("SPECVIZ_DRAFT_DEVICE", "cpu")
    pool = ModelPool()
    assert (pool.device, pool.draft_device) == (FIRST, CPU)
    monkeypatch.setenv("SPECVIZ_DRAFT_DEVICE", "cuda:5")
    with pytest.raises(SpecvizError, match="SPECVIZ_DRAFT_DEVICE is cuda:5, but torch sees 2 CUDA devices"):
        ModelPool()
    monkeypatch.setenv("SPECVIZ_DRAFT_DEVICE", "gpu")
    with pytest.raises(SpecvizError, match="SPECVIZ_DRAFT_DEVICE must be auto, cpu, mps, cuda"):
        ModelPool()


def test_one_model_in_both_roles_is_loaded_once_on_one_device_and_twice_on_two(pool, folder, monkeypatch):
    assert pool.load(str(folder), as_draft=True) is pool.load(str(folder))
    pool.draft_device = torch.device("cpu", 0)  # another device in name, which is all that this machine has
    draft = pool.load("my-model", as_draft=True)
    assert draft is not pool.load("my-model")
    assert (draft.name, pool.load("my-model").name) == ("my-model", "my-model"), "a name means a model, wherever it is"


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_spread_model_gives_the_rows_that_it_gives_on_one_device(plain, monkeypatch):
    whole = ModelPool(10**9).load(str(plain))
    expected = probabilities(whole.model.float().cpu(), IDS)
    size = quantised.needed_bytes([plain / "model.safetensors"], torch.float32, None)
    monkeypatch.setattr(machine, "device_share", lambda on: math.ceil(0.8 * size))
    monkeypatch.setenv("SPECVIZ_DTYPE", "float32")
    spread = ModelPool().load(str(plain))
    assert spread.info.device == "cuda:0, cuda:1"
    lm = spread.cached_lm()
    rows = [lm.forward(IDS[:length])[0].softmax(-1).double().cpu().numpy() for length in range(1, len(IDS) + 1)]
    assert max(abs(row - expected[i]).max() for i, row in enumerate(rows)) < 1e-4


def test_rows_of_a_draft_come_over_in_one_transfer_and_nothing_else_changes(monkeypatch):
    row, wide = torch.rand(5), torch.rand(5).bfloat16()
    draft = Draft((1, 2, 3), (ROOT, ROOT, 0), (row, None, 2 * row), (wide, None, None), evidence={"k": 1})
    assert draft.on(CPU) is draft
    assert EMPTY.on(torch.device("meta")) is EMPTY
    moves, move = [], torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda rows, device: moves.append(rows) or move(rows, device))
    there = draft.on(torch.device("meta"))
    assert [place.device.type for place in (there.probs[0], there.probs[2], there.logits[0])] == ["meta"] * 3
    assert (there.tokens, there.parents, there.evidence) == (draft.tokens, draft.parents, draft.evidence)
    assert (there.probs[1], there.logits[1:]) == (None, (None, None))
    (sent,) = moves
    assert torch.equal(sent, torch.stack([row, 2 * row, wide.float()]))


@pytest.mark.parametrize(("kind", "offered"), [("medusa", ("fable-medusa",)), ("draft", "fable-draft")])
def test_what_suits_a_model_suits_its_smaller_self(kind, offered):
    names = catalog.names_for("fable-target:int8", kind)
    assert names == catalog.names_for("fable-target", kind)
    assert names == offered or offered in names
    assert catalog.drafts_for("fable-target:int2") == ()
