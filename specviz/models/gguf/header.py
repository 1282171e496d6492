"""A GGUF file's header, read by the gguf package, but within the file: one that lies is refused before it takes memory.

Loads neither torch nor transformers.
"""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType

from specviz.errors import SpecvizError

MOST_VALUES = 2_000_000  # of a list; the longest vocabularies have 500,000 merges


class Header(GGUFReader):
    """ValueError where anything lies beyond the file's end, and for a list that is longer than any vocabulary."""

    def _get(self, offset: int, dtype: np.typing.DTypeLike, count: int = 1, **order: Any) -> np.ndarray:
        end = int(offset) + int(count) * np.dtype(dtype).itemsize
        if end > len(self.data):
            raise ValueError(f"it goes on to byte {end:,}, and the file has {len(self.data):,}")
        return super()._get(offset, dtype, count, **order)

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[Any, ...]:
        if raw_type == GGUFValueType.ARRAY and (length := self._get(orig_offs + 4, np.uint64)[0]) > MOST_VALUES:
            raise ValueError(f"it claims a list of {length:,} values; {MOST_VALUES:,} at most")
        return super()._get_field_parts(orig_offs, raw_type)

    def setting(self, key: str) -> Any:
        field = self.get_field(key)
        return None if field is None else field.contents()


def read_header(file: Path, name: str) -> Header:
    """SpecvizError for a file that cannot be what it says it is, and for one part of a split model."""
    try:
        header = Header(file)
        if header.byte_order != "I":
            raise ValueError("its numbers are in the byte order of another kind of machine")
        placed = sorted(header.tensors, key=lambda tensor: tensor.data_offset)
        if any(one.data_offset + one.n_bytes > after.data_offset for one, after in pairwise(placed)):
            raise ValueError("its tensors lie over each other")
        num_parts = header.setting("split.count")
    except Exception as error:  # whatever a stranger's file makes gguf and numpy raise
        raise SpecvizError(f"{name} is a damaged GGUF file, or none: {error}") from error
    if num_parts not in (None, 0, 1):
        raise SpecvizError(
            f"{name} is one of {num_parts!r:.20} parts of a model: make one file of them, `llama-gguf-split --merge` "
            "with the first part's name and a new one, and name that"
        )
    return header
