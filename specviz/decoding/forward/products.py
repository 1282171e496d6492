"""Products of a few rows with a weight matrix on the CPU: by rows (`linear`), by columns, or with a packed copy of the
weights, whichever is fastest.

`linear` is slow at 2 to 8 rows of float32: the same product with tokens as columns, W @ x.T, reads the weights once and
costs little more than one row. A copy in the blocks that oneDNN reads makes five rows of a large matrix as cheap as
one, and one row of bfloat16 twice as fast; it takes as much memory again. The forms add in another order, so which one
is taken is decided once for a machine (`measure`), kept, and told.
"""

from __future__ import annotations

import copy
import os
import time
from bisect import bisect_left
from dataclasses import dataclass, replace
from itertools import cycle
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.parametrize import is_parametrized
from torch.utils.weak import WeakTensorKeyDictionary

MOST_ROWS = 8  # by columns; beyond them `linear` is as fast
MOST_PACKED = 64
MORE = MOST_ROWS + 1  # stands for all numbers from here to MOST_PACKED
SHAPES = (
    (512, 192),
    (1536, 576),
    (4096, 1024),
)  # [out, in]: a matrix of each size class, the largest of 16 MB
FORMATS = (torch.float32, torch.bfloat16)
MOST_BYTES = 2**30  # of a model's packed copies: larger weights are not held twice
_LARGEST = SHAPES[-1][0] * SHAPES[-1][1]
_TURNS, _QUIET = (
    7,
    0.9,
)  # how often each form is timed; the share of the time that this thread must have run
_GAIN = 0.9  # a form gives way to one that takes at most this share of its time
_LIMITS = tuple(
    2 * out * width for out, width in SHAPES[:-1]
)  # the most elements of a class; the last has no limit
_NEVER: frozenset[int] = frozenset()
_ROWS = frozenset(range(1, MORE + 1))
_UNPACKED = (_NEVER,) * (len(FORMATS) * len(SHAPES))
_copies = WeakTensorKeyDictionary()  # weight -> (its state then, its packed copy)


