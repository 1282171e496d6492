"""Prompt files that are not read line by line: one JSON list, CSV and TSV, Parquet. Returns their rows in order.

Files are not trusted: memory is bounded, and nothing but data is read from them.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from pyarrow import parquet

from specviz.alignment.types import RefusedRow
from specviz.errors import SpecvizError

MOST_BYTES = 1 << 30
MOST_LIST_BYTES = 256 << 20  # of one JSON list, which is held whole
MOST_UNPACKED = 4 << 30  # of a Parquet file, by what it says of itself
BATCH_ROWS = 256
_PARQUET = b"PAR1"
_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_BY_JSON = (
    *("messages", "conversations", "tags", "completion", "prompt", "turns", "body", "sampled"),
    *("prompt_ids", "ids", "prompt_token_ids", "token_ids", "tools", "chat_template_kwargs"),
    *("request", "choices", "outputs", "meta_info", "input_ids", "output_ids", "tokens", "error"),
    *("sampling_params", "generation_settings"),
)
"""The columns of a CSV file that may hold JSON lists or objects. A response may be JSON that the model wrote."""


def table_of(path: Path) -> Iterator[object] | None:
    """The rows of a table or a list; None for a file of JSON lines or text. Raises SpecvizError, also later, while the
    rows are read."""
    suffix = path.suffix.lower()
    if suffix in _DELIMITERS:
        return _csv_rows(path, _DELIMITERS[suffix])
    if suffix == ".txt":
        return None
    with path.open("rb") as stream:
        start = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(_PARQUET):
        return _parquet_rows(path)
    return _list_rows(path) if start.startswith(b"[") else None


def _csv_rows(path: Path, delimiter: str) -> Iterator[object]:
    """The rows of a CSV or TSV file. Cells are texts; an empty cell is no value."""
    with path.open(encoding="utf-8-sig", errors="strict", newline="") as stream:
        try:
            for row in csv.DictReader(stream, delimiter=delimiter, strict=True):
                yield _csv_row(row)
        except (csv.Error, UnicodeDecodeError) as error:
            raise SpecvizError(f"{path.name} cannot be read as CSV in UTF-8 ({error})") from None


def _csv_row(row: dict[str | None, Any]) -> object:
    if None in row:  # DictReader's place for cells beyond the last column
        num_columns = len(row) - 1
        num_cells = num_columns + len(row[None])
        words = f"has {num_cells:,} cells; the first line names {num_columns:,} columns"
        return RefusedRow(0, words)
    return {name: _cell(name, text) for name, text in row.items() if text}


def _cell(name: str, text: str) -> object:
    if name not in _BY_JSON or text[0] not in "[{":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _list_rows(path: Path) -> Iterator[object]:
    size = path.stat().st_size
    if size > MOST_LIST_BYTES:
        raise SpecvizError(
            f"{path.name} is one JSON list, of which at most {MOST_LIST_BYTES:,} bytes are read (got {size:,}): write "
            "one JSON object per line"
        )
    try:
        content = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        rows = msgspec.json.decode(content, type=list[msgspec.Raw])
    except (ValueError, RecursionError) as error:
        raise SpecvizError(f"{path.name} begins as one JSON list and is none ({error})") from None
    for row in rows:
        try:
            yield msgspec.json.decode(row)
        except (ValueError, RecursionError) as error:
            yield RefusedRow(0, f"cannot be read as JSON ({error})")


def without_nulls(value: object) -> object:
    """The value without null fields, at any depth.

    Parquet and Polars give every object of a column the fields of all others, as nulls: a tool would gain their
    parameters. In a cell of a data frame, null is no value.
    """
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def _parquet_rows(path: Path) -> Iterator[object]:
    try:
        with parquet.ParquetFile(path) as file:
            size = 0
            for place in range(file.metadata.num_row_groups):
                size += file.metadata.row_group(place).total_byte_size
            if size > MOST_UNPACKED:
                raise SpecvizError(
                    f"{path.name} unpacks to more than {MOST_UNPACKED:,} bytes (got {size:,})"
                )
            for batch in file.iter_batches(BATCH_ROWS):
                yield from map(without_nulls, batch.to_pylist())
    except SpecvizError:
        raise
    except Exception as error:  # whatever a stranger's file makes pyarrow raise
        reason = " ".join(str(error).split())[:200]
        raise SpecvizError(
            f"{path.name} is damaged, or not Parquet that pyarrow reads ({reason})"
        ) from error
