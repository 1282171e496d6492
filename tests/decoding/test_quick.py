"""The compiled forward: what it refuses, its exits, threads and processors. test_compact compares its numbers, too."""

import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn.functional import linear
from torch.utils._pytree import tree_map

from specviz.decoding.cached_lm import PRODUCTS, CachedLM, prove_model
from specviz.decoding.draft import Draft, chain
from specviz.decoding.forward.compiled import Compiled
from specviz.decoding.forward.products import Products
from specviz.decoding.forward.proof import Proof
from specviz.decoding.forward.transformers_forward import TransformersForward
from specviz.models import compiler
from tests.helpers.compiled_code import compiled_products
from tests.helpers.tiny_models import tiny

TREE = Draft((4, 6, 8, 10, 12, 14), (-1, -1, 0, 0, 1, 2), (None,) * 6)
TEXT = [*range(3, 60)]
WIDE = {"hidden": 64, "head_dim": 32}
CLOSE = {torch.float32: (1e-4, 1e-4), torch.bfloat16: (2e-2, 2e-2)}
PROCESSORS = ["-march=x86-64", "-march=haswell"]
"""What a compiler may take for the processor here; each has vectors of another length."""


class Elsewhere(torch.Tensor):
    """A tensor whose numbers lie in another one, as quantised weights do: its own address is 0."""

    @staticmethod
    def __new__(cls, numbers):
        return cls._make_wrapper_subclass(cls, numbers.shape, dtype=numbers.dtype)

    def __init__(self, numbers):
        self.numbers = numbers

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        args, kwargs = tree_map(lambda each: getattr(each, "numbers", each), (args, kwargs or {}))
        out = operation(*args, **kwargs)
        return cls(out) if operation is torch.ops.aten.detach.default else out


def wide(family="llama", **config):
    return tiny(family, **WIDE, **config)


def oracle_of(model):
    return CachedLM(model, 2048, forward=TransformersForward(model, PRODUCTS))


def assert_same(own, told):
    torch.testing.assert_close(own, told, rtol=1e-4, atol=1e-4 * float(told.abs().max()))


def compare_texts(lm, oracle):
    """Compares rows behind texts that grow, with chains, trees and gathered rows between."""
    for tokens in (TEXT[:5], TEXT[:6], [*TEXT[:6], 4, 10, 14, 2], TEXT, [*TEXT, 7]):
        for draft in (Draft(), chain([5, 7, 9]), TREE):
            assert_same(lm.forward(tokens, draft), oracle.forward(tokens, draft))


def test_an_exit_reads_behind_the_rows_of_the_whole():
    model = wide(layers=4)
    lm = CachedLM(model, 256, compiled_products())
    oracle = oracle_of(model)
    assert lm.path == "compiled"
    for layers in ([0, 1], [0, 2, 3]):
        early, told = lm.exit(layers), oracle.exit(layers)
        for length in (6, 9, 40):
            lm.forward(TEXT[:length])
            oracle.forward(TEXT[:length])
            following = [*TEXT[:length], 3]
            assert_same(early.forward(following, chain([8, 2])), told.forward(following, chain([8, 2])))


def test_with_the_last_number_of_rows_that_it_takes_and_one_more():
    model = wide()
    lm = CachedLM(model, 256, compiled_products())
    oracle = oracle_of(model)
    lm._forward._quick.most_rows = 9
    for num_rows in (8, 9, 10):
        drafted = chain([3 + i % 50 for i in range(num_rows - 1)])
        assert_same(lm.forward([*TEXT, num_rows], drafted), oracle.forward([*TEXT, num_rows], drafted))


@pytest.mark.parametrize("num_threads", [2, 3, 7])
def test_any_number_of_threads_gives_the_same_numbers(num_threads):
    model = wide()
    lm = CachedLM(model, 256, compiled_products())
    oracle = oracle_of(model)
    torch.set_num_threads(num_threads)
    try:
        compare_texts(lm, oracle)
    finally:
        torch.set_num_threads(1)


def test_the_number_format_that_a_load_sets_for_the_whole_process_changes_nothing():
    """transformers sets torch's default format while it loads a model, and other threads read meanwhile."""
    model = wide()
    lm = CachedLM(model, 256, compiled_products())
    oracle = oracle_of(model)
    torch.set_default_dtype(torch.bfloat16)
    try:
        own = lm.forward(TEXT, TREE)
        with torch.inference_mode():
            product = compiled_products()(torch.ones(48, 32).float(), None, torch.ones(2, 32).float())
    finally:
        torch.set_default_dtype(torch.float32)
    assert own.dtype == product.dtype == torch.float32
    assert_same(own, oracle.forward(TEXT, TREE))


