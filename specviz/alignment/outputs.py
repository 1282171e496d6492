"""What a job leaves behind: tables as Parquet and CSV, summary.json, report.html, and the summary read back.

Tables are written part by part. Parquet is the exact form. In CSV whatever a spreadsheet would run as a formula gets an
apostrophe in front; the texts stand there as JSON strings too, exact.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pandas
import pyarrow
from pyarrow import compute, csv, parquet, types

from specviz.alignment.report.sections import report_page
from specviz.alignment.report.texts import read_texts
from specviz.alignment.summary import VERSION, Summary
from specviz.alignment.tables.columns import COLUMNS, SLICES, schema_of, to_arrow
from specviz.alignment.types import ShardTables
from specviz.errors import SpecvizError
from specviz.trace.export import escape_formula
from specviz.trace.lines import write_lines

MOST_SUMMARY_BYTES = 256 << 20
CSV_NAMES = {"tokens": "tokens.csv.gz", "prompts": "prompts.csv", "slices": "slices.csv"}
EXACT = {
    "text": "text_json",
    "prompt_text": "prompt_text_json",
}  # of CSV: a text's column, and that of its JSON string


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
        return pandas.read_parquet(self.folder / f"{name}.parquet")


@contextmanager
def table_file(folder: Path, name: str) -> Iterator[Callable[[Any], None]]:
    """A function that adds rows to a table, in Parquet and in CSV. Both files appear when the block ends without an
    error."""
    table = COLUMNS[name]
    schema = schema_of(table)
    places = {folder / f".{each}": folder / each for each in (f"{name}.parquet", CSV_NAMES[name])}
    exact, text = places
    packing = "gzip" if text.suffix == ".gz" else None
    try:
        with (
            parquet.ParquetWriter(exact, schema, compression="zstd") as rows_file,
            pyarrow.output_stream(str(text), compression=packing) as stream,
            csv.CSVWriter(stream, _flatten(schema.empty_table()).schema) as lines_file,
        ):

            def add(columns: pandas.DataFrame | Mapping[str, list[Any]]) -> None:
                rows = to_arrow(columns, table)
                rows_file.write_table(rows)
                lines_file.write_table(_flatten(rows))

            yield add
        for beside, place in places.items():
            os.replace(beside, place)
    finally:
        for beside in places:
            beside.unlink(missing_ok=True)


def _flatten(rows: pyarrow.Table) -> pyarrow.Table:
    """The rows as CSV has them: an interval becomes two columns, a list of ids JSON; texts are harmless, see EXACT."""
    columns = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if types.is_list(column.type) and types.is_integer(column.type.value_type):
            columns[name] = pyarrow.array(map(json.dumps, column.to_pylist()), "string")
        elif types.is_list(column.type):
            columns |= {
                f"{name}_{end}": compute.list_element(column, at)
                for at, end in enumerate(("low", "high"))
            }
        elif types.is_string(column.type):
            texts = column.to_pylist()
            columns[name] = pyarrow.array(map(escape_formula, texts), "string")
            if name in EXACT:
                columns[EXACT[name]] = pyarrow.array(map(json.dumps, texts), "string")
        else:
            columns[name] = column
    return pyarrow.table(columns)


def write_tables(folder: Path, parts: Iterable[ShardTables]) -> Iterator[ShardTables]:
    """Writes tokens and prompts while the parts pass by, so that whoever reads on sees each once."""
    with table_file(folder, "tokens") as tokens, table_file(folder, "prompts") as prompts:
        for part in parts:
            tokens(part.tokens)
            prompts(part.prompts)
            yield part


def write_summary(folder: Path, summary: Summary) -> None:
    """summary.json and the slices as a table."""
    values = msgspec.json.decode(msgspec.json.encode(summary))  # nan as null
    write_lines(folder / "summary.json", [json.dumps(values, indent=1, ensure_ascii=False)])
    with table_file(folder, "slices") as add:
        add({name: [getattr(row, name) for row in summary.slices] for name in SLICES})


def write_report(folder: Path, summary: Summary, parts: Iterable[ShardTables]) -> None:
    with closing(text for part in parts for text in read_texts(part.tokens, part.prompts)) as texts:
        write_lines(folder / "report.html", [report_page(summary, texts).removesuffix("\n")])


def read_values(path: Path) -> Any:
    """JSON from an untrusted file. Raises SpecvizError."""
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
    """The summary that `write_summary` wrote. Raises SpecvizError for anything else."""
    values = read_values(path)
    version = values.get("version") if isinstance(values, Mapping) else None
    if version != VERSION:
        raise SpecvizError(
            f"{path.name} must be a job's summary of version {VERSION} (got {str(version)[:20]})"
        )
    try:
        return msgspec.convert(values, Summary)
    except msgspec.ValidationError as error:
        raise SpecvizError(f"{path.name} is not a complete summary ({str(error)[:200]})") from error
