"""Texts token by token for a report: `TextView` says what one text needs, `texts_block` makes the block of many.

A view is made from rows of the tokens and prompts tables (`of_tables`), one part of a job at a time: the block reads
texts in order, holds them compressed, and stops at MOST_BYTES, so a job of any size gives a page that opens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

from specviz.alignment.report.cells import share_words
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.explore.sentences import GLYPHS, SPACE, counted, flowing, label, percent, visible

if TYPE_CHECKING:
    from specviz.alignment.types import Columns, ShardTables

MOST_BYTES = 20_000_000  # of all texts of a page, before they are compressed
PER_CHUNK = 16
PROMPT_END = 400  # characters of a prompt
STEPS = ((0.8, "4"), (0.6, "3"), (0.4, "2"), (0.2, "1"), (0.0, "0"))
BEYOND = "x"
KEY = (
    ("4", "agreement of 80 % or more"),
    ("3", "60 to 80 %"),
    ("2", "40 to 60 %"),
    ("1", "20 to 40 %"),
    ("0", "below 20 %"),
    (BEYOND, "beyond what the draft can read"),
)
OPENING, MOST_TAGS = 60, 8  # characters of a prompt, and tags, in the list of texts
FACTS = ("place, from 1", "token", "p: the target's probability", "the target's favourite")
DRAFT_FACTS = (
    "q: the draft's probability", "chance to be kept, min(1, q/p)", "agreement here, sum min(p, q)",
    "the draft's favourite", "price of a rejection", "why p and q part here",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DraftView:
    """What one draft says along a text: one entry per token. favourite: the texts of its likeliest tokens."""

    name: str
    q: Sequence[float]
    keep: Sequence[float]
    overlap: Sequence[float]
    favourite: Sequence[str]
    favourite_q: Sequence[float]
    price: Sequence[float]
    reason: Sequence[str]
    readable: Sequence[bool]


@dataclass(frozen=True, slots=True, eq=False)
class TextView:
    """One text. number: of its row. prompt: as the target read it. labels: the tokens' texts as table cells."""

    number: int
    id: str
    tags: Sequence[str]
    prompt: str
    labels: Sequence[str]
    p: Sequence[float]
    favourite: Sequence[str]
    favourite_p: Sequence[float]
    drafts: Sequence[DraftView]


# ---- rows of the tables -> views ------------------------------------------------------------------------------------


