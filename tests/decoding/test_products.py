"""Products of a few rows: the same numbers by rows and by columns; the model stays as it is."""

import pytest
import torch

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.forward import products
from specviz.decoding.forward.products import (
    BY_ROWS,
    MOST_ROWS,
    SHAPES,
    Products,
    measure,
    read_products,
    with_products,
)
from tests.helpers.tiny_models import tiny


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("out", "width"), [*SHAPES[:2], (5, 7)])
def test_columns_give_the_numbers_of_linear(out, width, bias):
    linear = torch.nn.Linear(width, out, bias)
    with torch.inference_mode():
        for num_rows in (1, 2, 3, MOST_ROWS, MOST_ROWS + 1):
            wide = torch.randn(1, num_rows, 2 * width)
            x = wide[..., ::2]  # rows that do not lie row by row
            torch.testing.assert_close(Products()(linear.weight, linear.bias, x), linear(x), rtol=1e-4, atol=1e-5)


def test_weights_that_are_no_plain_tensors_go_by_rows():
    """As quantised ones are, which say float32 of themselves."""

    class Wrapped(torch.Tensor):
        pass

    weight = torch.randn(4, 6).as_subclass(Wrapped)
    assert not Products().applies(weight)
    assert Products().applies(torch.nn.Parameter(torch.randn(4, 6)))


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


@pytest.mark.parametrize("change", ["in place", "another table", "other numbers"])
def test_a_changed_weight_changes_what_is_read(change):
    model = tiny("llama")
    lm = CachedLM(model, 64)
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
    assert str(BY_ROWS) == "columns 0 0 0"
    assert read_products(str(BY_ROWS)) == BY_ROWS


DAMAGED = [
    "",
    "columns 1 2",
    "columns 1 2 9",
    "columns a b c",
    "rows 1 2 3",
    "columns 1 2 3 0",
    "columns 1 2 3 compiled",
]


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_measurement_is_refused(text):
    with pytest.raises(ValueError):
        read_products(text)
