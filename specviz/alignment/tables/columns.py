"""The columns of the alignment lab's tables, and their form in Arrow.

assets/alignment.tables.json holds the name, Arrow type and meaning of every column. A shard gives tokens, prompts, sums
and bounds; a job saves tokens, prompts and slices.
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
TOKENS, PROMPTS, SUMS, BOUNDS, SLICES = COLUMNS.values()
_LISTS = {"list<float>": "float32", "list<double>": "float64", "list<int32>": "int32"}


def schema_of(table: Table) -> pyarrow.Schema:
    fields = []
    for name, column in table.items():
        arrow_type = column.type
        if arrow_type in _LISTS:
            arrow_type = pyarrow.list_(pyarrow.type_for_alias(_LISTS[arrow_type]))
        fields.append((name, arrow_type))
    return pyarrow.schema(fields)


def to_arrow(columns: pandas.DataFrame | Mapping[str, list[Any]], table: Table) -> pyarrow.Table:
    """Turns columns into an Arrow table with the types of `table`.

    ValueError for a column that is missing, misplaced or does not fit.
    """
    if list(columns) != list(table):
        raise ValueError(f"columns must be {', '.join(table)} (got {', '.join(columns)})")
    arrays = {}
    for name, cells in columns.items():
        # an array, unlike a column of a frame, keeps nan as nan
        arrays[name] = cells if isinstance(cells, list) else cells.to_numpy()
    return pyarrow.table(arrays, schema=schema_of(table))
