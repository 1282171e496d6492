"""The compact forward: transformers' numbers within 1e-4 for every architecture, and refusals in words."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specviz.decoding.cached_lm import PRODUCTS, CachedLM
from specviz.decoding.draft import Draft, chain
from specviz.decoding.draws import Seeded
from specviz.decoding.engine import Plan, speculate
from specviz.decoding.forward import replays
from specviz.decoding.forward.compact_forward import Compact
from specviz.decoding.forward.decoder_layers import BLOCK
from specviz.decoding.forward.transformers_forward import TransformersForward
from specviz.decoding.sampling import Sampling
from specviz.drafters.draft_model import ModelDrafter
from specviz.rules import RULES
from tests.helpers.compiled_code import compiled_products
from tests.helpers.tiny_models import tiny

COMPACT = "compact (not compiled: none was built)"
TREE = Draft((4, 6, 8, 10, 12, 14), (-1, -1, 0, 0, 1, 2), (None,) * 6)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
MODELS = {
    "llama": ("llama", {}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, tied, llama3 positions": ("llama", {"tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama, all heads alike": ("llama", {"num_key_value_heads": 4}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2, windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
    "gemma3, windows": ("gemma3_text", {}),
}
without_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
each_kind = pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("compact", "cpu"),
        ("compiled", "cpu"),
        pytest.param("compact", "cuda", marks=[pytest.mark.gpu, without_gpu]),
    ],
)
each_device = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, without_gpu])])


class Refusing:
    def __init__(self, *_):
        raise RuntimeError("operation not permitted when stream is capturing")


class Recording(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        out = operation(*args, **(kwargs or {}))
        self.made.append((operation, args, kwargs or {}, out))
        return out


class Recorded:
    """What a CUDA graph does, on the CPU: the same operations again, on the very tensors of the recording."""

    def __init__(self, read, inputs):
        self.inputs = [each.clone() for each in inputs]
        with Recording() as recording:
            self.outputs = read(*self.inputs)
        self.made = recording.made

    def __call__(self, inputs):
        for own, given in zip(self.inputs, inputs, strict=True):
            own.copy_(given)
        for operation, args, kwargs, out in self.made:
            taken = {storage(each) for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)}
            for old, new in zip(tree_leaves(out), tree_leaves(operation(*args, **kwargs)), strict=True):
                is_new = isinstance(old, torch.Tensor) and storage(old) not in taken  # neither a view nor in place
                if is_new and old.numel():
                    old.copy_(new)
        return [each.clone() for each in self.outputs]


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


@pytest.fixture
def on_cpu(monkeypatch):
    """Graphs that need no GPU."""

    def use(graph):
        monkeypatch.setattr(replays, "Graph", graph)
        monkeypatch.setattr(replays.Replays, "failure", "")
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: device)
        monkeypatch.setattr(torch.cuda, "default_stream", lambda device: device)

    return use


def model_of(name, **config):
    family, values = MODELS[name]
    model = tiny(family, max_position_embeddings=2048, hidden=64, head_dim=32, **values, **config)
    with torch.no_grad():
        for table in model.parameters():
            if table.dim() == 1:  # biases and the weights of norms
                table += 0.2 * torch.randn(table.shape, generator=torch.manual_seed(2))
    return model


def readers(model, kind="compact"):
    """The compact one, perhaps with compiled code, and transformers' as the oracle."""
    lm = CachedLM(model, 2048, compiled_products() if kind == "compiled" else PRODUCTS)
    assert lm.path.startswith(kind)
    return lm, CachedLM(model, 2048, forward=TransformersForward(model, PRODUCTS))


