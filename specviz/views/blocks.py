"""The parts of a report page as plain JSON values: sections of controls and blocks, which the browser lays out.

A section is sent whole whenever something in it changes, with every number, width and sentence. Its texts are harmless
already (see `words.py`). A sentence may be a list of texts; every second one is set off.
"""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Props = dict[str, Any]
Words = str | Sequence[str]
Cell = str | Mapping[str, Any]
Columns = Mapping[str, Callable[[Any], Cell]]
"""The head of each column of a table -> the function that makes its cell for an item."""
Options = Sequence[tuple[str, str]]
"""(words, value) of each entry of a list."""
VERDICTS = ("exact", "consistent", "suspicious", "differs", "unsure")
TONES = (
    "both",
    "shortfall",
    "excess",
    "p",
    "q",
    "accepted",
    "rejected",
    "ignored",
    "resampled",
    "bonus",
    "plain",
)


def section(
    name: str, title: str, lead: Words, controls: Sequence[Props] = (), blocks: Sequence[Props] = ()
) -> Props:
    """A section of a page; `lead` is the sentence below its title."""
    return {
        "id": name,
        "title": title,
        "lead": lead,
        "controls": list(controls),
        "blocks": list(blocks),
    }


def whole_page(sections: Sequence[Props]) -> Props:
    """A report page of these sections, without controls: no server answers them."""
    shown = [{**section, "controls": []} for section in sections]
    return {
        "sections": shown,
        "order": [section["id"] for section in shown],
        "busy": None,
        "say": "",
    }


# ---- controls: a person sets them before pressing a button of the same section --------------------------------------


def button(does: str, label: str, *, primary: bool = False) -> Props:
    """A button that sends the section's values, and `does`, the name of the action."""
    return {"kind": "button", "do": does, "label": label, "primary": primary}


def choice(name: str, label: str, options: Options, value: str) -> Props:
    """A list of options; the one with this value is chosen."""
    return {
        "kind": "choice",
        "name": name,
        "label": label,
        "options": [list(pair) for pair in options],
        "value": value,
    }


def count(name: str, label: str, value: int, low: int, high: int) -> Props:
    """A whole number from `low` to `high`."""
    return {"kind": "count", "name": name, "label": label, "value": value, "low": low, "high": high}


def lines(name: str, label: str, value: str, hint: str, most: int) -> Props:
    """A text of several lines with at most `most` characters; one more can be sent, to be refused in words."""
    return {
        "kind": "lines",
        "name": name,
        "label": label,
        "value": value,
        "hint": hint,
        "most": most,
    }


# ---- blocks: a person reads them ------------------------------------------------------------------------------------


def words(text: Words, *, small: bool = False) -> Props:
    """A paragraph."""
    return {"kind": "words", "words": text, "small": small}


def notice(text: Words) -> Props:
    """Words that disappear as soon as the section's work begins."""
    return {**words(text), "passing": True}


def is_notice(block: Props) -> bool:
    return block.get("passing", False)


def verdict(state: str, text: Words) -> Props:
    """The outcome of a check; a mark and a colour come with the state."""
    assert state in VERDICTS, f"state must be one of {VERDICTS} (got {state!r})"
    return {"kind": "verdict", "state": state, "words": text}


def progress(done: int, total: int, text: str) -> Props:
    """The progress of long work, with a button that stops it."""
    width = round(100 * done / total, 1) if total else 0.0
    return {"kind": "progress", "width": width, "words": text}


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str = "",
    marked: int = -1,
    sortable: bool = False,
) -> Props:
    """A table; the first column names the row. A cell is a text or made by `cell`.

    marked: the row that stands out. sortable: a click on a column's head sorts by the cells' own keys, or by their
    texts where they have none.
    """
    return {
        "kind": "table",
        "columns": list(columns),
        "rows": [list(row) for row in rows],
        "caption": caption,
        "marked": marked,
        "sortable": sortable,
    }


def table_of(items: Sequence[Any], columns: Columns, **options: Any) -> Props:
    """A table with a row per item. options: as for `table`."""
    rows = []
    for item in items:
        rows.append([make_cell(item) for make_cell in columns.values()])
    return table(list(columns), rows, **options)


def cell(text: Words, *, sort: float | str | None = None, tone: str = "") -> Cell:
    """A cell with a tone, with every second of its texts set off, or with a key to sort by (None: at the end)."""
    props: dict[str, Any] = {"text": text, "sort": sort}
    if tone:
        props["tone"] = tone
    return props


def opening_cell(text: str, number: int, draft: int, token: int) -> Cell:
    """A cell that opens a text in the `texts` block of the same page.

    number: of the text; draft: the draft model that marks it; token: the token at which it opens.
    """
    return {"text": text, "sort": text, "opens": {"text": number, "draft": draft, "token": token}}


def button_cell(text: str, section: str, does: str, values: Mapping[str, str]) -> Cell:
    """A cell with a button that acts as a button of the section, with these values."""
    press = {"section": section, "do": does, "values": dict(values)}
    return {"text": text, "sort": text, "does": press}


def chart(figure: Mapping[str, Any]) -> Props:
    """A figure in the format of `charts.py`: {"data", "layout"} with layout.meta.title and layout.meta.table."""
    return {"kind": "chart", "figure": figure}


def bars(
    rows: Sequence[Props],
    *,
    heads: Sequence[str] = (),
    key: Sequence[tuple[str, str]] = (),
    first: str = "token",
) -> Props:
    """Rows of `bar`, all on one scale.

    heads: the columns of the rows' values. key: (tone, its meaning) each. first: the name of a row for a screen reader.
    """
    return {
        "kind": "bars",
        "rows": list(rows),
        "heads": list(heads),
        "key": [list(pair) for pair in key],
        "first": first,
    }


def bar(
    label: str,
    parts: Sequence[tuple[str, float]],
    values: Sequence[str] = (),
    tick: float | None = None,
) -> Props:
    """A bar of stacked parts (tone, width in percent of the axis), and a tick at a place in percent."""
    return {
        "label": label,
        "parts": [[tone, round(width, 3)] for tone, width in parts],
        "values": list(values),
        "tick": None if tick is None else round(tick, 3),
    }


def segments(tokens: Sequence[str], by_k: Mapping[int, Props], k: int) -> Props:
    """A text divided into steps for every K, which the block's slider chooses.

    `by_k`[K] = {"lengths": tokens per step, "kinds": the kind of the token that ended each step, "words"}.
    """
    return {
        "kind": "segments",
        "tokens": list(tokens),
        "by_k": {str(length): steps for length, steps in by_k.items()},
        "k": k,
    }


def dump(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def pack(value: Any) -> str:
    """JSON, compressed, in letters and digits that any page can hold."""
    text = dump(value).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode("ascii")


def download(label: str, file_name: str, text: str) -> Props:
    """A text to copy or to save as a file."""
    return {"kind": "download", "label": label, "file": file_name, "text": text}


def links(entries: Sequence[tuple[str, str]]) -> Props:
    """Links to files of this server: (words, address) each."""
    return {"kind": "links", "entries": [list(entry) for entry in entries]}


def places(entries: Sequence[Props]) -> Props:
    """Links to places of this page: each has `href`, `title`, `words` and `facts`."""
    return {"kind": "places", "entries": list(entries)}


def details(title: str, blocks: Sequence[Props]) -> Props:
    """Blocks that open on demand."""
    return {"kind": "details", "title": title, "blocks": list(blocks)}
