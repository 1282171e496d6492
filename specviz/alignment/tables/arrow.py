"""Columns and Arrow tables: the same cells either way, in the order and types of a `columns.Table`.

Arrays for numbers, a matrix for lists of them, a list for texts. pyarrow is loaded when it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from specviz.alignment.tables.columns import Table
from specviz.alignment.types import Columns

if TYPE_CHECKING:
    import pyarrow

_LISTS = {"list<float>": "float32", "list<double>": "float64"}


def schema_of(table: Table) -> pyarrow.Schema:
    import pyarrow

    def kind(name: str) -> pyarrow.DataType:
        inner = _LISTS.get(name)
        return pyarrow.type_for_alias(name) if inner is None else pyarrow.list_(pyarrow.type_for_alias(inner))

    return pyarrow.schema([(name, kind(column.type)) for name, column in table.items()])


def to_arrow(columns: Columns, table: Table) -> pyarrow.Table:
    """The columns of `table`, in its order and types. ValueError for a column that is missing or does not fit."""
    import pyarrow

    if list(columns) != list(table):
        raise ValueError(f"columns must be {', '.join(table)} (got {', '.join(columns)})")
    arrays = [pyarrow.array(_items(columns[item.name]), item.type) for item in schema_of(table)]
    return pyarrow.table(arrays, schema=schema_of(table))


def _items(values: object) -> object:
    """Rows of a matrix one by one, everything else as it is."""
    return list(values) if isinstance(values, np.ndarray) and values.ndim > 1 else values


def from_arrow(table: pyarrow.Table) -> dict[str, object]:
    """Arrays for numbers, a matrix for lists of them, a list for texts."""
    return {name: _values(column) for name, column in zip(table.column_names, table.columns, strict=True)}


def _values(column: pyarrow.ChunkedArray) -> object:
    import pyarrow.types as types

    if types.is_string(column.type):
        return column.to_pylist()
    if types.is_list(column.type):
        flat = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
        return flat.reshape(len(column), -1) if len(column) else flat.reshape(0, 0)
    return column.to_numpy()