@each_kind
@pytest.mark.parametrize("name", MODELS)
def test_every_kind_of_step_has_transformers_numbers(name, kind, device):
    lm, oracle = readers(model_of(name).to(device), kind)
    layers = (0, 1, lm.num_layers, -1)
    lm.capture(layers)
    oracle.capture(layers)
    text = torch.randint(60, (BLOCK - 6,), generator=torch.manual_seed(1)).tolist()
    steps = [(text, Draft())]  # all at once
    steps += [([*text, 3], Draft()), ([*text, 3], chain([5, 7, 9, 11]))]  # one row, K + 1 rows
    steps += [([*text, 3, 5, 7, 2], TREE), ([*text, 3, 5, 7, 2, 4, 10, 14, 1], TREE)]  # a tree, gathered, past a block
    long = [*text, *text, *text, *text, *text]
    steps += [(long, TREE), ([*long, 6, 12, 9], chain([2, 3]))]  # a chain and a tree behind a thousand tokens
    for tokens, draft in steps:
        told, own = oracle.forward(tokens, draft), lm.forward(tokens, draft)
        torch.testing.assert_close(own, told, rtol=1e-4, atol=1e-4 * float(told.abs().max()))
        following = [*tokens, *draft.tokens[:1], 0]
        states = oracle.hidden(following)
        torch.testing.assert_close(lm.hidden(following), states, rtol=1e-3, atol=1e-4 * float(states.abs().max()))
    assert (lm.calls, lm.fed) == (oracle.calls, oracle.fed)


@each_kind
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", MODELS)
def test_numbers_of_16_bits_are_as_near_to_the_exact_ones_as_transformers(name, dtype, kind, device):
    """The exact ones: the same rounded weights, summed in float64."""
    if (kind, dtype) == ("compiled", torch.float16):
        pytest.skip("compiled code reads no float16")
    model = model_of(name).to(device, dtype)
    lm, oracle = readers(model, kind)
    exact = CachedLM(copy.deepcopy(model).double(), 2048)
    off = []
    for reader in (lm, oracle, exact):
        text = [*range(3, 40)]
        rows = [
            reader.forward(text, TREE),
            reader.forward([*text, 6, 12, 9]),
            reader.forward([*text, 6, 12, 9, 2], TREE),
        ]
        off.append(torch.cat(rows).double())
    mine, theirs = (float((each - off[2]).square().mean().sqrt()) for each in off[:2])
    assert mine <= 1.5 * theirs


QUICK = ("llama", "qwen2, windows", "gemma3, windows")
"""With whole texts in the quick suite: each kind of attention. Single steps are compared for all."""


@each_kind
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in MODELS]
)
def test_greedy_text_is_the_one_over_transformers(name, kind, device):
    target, small = model_of(name).to(device), model_of(name, layers=1).to(device)
    texts = []
    for lm, draft in zip(readers(target, kind), readers(small, kind), strict=True):
        plan = Plan(lm, ModelDrafter(draft), RULES["speculative_sampling"], Sampling(0.0), 4)
        steps = speculate([5, 9, 12, 7, 3], lambda plan=plan: plan, Seeded(0), max_new_tokens=32)
        texts.append([token for step in steps for token in step.tokens])
    assert texts[0] == texts[1]


@pytest.mark.gpu
@without_gpu
@pytest.mark.parametrize("name", ["llama", "gemma3, windows"])
def test_on_a_gpu_a_chain_a_tree_and_gathered_rows_never_synchronise(name):
    lm, _ = readers(model_of(name).cuda())
    text = [*range(3, 40)]
    lm.forward(text)
    torch.cuda.set_sync_debug_mode("error")
    try:
        lm.forward([*text, 3], chain([5, 7, 9, 11]))
        lm.forward([*text, 3, 5, 7, 2], TREE)
        lm.forward([*text, 3, 5, 7, 2, 4, 10, 14, 1], TREE)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_forwards_keep_no_weights_of_their_own():
    model = model_of("llama")
    kept = [value for value in vars(Compact(model, PRODUCTS)).values() if isinstance(value, torch.Tensor)]
    assert kept == []
    lm, _ = readers(model)
    lm.forward([3, 4, 5])
    rows = lm._forward._rows.rows
    assert rows.shape == (2, 2, 2, BLOCK, 32)  # keys and values, layers, heads, rows, width


@pytest.mark.parametrize("kind", ["compact", "compiled"])
@pytest.mark.parametrize("name", ["llama, biases", "qwen3"])
def test_a_reader_sees_every_table_that_is_put_in_place_of_another(name, kind):
    model = model_of(name)
    lm, _ = readers(model, kind)
    before = lm.forward([3, 4, 5])
    for each, table in list(model.named_parameters()):
        owner, _, last = each.rpartition(".")
        setattr(model.get_submodule(owner), last, torch.nn.Parameter(1.5 * table))
    told = CachedLM(model, 2048, forward=TransformersForward(model, PRODUCTS)).forward([3, 4, 6])
    lm.forward([0])  # what it has read with the tables of before is dropped
    torch.testing.assert_close(lm.forward([3, 4, 6]), told, rtol=1e-4, atol=1e-4 * float(told.abs().max()))
    assert not torch.equal(before, told)


