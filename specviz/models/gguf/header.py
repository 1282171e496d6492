"""The header of a GGUF file, read with bounds: a file that lies is refused before memory is taken for what it claims.

Counts, lengths, sizes and places are held against the file's own length. Loads neither torch nor transformers.
"""

import hashlib
import math
import mmap
import re
import shutil
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from specviz.errors import SpecvizError

VERSIONS = (2, 3)
MOST_ENTRIES = 100_000  # of settings, and of tensors
_FORMATS = {kind: f"<{letter}" for kind, letter in enumerate("BbHhIif?")} | {10: "<Q", 11: "<q", 12: "<d"}
_STRING, _LIST = 8, 9
_PART = re.compile(r"(.+)-[0-9]{5}-of-([0-9]{5})\.gguf")


@dataclass(frozen=True, slots=True)
class Tensor:
    """dims: the fastest-moving first; kind: ggml's number of the format; offset: in the file's data, in bytes."""

    name: str
    dims: tuple[int, ...]
    kind: int
    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


@dataclass(frozen=True, slots=True)
class Header:
    """settings: single values by name, without lists; they end, and the tensors' data begins, at these bytes."""

    settings: Mapping[str, object]
    settings_end: int
    tensors: tuple[Tensor, ...]
    data_start: int


class _Reader:
    """Values one after another; ValueError beyond the end."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content, self.place = content, 0

    def skip(self, num_bytes: int) -> int:
        before, self.place = self.place, self.place + num_bytes
        if self.place > len(self._content):
            raise ValueError(f"its header goes on to byte {self.place:,}, and the file has {len(self._content):,}")
        return before

    def value(self, form: str) -> int | float | bool:
        return struct.unpack_from(form, self._content, self.skip(struct.calcsize(form)))[0]

    def text(self) -> str:
        start = self.skip(self.value("<Q"))
        return self._content[start : self.place].decode("utf-8")

    def setting(self, kind: int) -> object:
        """A single value, or None for a list, which is passed over."""
        if kind == _STRING:
            return self.text()
        if kind != _LIST:
            return self.value(_form(kind))
        kind, number = self.value("<I"), self.value("<Q")
        if kind != _STRING:
            self.skip(number * struct.calcsize(_form(kind)))
        else:
            for _ in range(number):
                self.skip(self.value("<Q"))
        return None

    def tensor(self, sizes: Mapping[int, tuple[int, int]]) -> Tensor:
        """sizes: kind -> the weights and the bytes of one block."""
        name, dims = self.text(), tuple(self.value("<Q") for _ in range(min(self.value("<I"), MOST_ENTRIES)))
        kind, offset = self.value("<I"), self.value("<Q")
        if kind not in sizes:
            raise ValueError(f"{name!r:.80} is in the number format {kind}, which is not known")
        block, num_bytes = sizes[kind]
        if not dims or dims[0] % block or not math.prod(dims):
            raise ValueError(f"{name!r:.80} of the shape {dims!r:.80} is not made of blocks of {block}")
        return Tensor(name, dims, kind, offset, math.prod(dims) // block * num_bytes)


def _form(kind: int) -> str:
    if kind not in _FORMATS:
        raise ValueError(f"its header holds a value of the unknown kind {kind}")
    return _FORMATS[kind]


def parts_of(file: Path) -> list[Path]:
    """All files of the model that this one belongs to, in order: itself, or the parts of a split model."""
    if (match := _PART.fullmatch(file.name)) is None:
        return [file]
    stem, total = match.groups()
    return [file.with_name(f"{stem}-{number:05}-of-{total}.gguf") for number in range(1, int(total) + 1)]


def hash_of(files: Sequence[Path]) -> str:
    """sha256 over all of them in turn."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as stream:
            while piece := stream.read(1 << 22):
                digest.update(piece)
    return digest.hexdigest()


