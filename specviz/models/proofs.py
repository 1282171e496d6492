"""Proofs of models, stored in the cache folder, so that a model's files are tried only once."""

import hashlib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import torch
import transformers

from specviz import decoding
from specviz.decoding.forward.proof import Proof
from specviz.models import memory
from specviz.models.compiler import library_name
from specviz.settings import cache_dir
from specviz.trace.lines import write_lines
from specviz.trace.values import TraceError


def proof_path(files: Iterable[Path], on: torch.device, number_format: str) -> Path:
    """The file for the proof of the model in these files.

    A proof counts for the files as they are now, this number format and device, these versions of torch and
    transformers, this code, and the compiled code of this processor. Raises OSError for a file that is not there.
    """
    states = []
    for file in files:
        content = file.read_bytes() if file.suffix == ".json" else b""
        states.append((file.name, file.stat().st_size, file.stat().st_mtime_ns, content))
    versions = (torch.__version__, transformers.__version__, _code())
    products = (str(memory.products()), library_name()) if on.type == "cpu" else ()
    device = (on.type, memory.device_name(on), products)
    known = repr((states, number_format, versions, device))
    return cache_dir() / "proofs" / f"{hashlib.sha256(known.encode()).hexdigest()[:24]}.json"


@cache
def _code() -> str:
    """A hash of the code that reads models."""
    digest = hashlib.sha256()
    for file in sorted(Path(decoding.__file__).parent.rglob("*.[cp][py]*")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def read_proof(path: Path) -> Proof | None:
    """The proof that is stored there; None if there is none, or it is damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Proof)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def keep_proof(path: Path, proof: Proof) -> None:
    """Writes the proof. If the folder cannot be written, it does nothing: the proof is made again next time."""
    try:
        write_lines(path, [msgspec.json.encode(proof).decode()])
    except (OSError, TraceError):
        return
