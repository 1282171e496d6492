"""A mapping of named things that shows itself as a table: as lines in a console, as HTML in a notebook."""

import html
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar


class Named(Protocol):
    name: str


Entry = TypeVar("Entry", bound=Named)


class Listing(dict[str, Entry]):
    """A mapping from names to entries that shows itself as a table."""

    def __init__(
        self, entries: Iterable[Entry], columns: Mapping[str, Callable[[Entry], str]]
    ) -> None:
        """Holds the entries by name. columns: the head of each, and a function that gives its text for an entry."""
        super().__init__({entry.name: entry for entry in entries})
        self._columns = columns

    def _rows(self) -> list[list[str]]:
        rows = [["name", *self._columns]]
        for name, entry in self.items():
            rows.append([name, *(text_of(entry) for text_of in self._columns.values())])
        return rows

    def __repr__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            cells = [f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head, *body = self._rows()
        rows = "".join(_html_row(row, "td") for row in body)
        return f"<table><thead>{_html_row(head, 'th')}</thead><tbody>{rows}</tbody></table>"


def _html_row(cells: Iterable[str], tag: str) -> str:
    escaped = [html.escape(cell) for cell in cells]
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in escaped) + "</tr>"