def test_readers_in_several_threads_do_not_meet():
    model = wide()
    readers = [(CachedLM(model, 256, compiled_products()), oracle_of(model)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: compare_texts(*pair), readers))


@pytest.mark.parametrize("flag", PROCESSORS)
def test_one_source_serves_processors_with_other_vectors(flag, tmp_path, monkeypatch):
    compiled_products()
    monkeypatch.setattr(compiler, "_flags", lambda: ("-std=c++17", "-O3", "-w", "-shared", "-fPIC", flag))
    build = compiler.Build(tmp_path)
    build.wait()
    if build.found[0] is None and "-march" in build.found[1]:
        pytest.skip(f"the compiler builds for no such processor: {build.found[1]}")
    products = Products(compiled=build.found[0])
    for family in ("llama", "gemma3_text"):
        model = wide(family)
        lm = CachedLM(model, 256, products)
        assert lm.path == "compiled"
        compare_texts(lm, oracle_of(model))


@pytest.mark.parametrize("dtype", CLOSE)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "width"), [(5, 32), (64, 96), (513, 192)])
def test_its_products_are_those_of_linear(out, width, bias, dtype):
    products = compiled_products()
    rtol, atol = CLOSE[dtype]
    layer = torch.nn.Linear(width, out, bias, dtype=dtype)
    with torch.inference_mode():
        for num_rows in (1, 2, 5, 7, 12, 24):
            x = torch.randn(1, num_rows, 2 * width, dtype=dtype)[..., ::2]  # rows that do not lie row by row
            assert products.compiled.can_multiply(layer.weight, layer.bias, x, num_rows)
            torch.testing.assert_close(products(layer.weight, layer.bias, x), layer(x), rtol=rtol, atol=atol)


@pytest.mark.parametrize("bias", [torch.ones(1), torch.randn(96)[::2], torch.ones(1).expand(48)])
def test_a_bias_that_lies_in_another_way_is_added_by_torch(bias):
    weight = torch.randn(48, 32)
    x = torch.randn(2, 32)
    with torch.inference_mode():
        assert_same(compiled_products()(weight, bias, x), linear(x, weight, bias))


@torch.inference_mode()
def test_every_nan_among_the_scores_stays_visible():
    """Also one whose lowest bits are set, of which arithmetic on bits could make a number."""
    model = wide(layers=1)
    lm = CachedLM(model, 256, compiled_products())
    lm.forward(TEXT[:9])
    for bits in (0x7FC00000, 0x7FFFFFFF, -1):
        keys, values = lm._forward._rows.rows[:, 0, :, 4]  # of one token
        keys.view(torch.int32).fill_(bits)
        values.fill_(0.5)
        assert lm.forward(TEXT[:10]).isnan().all()


def test_without_memory_it_raises():
    with pytest.raises(MemoryError, match="in compiled code"):
        compiled_products().compiled._product(False, None, None, 1, 2**61, None, 1, None, 1)


def test_what_is_to_be_trained_is_multiplied_by_torch():
    layer = torch.nn.Linear(32, 4)
    out = compiled_products()(layer.weight, layer.bias, torch.ones(2, 32))
    out.sum().backward()
    torch.testing.assert_close(layer.weight.grad, torch.full((4, 32), 2.0))


@pytest.mark.parametrize("change", [{}, {"transposed": True}, {"width": 48}, {"dtype": torch.float64}])
def test_other_tables_are_multiplied_as_linear_does(change):
    width = change.get("width", 32)
    weight = torch.randn(6, width, dtype=change.get("dtype", torch.float32))
    if "transposed" in change:
        weight = weight.t().contiguous().t()
    x = torch.randn(3, width, dtype=weight.dtype)
    with torch.inference_mode():
        torch.testing.assert_close(compiled_products()(weight, None, x), linear(x, weight), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: wide().half(), "not written for float16"),
        (lambda: tiny("llama", hidden=64, head_dim=8), "its width 8 is no multiple of 32"),
        (lambda: wide(intermediate_size=72), "its width 72 is no multiple of 32"),
        (lambda: wide(hidden_act="relu"), "not written for the activation ReLU"),
    ],
)
def test_what_it_is_not_written_for_is_read_by_compact_and_says_why(make, why):
    model = make()
    lm = CachedLM(model, 256, compiled_products())
    assert lm.path == f"compact (not compiled: {why})"
    rtol, atol = CLOSE.get(model.dtype, (2e-2, 2e-2))
    torch.testing.assert_close(lm.forward(TEXT), CachedLM(model, 256).forward(TEXT), rtol=rtol, atol=10 * atol)


