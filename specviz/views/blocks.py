"""The parts of a report page as typed records: sections of controls and blocks, which the browser lays out.

A section is sent whole whenever something in it changes, with every number, width and sentence. Its texts are harmless
already (see `words.py`). A sentence may be a list of texts; every second one is set off.
"""

import base64
import gzip
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeGuard

import msgspec
from msgspec import UNSET, Struct, UnsetType

Words = str | Sequence[str]
Options = Sequence[tuple[str, str]]
"""(words, value) of each entry of a list."""
Tone = Literal[
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
]
VerdictState = Literal["exact", "consistent", "suspicious", "differs", "unsure"]


class PageRecord(Struct, frozen=True, forbid_unknown_fields=True):
    """A value that the browser gets. A field that is UNSET is left out."""


class PageControl(PageRecord, tag_field="kind"):
    """A field or a button of a section. A person sets the fields before pressing a button of the same section."""


class ButtonControl(PageControl, tag="button"):
    """A button that sends the section's values."""

    do: str  # the name of the action
    label: str
    primary: bool = False
    free: bool = False  # whether it can be pressed while other work of the page goes on


class ChoiceControl(PageControl, tag="choice"):
    """A list of options, of which one is chosen."""

    name: str
    label: str
    options: Options
    value: str


class CountControl(PageControl, tag="count"):
    """A whole number from `low` to `high`."""

    name: str
    label: str
    value: int
    low: int
    high: int


class LinesControl(PageControl, tag="lines"):
    """A text of several lines."""

    name: str
    label: str
    value: str
    hint: str
    most: int  # characters; one more can be sent, to be refused in words


class PageBlock(PageRecord, tag_field="kind"):
    """A part of a section that a person reads."""


class WordsBlock(PageBlock, tag="words"):
    """A paragraph."""

    words: Words
    small: bool = False
    passing: bool | UnsetType = UNSET  # it disappears as soon as the section's work begins
    stopped: bool | UnsetType = UNSET  # it stands where a progress bar was


class VerdictBlock(PageBlock, tag="verdict"):
    """The outcome of a check; a mark and a colour come with the state."""

    state: VerdictState
    words: Words


class ProgressBlock(PageBlock, tag="progress"):
    """The progress of long work, with a button that stops it."""

    width: float  # percent
    words: str


class PlaceInText(PageRecord):
    """A token in a text of the `texts` block of the same page."""

    text: int  # number of the text
    draft: int  # the draft model that marks the text
    token: int


class Press(PageRecord):
    """What a button in a table does: the same as a button of the section, with these values."""

    section: str
    do: str
    values: Mapping[str, str]


class TableCell(PageRecord):
    """A cell that is more than its text."""

    text: Words
    sort: float | str | None = None  # the key to sort by; None: at the end
    tone: Tone | UnsetType = UNSET
    opens: PlaceInText | UnsetType = UNSET
    does: Press | UnsetType = UNSET


Cell = str | TableCell
Columns = Mapping[str, Callable[[Any], Cell]]
"""The head of each column of a table -> the function that makes its cell for an item."""


class TableBlock(PageBlock, tag="table"):
    """A table; the first column names the row."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    marked: int = -1  # the row that stands out
    # a click on a column's head sorts by the cells' own keys, or by their texts where they have none
    sortable: bool = False


class ChartBlock(PageBlock, tag="chart"):
    """A figure in the format of `charts.py`: {"data", "layout"} with layout.meta.title and layout.meta.table."""

    figure: Mapping[str, Any]


class BarRow(PageRecord):
    """A bar of stacked parts."""

    label: str
    parts: Sequence[tuple[Tone, float]]  # with their widths, in percent of the axis
    values: Sequence[str]
    tick: float | None  # a place in percent


class BarsBlock(PageBlock, tag="bars"):
    """Rows of bars, all on one scale."""

    rows: Sequence[BarRow]
    heads: Sequence[str] = ()  # of the rows' values
    key: Sequence[tuple[str, str]] = ()  # tones, each with its meaning
    first: str = "token"  # the name of a row for a screen reader


class TextDivision(PageRecord):
    """A text divided into the steps of one K."""

    lengths: Sequence[int]  # tokens per step
    kinds: Sequence[str]  # of the token that ended each step
    words: Words


class SegmentsBlock(PageBlock, tag="segments"):
    """A text divided into steps for every K, which the block's slider chooses."""

    tokens: Sequence[str]
    by_k: Mapping[int, TextDivision]
    k: int


class TextUnderDraft(PageRecord):
    """A text of a chunk under one draft model."""

    words: int
    steps: str  # a sign of the block's key per token
    facts: Sequence[Sequence[int]]  # fact by fact, one word per token


class CodedText(PageRecord):
    """A text of a chunk, every word as its number among the chunk's words."""

    prompt: int
    tokens: Sequence[int]
    facts: Sequence[Sequence[int]]  # fact by fact, one word per token
    drafts: Sequence[TextUnderDraft]


class TextChunk(PageRecord):
    """Some of the texts of a `texts` block."""

    words: Sequence[str]  # each different one once
    texts: Sequence[CodedText]


