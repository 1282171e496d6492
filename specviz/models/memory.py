"""The facts about this machine that models need: device, number format, memory, and how its processor multiplies."""

import multiprocessing
import os
import platform
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
import transformers

from specviz.decoding.cached_lm import CachedLM
from specviz.decoding.forward.products import Products, measure, read_products
from specviz.errors import SpecvizError
from specviz.models import catalog, compiler
from specviz.settings import cache_dir, settings

_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_SHARE_OF_HOST = 0.6
_SHARE_OF_GPU = 0.8


def device() -> torch.device:
    """The device that models are loaded to: SPECVIZ_DEVICE, or the first of CUDA, MPS and CPU that is there."""
    name = settings().device
    if name == "auto":
        name = "cpu"
        if torch.cuda.is_available():
            name = "cuda"
        elif torch.backends.mps.is_available():
            name = "mps"
    return _check_device(name, "SPECVIZ_DEVICE")


def draft_device() -> torch.device:
    """The device that draft models are loaded to: SPECVIZ_DRAFT_DEVICE, or the device of all other models."""
    wanted = settings().draft_device
    return device() if wanted == "auto" else _check_device(wanted, "SPECVIZ_DRAFT_DEVICE")


def check_gpu(name: str) -> None:
    """Raises SpecvizError if a model needs a GPU that this process never has: on a ZeroGPU Space only workers do."""
    is_main = multiprocessing.parent_process() is None
    if settings().zero_gpu and is_main and not catalog.needs_no_gpu(name):
        raise SpecvizError(
            f"{name} needs the GPU, which this Space lends to runs on Explore only: for this, choose a bundled model"
        )


def _check_device(wanted: str, variable: str) -> torch.device:
    chosen = torch.device(wanted)
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise SpecvizError(
            f"{variable} is {wanted}, but torch sees {torch.cuda.device_count()} CUDA devices"
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise SpecvizError(f"{variable} is mps, but torch sees no MPS device here")
    if chosen.type == "cpu":
        return chosen
    return torch.device(chosen.type, chosen.index or 0)  # tensors name their device with an index


def all_gpus() -> tuple[torch.device, ...]:
    """The GPUs that a model too large for one of them may be spread over; none if SPECVIZ_DEVICE names one."""
    if settings().device != "auto" or torch.cuda.device_count() < 2:
        return ()
    return tuple(torch.device("cuda", index) for index in range(torch.cuda.device_count()))


def dtype(on: torch.device) -> torch.dtype:
    """The number format of the weights: SPECVIZ_DTYPE, or bfloat16 on a GPU that has it in hardware, else float32."""
    wanted = settings().dtype
    if wanted != "auto":
        return getattr(torch, wanted)
    has_bfloat16 = on.type == "cuda" and (
        torch.version.hip or torch.cuda.get_device_capability(on) >= (8, 0)
    )
    return torch.bfloat16 if has_bfloat16 else torch.float32


def gains_by_bfloat16() -> bool:
    """Whether models are held in float32 here and known to be faster in bfloat16: read by compiled code, on a CPU that
    has bfloat16."""
    on = device()
    if on.type != "cpu" or dtype(on) != torch.float32:
        return False
    compiled, _ = compiler.build().found
    return compiled is not None and torch.ops.mkldnn._is_mkldnn_bf16_supported()


_measuring = threading.Lock()
"""A lock that lets one thread measure at a time. All at once took 3 GB, and each disturbed the others' numbers."""


def products() -> Products:
    """The ways to multiply few rows on this processor with so many threads: measured once, then read from a file.

    If no file can be stored, or the machine is too busy to measure now, this process multiplies all by columns.
    Compiled code takes their place as soon as it is built.
    """
    with _measuring:
        compiled, why_not = compiler.build().found
        measured = _products(cache_dir(), torch.get_num_threads())
    return replace(measured, compiled=compiled, why_not_compiled=why_not)


@cache
def _products(folder: Path, num_threads: int) -> Products:
    processor = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}-{os.cpu_count()}"
    path = folder / f"columns-{processor}-{num_threads}-torch{torch.__version__}.txt"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _keep(path)
        return read_products(path.read_text("utf-8"))
    except (OSError, ValueError):  # no file can be kept, it is not ours to read, or damaged
        return Products()


def _keep(path: Path) -> None:
    """Measures and writes the file, unless the machine is busy or another process was first: then its file stays."""
    if (found := measure()) is None:
        return
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{found}\n", "utf-8")
    try:
        os.link(draft, path)  # fails where the file is there, so two first starts agree
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def device_name(on: torch.device) -> str:
    if on.type == "cuda":
        return torch.cuda.get_device_name(on)
    return platform.processor() or platform.machine()


def environment(on: torch.device, target: CachedLM | None = None) -> dict[str, object]:
    """The software and hardware that a measured number depends on. target: a reader of the target model."""
    facts: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "device_name": device_name(on),
        "threads": torch.get_num_threads(),
    }
    if target is not None:
        facts["forward"] = target.path
        if target.no_trees:
            facts["chains_only"] = target.no_trees
        if target.proof is not None and target.proof.off:
            facts["off_behind_a_cache"] = round(target.proof.off, 4)
    if on.type == "cpu":
        facts["products"] = str(products())
    return facts


def device_share(on: torch.device) -> int | None:
    """The bytes of a device that models may take; None if the system does not say."""
    if on.type == "cuda":
        return int(_SHARE_OF_GPU * torch.cuda.get_device_properties(on).total_memory)
    if on.type == "mps":
        return int(_SHARE_OF_GPU * torch.mps.recommended_max_memory())
    host = _host_bytes()
    return None if host is None else int(_SHARE_OF_HOST * host)


def _host_bytes() -> int | None:
    """Memory of this machine or of its container, whichever is less; None where the system does not say."""
    known = []
    if hasattr(os, "sysconf") and {"SC_PAGE_SIZE", "SC_PHYS_PAGES"} <= os.sysconf_names.keys():
        known.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    if _CGROUP_LIMIT.is_file() and (limit := _CGROUP_LIMIT.read_text("ascii").strip()).isdigit():
        known.append(int(limit))
    return min(known, default=None)
