"""Writes the outputs of a job (tables as Parquet and CSV, summary.json, report.html), and reads its summary.

Tables are written part by part. Parquet is exact. In CSV, text that a spreadsheet would run as a formula gets an
apostrophe in front; an exact copy stands beside it as a JSON string.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pandas
import pyarrow
from pyarrow import compute, csv, parquet, types

from specviz.alignment.report.sections import report_page
from specviz.alignment.report.texts import TextView, read_texts
from specviz.alignment.summary import VERSION, Summary
from specviz.alignment.tables.columns import COLUMNS, SLICES, schema_of, to_arrow
from specviz.alignment.types import ModelIdentity, ShardTables
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.trace.export import escape_formula
from specviz.trace.lines import write_lines

MOST_SUMMARY_BYTES = 256 << 20
CSV_NAMES = {"tokens": "tokens.csv.gz", "prompts": "prompts.csv", "slices": "slices.csv"}
EXACT = {"text": "text_json", "prompt_text": "prompt_text_json"}
"""Columns of CSV: a text -> its exact copy as a JSON string."""


@dataclass(frozen=True, slots=True, eq=False)
class Alignment:
    """A finished job."""

    summary: Summary
    folder: Path  # holds the tables, summary.json and report.html
    target: ModelIdentity = field(repr=False)
    _home: TemporaryDirectory | None = field(default=None, repr=False)
    """A temporary folder, which is removed with this object."""

    @property
    def tokens(self) -> pandas.DataFrame:
        """The table with a row per token and draft (`columns.TOKENS`)."""
        return self._frame("tokens")

    @property
    def prompts(self) -> pandas.DataFrame:
        """The table with a row per text and draft (`columns.PROMPTS`)."""
        return self._frame("prompts")

    @property
    def slices(self) -> pandas.DataFrame:
        """The table with a row per draft and slice (`columns.SLICES`)."""
        return self._frame("slices")

    @property
    def report_path(self) -> Path:
        return self.folder / "report.html"

    def _frame(self, name: str) -> pandas.DataFrame:
        return pandas.read_parquet(self.folder / f"{name}.parquet")


@contextmanager
def table_file(folder: Path, name: str) -> Iterator[Callable[[Any], None]]:
    """Gives a function that adds rows to a table, in Parquet and in CSV.

    Both files appear when the block ends without an error.
    """
    table = COLUMNS[name]
    schema = schema_of(table)
    parquet_name = f"{name}.parquet"
    csv_name = CSV_NAMES[name]
    parquet_part = folder / f".{parquet_name}"
    csv_part = folder / f".{csv_name}"
    compression = "gzip" if csv_part.suffix == ".gz" else None
    try:
        with (
            parquet.ParquetWriter(parquet_part, schema, compression="zstd") as parquet_file,
            pyarrow.output_stream(str(csv_part), compression=compression) as stream,
            csv.CSVWriter(stream, _flatten(schema.empty_table()).schema) as csv_file,
        ):

            def add(columns: pandas.DataFrame | Mapping[str, list[Any]]) -> None:
                rows = to_arrow(columns, table)
                parquet_file.write_table(rows)
                csv_file.write_table(_flatten(rows))

            yield add
        os.replace(parquet_part, folder / parquet_name)
        os.replace(csv_part, folder / csv_name)
    finally:
        parquet_part.unlink(missing_ok=True)
        csv_part.unlink(missing_ok=True)


def _flatten(rows: pyarrow.Table) -> pyarrow.Table:
    """Turns rows into their form in CSV.

    An interval becomes two columns, a list of ids becomes JSON, and a text is made harmless (see EXACT).
    """
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if types.is_list(column.type) and types.is_integer(column.type.value_type):
            columns[name] = pyarrow.array(map(json.dumps, column.to_pylist()), "string")
        elif types.is_list(column.type):
            columns[f"{name}_low"] = compute.list_element(column, 0)
            columns[f"{name}_high"] = compute.list_element(column, 1)
        elif types.is_string(column.type):
            texts = column.to_pylist()
            columns[name] = pyarrow.array(map(escape_formula, texts), "string")
            if name in EXACT:
                columns[EXACT[name]] = pyarrow.array(map(json.dumps, texts), "string")
        else:
            columns[name] = column
    return pyarrow.table(columns)


def write_tables(folder: Path, parts: Iterable[ShardTables]) -> Iterator[ShardTables]:
    """Writes tokens and prompts, and passes each part on once it is written."""
    with table_file(folder, "tokens") as tokens, table_file(folder, "prompts") as prompts:
        for part in parts:
            tokens(part.tokens)
            prompts(part.prompts)
            yield part


def write_summary(folder: Path, summary: Summary) -> None:
    """Writes summary.json, and the slices as a table."""
    values = msgspec.json.decode(msgspec.json.encode(summary))  # nan as null
    write_lines(folder / "summary.json", [json.dumps(values, indent=1, ensure_ascii=False)])
    with table_file(folder, "slices") as add:
        add({name: [getattr(row, name) for row in summary.slices] for name in SLICES})


def write_report(folder: Path, summary: Summary, parts: Iterable[ShardTables]) -> None:
    """Writes report.html, with the texts of the parts."""
    with closing(_texts_of(parts)) as texts:
        write_lines(folder / "report.html", [report_page(summary, texts).removesuffix("\n")])


def _texts_of(parts: Iterable[ShardTables]) -> Iterator[TextView]:
    for part in parts:
        yield from read_texts(part.tokens, part.prompts)


def read_values(path: Path) -> Any:
    """Reads JSON from an untrusted file. Raises SpecvizError."""
    try:
        if path.stat().st_size > MOST_SUMMARY_BYTES:
            raise SpecvizError(
                f"{path.name} is too large: at most {MOST_SUMMARY_BYTES:,} bytes are read"
            )
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise SpecvizError(f"{path.name} cannot be opened ({error.strerror})") from error
    except (ValueError, RecursionError) as error:
        raise SpecvizError(f"{path.name} is not JSON in UTF-8") from error


def read_summary(path: Path) -> Summary:
    """Reads a summary that `write_summary` wrote. Raises SpecvizError for anything else."""
    values = read_values(path)
    version = values.get("version") if isinstance(values, Mapping) else None
    if version != VERSION:
        raise SpecvizError(
            f"{path.name} must be a job's summary of version {VERSION} (got {str(version)[:20]})"
        )
    try:
        summary = msgspec.convert(values, Summary)
    except msgspec.ValidationError as error:
        raise SpecvizError(f"{path.name} is not a complete summary ({str(error)[:200]})") from error
    return replace(summary, sampling=Request.FILTERS | summary.sampling)
