"""What was measured once on this machine and is kept, so that the same seed gives the same text tomorrow."""

import os
import platform
from functools import cache
from pathlib import Path

import torch

from specviz.decoding.products import Products, measure, read_products
from specviz.settings import cache_dir


def products() -> Products:
    """How few rows are multiplied on this processor with so many threads: measured once, then read from a file. Where
    none can be kept, all go by columns: measuring again at each start could part two runs of one seed."""
    return _products(cache_dir(), torch.get_num_threads())


@cache
def _products(folder: Path, num_threads: int) -> Products:
    processor = f"{platform.machine()}-{torch.backends.cpu.get_cpu_capability()}-{os.cpu_count()}"
    path = folder / f"products-{processor}-{num_threads}-torch{torch.__version__}.txt"
    try:
        if not path.exists():
            folder.mkdir(parents=True, exist_ok=True)
            _keep(path)
        return read_products(path.read_text("utf-8"))
    except (OSError, ValueError):  # no file can be kept, it is not ours to read, or damaged
        return Products()


def _keep(path: Path) -> None:
    """Measures, and writes the file unless another process was first: then what that one found holds."""
    draft = path.with_suffix(f".{os.getpid()}")
    draft.write_text(f"{measure()}\n", "utf-8")
    try:
        os.link(draft, path)  # fails where the file is there, so two first starts agree
    except FileExistsError:
        pass
    finally:
        draft.unlink()