@pytest.mark.parametrize("known", [Proof(), Proof(quick="it is being built")])
def test_a_proof_made_before_does_not_say_why_there_is_no_compiled_code_now(known):
    model = wide()
    products = Products(why_not_compiled="no C++ compiler was found")
    prove_model(model, 256, products, known)
    assert CachedLM(model, 256, products).path == "compact (not compiled: no C++ compiler was found)"


def test_a_model_without_layers_is_read_by_transformers():
    lm = CachedLM(wide(layers=0), 256, compiled_products())
    assert lm.path == "transformers (it has no layers)"
    assert_same(lm.forward(TEXT), oracle_of(lm.model).forward(TEXT))


def test_code_that_is_wrong_for_a_model_is_not_used():
    class Wrong(Compiled):
        def forward(self, *args):
            logits, states = super().forward(*args)
            return 1.1 * logits, states

    compiled_products()
    library = compiler.build()._path
    lm = CachedLM(wide(), 256, Products(compiled=Wrong(str(library))))
    assert lm.path.startswith("compact (not compiled: the compiled one is off by ")


def put(module, **tables):
    for name, table in tables.items():
        setattr(module, name, torch.nn.Parameter(table, requires_grad=False))


def transpose(module, copy=False):
    table = module.weight.data.t()
    module.weight.data = table.contiguous().t() if copy else table


@pytest.mark.parametrize(
    "change",
    [
        lambda model: transpose(model.lm_head, copy=True),
        lambda model: transpose(model.lm_head),  # square: it lies where it lay
        lambda model: put(model.lm_head, bias=torch.ones(1)),
        lambda model: put(model.lm_head, bias=torch.randn(128)[::2]),
        lambda model: put(model.lm_head, weight=Elsewhere(model.lm_head.weight.data)),
    ],
)
def test_a_table_that_no_longer_fits_is_read_by_compact(change):
    model = wide()
    lm = CachedLM(model, 256, compiled_products())
    lm.forward(TEXT[:9])
    change(model)
    assert_same(lm.forward(TEXT[:10]), oracle_of(model).forward(TEXT[:10]))


def test_a_table_that_is_replaced_during_a_call_lies_there_until_its_end():
    class Meanwhile(Compiled):
        def forward(self, *args):
            if self.model:
                before = weakref.ref(self.model.lm_head.weight)
                put(self.model.lm_head, weight=torch.zeros(64, 64))
                assert before() is not None
            return super().forward(*args)

    compiled_products()
    compiled = Meanwhile(str(compiler.build()._path))
    compiled.model = None
    model = wide()
    told = oracle_of(model).forward(TEXT[:9])
    lm = CachedLM(model, 256, Products(compiled=compiled))
    compiled.model = model
    assert_same(lm.forward(TEXT[:9]), told)


def test_tables_without_an_address_are_never_read():
    model = wide()
    put(model.model.layers[1].mlp.up_proj, weight=Elsewhere(model.model.layers[1].mlp.up_proj.weight.data))
    lm = CachedLM(model, 256, compiled_products())
    assert lm.path == "compact (not compiled: its tables are of a different kind)"
    assert_same(lm.forward(TEXT), oracle_of(model).forward(TEXT))


@pytest.mark.parametrize("change", [lambda model: model.bfloat16(), lambda model: model.double()])
def test_rows_of_one_format_are_not_read_in_another(change):
    model = wide()
    lm = CachedLM(model, 256, compiled_products())
    lm.forward(TEXT[:9])
    change(model)
    with pytest.raises(RuntimeError, match="same dtype"):
        lm.forward(TEXT[:10])


@pytest.mark.parametrize("layer", [3, -2])
def test_the_states_of_a_layer_that_is_not_there_are_refused(layer):
    lm = CachedLM(wide(layers=2), 256, compiled_products())
    lm.capture((1, layer))
    with pytest.raises(IndexError, match=r"must be from -1 to 2 \(got "):
        lm.forward(TEXT[:9])