@dataclass(frozen=True, slots=True)
class Products:
    """columns: for each size class the numbers of rows that are multiplied by columns, in float32. packed: for each
    format and size class those that are multiplied with a packed copy, whatever `columns` says."""

    columns: tuple[frozenset[int], ...] = (frozenset(range(1, MOST_ROWS + 1)),) * len(SHAPES)
    packed: tuple[frozenset[int], ...] = _UNPACKED

    def __call__(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        """linear(x, weight, bias), x [..., in] of any number format on any device."""
        num_rows = x.numel() // x.shape[-1]
        if num_rows > MOST_PACKED or not self.applies(weight):
            return functional.linear(x, weight, bias)
        size = bisect_left(_LIMITS, weight.numel())
        if min(num_rows, MORE) in self._packed_rows(weight, size) and not weight.is_inference():
            return torch.ops.mkldnn._linear_pointwise(
                x.contiguous(), _packed(weight), bias, "none", [], ""
            )
        if weight.dtype != torch.float32 or num_rows not in self.columns[size]:
            return functional.linear(x, weight, bias)
        rows = x if x.dim() == 2 else x.reshape(num_rows, -1)
        if num_rows > 1:  # columns that lie in columns are six times slower
            out = torch.mm(weight, rows.contiguous().t()).t()
        else:  # one row alone goes a slow way
            out = torch.mm(weight, torch.cat([rows, rows]).t()).t()[:1]
        out = out if bias is None else out + bias
        return out if x.dim() == 2 else out.reshape(*x.shape[:-1], -1)

    @staticmethod
    def applies(weight: Tensor) -> bool:
        """Whether a few rows times this matrix may go another way than by rows; quantised ones are of other types."""
        return weight.is_cpu and weight.dtype in FORMATS and type(weight) in (Tensor, nn.Parameter)

    def _packed_rows(self, weight: Tensor, size: int) -> frozenset[int]:
        return self.packed[size + len(SHAPES) * FORMATS.index(weight.dtype)]

    def packed_bytes(self, model: nn.Module) -> int:
        """What the packed copies of a model's linear layers take; a shared matrix counts once."""
        weights = {
            id(each.weight): each.weight for each in model.modules() if isinstance(each, nn.Linear)
        }.values()
        few = (each for each in weights if self.applies(each))
        return sum(
            each.nbytes
            for each in few
            if self._packed_rows(each, bisect_left(_LIMITS, each.numel()))
        )

    def fitting(self, model: nn.Module) -> Products:
        """The same, without packed copies where those of this model were too large."""
        return self if self.packed_bytes(model) <= MOST_BYTES else replace(self, packed=_UNPACKED)

    def __str__(self) -> str:
        """The rows of each class from small to large matrices, of packed ones float32 before bfloat16, 9 for MORE:
        "columns 12345678 2345678 2345678 packed 0 3456789 3456789 0 123456789 123456789"."""
        columns, packed = (
            " ".join("".join(map(str, sorted(rows))) or "0" for rows in classes)
            for classes in (self.columns, self.packed)
        )
        return f"columns {columns} packed {packed}"


BY_ROWS = Products((_NEVER,) * len(SHAPES))


def _packed(weight: Tensor) -> Tensor:
    """A copy in oneDNN's blocks, made anew where the weight has changed, but through `.data`, since."""
    state = weight._version, weight.data_ptr()
    kept = _copies.get(weight)
    if kept is None or kept[0] != state:
        kept = _copies[weight] = (
            state,
            torch.ops.mkldnn._reorder_linear_weight(weight.detach(), MOST_ROWS),
        )
    return kept[1]


def read_products(text: str) -> Products:
    """What str() wrote; ValueError for any other text."""
    words = text.split()
    classes = tuple(frozenset(map(int, word)) - {0} for word in words if word.isdecimal())
    found = Products(classes[: len(SHAPES)], classes[len(SHAPES) :])
    is_whole = str(found).split() == words and len(classes) == len(SHAPES) + len(_UNPACKED)
    if not is_whole or any(MORE in rows for rows in found.columns):
        raise ValueError(f"products must be what str() gives of them (got {text!r:.80})")
    return found


@torch.no_grad()
def measure() -> Products | None:
    """All forms timed on this machine, in about a second; None where it was too busy to tell."""
    ran, passed = time.thread_time(), time.perf_counter()
    columns = tuple(
        _ROWS - {MORE} - _where_faster(BY_ROWS, Products(), FORMATS[0], shape) for shape in SHAPES
    )
    own, all_packed = Products(columns), Products(columns, (_ROWS,) * len(_UNPACKED))
    kinds = [(kind, shape) for kind in FORMATS for shape in SHAPES]
    packed = tuple(
        _where_faster(all_packed, own, *each) if _can_pack(each[0]) else _NEVER for each in kinds
    )
    is_quiet = time.thread_time() - ran > _QUIET * (time.perf_counter() - passed)
    return Products(columns, packed) if is_quiet else None


def _can_pack(kind: torch.dtype) -> bool:
    """Whether this build of torch multiplies with a packed copy on this processor, and right."""
    weight, x = (torch.arange(count * 48).view(-1, 48).sin().to(kind) for count in (64, 5))
    try:
        own = torch.ops.mkldnn._linear_pointwise(x, _packed(weight), None, "none", [], "")
    except (AttributeError, RuntimeError):
        return False
    return torch.allclose(
        own.float(), functional.linear(x.float(), weight.float()), rtol=0.02, atol=0.1
    )


def _where_faster(
    form: Products, than: Products, kind: torch.dtype, shape: tuple[int, int]
) -> frozenset[int]:
    """The numbers of rows at which `form` takes at most _GAIN of the other's time; each turn is over another matrix, as
    in a model."""
    out, width = shape
    matrices = [torch.ones(shape, dtype=kind) for _ in range(1 + _LARGEST // (out * width))]
    turns, found = cycle(matrices), set()
    for matrix in matrices:
        form(matrix, None, torch.ones(1, width, dtype=kind))  # packs it, if anything does
    for num_rows in _ROWS:
        rows = torch.ones(num_rows if num_rows < MORE else 2 * MOST_ROWS, width, dtype=kind)
        times = [
            (_seconds(form, next(turns), rows), _seconds(than, next(turns), rows))
            for _ in range(_TURNS)
        ]
        own, other = map(median, zip(*times, strict=True))
        if own <= _GAIN * other:
            found.add(num_rows)
    return frozenset(found)


def _seconds(form: Products, matrix: Tensor, rows: Tensor) -> float:
    clock = (
        time.perf_counter if os.name == "nt" else time.thread_time
    )  # where it is fine enough: others do not count
    started = clock()
    form(matrix, None, rows)
    return clock() - started


class _ProductLinear(nn.Linear):
    """A linear layer whose few rows are multiplied as `products` says."""

    products: Products

    def forward(self, x: Tensor) -> Tensor:
        return self.products(
            self.weight, self.bias, x
        ).contiguous()  # some models view numbers in pairs


def with_products(model: nn.Module, products: Products) -> nn.Module:
    """The same model, its weights shared, whose plain linear layers multiply few rows as `products` says.

    The model itself stays as it is: each of its modules has a double that holds the very same tables of parameters and
    buffers, so a weight that changes changes in both. What nothing applies to is given back as it is.
    """
    return _double(model, products, {}) if products.applies(next(model.parameters())) else model


def _double(module: nn.Module, products: Products, known: dict[int, nn.Module]) -> nn.Module:
    if is_parametrized(module):
        return module  # its weights are worked out anew at each use, from tables that a copy would not share
    if id(module) not in known:
        double = known[id(module)] = copy.copy(module)
        children = module._modules.items()
        double._forward_hooks = (
            module._forward_hooks.copy()
        )  # transformers adds some, and notes that it did
        double._modules = {
            name: child and _double(child, products, known) for name, child in children
        }
        if type(module) is nn.Linear:
            double.__class__, double.products = _ProductLinear, products
    return known[id(module)]
