"""The tables of the alignment lab, and how columns become Arrow tables.

assets/alignment.tables.json holds name, Arrow type and meaning of every column. A shard gives tokens, prompts and sums;
tokens, prompts and slices are saved.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import pandas
import pyarrow

from specviz.settings import assets_dir


class Column(NamedTuple):
    type: str
    meaning: str


Table = Mapping[str, Column]
_FILE = assets_dir() / "alignment.tables.json"
COLUMNS: Mapping[str, Table] = msgspec.json.decode(
    _FILE.read_bytes(), type=dict[str, dict[str, Column]]
)
TOKENS, PROMPTS, SUMS, SLICES = COLUMNS.values()
_LISTS = {"list<float>": "float32", "list<double>": "float64", "list<int32>": "int32"}


def schema_of(table: Table) -> pyarrow.Schema:
    lists = {name: pyarrow.list_(pyarrow.type_for_alias(inner)) for name, inner in _LISTS.items()}
    return pyarrow.schema(
        [(name, lists.get(column.type, column.type)) for name, column in table.items()]
    )


def to_arrow(columns: pandas.DataFrame | Mapping[str, list[Any]], table: Table) -> pyarrow.Table:
    """The columns of `table`, in its order and types. ValueError for a column that is missing or does not fit."""
    if list(columns) != list(table):
        raise ValueError(f"columns must be {', '.join(table)} (got {', '.join(columns)})")
    rows = {
        name: cells if isinstance(cells, list) else cells.to_numpy()
        for name, cells in columns.items()
    }
    return pyarrow.table(rows, schema=schema_of(table))  # of arrays, not of a frame: nan stays nan
