"""Weights of an untrusted checkpoint: tensors are read by name without running code, and put into a module.

Every error is a SpecvizError that says what is wrong with the file. The caller puts the checkpoint's name in front.
"""

import os
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from specviz.decoding.turns import aside
from specviz.errors import SpecvizError

_SHOWN_NAMES = 3
MOST_BYTES = (
    16 * 2**30
)  # a larger file is something else: draft heads are smaller than their target
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The names of a checkpoint's tensors, by what became of them."""

    used: tuple[str, ...]
    unused: tuple[str, ...]
    missing: tuple[str, ...]  # not in the checkpoint


def read_tensors(files: Iterable[Path]) -> dict[str, Tensor]:
    """All tensors of these files, on the CPU. Reads safetensors, and torch's zip format (.pt, .bin) without code."""
    files = list(files)
    size = sum(map(_unpacked_bytes, files))
    if size > MOST_BYTES:
        raise SpecvizError(
            f"its weights must not exceed {MOST_BYTES / 1e9:.3g} GB (got {size / 1e9:.3g} GB)"
        )
    state: dict[str, Tensor] = {}
    for file in files:
        try:
            state |= load_file(file) if file.suffix == ".safetensors" else _read_zip(file)
        # the last two: a header that makes no sense
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise SpecvizError(f"{file.name} is damaged or incomplete; fetch it again") from error
    return state


def read_named(folder: Path, files: Mapping[str, Iterable[str]]) -> dict[str, Tensor]:
    """The tensors that `files` names by their safetensors file, and no others. Raises SpecvizError.

    A tensor that its file does not hold is left out. One in fewer bits is refused, as its scales are not read.
    """
    state: dict[str, Tensor] = {}
    for file, names in files.items():
        with safe_open(folder / file, framework="pt") as weights:
            for name in set(names).intersection(weights.keys()):
                state[name] = weights.get_tensor(name)
                if state[name].itemsize == 1 or not state[name].is_floating_point():
                    raise SpecvizError(
                        f"{name} in {file} is quantised ({state[name].dtype}), and is read in 16 or 32 bits only"
                    )
    return state


def tensor_names(files: Iterable[Path]) -> set[str]:
    """The names of all tensors of these files. It reads no tensor. Raises SpecvizError as `read_tensors` does."""
    names: set[str] = set()
    for file in files:
        try:
            if file.suffix == ".safetensors":
                with safe_open(file, framework="pt") as weights:
                    names.update(weights.keys())
            else:
                names |= _read_zip(file, mapped=True).keys()
        except (SafetensorError, OSError, ValueError, KeyError) as error:
            raise SpecvizError(f"{file.name} is damaged or incomplete; fetch it again") from error
    return names


def _unpacked_bytes(file: Path) -> int:
    if file.suffix == ".safetensors":
        return file.stat().st_size
    try:
        with zipfile.ZipFile(file) as archive:
            return sum(item.file_size for item in archive.infolist())
    except (zipfile.BadZipFile, OSError) as error:
        raise SpecvizError(
            f"{file.name} is damaged, or not a file that today's torch.save writes"
        ) from error


def _read_zip(file: Path, *, mapped: bool = False) -> dict[str, Tensor]:
    """The named tensors of a file. mapped: they stay in the file."""
    try:
        state = torch.load(file, weights_only=True, map_location="cpu", mmap=mapped)
    except pickle.UnpicklingError as error:
        raise SpecvizError(
            f"{file.name} holds more than tensors (program code could run on opening it), so it was not opened; "
            "convert it to safetensors"
        ) from error
    except Exception as error:  # whatever else a stranger's file makes torch raise
        raise SpecvizError(f"{file.name} is damaged or incomplete; fetch it again") from error
    if not isinstance(state, Mapping) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in state.items()
    ):
        raise SpecvizError(
            f"{file.name} must hold only named tensors (got a {type(state).__name__} of other things)"
        )
    return dict(state)


def list_keys(keys: Sequence[str]) -> str:
    """The number of tensors and the first few of their names, which are untrusted, shortened and quoted."""
    shown = ", ".join(f"{key!r:.60}" for key in keys[:_SHOWN_NAMES])
    if len(keys) > _SHOWN_NAMES:
        shown += ", ..."
    count = "1 tensor" if len(keys) == 1 else f"{len(keys):,} tensors"
    return f"{count} ({shown})"


def fill(
    module: nn.Module, state: Mapping[str, Tensor], like: Tensor, keys: Mapping[str, str]
) -> LoadReport:
    """Puts tensors into `module`, in the number format and on the device of `like`; whole numbers stay whole.

    module: built on the meta device. keys: a tensor's name in the checkpoint -> its name in the module; other tensors
    count as unused. Missing parameters stay on the meta device. Raises SpecvizError for a tensor of another shape.
    """
    wanted = module.state_dict()
    ready = {}
    for key, name in keys.items():
        if key not in state or name not in wanted:
            continue
        if state[key].shape != wanted[name].shape:
            raise SpecvizError(
                f"{key} must be of the shape {_size(wanted[name])} (got {_size(state[key])})"
            )
        dtype = like.dtype if wanted[name].is_floating_point() else wanted[name].dtype
        ready[name] = state[key].to(like.device, dtype)
    module.load_state_dict(ready, strict=False, assign=True)
    module.eval().requires_grad_(False)
    used = tuple(key for key in state if keys.get(key) in ready)
    key_of = {name: key for key, name in keys.items()}
    missing = tuple(key_of.get(name, name) for name in wanted if name not in ready)
    return LoadReport(used, tuple(key for key in state if key not in used), missing)


def _size(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape)) or "one number"


class Attached:
    """Objects that belong to loaded models, one per model and key.

    An object is released with its model, or when the model moves to another device or number format.
    """

    def __init__(self) -> None:
        self._made: WeakKeyDictionary[nn.Module, tuple[object, dict[object, object]]] = (
            WeakKeyDictionary()
        )
        self._renew_lock()
        if hasattr(os, "register_at_fork"):  # a thread that closed the lock is not in the child
            os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._making = threading.Lock()

    def find(self, model: nn.Module, key: object) -> object | None:
        """The object of this model and key, or None."""
        return self._made_for(model).get(key)

    def get(self, model: nn.Module, key: object, make: Callable[[], Made]) -> Made:
        """The object of this model and key, made by `make()` the first time. `make` must not keep the model alive."""
        if (known := self.find(model, key)) is not None:
            return known
        with aside(), self._making:
            made = self._made_for(model)
            if key not in made:
                made[key] = make()
                self._made[model] = _form(model), made
            return made[key]

    def _made_for(self, model: nn.Module) -> dict[object, object]:
        form, made = self._made.get(model, (None, {}))
        return made if form == _form(model) else {}


def _form(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    like = next(model.parameters())
    return like.device, like.dtype
