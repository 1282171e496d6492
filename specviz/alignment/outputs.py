"""What a job leaves behind: tables as Parquet and CSV, summary.json, report.html, and the summary read back.

Tables are written part by part. Parquet is the exact form. In CSV whatever a spreadsheet would run as a formula gets an
apostrophe in front; the texts stand there as JSON strings too, exact.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin, get_type_hints

from specviz.alignment.job_folder import write_text
from specviz.alignment.summary import VERSION, Summary
from specviz.alignment.tables.arrow import schema_of, to_arrow
from specviz.alignment.tables.columns import COLUMNS, SLICES, Table
from specviz.alignment.types import ShardTables
from specviz.errors import SpecvizError
from specviz.trace.export import guarded

if TYPE_CHECKING:
    import pandas
    import pyarrow

MOST_SUMMARY_BYTES = 256 << 20
CSV_NAMES = {"tokens": "tokens.csv.gz", "prompts": "prompts.csv", "slices": "slices.csv"}
EXACT = {"text": "text_json", "prompt_text": "prompt_text_json"}  # of CSV: a text's column, and that of its JSON string


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """A finished job. folder: where tables, summary.json and report.html lie; a temporary one is removed with this."""

    summary: Summary
    folder: Path
    _home: TemporaryDirectory | None = field(default=None, repr=False)

    @property
    def tokens(self) -> pandas.DataFrame:
        """One row per token and draft (`columns.TOKENS`)."""
        return self._frame("tokens")

    @property
    def prompts(self) -> pandas.DataFrame:
        """One row per text and draft (`columns.PROMPTS`)."""
        return self._frame("prompts")

    @property
    def slices(self) -> pandas.DataFrame:
        """One row per draft and slice (`columns.SLICES`)."""
        return self._frame("slices")

    @property
    def report_path(self) -> Path:
        return self.folder / "report.html"

    def _frame(self, name: str) -> pandas.DataFrame:
        import pandas

        return pandas.read_parquet(self.folder / f"{name}.parquet")


class TableFile:
    """One table as two files, Parquet and CSV, which take their places when it is closed without an error."""

    def __init__(self, folder: Path, name: str, table: Table) -> None:
        import pyarrow.parquet as parquet

        self._table, self._schema = table, schema_of(table)
        self._places = {place: place.with_name(f".{place.name}") for place in _places(folder, name)}
        plain, text = self._places.values()
        with ExitStack() as files:
            self._parquet = files.enter_context(parquet.ParquetWriter(plain, self._schema, compression="zstd"))
            self._csv = files.enter_context(_csv_writer(text, _flat_schema(self._schema), name))
            self._files = files.pop_all()

    def add(self, columns: Mapping[str, object]) -> None:
        rows = to_arrow(columns, self._table)
        self._parquet.write_table(rows)
        self._csv.write_table(_flat(rows))

    def close(self) -> None:
        """The files take their places."""
        self._files.close()
        for place, beside in self._places.items():
            os.replace(beside, place)

    def drop(self) -> None:
        self._files.close()
        for beside in self._places.values():
            beside.unlink(missing_ok=True)


def _places(folder: Path, name: str) -> tuple[Path, Path]:
    return folder / f"{name}.parquet", folder / CSV_NAMES[name]


@contextmanager
def table_file(folder: Path, name: str) -> Iterator[TableFile]:
    """A table to add rows to: whole when the block ends, not there when it fails."""
    made = TableFile(folder, name, COLUMNS[name])
    try:
        yield made
    except BaseException:
        made.drop()
        raise
    made.close()


@contextmanager
def _csv_writer(path: Path, schema: pyarrow.Schema, name: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.csv as csv

    packing = "gzip" if CSV_NAMES[name].endswith(".gz") else None
    with pyarrow.output_stream(str(path), compression=packing) as stream, csv.CSVWriter(stream, schema) as writer:
        yield writer


def _flat_schema(schema: pyarrow.Schema) -> pyarrow.Schema:
    return _flat(schema.empty_table()).schema


def _flat(rows: pyarrow.Table) -> pyarrow.Table:
    """The rows as CSV has them: a list column, an interval, becomes two columns, and texts are harmless; see EXACT."""
    import pyarrow
    import pyarrow.compute as compute
    import pyarrow.types as types

    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if types.is_list(column.type):
            columns |= {f"{name}_{end}": compute.list_element(column, at) for at, end in enumerate(("low", "high"))}
        elif types.is_string(column.type):
            texts = column.to_pylist()
            columns[name] = pyarrow.array(map(guarded, texts), "string")
            if name in EXACT:
                columns[EXACT[name]] = pyarrow.array(map(json.dumps, texts), "string")
        else:
            columns[name] = column
    return pyarrow.table(columns)


def write_tables(folder: Path, parts: Iterable[ShardTables]) -> Iterator[ShardTables]:
    """Writes tokens and prompts while the parts pass by, so that whoever reads on sees each once."""
    with table_file(folder, "tokens") as tokens, table_file(folder, "prompts") as prompts:
        for part in parts:
            tokens.add(part.tokens)
            prompts.add(part.prompts)
            yield part


def write_summary(folder: Path, summary: Summary) -> None:
    """summary.json and the slices as a table."""
    values = _without_nan(summary.to_dict())
    write_text(folder / "summary.json", json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    with table_file(folder, "slices") as slices:
        slices.add({name: [getattr(row, name) for row in summary.slices] for name in SLICES})


def write_report(folder: Path, summary: Summary, parts: Iterable[ShardTables]) -> None:
    from specviz.alignment.report.sections import report_page
    from specviz.alignment.report.texts import read_texts

    texts = (text for part in parts for text in read_texts(part))
    with closing(texts):
        write_text(folder / "report.html", report_page(summary, texts))


def _without_nan(value: Any) -> Any:
    """JSON has no nan: what is not known is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _without_nan(item) for name, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, (list, tuple)) else value


