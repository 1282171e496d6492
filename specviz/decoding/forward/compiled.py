"""Compiled: the functions of `quick.cpp` for torch tensors. The structures here are those of that file."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_bool, c_float, c_int, c_int64, c_void_p

import torch
from torch import Tensor, nn

FORMATS = (torch.float32, torch.bfloat16)
UNIT = 32
"""All widths must be multiples of it: two of the longest vectors."""


class Linear(ctypes.Structure):
    """The addresses of a linear layer; no bias is None."""

    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class Layer(ctypes.Structure):
    """The addresses of a block's weights, and how it attends."""

    LINEARS = ("q", "k", "v", "o", "gate", "up", "down")
    NORMS = ("attention_norm", "q_norm", "k_norm", "after_attention", "mlp_norm", "after_mlp")
    _fields_ = (
        *((name, Linear) for name in LINEARS),
        *((name, c_void_p) for name in NORMS),
        ("index", c_int64),
        ("kind", c_int64),
        ("scale", c_float),
    )


class Model(ctypes.Structure):
    """The addresses and sizes of a model."""

    _fields_ = (
        ("layers", POINTER(Layer)),
        ("norm", c_void_p),
        ("head", Linear),
        ("num_layers", c_int64),
        ("num_stored", c_int64),
        ("hidden", c_int64),
        ("read_width", c_int64),
        ("inner", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("width", c_int64),
        ("vocab", c_int64),
        ("is_bfloat16", c_int64),
        ("is_gelu", c_int64),
        ("epsilon", c_float),
        ("norm_offset", c_float),
    )


class Text(ctypes.Structure):
    """The new rows of a text and the store behind which they are read."""

    _fields_ = (
        ("rows", c_void_p),
        ("cosines", POINTER(c_void_p)),
        ("sines", POINTER(c_void_p)),
        ("masks", POINTER(c_void_p)),
        ("positions", c_void_p),
        ("inputs", c_void_p),
        ("room", c_int64),
        ("past", c_int64),
        ("num_new", c_int64),
        ("num_logits", c_int64),
    )


def can_read(table: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether compiled code finds the numbers of such a table where its address says, one behind the other."""
    is_plain = table.is_cpu and type(table) in (Tensor, nn.Parameter) and table.is_contiguous()
    return is_plain and table.dtype == dtype and table.shape == shape


def address(tensor: Tensor | None) -> int | None:
    """The place of a tensor's numbers in memory; None for none."""
    return None if tensor is None else tensor.data_ptr()


def addresses(tensors: Sequence[Tensor]) -> ctypes.Array[c_void_p]:
    return (c_void_p * len(tensors))(*map(address, tensors))


def _check_memory(has_memory: bool, *_: object) -> None:
    if not has_memory:
        raise MemoryError("out of memory in compiled code")


class Compiled:
    """A library that was built from `quick.cpp`. It runs in as many threads as torch, and in torch's own."""

    def __init__(self, path: str) -> None:
        """Loads the library. Raises OSError where it is none, or lacks what torch has loaded elsewhere."""
        library = ctypes.CDLL(path)
        self._forward = library.quick_forward
        self._forward.argtypes = (
            *(POINTER(Model), POINTER(Text), c_void_p, c_void_p),
            *(POINTER(c_int64), c_int64, c_void_p, c_int),
        )
        self._forward.restype = c_bool
        self._forward.errcheck = _check_memory
        self._product = library.quick_product
        self._product.argtypes = (
            *(c_int, c_void_p, c_void_p, c_int64, c_int64),
            *(c_void_p, c_int, c_void_p, c_int),
        )
        self._product.restype = c_bool
        self._product.errcheck = _check_memory
        self.most_rows = {
            dtype: library.quick_most_rows(dtype == torch.bfloat16) for dtype in FORMATS
        }
        """The most rows for which it is faster than torch, by number format."""

    def forward(
        self, model: Model, text: Text, x: Tensor, captured: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Logits [num_logits, V] and the captured states [n, C], both in float32.

        x: what the first layer adds to [n, H] in float32; it is overwritten. Raises IndexError for a layer that is not
        there.
        """
        if not all(-1 <= layer <= model.num_layers for layer in captured):
            raise IndexError(
                f"the captured layers must be from -1 to {model.num_layers} (got {captured})"
            )
        logits = torch.empty(text.num_logits, model.vocab, dtype=torch.float32)
        states = torch.empty(len(x), len(captured) * model.hidden, dtype=torch.float32)
        layers = (c_int64 * len(captured))(*captured)
        num_threads = torch.get_num_threads()
        self._forward(
            *(model, text, x.data_ptr(), logits.data_ptr()),
            *(layers, len(captured), states.data_ptr(), num_threads),
        )
        return logits, states

    def can_multiply(self, weight: Tensor, bias: Tensor | None, x: Tensor, num_rows: int) -> bool:
        """Whether `product` takes these: nothing that it makes could be trained on."""
        out, width = weight.shape
        return (
            num_rows <= self.most_rows[weight.dtype]
            and torch.is_inference_mode_enabled()
            and width % UNIT == 0
            and can_read(weight, weight.dtype, (out, width))
            and (bias is None or can_read(bias, weight.dtype, (out,)))
            and x.is_cpu
            and x.dtype == weight.dtype
            and x.shape[-1] == width
        )

    def product(self, weight: Tensor, bias: Tensor | None, x: Tensor) -> Tensor:
        """The result of linear(x, weight, bias) for a few rows x [..., in]."""
        out, width = weight.shape
        rows = x.reshape(-1, width).float().contiguous()
        y = torch.empty(len(rows), out, dtype=torch.float32)
        is_bfloat16 = weight.dtype == torch.bfloat16
        self._product(
            *(is_bfloat16, weight.data_ptr(), address(bias), out, width),
            *(rows.data_ptr(), len(rows), y.data_ptr(), torch.get_num_threads()),
        )
        return y.to(x.dtype).reshape(*x.shape[:-1], out)
