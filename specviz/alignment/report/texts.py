"""Texts token by token for a report: `TextView` says what one text needs, `texts_block` makes the block of many.

A view is made from rows of the tokens and prompts tables (`read_texts`), one part of a job at a time. The block reads
texts in order, holds them compressed, and stops at MOST_BYTES, so that the page of any job opens.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, islice
from typing import Any

import msgspec
import pandas

from specviz.alignment.report.cells import share_words
from specviz.views import blocks
from specviz.views.blocks import CodedText, TextChunk, TextsBlock, TextUnderDraft
from specviz.views.words import GLYPHS, SPACE, draft_label, label, percent, prose, quantity, reveal

Rows = Mapping[str, Sequence[Any]]
Words = defaultdict[str, int]
"""The different words of a chunk -> their numbers. A new word gets the next number."""
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
OPENING = 60  # characters of a prompt in the list of texts
MOST_TAGS = 8  # of a text in this list
FACTS = ("position, from 1", "token", "p: the target's probability", "the target's first choice")
DRAFT_FACTS = (
    "q: the draft's probability", "acceptance probability, min(1, q/p)", "agreement here, sum min(p, q)",
    "the draft's first choice", "saved if accepted here", "why p and q differ here",
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class TextView:
    """One text with its tokens under every draft."""

    number: int  # of its row
    id: str
    tags: Sequence[str]
    prompt: str  # as the target read it
    drafts: Mapping[str, Rows]
    """The rows of the tokens table by draft, each column a list. Columns on the target are the same for all drafts."""

    @property
    def tokens(self) -> Rows:
        return next(iter(self.drafts.values()))


def read_texts(tokens: pandas.DataFrame, prompts: pandas.DataFrame) -> Iterator[TextView]:
    """Reads the texts of a job, or of a part of it, in order.

    tokens: the rows of each draft stand in order of place.
    """
    prompts = prompts.drop_duplicates("prompt").set_index("prompt")
    for number, rows in tokens.groupby("prompt", sort=False):
        drafts = {}
        for name, draft_rows in rows.groupby("draft", sort=False):
            drafts[name] = draft_rows[[*COLUMNS]].to_dict("list")
        id_, tags, prompt = prompts.loc[number, ["id", "tags", "prompt_text"]]
        yield TextView(number, id_, [tag for tag in tags.split("|") if tag], prompt, drafts)


def texts_block(
    texts: Iterable[TextView], drafts: Sequence[str], total: int, *, most_bytes: int = MOST_BYTES
) -> TextsBlock | None:
    """The block that shows one of many texts under one of the drafts; None where there is no text.

    drafts: the names, in the order that every text has them. total: how many texts the job has.
    """
    unread = iter(texts)
    entries = []
    numbers = []
    chunks = []
    num_bytes = 0
    while num_bytes <= most_bytes:
        read = list(islice(unread, PER_CHUNK))
        if not read:
            break
        entries += [(label(text.id), _entry_words(text)) for text in read]
        numbers += [text.number for text in read]
        words: Words = defaultdict(count().__next__)
        coded = [_code(text, words) for text in read]
        chunk = TextChunk(list(words), coded)
        num_bytes += len(json.dumps(chunk, default=msgspec.to_builtins))
        chunks.append(blocks.pack(chunk))
    if not chunks:
        return None
    rest = ""
    if len(entries) < total:
        rest = f"The first {len(entries):,} of {total:,} texts; the rest are in tokens.parquet."
    return TextsBlock(
        entries,
        chunks,
        numbers,
        PER_CHUNK,
        [draft_label(name) for name in drafts],
        FACTS,
        DRAFT_FACTS,
        KEY,
        rest,
    )


def _code(text: TextView, words: Words) -> CodedText:
    """One text of a chunk, every word as its number in `words`."""
    tokens = text.tokens
    places = range(1, len(tokens["text"]) + 1)
    prompt = words[prose(text.prompt[-PROMPT_END:])]
    running = [words[_running_text(token)] for token in tokens["text"]]
    facts = [  # in the order of FACTS
        map("{:,}".format, places),
        map(_reveal, tokens["text"]),
        map(percent, tokens["p"]),
        _most_likely_tokens(tokens["most_likely_text"], tokens["most_likely_p"], "p"),
    ]
    numbered = _number_words(facts, words)
    drafts = [_code_draft(name, rows, words) for name, rows in text.drafts.items()]
    return CodedText(prompt, running, numbered, drafts)


def _code_draft(name: str, rows: Rows, words: Words) -> TextUnderDraft:
    draft_words = words[_draft_words(name, rows)]
    signs = []
    for overlap, readable in zip(rows["overlap"], rows["readable"], strict=True):
        signs.append(str(min(4, int(5 * overlap))) if readable else BEYOND)
    facts = [  # in the order of DRAFT_FACTS
        map(percent, rows["q"]),
        map(percent, rows["keep"]),
        map(percent, rows["overlap"]),
        _most_likely_tokens(rows["draft_most_likely_text"], rows["draft_most_likely_q"], "q"),
        (f"{saved:.2f} target calls" for saved in rows["saved"]),
        (_reveal(reason) or "they agree" for reason in rows["reason"]),
    ]
    return TextUnderDraft(draft_words, "".join(signs), _number_words(facts, words))


def _number_words(facts: Iterable[Iterable[str]], words: Words) -> list[list[int]]:
    """The facts of all tokens, fact by fact, every word as its number."""
    numbered = []
    for fact in facts:
        numbered.append([words[word] for word in fact])
    return numbered


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
    """The mean overlap over the tokens that the draft can read; None where there are none."""
    overlaps = []
    for overlap, readable in zip(rows["overlap"], rows["readable"], strict=True):
        if readable:
            overlaps.append(overlap)
    return sum(overlaps) / len(overlaps) if overlaps else None


def _draft_words(name: str, rows: Rows) -> str:
    alpha = _alpha(rows)
    name = draft_label(name)
    if alpha is None:
        return f"{name} drafts nothing in this text: beyond its context, after an id it lacks, or no match."
    readable = quantity(sum(rows["readable"]), "token")
    return f"{name}: agreement {percent(alpha)} on this text, over {readable}."


def _entry_words(text: TextView) -> str:
    """The words of a text in the list of texts; a search looks in them."""
    tags = [label(tag) for tag in text.tags[:MOST_TAGS]]
    one_line = " ".join(text.prompt.split())
    opening = reveal(one_line[:OPENING])
    shares = [
        f"{draft_label(name)} {share_words(_alpha(rows))}" for name, rows in text.drafts.items()
    ]
    num_tokens = quantity(len(text.tokens["text"]), "token")
    agreement = f"{num_tokens}, agreement: {', '.join(shares)}"
    return " · ".join(filter(None, [*tags, opening, agreement]))
