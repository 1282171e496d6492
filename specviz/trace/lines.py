"""Reads files as numbered lines, and writes lines; gzip is known by its first bytes, or by the suffix of a new file.

Reading holds one line at a time and stops at the limits. A shortened file gives its whole lines, then the rest, marked
as not whole. The same lines are always written as the same bytes. A link stays a link, an existing file keeps its mode,
and only ordinary files are written.
"""

import errno
import gzip
import io
import json
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from specviz.trace.values import TraceError, require

GZIP_MAGIC = b"\x1f\x8b"
CHUNK = 1 << 16
MAX_LINE_BYTES = 8 << 20
MAX_MEMBERS = 2_048
MAX_HOLDERS = 400_000
"""The most lists and objects on a line: a million take seconds to parse, and parsing cannot be stopped."""
_HELD = {b"[": 80, b"{": 130, b",": 32, b":": 48, b'"': 24}
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link to itself",
}


def unpack(
    source: bytes | BinaryIO, max_bytes: int | None, max_unpacked: int | None
) -> Iterator[bytes]:
    """The content in pieces, unpacked if it is gzip; a shortened gzip ends where its bytes end."""
    stream = io.BytesIO(source) if isinstance(source, (bytes, bytearray, memoryview)) else source
    if isinstance(stream, io.TextIOBase) or not hasattr(stream, "read"):
        raise ValueError(f"source must be bytes or a binary stream (got {type(stream).__name__})")
    pieces = _cap(iter(lambda: stream.read(CHUNK), b""), max_bytes, "the file is larger than")
    first = next(pieces, b"")
    pieces = chain([first], pieces)
    if first.startswith(GZIP_MAGIC):
        return _cap(_gunzip(pieces), max_unpacked, "the file unpacks to more than")
    return _cap(pieces, max_unpacked, "the file is larger than")


def _cap(pieces: Iterable[bytes], most: int | None, words: str) -> Iterator[bytes]:
    total = 0
    for piece in pieces:
        total += len(piece)
        if most is not None and total > most:
            raise TraceError(f"{words} {most / (1 << 20):g} MB")
        yield piece


def _gunzip(pieces: Iterable[bytes]) -> Iterator[bytes]:
    unpacking = zlib.decompressobj(wbits=31)
    num_members = 1
    for piece in pieces:
        while piece:
            if unpacking.eof:  # one gzip member after another is one file
                unpacking = zlib.decompressobj(wbits=31)
                num_members += 1
                if num_members > MAX_MEMBERS:  # each costs a copy of the rest of its piece
                    raise TraceError(f"the file is more than {MAX_MEMBERS:,} gzip files in a row")
            try:
                yield unpacking.decompress(piece, CHUNK)
            except zlib.error as error:
                raise TraceError(f"the gzip data are damaged ({error})") from None
            piece = unpacking.unused_data or unpacking.unconsumed_tail
    yield unpacking.flush()


def numbered_lines(pieces: Iterable[bytes], max_lines: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yields (number, line, whole) for each line that is not blank; only a shortened file's last line is not whole."""
    number = 0
    begun: list[bytes] = []  # the pieces of a line that has not ended
    num_begun = 0
    for piece in filter(None, pieces):
        *ended, rest = piece.split(b"\n")
        for end in ended:
            number += 1
            if number > max_lines:
                raise TraceError(f"the file has more than {max_lines:,} lines")
            line = b"".join([*begun, end])
            begun = []
            num_begun = 0
            if line.strip():
                yield number, line, True
        begun.append(rest)
        num_begun += len(rest)
        if num_begun > MAX_LINE_BYTES:
            raise TraceError(f"a line is longer than {MAX_LINE_BYTES >> 20} MB", line=number + 1)
    if line := b"".join(begun).strip():
        yield number + 1, line, False


def held_bytes(line: bytes) -> int:
    """The bytes that Python holds of a parsed line, from counts of its characters: 1 to 5 times what is measured."""
    is_narrow = line.isascii() and b"\\" not in line
    num_bytes = len(line) if is_narrow else 4 * len(line)  # one emoji makes all of a text 4 wide
    for mark, bytes_each in _HELD.items():
        num_bytes += bytes_each * line.count(mark)
    return num_bytes


def parse_line(line: bytes, whole: bool) -> dict[str, Any] | None:
    """The JSON object on a line; None where the file was shortened before the line ended."""
    num_holders = line.count(b"[") + line.count(b"{")
    require(num_holders <= MAX_HOLDERS, "", f"holds more than {MAX_HOLDERS:,} lists and objects")
    try:
        value = msgspec.json.decode(line)
    except (ValueError, RecursionError):
        value = _parse_slowly(line, whole)
        if value is None:
            return None
    require(type(value) is dict, "", f"must be a JSON object (got {type(value).__name__})")
    return value


def _parse_slowly(line: bytes, whole: bool) -> Any:
    """The value of a line that msgspec refuses; None for the beginning of a line. Raises TraceError that says why."""
    try:
        value = json.loads(
            line.decode("utf-8"), parse_constant=_no_constant, parse_int=_short_integer
        )
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return value
    except RecursionError:
        raise TraceError("is nested too deeply") from None
    except UnicodeEncodeError:
        raise TraceError("is not JSON in UTF-8 (half a surrogate pair)") from None
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at character {error.pos + 1}"
    except ValueError:
        reason = "bytes that are no characters"
    if whole:
        raise TraceError(f"is not JSON in UTF-8 ({reason})")
    return None


def _no_constant(name: str) -> float:
    raise TraceError(f"holds {name}, which is not JSON")


def _short_integer(digits: str) -> int:
    if len(digits) > 20:
        raise TraceError(f"holds a whole number of {len(digits):,} digits")
    return int(digits)


@contextmanager
def line_sink(path: Path, mode: str = "wb") -> Iterator[io.BufferedIOBase]:
    """Opens a binary file to write lines to, gzip if the name ends in .gz; nothing in it changes between runs."""
    with open(path, mode) as raw:
        if path.suffix == ".gz":
            with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                yield packed
        else:
            yield raw


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Writes a whole file under another name, then renames it, so that nobody reads half of it.

    Raises TraceError where the path is not an ordinary file.
    """
    place = ordinary_place(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_name(f".{os.getpid()}-{path.name}")
    try:
        with line_sink(temporary) as sink:
            if place.exists():
                temporary.chmod(stat.S_IMODE(place.stat().st_mode))
            sink.writelines(as_bytes(lines))
        os.replace(temporary, place)
    finally:
        temporary.unlink(missing_ok=True)


def as_bytes(lines: Iterable[str]) -> Iterator[bytes]:
    return (line.encode("utf-8") + b"\n" for line in lines)


def ordinary_place(path: Path, name: str = "") -> Path:
    """The path behind all links; the file may not exist yet. name: what the error calls the path.

    Raises TraceError where the path is not an ordinary file.
    """
    place = Path(os.path.realpath(path))
    for known_path in (
        path,
        place,
    ):  # a link to a pipe of this process may lead nowhere by its name
        try:
            kind = stat.S_IFMT(known_path.stat().st_mode)
        except OSError as error:  # there is no such file yet, or its links go in a circle
            kind = stat.S_IFLNK if error.errno == errno.ELOOP else stat.S_IFREG
        if kind != stat.S_IFREG:
            raise TraceError(
                f"must be an ordinary file (got {KINDS.get(kind, 'a device')})", name or str(path)
            )
    return place
