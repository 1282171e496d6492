"""A mapping of named things that shows itself as a table: as lines in a console, as HTML in a notebook."""

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar


class Named(Protocol):
    name: str


Entry = TypeVar("Entry", bound=Named)


class Listing(dict[str, Entry]):
    def __init__(
        self, entries: Iterable[Entry], columns: Mapping[str, Callable[[Entry], str]]
    ) -> None:
        """columns: the head of each and its text for an entry; the names come before them."""
        super().__init__({entry.name: entry for entry in entries})
        self._columns = columns

    def _rows(self) -> list[list[str]]:
        cells = (
            [name, *(text(entry) for text in self._columns.values())]
            for name, entry in self.items()
        )
        return [["name", *self._columns], *cells]

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = (
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        rows = "".join(_row(row, "td") for row in body)
        return f"<table><thead>{_row(head, 'th')}</thead><tbody>{rows}</tbody></table>"


def _row(cells: Iterable[str], tag: str) -> str:
    return f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
