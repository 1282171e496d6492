"""Texts token by token for a report: `TextView` says what one text needs, `texts_block` makes the block of many.

A view is made from rows of the tokens and prompts tables (`read_texts`), one part of a job at a time: the block reads
texts in order, holds them compressed, and stops at MOST_BYTES, so a job of any size gives a page that opens.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from typing import Any

import pandas

from specviz.alignment.report.cells import share_words
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.words import GLYPHS, SPACE, label, percent, prose, quantity, reveal

Rows = Mapping[str, Sequence[Any]]
Words = defaultdict[str, int]
"""The different words of a chunk -> their numbers, in order; one that is new gets the next number."""
MOST_BYTES = 20_000_000  # of all texts of a page, before they are compressed
PER_CHUNK = 16
PROMPT_END = 400  # characters of a prompt
BEYOND = "x"
KEY = (
    ("4", "agreement of 80 % or more"),
    ("3", "60 to 80 %"),
    ("2", "40 to 60 %"),
    ("1", "20 to 40 %"),
    ("0", "below 20 %"),
    (BEYOND, "the draft drafts nothing here"),
)
COLUMNS = (  # of the tokens table, that are shown
    *("text", "p", "most_likely_text", "most_likely_p", "q", "keep", "overlap"),
    *("draft_most_likely_text", "draft_most_likely_q", "saved", "reason", "readable"),
)
OPENING, MOST_TAGS = 60, 8  # characters of a prompt, and tags, in the list of texts
FACTS = ("position, from 1", "token", "p: the target's probability", "the target's top token")
DRAFT_FACTS = (
    "q: the draft's probability", "acceptance probability, min(1, q/p)", "agreement here, sum min(p, q)",
    "the draft's top token", "saved if accepted here", "why p and q differ here",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TextView:
    """One text. number: of its row. prompt: as the target read it. drafts: by name the rows of the tokens table, each
    column a list; those on the target are the same for all."""

    number: int
    id: str
    tags: Sequence[str]
    prompt: str
    drafts: Mapping[str, Rows]

    @property
    def tokens(self) -> Rows:
        return next(iter(self.drafts.values()))


def read_texts(tokens: pandas.DataFrame, prompts: pandas.DataFrame) -> Iterator[TextView]:
    """The texts of a job or of a part of it, in order; every text has the rows of a draft in order of place."""
    prompts = prompts.drop_duplicates("prompt").set_index("prompt")
    for number, rows in tokens.groupby("prompt", sort=False):
        drafts = {
            name: own[[*COLUMNS]].to_dict("list") for name, own in rows.groupby("draft", sort=False)
        }
        id_, tags, prompt = prompts.loc[number, ["id", "tags", "prompt_text"]]
        yield TextView(number, id_, [tag for tag in tags.split("|") if tag], prompt, drafts)


def texts_block(
    texts: Iterable[TextView], drafts: Sequence[str], total: int, *, most_bytes: int = MOST_BYTES
) -> Props | None:
    """Texts of which one is chosen and shown for one of the drafts; None where there is no text.

    drafts: the names, in the order that every text has them. total: how many texts the job has. In the block, entries:
    (id, words) per text; numbers: of their rows, by which `blocks.opening_cell` finds them; chunks: packed, PER_CHUNK
    texts each, with every word as a place in the chunk's "words" and `steps` with a sign of KEY per token.
    """
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
    some = f"The first {len(entries):,} of {total:,} texts; the rest are in tokens.parquet."
    return {
        "kind": "texts",
        "entries": entries,
        "chunks": chunks,
        "numbers": numbers,
        "per_chunk": PER_CHUNK,
        "drafts": [label(name) for name in drafts],
        "facts": FACTS,
        "draft_facts": DRAFT_FACTS,
        "key": KEY,
        "rest": some if len(entries) < total else "",
    }


def _code(text: TextView, words: Words) -> dict[str, Any]:
    """One text of a chunk, every word as its number in `words`."""
    tokens = text.tokens
    facts = [
        (f"{place:,}" for place in range(1, len(tokens["text"]) + 1)),
        map(_reveal, tokens["text"]),
        map(percent, tokens["p"]),
        _most_likely_tokens(tokens["most_likely_text"], tokens["most_likely_p"], "p"),
    ]
    return {
        "prompt": words[prose(text.prompt[-PROMPT_END:])],
        "tokens": [words[_running_text(each)] for each in tokens["text"]],
        "facts": [[words[word] for word in fact] for fact in facts],
        "drafts": [_code_draft(name, rows, words) for name, rows in text.drafts.items()],
    }


def _code_draft(name: str, rows: Rows, words: Words) -> Mapping[str, Any]:
    facts = [
        *(map(percent, rows[column]) for column in ("q", "keep", "overlap")),
        _most_likely_tokens(rows["draft_most_likely_text"], rows["draft_most_likely_q"], "q"),
        (f"{saved:.2f} target calls" for saved in rows["saved"]),
        (_reveal(reason) or "they agree" for reason in rows["reason"]),
    ]
    places = zip(rows["overlap"], rows["readable"], strict=True)
    return {
        "words": words[_draft_words(name, rows)],
        "steps": "".join(
            str(min(4, int(5 * overlap))) if readable else BEYOND for overlap, readable in places
        ),
        "facts": [[words[word] for word in fact] for fact in facts],
    }


_reveal = lru_cache(maxsize=8192)(reveal)  # the labels of a vocabulary come many times


def _most_likely_tokens(texts: Sequence[str], probs: Sequence[float], letter: str) -> Iterator[str]:
    return (
        f"{_reveal(text)}, {letter} {percent(prob)}"
        for text, prob in zip(texts, probs, strict=True)
    )


def _running_text(text: str) -> str:
    """A label as it stands in a running text: spaces as spaces, and a new line after its sign."""
    shown = _reveal(text).replace(SPACE, " ")
    return f"{shown}\n" if shown.endswith(GLYPHS["\n"]) else shown


def _alpha(rows: Rows) -> float | None:
    seen = [
        overlap
        for overlap, readable in zip(rows["overlap"], rows["readable"], strict=True)
        if readable
    ]
    return sum(seen) / len(seen) if seen else None


def _draft_words(name: str, rows: Rows) -> str:
    alpha = _alpha(rows)
    if alpha is None:
        return f"{label(name)} drafts nothing in this text: beyond its context, after an id it lacks, or no match."
    return f"{label(name)}: agreement {percent(alpha)} on this text, over {quantity(sum(rows['readable']), 'token')}."


def _entry_words(text: TextView) -> str:
    """The words of a text in the list of texts; a search looks in them."""
    opening = reveal(" ".join(text.prompt.split())[:OPENING])
    shares = [f"{label(name)} {share_words(_alpha(rows))}" for name, rows in text.drafts.items()]
    agreement = f"{quantity(len(text.tokens['text']), 'token')}, agreement: {', '.join(shares)}"
    return " · ".join(filter(None, [*map(label, text.tags[:MOST_TAGS]), opening, agreement]))
