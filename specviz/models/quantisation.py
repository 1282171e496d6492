"""Weights in fewer bits: formats in a model's name, the libraries that they need, the bytes of files and models.

A quantised checkpoint is read if its library is installed. This module loads no transformers. Errors are SpecvizErrors.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from specviz.errors import SpecvizError
from specviz.models import catalog

BITS: Mapping[str, int] = {"int8": 8, "int4": 4}
LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "int8": ("torchao", "bitsandbytes"),
    "int4": ("bitsandbytes",),
}
"""Format -> the libraries that can make such weights; the first installed one is used."""
READERS: Mapping[str, tuple[str, ...]] = {
    "bitsandbytes": ("bitsandbytes", "accelerate"),
    "torchao": ("torchao", "accelerate"),
    "gptq": ("gptqmodel", "optimum", "accelerate"),
    "awq": ("gptqmodel", "accelerate"),
    "compressed-tensors": ("compressed_tensors", "accelerate"),
    # transformers' own, in blocks; it widens them if no GPU multiplies such numbers
    "fp8": ("accelerate",),
}
"""Kind of a quantised checkpoint -> the packages that reading it needs."""

_BLOCK_SCALES = "_scale_inv"  # after the name of an FP8 weight: the scales of its blocks
_OLD_LAYOUTS = {"quantize_config.json": "GPTQ", "quant_config.json": "AWQ"}
_TABLES = ("embed", "wte", "wpe", "lm_head", "embed_out")  # no library above reduces them
_PACKED = (torch.int8, torch.uint8, torch.int32)
_STORED_BITS: Mapping[str, int] = {
    "I64": 64,
    "I32": 32,
    "I16": 16,
    "I8": 8,
    "U8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
}


def split_format(wanted: str) -> tuple[str, str | None]:
    """The model's name without the format, and the format of its weights that the name asks for."""
    plain = catalog.without_format(wanted)
    return plain, wanted[len(plain) + 1 :] or None


def with_format(name: str, bits: str | None) -> str:
    return name if bits is None else f"{name}:{bits}"


def held_in(form: str | None, dtype: torch.dtype) -> tuple[torch.dtype, str | None]:
    """The number format, and the key of BITS or None, in which a model with this ending is held. dtype: without one."""
    return (torch.bfloat16, None) if form == catalog.BFLOAT16 else (dtype, form)


def library_for(bits: str, name: str) -> str:
    """The installed library that can make such weights. Raises SpecvizError that says what to install."""
    commands: list[str] = []
    for library in LIBRARIES[bits]:
        if not _lacking(READERS[library]):
            return library
        commands.append(f"`pip install {' '.join(READERS[library])}`")
    raise SpecvizError(
        f"{name} cannot be held in {bits} here: run {' or '.join(commands)}, or name the model without :{bits}"
    )


def check_checkpoint(values: Mapping[str, object], name: str, folder: Path) -> None:
    """Raises SpecvizError if a configuration names a form of quantised weights that cannot be read here."""
    config = values.get("quantization_config")
    if config is None:
        for file, method in _OLD_LAYOUTS.items():
            if (folder / file).is_file():
                raise SpecvizError(
                    f"{name} holds weights quantised by {method} in an old layout ({file}): choose one whose "
                    "config.json has a quantization_config, or the model in full precision"
                )
        return
    kind = "an unknown kind"
    if isinstance(config, Mapping):
        kind = str(config.get("quant_method", "bitsandbytes"))[:80]
    if kind not in READERS:
        raise SpecvizError(
            f"{name} holds weights quantised by {kind}, which specviz does not read; choose one by "
            f"{', '.join(READERS)}, or the model in full precision"
        )
    if lacking := _lacking(READERS[kind]):
        raise SpecvizError(
            f"{name} holds weights quantised by {kind}: run `pip install {' '.join(lacking)}`"
        )


def _lacking(packages: Sequence[str]) -> list[str]:
    """The packages that are not installed, under their names for pip."""
    return [package.replace("_", "-") for package in packages if not is_installed(package)]


def is_installed(package: str) -> bool:
    return find_spec(package) is not None


def num_parameters(files: Iterable[Path]) -> int:
    """The number of weights, from the files' headers. Raises SafetensorError for a damaged file."""
    return sum(math.prod(shape) for _, shape, _ in _headers(files))


def needed_bytes(files: Iterable[Path], dtype: torch.dtype, bits: str | None) -> int:
    """The bytes of the weights in memory, without the scales of quantised weights.

    Raises SafetensorError for a damaged file.
    """
    total = 0
    headers = list(_headers(files))
    widened: set[str] = set()
    if not torch.cuda.is_available():
        scales = [name for name, _, _ in headers if name.endswith(_BLOCK_SCALES)]
        widened = {name.removesuffix(_BLOCK_SCALES) for name in scales}
    plain_bits = 8 * dtype.itemsize
    for name, shape, stored in headers:
        is_table = any(key in name for key in _TABLES)
        if bits is not None and len(shape) == 2 and not is_table:
            weight_bits = BITS[bits]
        elif name in widened:
            weight_bits = plain_bits
        else:
            weight_bits = _STORED_BITS.get(stored, plain_bits)
        total += math.prod(shape) * weight_bits // 8
    return total


def _headers(files: Iterable[Path]) -> Iterator[tuple[str, list[int], str]]:
    """The name, shape and number format of every tensor."""
    for file in files:
        with safe_open(file, framework="numpy") as weights:
            for name in weights.keys():  # noqa: SIM118
                part = weights.get_slice(name)
                yield name, part.get_shape(), part.get_dtype()


def bytes_by_device(model: torch.nn.Module) -> dict[torch.device, int]:
    """The bytes of weights and buffers on each device; a shared tensor counts once."""
    total: Counter[torch.device] = Counter()
    for tensor in (*model.parameters(), *model.buffers()):
        total[tensor.device] += stored_bytes(tensor)
    return dict(total)


def stored_bytes(tensor: Tensor) -> int:
    """The bytes of a tensor; for a wrapper, such as torchao's, the bytes of its parts."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(stored_bytes(getattr(tensor, name)) for name in names)
    return tensor.nbytes


def is_quantised(model: torch.nn.Module) -> bool:
    """Whether at least one weight is stored in fewer bits."""
    for tensor in (*model.parameters(), *model.buffers()):
        is_packed = tensor.dim() == 2 and tensor.dtype in _PACKED
        if is_packed or hasattr(tensor, "__tensor_flatten__"):
            return True
    return False


def number_format(model: torch.nn.Module, bits: str | None) -> str:
    """The number format of the computation, and the weights' format if it differs, as a trace names them."""
    computes = str(model.dtype).removeprefix("torch.")
    kind = getattr(getattr(model, "quantization_method", None), "value", None)
    if kind is None:
        return ", ".join(filter(None, (computes, gguf_origin(model.config)[1])))
    return f"{computes}, weights {bits or 'quantised'} ({kind})"


def gguf_origin(config: object) -> tuple[str | None, str]:
    """The hash of the GGUF file that a model was made from, and words for it; (None, "") for other models."""
    match getattr(config, "gguf", None):
        case {"sha256": str(sha256), "format": str(kind)}:
            return f"sha256:{sha256:.64}", f"{kind:.20}, computed from its dequantised weights"
    return None, ""
