"""Texts token by token for a report: `TextView` says what one text needs, `texts_block` makes the block of many.

A view is made from rows of the tokens and prompts tables (`read_texts`), one part of a job at a time: the block reads
texts in order, holds them compressed, and stops at MOST_BYTES, so a job of any size gives a page that opens.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import count, groupby, islice
from typing import TYPE_CHECKING, Any, TypeVar

from specviz.alignment.report.cells import share_words
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.explore.sentences import GLYPHS, SPACE, label, percent, prose, quantity, reveal

if TYPE_CHECKING:
    from specviz.alignment.types import Columns, ShardTables

Value = TypeVar("Value")
Words = defaultdict[str, int]
"""The different words of a chunk -> their numbers, in order; one that is new gets the next number."""
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


def read_texts(tables: ShardTables) -> Iterator[TextView]:
    """The texts of one part of a job, in its order; every text has the rows of a draft together, in order of place."""
    known = {int(number): place for place, number in enumerate(tables.prompts["prompt"])}
    numbers = [int(number) for number in tables.tokens["prompt"]]
    names = tables.tokens["draft"]
    for number, rows in groupby(range(len(numbers)), key=numbers.__getitem__):
        drafts = [partial(_column, tables.tokens, list(own)) for _, own in groupby(rows, key=names.__getitem__)]
        prompt = {name: str(tables.prompts[name][known[number]]) for name in ("id", "tags", "prompt_text")}
        yield TextView(
            number=number,
            id=prompt["id"],
            tags=[tag for tag in prompt["tags"].split("|") if tag],
            prompt=prompt["prompt_text"],
            labels=drafts[0]("text", str),
            p=drafts[0]("p", float),
            favourite=drafts[0]("favourite_text", str),
            favourite_p=drafts[0]("favourite_p", float),
            drafts=[_draft_view(column) for column in drafts],
        )


def _column(table: Columns, rows: Sequence[int], name: str, kind: Callable[[Any], Value]) -> list[Value]:
    return [kind(table[name][row]) for row in rows]


def _draft_view(column: Callable[[str, Callable[[Any], Value]], list[Value]]) -> DraftView:
    return DraftView(
        name=column("draft", str)[0],
        q=column("q", float),
        keep=column("keep", float),
        overlap=column("overlap", float),
        favourite=column("draft_favourite_text", str),
        favourite_q=column("draft_favourite_q", float),
        price=column("price", float),
        reason=column("reason", str),
        readable=column("readable", bool),
    )


# ---- views -> the block ---------------------------------------------------------------------------------------------


def texts_block(
    texts: Iterable[TextView], drafts: Sequence[str], total: int, *, most_bytes: int = MOST_BYTES
) -> Props | None:
    """drafts: the names, in the order that every text has them. total: how many texts the job has."""
    texts, entries, numbers, chunks, num_bytes = iter(texts), [], [], [], 0
    while num_bytes <= most_bytes and (held := list(islice(texts, PER_CHUNK))):
        entries += [(label(text.id), _entry_words(text)) for text in held]
        numbers += [text.number for text in held]
        words: Words = defaultdict(count().__next__)
        coded = [_code(text, words) for text in held]
        chunk = {"words": list(words), "texts": coded}
        num_bytes += len(json.dumps(chunk))
        chunks.append(blocks.pack(chunk))
    if not chunks:
        return None
    some = f"The first {len(entries):,} of {total:,} texts; the rest is in tokens.parquet."
    return blocks.texts(
        entries, chunks, numbers=numbers, per_chunk=PER_CHUNK, drafts=[label(name) for name in drafts],
        facts=FACTS, draft_facts=DRAFT_FACTS, key=KEY,
        rest=some if len(entries) < total else "",
    )  # fmt: skip


def _code(text: TextView, words: Words) -> dict[str, Any]:
    """One text of a chunk, every word as its number in `words`."""
    facts = [
        (f"{place:,}" for place in range(1, len(text.labels) + 1)),
        map(_visible, text.labels),
        map(percent, text.p),
        _favourites(text.favourite, text.favourite_p, "p"),
    ]
    return {
        "prompt": words[prose(text.prompt[-PROMPT_END:])],
        "tokens": [words[_running_text(each)] for each in text.labels],
        "facts": [[words[word] for word in fact] for fact in facts],
        "drafts": [_code_draft(draft, words) for draft in text.drafts],
    }


def _code_draft(draft: DraftView, words: Words) -> Mapping[str, Any]:
    facts = [
        map(percent, draft.q),
        map(percent, draft.keep),
        map(percent, draft.overlap),
        _favourites(draft.favourite, draft.favourite_q, "q"),
        (f"{price:.2f} target calls" for price in draft.price),
        (_visible(reason) or "they agree" for reason in draft.reason),
    ]
    places = zip(draft.overlap, draft.readable, strict=True)
    return {
        "words": words[_draft_words(draft)],
        "steps": "".join(
            next((sign for least, sign in STEPS if overlap >= least), STEPS[-1][1]) if readable else BEYOND
            for overlap, readable in places
        ),
        "facts": [[words[word] for word in fact] for fact in facts],
    }


@lru_cache(maxsize=8192)
def _visible(text: str) -> str:
    """`visible`, cached: the labels of a vocabulary come many times."""
    return reveal(text)


def _favourites(texts: Sequence[str], probs: Sequence[float], letter: str) -> Iterator[str]:
    return (f"{_visible(text)}, {letter} {percent(prob)}" for text, prob in zip(texts, probs, strict=True))


def _running_text(text: str) -> str:
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
        f"{label(draft.name)}: agreement {percent(alpha)} on this text, over {quantity(sum(draft.readable), 'token')}."
    )


def _entry_words(text: TextView) -> str:
    """The words of a text in the list of texts; a search looks in them."""
    opening = reveal(" ".join(text.prompt.split())[:OPENING])
    shares = [f"{label(draft.name)} {share_words(_alpha(draft))}" for draft in text.drafts]
    agreement = f"{quantity(len(text.labels), 'token')}, agreement: {', '.join(shares)}"
    return " · ".join(filter(None, [*map(label, text.tags[:MOST_TAGS]), opening, agreement]))
