"""Products of a few rows: the same numbers by rows, by columns and with packed copies; the model stays as it is."""

import gc

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.draft import chain
from specviz.decoding.forward import products
from specviz.decoding.forward.products import (
    BY_ROWS,
    FORMATS,
    MORE,
    MOST_PACKED,
    MOST_ROWS,
    SHAPES,
    Products,
    measure,
    read_products,
    with_products,
)
from tests.helpers.tiny_models import tiny

PACKED = Products(packed=(frozenset(range(1, MORE + 1)),) * len(FORMATS) * len(SHAPES))
CLOSE = {torch.float32: (1e-4, 1e-5), torch.bfloat16: (2e-2, 2e-2)}
UNPACKED = "packed 0 0 0 0 0 0"
WHY = "this build of torch does not multiply with packed copies on this processor"
packs = pytest.mark.skipif(not all(map(products._can_pack, FORMATS)), reason=WHY)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "width"), [*SHAPES[:2], (5, 7)])
def test_columns_give_the_numbers_of_linear(out, width, bias):
    linear = torch.nn.Linear(width, out, bias)
    with torch.inference_mode():
        for num_rows in (1, 2, 3, MOST_ROWS, MOST_ROWS + 1):
            wide = torch.randn(1, num_rows, 2 * width)
            x = wide[..., ::2]  # rows that do not lie row by row
            torch.testing.assert_close(Products()(linear.weight, linear.bias, x), linear(x), rtol=1e-4, atol=1e-5)


@packs
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "width"), [*SHAPES, (5, 7)])
def test_packed_copies_give_the_numbers_of_linear(out, width, bias, dtype):
    linear = torch.nn.Linear(width, out, bias, dtype=dtype)
    rtol, atol = CLOSE[dtype]
    with torch.inference_mode():
        for num_rows in (1, 2, 5, MOST_ROWS, MORE, MOST_PACKED, MOST_PACKED + 1):
            x = torch.randn(1, num_rows, 2 * width, dtype=dtype)[..., ::2]
            torch.testing.assert_close(PACKED(linear.weight, linear.bias, x), linear(x), rtol=rtol, atol=atol)


@packs
def test_a_packed_copy_is_made_once_and_dies_with_its_weight():
    linear, x = torch.nn.Linear(8, 4), torch.randn(2, 8)
    with torch.inference_mode():
        PACKED(linear.weight, None, x)
        copy = products._copies[linear.weight]
        PACKED(linear.weight, None, x)
        assert products._copies[linear.weight] is copy
    number = len(products._copies)
    del linear, copy
    gc.collect()
    assert len(products._copies) < number


@packs
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_text_is_written_with_packed_copies_as_transformers_writes_it(dtype):
    model = tiny("llama", layers=3).to(dtype)
    assert all(map(PACKED._packed_rows, model.parameters(), [0] * len(list(model.parameters()))))
    lm, text = CachedLM(model, 256, PACKED), [3, 4, 5]
    own, expected = lm.forward(text, chain((6, 7, 8))), model(torch.tensor([[3, 4, 5, 6, 7, 8]])).logits[0, 2:]
    rtol, atol = CLOSE[dtype]
    torch.testing.assert_close(own, expected, rtol=rtol, atol=10 * atol)
    assert len(products._copies) >= 7 * 3
    if dtype == torch.float32:
        for _ in range(40):
            text.append(int(lm.forward(text)[0].argmax()))
        assert (
            text
            == model.generate(torch.tensor([[3, 4, 5]]), max_new_tokens=40, do_sample=False, eos_token_id=None)[
                0
            ].tolist()
        )


def test_large_weights_are_not_held_twice(monkeypatch):
    model = tiny("llama", tie_word_embeddings=True)
    layers = sum(each.weight.nbytes for each in model.modules() if type(each) is torch.nn.Linear)
    assert PACKED.packed_bytes(model) == layers
    assert PACKED.fitting(model) is PACKED
    monkeypatch.setattr(products, "MOST_BYTES", layers - 1)
    assert PACKED.fitting(model) == Products()
    assert BY_ROWS.packed_bytes(model) == Products().packed_bytes(model) == PACKED.packed_bytes(model.half()) == 0


def test_weights_that_are_no_plain_tensors_go_by_rows():
    """As quantised ones are, which say float32 of themselves."""

    class Wrapped(torch.Tensor):
        pass

    weight = torch.randn(4, 6).as_subclass(Wrapped)
    assert not PACKED.applies(weight)
    assert PACKED.applies(torch.nn.Parameter(torch.randn(4, 6)))


def test_other_number_formats_go_by_rows():
    linear = torch.nn.Linear(6, 4).double()
    x = torch.randn(3, 6, dtype=torch.float64)
    assert torch.equal(Products()(linear.weight, linear.bias, x), linear(x))
    model = tiny("llama").double()
    assert with_products(model, Products()) is model


def test_a_model_that_is_read_stays_as_it_is():
    model = tiny("llama")
    before = {name: (id(module), type(module), set(vars(module))) for name, module in model.named_modules()}
    tables = [table.data_ptr() for table in model.parameters()]
    lm = CachedLM(model, 64)
    lm.capture((0, 1))
    lm.forward([3, 4, 5])
    assert not any(module._forward_hooks for module in model.modules())
    assert before == {name: (id(each), type(each), set(vars(each))) for name, each in model.named_modules()}
    assert tables == [table.data_ptr() for table in model.parameters()]
    assert tables == [table.data_ptr() for table in with_products(model, Products()).parameters()]  # nothing is copied


@pytest.mark.parametrize("form", [Products(), pytest.param(PACKED, marks=packs)])
@pytest.mark.parametrize("change", ["in place", "another table", "other numbers"])
def test_a_changed_weight_changes_what_is_read(change, form):
    model = tiny("llama")
    lm = CachedLM(model, 64, form)
    before = lm.forward([3, 4, 5])
    with torch.no_grad():
        if change == "in place":
            model.lm_head.weight.mul_(2)
        elif change == "other numbers":
            model.lm_head.weight.data = 2 * model.lm_head.weight
        else:
            model.lm_head.weight = torch.nn.Parameter(2 * model.lm_head.weight)
    torch.testing.assert_close(lm.forward([3, 4, 5]), 2 * before)


def test_what_was_measured_is_written_and_read_as_it_is(monkeypatch):
    monkeypatch.setattr(products, "_QUIET", 0)
    random = torch.random.get_rng_state()
    found = measure()
    assert torch.equal(random, torch.random.get_rng_state())
    assert read_products(str(found)) == found
    assert str(BY_ROWS) == f"columns 0 0 0 {UNPACKED}"
    assert read_products(str(BY_ROWS)) == BY_ROWS
    assert read_products(str(PACKED)) == PACKED


DAMAGED = [
    "",
    "columns 1 2 3",
    "columns 1 2 9 U",
    "columns a b c U",
    "columns 1 2 U",
    "rows 1 2 3 U",
    "columns 1 2 3 U 0",
]


@pytest.mark.parametrize("text", [text.replace("U", UNPACKED) for text in DAMAGED])
def test_a_damaged_measurement_is_refused(text):
    with pytest.raises(ValueError):
        read_products(text)