class TextsBlock(PageBlock, tag="texts"):
    """Many texts, of which one is shown token by token under one of the draft models."""

    entries: Sequence[tuple[str, str]]  # the id and the words of each text
    chunks: Sequence[str]  # packed, each a `TextChunk`
    numbers: Sequence[int]  # of the texts, as a `PlaceInText` has them
    per_chunk: int
    drafts: Sequence[str]
    facts: Sequence[str]  # their names
    draft_facts: Sequence[str]
    key: Sequence[tuple[str, str]]  # signs of tokens, each with its meaning
    rest: str  # which texts are left out


class DownloadBlock(PageBlock, tag="download"):
    """A text to copy or to save as a file."""

    label: str
    file: str
    text: str


class LinksBlock(PageBlock, tag="links"):
    """Links to files of this server."""

    entries: Sequence[tuple[str, str]]  # words and address


class PlaceLink(PageRecord):
    """A link to a place of this page."""

    href: str
    title: str
    words: str
    facts: str


class PlacesBlock(PageBlock, tag="places"):
    """Links to places of this page."""

    entries: Sequence[PlaceLink]


class DetailsBlock(PageBlock, tag="details"):
    """Blocks that open on demand."""

    title: str
    blocks: Sequence[PageBlock]


class ExampleBlock(PageBlock, tag="example"):
    """Blocks to look at in a section that has no result of its own yet. It stands above the section's controls."""

    source: Words  # where they come from
    blocks: Sequence[PageBlock]


class PageSection(PageRecord):
    """A section of a page."""

    id: str
    title: str
    lead: Words  # the sentence below the title
    controls: Sequence[PageControl] = ()
    blocks: Sequence[PageBlock] = ()
    options: Sequence[PageControl] = ()  # further fields, which open on demand
    takes: str = ""  # how long the work of its first button takes, and how that is known


WITHOUT_PICTURE = (WordsBlock, ProgressBlock, DetailsBlock, DownloadBlock, LinksBlock)


class PageMessage(PageRecord):
    """What a report page is told: the sections that changed, and what goes on."""

    sections: Sequence[PageSection]
    order: Sequence[str] | UnsetType = UNSET  # the ids of all sections; left out: as before
    busy: str | None = None  # the section that works
    say: str = ""  # for screen readers
    number: int | UnsetType = UNSET  # a page hears only of values that differ from the one before


def whole_page(sections: Sequence[PageSection]) -> PageMessage:
    """A report page of these sections, without controls: no server answers them."""
    shown = []
    for section in sections:
        shown.append(msgspec.structs.replace(section, controls=(), options=(), takes=""))
    return PageMessage(shown, order=[section.id for section in shown])


def is_picture(block: PageBlock) -> bool:
    """Whether the block is something to look at, beside words and work."""
    return not isinstance(block, WITHOUT_PICTURE)


def notice(text: Words) -> WordsBlock:
    """Words that disappear as soon as the section's work begins."""
    return WordsBlock(text, passing=True)


def is_notice(block: PageBlock) -> TypeGuard[WordsBlock]:
    return isinstance(block, WordsBlock) and block.passing is True


def is_passing(block: PageBlock) -> bool:
    """Whether the block goes as soon as the section has found something: a notice, or an example."""
    return is_notice(block) or isinstance(block, ExampleBlock)


def progress(done: int, total: int, text: str) -> ProgressBlock:
    """The progress of work of which `done` parts of `total` are done."""
    return ProgressBlock(round(100 * done / total, 1) if total else 0.0, text)


def table_of(items: Sequence[Any], columns: Columns, **options: Any) -> TableBlock:
    """A table with a row per item. options: as for `TableBlock`."""
    rows = []
    for item in items:
        rows.append([make_cell(item) for make_cell in columns.values()])
    return TableBlock(list(columns), rows, **options)


def opening_cell(text: str, number: int, draft: int, token: int) -> TableCell:
    """A cell that opens a text in the `texts` block of the same page. number: of the text."""
    return TableCell(text, sort=text, opens=PlaceInText(number, draft, token))


def button_cell(text: str, section: str, does: str, values: Mapping[str, str]) -> TableCell:
    """A cell with a button that acts as a button of the section, with these values."""
    return TableCell(text, sort=text, does=Press(section, does, values))


def bar(
    label: str,
    parts: Sequence[tuple[Tone, float]],
    values: Sequence[str] = (),
    tick: float | None = None,
) -> BarRow:
    """A bar of stacked parts (tone, width in percent of the axis), and a tick at a place in percent."""
    widths = [(tone, round(width, 3)) for tone, width in parts]
    return BarRow(label, widths, values, None if tick is None else round(tick, 3))


def dump(value: Any) -> str:
    """JSON without spaces. value: a record, or plain values with records in them."""
    return json.dumps(
        value,
        ensure_ascii=False,
        allow_nan=False,
        separators=(",", ":"),
        default=msgspec.to_builtins,
    )


def pack(value: Any) -> str:
    """JSON, compressed, in letters and digits that any page can hold."""
    text = dump(value).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, 9, mtime=0)).decode("ascii")
