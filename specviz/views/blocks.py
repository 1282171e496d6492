"""What a page of reports is made of, as plain JSON values: sections of controls and blocks, which the browser lays out.

A section is sent whole whenever something in it changes. Every number, width and sentence stands in it; texts from
outside are labelled by `sentences` first. A sentence may be a list of texts, of which every second one is set off.
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
"""The head of each column of a table -> its cell for an item."""
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
    return {
        "id": name,
        "title": title,
        "lead": lead,
        "controls": list(controls),
        "blocks": list(blocks),
    }


def whole_page(sections: Sequence[Props]) -> Props:
    """These sections as a report page takes them, without controls: nobody is there to answer them."""
    shown = [{**section, "controls": []} for section in sections]
    return {
        "sections": shown,
        "order": [section["id"] for section in shown],
        "busy": None,
        "say": "",
    }


# ---- controls: what a person sets before pressing a button of the same section --------------------------------------


def button(does: str, label: str, *, primary: bool = False) -> Props:
    """Sends the section's values with the name of what is to be done."""
    return {"kind": "button", "do": does, "label": label, "primary": primary}


def choice(name: str, label: str, options: Options, value: str) -> Props:
    return {
        "kind": "choice",
        "name": name,
        "label": label,
        "options": [list(pair) for pair in options],
        "value": value,
    }


def count(name: str, label: str, value: int, low: int, high: int) -> Props:
    return {"kind": "count", "name": name, "label": label, "value": value, "low": low, "high": high}


def lines(name: str, label: str, value: str, hint: str, most: int) -> Props:
    """A text of several lines, of at most so many characters; one more can be sent, to be refused in words."""
    return {
        "kind": "lines",
        "name": name,
        "label": label,
        "value": value,
        "hint": hint,
        "most": most,
    }


# ---- blocks: what is shown ------------------------------------------------------------------------------------------


def words(text: Words, *, small: bool = False) -> Props:
    return {"kind": "words", "words": text, "small": small}


def notice(text: Words) -> Props:
    """Words that go as soon as the section's work begins."""
    return {**words(text), "passing": True}


def is_notice(block: Props) -> bool:
    return block.get("passing", False)


def verdict(state: str, text: Words) -> Props:
    """The outcome of a check; a mark and a colour come with the state."""
    assert state in VERDICTS, f"state must be one of {VERDICTS} (got {state!r})"
    return {"kind": "verdict", "state": state, "words": text}


def progress(done: int, total: int, text: str) -> Props:
    """How far long work has come, with a button that stops it."""
    return {
        "kind": "progress",
        "width": round(100 * done / total, 1) if total else 0.0,
        "words": text,
    }


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    caption: str = "",
    marked: int = -1,
    sortable: bool = False,
) -> Props:
    """The first column names the row; `marked`: the row that stands out. A cell is a text or made by `cell`.

    sortable: a click on a column's head sorts by the cells' own keys, by their texts where they have none.
    """
    return {"kind": "table", "columns": list(columns), "rows": [list(row) for row in rows], "caption": caption,
            "marked": marked, "sortable": sortable}  # fmt: skip


def table_of(items: Sequence[Any], columns: Columns, **options: Any) -> Props:
    """A table with a row per item; options: of `table`."""
    return table(
        list(columns), [[make(each) for make in columns.values()] for each in items], **options
    )


def cell(text: Words, *, sort: float | str | None = None, tone: str = "") -> Cell:
    """A cell with a tone, with every second of its texts set off, or with a key to sort by (None: at the end)."""
    made: dict[str, Any] = {"text": text, "sort": sort}
    return made | {"tone": tone} if tone else made


def opening_cell(text: str, number: int, draft: int, token: int) -> Cell:
    """A cell that opens, in the `texts` block of the same page, the text of this number under a draft at a token."""
    return {"text": text, "sort": text, "opens": {"text": number, "draft": draft, "token": token}}


def button_cell(text: str, section: str, does: str, values: Mapping[str, str]) -> Cell:
    """A cell with a button that does what a button of the section would do, with these values."""
    return {
        "text": text,
        "sort": text,
        "does": {"section": section, "do": does, "values": dict(values)},
    }


def chart(figure: Mapping[str, Any]) -> Props:
    """A figure as `charts.py` makes them: {"data", "layout"} with layout.meta.title and layout.meta.table."""
    return {"kind": "chart", "figure": figure}


def bars(
    rows: Sequence[Props],
    *,
    heads: Sequence[str] = (),
    key: Sequence[tuple[str, str]] = (),
    first: str = "token",
) -> Props:
    """Rows of `bar`, all on one scale; `heads` name the columns of their values, `first` says what a row is to those
    who listen, `key` is (tone, what it means)."""
    return {"kind": "bars", "rows": list(rows), "heads": list(heads), "key": [list(pair) for pair in key],
            "first": first}  # fmt: skip


def bar(
    label: str,
    parts: Sequence[tuple[str, float]],
    values: Sequence[str] = (),
    tick: float | None = None,
) -> Props:
    """Stacked parts (tone, width in percent of the axis), and a tick at a place in percent."""
    widths = [[tone, round(width, 3)] for tone, width in parts]
    return {
        "label": label,
        "parts": widths,
        "values": list(values),
        "tick": None if tick is None else round(tick, 3),
    }


def segments(tokens: Sequence[str], by_k: Mapping[int, Props], k: int) -> Props:
    """A text cut into steps for every K, which the block's slider chooses.

    `by_k`[K] = {"lengths": tokens per step, "kinds": the kind of the token that ended each step, "words"}.
    """
    return {
        "kind": "segments",
        "tokens": list(tokens),
        "by_k": {str(each): cut for each, cut in by_k.items()},
        "k": k,
    }


def dump(value: Any) -> str:
    """JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def pack(value: Any) -> str:
    """JSON, compressed, in letters and digits that any page can hold."""
    return base64.b64encode(
        gzip.compress(dump(value).encode("utf-8", "replace"), 9, mtime=0)
    ).decode("ascii")


def download(label: str, file_name: str, text: str) -> Props:
    """A text to copy or to save as a file."""
    return {"kind": "download", "label": label, "file": file_name, "text": text}


def links(entries: Sequence[tuple[str, str]]) -> Props:
    """Files of this server to save: (words, address) each."""
    return {"kind": "links", "entries": [list(entry) for entry in entries]}


def places(entries: Sequence[Props]) -> Props:
    """Places of this page to open: each has `href`, `title`, `words` and `facts`."""
    return {"kind": "places", "entries": list(entries)}


def details(title: str, blocks: Sequence[Props]) -> Props:
    """Blocks that open on demand."""
    return {"kind": "details", "title": title, "blocks": list(blocks)}