def of_tables(tables: ShardTables) -> Iterator[TextView]:
    """The texts of one part of a job, in its order; every text has the rows of a draft together, in order of place."""
    known = {int(number): place for place, number in enumerate(tables.prompts["prompt"])}
    numbers = [int(number) for number in tables.tokens["prompt"]]
    for number, rows in groupby(range(len(numbers)), key=numbers.__getitem__):
        drafts = [_Rows(tables.tokens, list(one)) for _, one in groupby(rows, key=tables.tokens["draft"].__getitem__)]
        first, place = drafts[0], known[number]
        yield TextView(
            number=number,
            id=str(tables.prompts["id"][place]),
            tags=[tag for tag in str(tables.prompts["tags"][place]).split("|") if tag],
            prompt=str(tables.prompts["prompt_text"][place]),
            labels=first.texts("text"),
            p=first.numbers("p"),
            favourite=first.texts("favourite_text"),
            favourite_p=first.numbers("favourite_p"),
            drafts=[_draft_view(rows) for rows in drafts],
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """Some rows of a table."""

    columns: Columns
    places: Sequence[int]

    def texts(self, name: str) -> list[str]:
        return [str(self.columns[name][place]) for place in self.places]

    def numbers(self, name: str) -> list[float]:
        return [float(self.columns[name][place]) for place in self.places]


def _draft_view(rows: _Rows) -> DraftView:
    return DraftView(
        name=rows.texts("draft")[0],
        q=rows.numbers("q"),
        keep=rows.numbers("keep"),
        overlap=rows.numbers("overlap"),
        favourite=rows.texts("draft_favourite_text"),
        favourite_q=rows.numbers("draft_favourite_q"),
        price=rows.numbers("price"),
        reason=rows.texts("reason"),
        readable=[bool(each) for each in rows.numbers("readable")],
    )


# ---- views -> the block ---------------------------------------------------------------------------------------------


def texts_block(
    texts: Iterable[TextView], drafts: Sequence[str], total: int, *, most_bytes: int = MOST_BYTES
) -> Props | None:
    """drafts: the names, in the order that every text has them. total: how many texts the job has."""
    book = _Book()
    for text in texts:
        book.add(text)
        if book.num_bytes > most_bytes:
            break
    chunks = book.closed()
    if not chunks:
        return None
    here = len(book.entries)
    rest = f"The first {here:,} of {total:,} texts; the rest is in tokens.parquet." if here < total else ""
    return blocks.texts(
        book.entries, chunks, numbers=book.numbers, per_chunk=PER_CHUNK, drafts=[label(name) for name in drafts],
        facts=FACTS, draft_facts=DRAFT_FACTS, key=KEY, rest=rest,
    )  # fmt: skip


@dataclass(slots=True)
class _Book:
    """Chunks as they fill. num_bytes: of the full ones."""

    entries: list[tuple[str, str]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)
    num_bytes: int = 0
    _words: _Words = field(default_factory=lambda: _Words())
    _texts: list[Props] = field(default_factory=list)

    def add(self, text: TextView) -> None:
        self.entries.append((label(text.id), _entry_words(text)))
        self.numbers.append(text.number)
        self._texts.append(_coded(text, self._words))
        if len(self._texts) == PER_CHUNK:
            self._close()

    def closed(self) -> list[str]:
        if self._texts:
            self._close()
        return self.chunks

    def _close(self) -> None:
        chunk = {"words": list(self._words.places), "texts": self._texts}
        self.num_bytes += len(json.dumps(chunk))
        self.chunks.append(blocks.packed(chunk))
        self._words, self._texts = _Words(), []


@dataclass(slots=True)
class _Words:
    """Every different word of a chunk once; a column is a list of places."""

    places: dict[str, int] = field(default_factory=dict)

    def place(self, word: str) -> int:
        return self.places.setdefault(word, len(self.places))

    def column(self, words: Iterable[str]) -> list[int]:
        return [self.place(word) for word in words]


def _coded(text: TextView, words: _Words) -> dict[str, Any]:
    facts = [
        (f"{place:,}" for place in range(1, len(text.labels) + 1)),
        map(_visible, text.labels),
        map(percent, text.p),
        _favourites(text.favourite, text.favourite_p, "p"),
    ]
    return {
        "prompt": words.place(flowing(text.prompt[-PROMPT_END:])),
        "tokens": words.column(map(_running, text.labels)),
        "facts": [words.column(fact) for fact in facts],
        "drafts": [_coded_draft(draft, words) for draft in text.drafts],
    }


def _coded_draft(draft: DraftView, words: _Words) -> Mapping[str, Any]:
    facts = [
        map(percent, draft.q),
        map(percent, draft.keep),
        map(percent, draft.overlap),
        _favourites(draft.favourite, draft.favourite_q, "q"),
        (f"{price:.2f} target calls" for price in draft.price),
        (_visible(reason) or "they agree" for reason in draft.reason),
    ]
    signs = zip(draft.overlap, draft.readable, strict=True)
    return {
        "words": words.place(_draft_words(draft)),
        "steps": "".join(_sign(overlap) if readable else BEYOND for overlap, readable in signs),
        "facts": [words.column(fact) for fact in facts],
    }


@lru_cache(maxsize=8192)
def _visible(text: str) -> str:
    """A vocabulary's labels come again and again."""
    return visible(text)


def _sign(overlap: float) -> str:
    return next((sign for least, sign in STEPS if overlap >= least), STEPS[-1][1])


def _favourites(texts: Sequence[str], probs: Sequence[float], letter: str) -> Iterator[str]:
    return (f"{_visible(text)}, {letter} {percent(prob)}" for text, prob in zip(texts, probs, strict=True))


def _running(text: str) -> str:
    """A label as it stands in a running text: spaces as spaces, and a new line after its sign."""
    shown = _visible(text).replace(SPACE, " ")
    return f"{shown}\n" if shown.endswith(GLYPHS["\n"]) else shown


def _alpha(draft: DraftView) -> float | None:
    seen = [overlap for overlap, readable in zip(draft.overlap, draft.readable, strict=True) if readable]
    return sum(seen) / len(seen) if seen else None


def _draft_words(draft: DraftView) -> str:
    alpha = _alpha(draft)
    if alpha is None:
        return f"{label(draft.name)} can read nothing of this text: it lies beyond its context."
    return (
        f"{label(draft.name)}: agreement {percent(alpha)} on this text, over {counted(sum(draft.readable), 'token')}."
    )


def _entry_words(text: TextView) -> str:
    """What the list of texts says of one, and what a search finds it by."""
    opening = visible(" ".join(text.prompt.split())[:OPENING])
    shares = [f"{label(draft.name)} {share_words(_alpha(draft))}" for draft in text.drafts]
    agreement = f"{counted(len(text.labels), 'token')}, agreement: {', '.join(shares)}"
    return " · ".join(filter(None, [*map(label, text.tags[:MOST_TAGS]), opening, agreement]))