# ---- a summary read back --------------------------------------------------------------------------------------------


def read_values(path: Path) -> Any:
    """JSON from an untrusted file. Raises SpecvizError."""
    try:
        if path.stat().st_size > MOST_SUMMARY_BYTES:
            raise SpecvizError(f"{path.name} is too large: at most {MOST_SUMMARY_BYTES:,} bytes are read")
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be opened ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise SpecvizError(f"{path.name} is not JSON in UTF-8") from error


def read_json(path: Path) -> Mapping[str, Any]:
    """A JSON object from an untrusted file. Raises SpecvizError."""
    values = read_values(path)
    if not isinstance(values, Mapping):
        raise SpecvizError(f"{path.name} must hold a JSON object")
    return values


def read_summary(path: Path) -> Summary:
    """The summary that `write_summary` wrote. Raises SpecvizError for anything else."""
    values = read_json(path)
    if values.get("version") != VERSION:
        raise SpecvizError(
            f"{path.name} must be a summary of version {VERSION} (got {str(values.get('version'))[:20]})"
        )
    try:
        return _typed(values, Summary)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise SpecvizError(f"{path.name} is not a whole summary ({str(error)[:200]})") from error


def _typed(value: Any, kind: Any) -> Any:
    """A JSON value as a value of this type: frozen values from objects, tuples from lists."""
    if kind is Any:
        return value
    if dataclasses.is_dataclass(kind):
        return kind(**{name: _typed(value[name], inner) for name, inner in _hints(kind).items() if name in value})
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if value is None else _typed(value, next(each for each in inner if each is not NoneType))
    if origin is tuple:
        kinds = inner[:1] * len(value) if inner[-1] is ... else inner
        return tuple([_typed(item, each) for item, each in zip(value, kinds, strict=True)])
    if isinstance(value, Mapping):
        return {name: _typed(item, inner[-1]) for name, item in value.items()}
    return _plain(value, kind)


def _plain(value: Any, kind: Any) -> Any:
    if kind is float:
        return math.nan if value is None else float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} must be of the type {kind.__name__}")
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)