def read_headers(files: Sequence[Path], name: str) -> list[Header]:
    """One per part of a model. SpecvizError: a part is missing, or a file cannot be what it says it is."""
    if missing := [file.name for file in files if not file.is_file()]:
        raise SpecvizError(
            f"{name} is incomplete: {len(missing)} of {len(files)} files are missing ({missing[0]!r:.120})"
        )
    try:
        headers = [_read_file(file) for file in files]
        names = [tensor.name for header in headers for tensor in header.tensors]
        if len(set(names)) < len(names):
            raise ValueError("two of its tensors have one name")
        if (number := headers[0].settings.get("split.count", len(files))) not in (0, len(files)):
            raise ValueError(f"it is one of {number!r:.20} parts, and {len(files)} go by its name")
    except (ValueError, OSError) as error:
        raise SpecvizError(f"{name} is a damaged GGUF file, or none: {error}") from error
    return headers


def _read_file(file: Path) -> Header:
    """ValueError, in words, for a file that is cut off, lies about its sizes, or is of another version."""
    from gguf import GGML_QUANT_SIZES

    with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        reader, num_bytes = _Reader(content), len(content)
        if content[reader.skip(4) : 4] != b"GGUF":
            raise ValueError("it must begin with the letters GGUF")
        if (version := reader.value("<I")) not in VERSIONS:
            raise ValueError(f"its version must be {' or '.join(map(str, VERSIONS))} (got {version})")
        num_tensors, num_settings = reader.value("<Q"), reader.value("<Q")
        if max(num_tensors, num_settings) > MOST_ENTRIES:
            raise ValueError(
                f"it claims {num_tensors:,} tensors and {num_settings:,} settings; {MOST_ENTRIES:,} at most"
            )
        settings = {reader.text(): reader.setting(reader.value("<I")) for _ in range(num_settings)}
        settings_end = reader.place
        tensors = tuple(reader.tensor(GGML_QUANT_SIZES) for _ in range(num_tensors))
    alignment = settings.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= 1 << 20:
        raise ValueError(f"general.alignment must be a whole number above 0 (got {alignment!r:.40})")
    header = Header(settings, settings_end, tensors, -(-reader.place // alignment) * alignment)
    _check_places(header, num_bytes)
    return header


def _check_places(header: Header, num_bytes: int) -> None:
    """ValueError for tensors outside the file or over each other: they would take more memory than it has bytes."""
    placed = sorted(header.tensors, key=lambda tensor: tensor.offset)
    for one, after in pairwise(placed):
        if one.end > after.offset:
            raise ValueError(f"{one.name!r:.80} and {after.name!r:.80} lie over each other")
    if placed and (end := header.data_start + placed[-1].end) > num_bytes:
        raise ValueError(f"{placed[-1].name!r:.80} goes on to byte {end:,}, and the file has {num_bytes:,}")


def join(files: Sequence[Path], headers: Sequence[Header], place: Path) -> Path:
    """Writes the parts of a split model as one file: the first part's settings, all tensors, their data in turn."""
    alignment = headers[0].settings.get("general.alignment", 32)
    ends = (max((tensor.end for tensor in header.tensors), default=0) for header in headers)
    starts = list(accumulate((-(-end // alignment) * alignment for end in ends), initial=0))
    with place.open("wb") as whole, files[0].open("rb") as first:
        settings = first.read(headers[0].settings_end)
        whole.write(settings[:8] + struct.pack("<Q", sum(len(header.tensors) for header in headers)) + settings[16:])
        for start, header in zip(starts, headers, strict=False):
            for tensor in header.tensors:
                text, number = tensor.name.encode(), len(tensor.dims)
                whole.write(struct.pack(f"<Q{len(text)}sI", len(text), text, number))
                whole.write(struct.pack(f"<{number}QIQ", *tensor.dims, tensor.kind, start + tensor.offset))
        data_start = -(-whole.tell() // alignment) * alignment
        for start, header, file in zip(starts, headers, files, strict=False):
            with file.open("rb") as part:
                part.seek(header.data_start)
                whole.seek(data_start + start)
                shutil.copyfileobj(part, whole)
    return place