def hooked(model):
    model.model.layers[1].register_forward_hook(lambda module, args, output: 2 * output)


def replaced(model):
    model.model.layers[0].mlp.down_proj = torch.nn.Sequential(model.model.layers[0].mlp.down_proj)


def otherwise(model):
    """A block that does more than its parts say."""
    block = type(model.model.layers[0].mlp)
    model.model.layers[0].mlp.__class__ = type(
        "Doubled", (block,), {"forward": lambda self, x: 2 * block.forward(self, x)}
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (hooked, "its modules have hooks"),
        (replaced, "its linear layers are of a different kind"),
        (lambda model: model.double(), "not written for float64"),
        (lambda model: model.model.norm.bfloat16(), "its weights are of several formats or on several devices"),
        (otherwise, "the compact one is off by "),
        (lambda model: otherwise(model.bfloat16()), "the compact one is off by "),
    ],
)
def test_what_it_cannot_read_is_read_by_transformers_and_says_why(change, why):
    model = tiny("llama")
    assert CachedLM(model, 64).path == COMPACT
    change(model)
    lm = CachedLM(model, 64)
    assert lm.path.startswith(f"transformers ({why}")
    if len({weight.dtype for weight in model.parameters()}) == 1:
        with torch.inference_mode():
            told = model(torch.tensor([[3, 4, 5]])).logits[0, -1]
        torch.testing.assert_close(lm.forward([3, 4, 5])[0], told)


def test_damaged_weights_are_not_proved():
    model = tiny("llama")
    with torch.no_grad():
        model.lm_head.weight[3] = float("nan")
    assert CachedLM(model, 64).path == "transformers (some of its logits are not numbers)"


@each_device
@pytest.mark.parametrize("name", QUICK)
def test_replays_follow_the_text_the_rows_and_the_weights(name, device, on_cpu):
    """Calls of few shapes at many lengths, through a growing store, with weights changed in place and put in place."""
    if device == "cpu":
        on_cpu(Recorded)
    model = model_of(name).to(device)
    lm = CachedLM(model, 2048, forward=Compact(model, PRODUCTS, True))
    oracle = CachedLM(model, 2048, forward=TransformersForward(model, PRODUCTS))
    for reader in (lm, oracle):
        reader.capture((1, -1))
    tokens = torch.randint(60, (2 * BLOCK,), generator=torch.manual_seed(1)).tolist()
    for length in [*range(20, 32), *range(BLOCK - 4, BLOCK + 5)]:
        for draft in (Draft(), chain([5, 7, 9]), TREE):
            told, own = oracle.forward(tokens[:length], draft), lm.forward(tokens[:length], draft)
            torch.testing.assert_close(own, told, rtol=1e-4, atol=1e-4 * float(told.abs().max()))
            following = tokens[: length + 1]
            torch.testing.assert_close(lm.hidden(following), oracle.hidden(following), rtol=1e-3, atol=1e-3)
        if length == 23:
            model.model.layers[0].mlp.up_proj.weight.data.mul_(1.1)
        if length == 27:
            model.lm_head.weight = torch.nn.Parameter(1.1 * model.lm_head.weight.detach())
    assert len(lm._forward._replays._graphs) == 3


def test_after_a_recording_that_failed_forwards_are_made_as_they_are(on_cpu):
    on_cpu(Refusing)
    model = model_of("llama")
    for _ in range(2):  # another reader tries no more
        lm, oracle = (CachedLM(model, 2048, forward=Compact(model, PRODUCTS, which)) for which in (True, False))
        tokens = [*range(3, 40)]
        for length in range(20, 26):
            told = oracle.forward(tokens[:length])
            torch.testing.assert_close(lm.forward(tokens[:length]), told, rtol=1e-4, atol=1e-4)
        assert lm.path == "compact"
        assert replays.Replays.failure == "RuntimeError: operation not permitted when stream is capturing"
