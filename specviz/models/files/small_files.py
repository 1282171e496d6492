"""The files that transformers opens in a model's folder, weights aside, and how large each may be.

Only ordinary files count: reading a pipe or a device may never end.
"""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

from specviz.errors import SpecvizError
from specviz.models.files.draft_formats import MOST_CONFIG_BYTES
from specviz.models.files.hub import INDEX

MOST_BYTES = 256 << 20  # of a file
MOST_INDEX_BYTES = 32 << 20
MOST_BYTES_IN_ALL = 512 << 20
_MOST = {
    "config.json": MOST_CONFIG_BYTES,
    "generation_config.json": MOST_CONFIG_BYTES,
    INDEX: MOST_INDEX_BYTES,
}
"""File -> the bytes that it may have; MOST_BYTES for any other."""
_PATTERNS = (
    *_MOST,
    "*processor_config.json",
    "tokenizer*",
    "*.tokenizer",
    "*tokens*.json",
    "chat_template*",
    "vocab*",
    "*_vocab.json",
    "dict.txt",
    "merges.txt",
    "bpe.codes",
    "byte_maps.json",
    "emoji.json",
    "normalizer.json",
    "tekken.json",
    "word_*.json",
    "*.jinja",
    "*.model",
    "*.spm",
    "*.tiktoken",
)
"""Sources: transformers tokenization_utils_base.py, and vocab_files_names of each of its tokenizers."""
_TEMPLATES = "additional_chat_templates"


def small_files(folder: Path) -> list[Path]:
    """The small files of a folder, in the order of their names."""
    files = list(folder.glob(f"{_TEMPLATES}/*.jinja"))
    for file in folder.iterdir():
        if any(fnmatch(file.name, pattern) for pattern in _PATTERNS):
            files.append(file)
    return sorted(file for file in files if file.is_file())


def check_small_files(folder: Path, name: str) -> None:
    """Raises SpecvizError for files that are too large, or no ordinary files. Opens none."""
    for file in map(folder.joinpath, _MOST):
        if file.exists() and not file.is_file():
            raise SpecvizError(f"{name} was not loaded: {file.name} is no ordinary file")
    in_all = 0
    for file in small_files(folder):
        size = file.stat().st_size
        most = _MOST.get(file.name, MOST_BYTES)
        if size > most:
            raise SpecvizError(
                f"{name} was not loaded: {file.name!r:.80} must have at most {most:,} bytes (got {size:,})"
            )
        in_all += size
    if in_all > MOST_BYTES_IN_ALL:
        raise SpecvizError(
            f"{name} was not loaded: the files beside its weights must have at most {MOST_BYTES_IN_ALL:,} bytes in all "
            f"(got {in_all:,})"
        )
