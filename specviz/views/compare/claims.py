"""The sections of the Compare page on what introductions claim (see waits, claims and lossy in specviz.bench)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from specviz.analysis.theory import stated_rates
from specviz.views import blocks
from specviz.views.blocks import Cell, Props

if TYPE_CHECKING:
    from specviz.bench.claims import ClaimReading
    from specviz.bench.report import BenchProgress, Table

ABOUT = {
    "waits": (
        "First token, whole answer, memory",
        "Before a draft saves time, it must read the prompt too. So the first token comes later with a draft; the "
        "whole answer may come sooner. The draft also takes memory: introductions often promise less than 10 % of the "
        "target's.",
    ),
    "claims": (
        "What they say, and what you get here",
        "Introductions promise numbers. Here they are tried on every pair that is here: the bundled one, its target 2, "
        "4 and 8 times as deep, and the real one once it was fetched.",
    ),
    "poor-cases": (
        "Where a draft does not help",
        "One pair that drafting suits, then the same with one thing changed: a short answer, a draft for other texts, "
        "a hot temperature, a cheap target. The last column says why, in measured times.",
    ),
    "lossy": (
        "What lossy drafting costs",
        "A lossless rule leaves the text's distribution as it is. A lossy one changes it: by how much, in one step and "
        "over whole texts? And how many problems come out right where whole reasoning steps are taken from the draft?",
    ),
}
EMPTY = "Nothing measured yet. It takes some minutes; the numbers are only good if nothing else runs meanwhile."
NO_WAITS = (
    "Nothing measured yet. “Measure” runs a short and a long prompt, with and without the draft."
)
CAPTIONS = {
    "waits": (
        "Medians; “as fast”: above 1 the draft saves time.",
        "Weights and cache, once the context is read.",
    ),
    "claims": (
        "Medians over prompts with their intervals, at temperature 0. A check mark: the whole interval reaches what is "
        "claimed; a cross: none of it does; a dash: open.",
    ),
    "poor-cases": (
        "A check mark: the draft helps beyond doubt; a cross: it costs time beyond doubt; a dash: open.",
    ),
    "lossy": (
        "Texts at temperature 1 against the target's own of the same seeds: medians with their intervals.",
        "Sums of three-digit numbers that no model was trained on, written greedily. A drafted step is taken if the "
        "target gives its tokens at least this mean log-probability.",
        "Word problems of one operation for the real model, in the same way; the last number of an answer counts.",
    ),
}
TONES = {True: "accepted", False: "rejected", None: "ignored"}
NUMBERS, MOST = "claim-numbers", 1_000
FIELDS = {"drafted": ("tokens drafted", 5), "draft_ms": ("ms to draft them", 2), "check_ms": ("ms to check them", 33),
          "accepted": ("of them accepted", 4)}  # fmt: skip


def finding(name: str, found: BenchProgress | None, *, may_measure: bool = True) -> Props:
    """A section of ABOUT. found: as far as it is measured; None: nothing yet."""
    is_done = found is not None and found.done == found.total
    shown = [] if found else [blocks.words(NO_WAITS if name == "waits" else EMPTY)]
    if found and not is_done:
        shown.append(
            blocks.progress(
                found.done, found.total, f"{found.doing}: {found.done:,} of {found.total:,}"
            )
        )
    controls = [blocks.button("measure", "Measure", primary=not is_done)] if may_measure else []
    return blocks.section(
        name, *ABOUT[name], controls, [*shown, *_tables(name, found.tables if found else ())]
    )


def _tables(name: str, tables: Iterable[Table]) -> Iterator[Props]:
    for (heads, rows), caption in zip(tables, CAPTIONS[name], strict=False):
        yield blocks.table(heads, [[*map(_cell, row)] for row in rows], caption=caption)


def _cell(made: str | ClaimReading) -> Cell:
    return made if isinstance(made, str) else blocks.cell(str(made), tone=TONES[made.holds])


def claim_numbers(drafted: int, draft_ms: int, check_ms: int, accepted: int) -> Props:
    """What a claim's own numbers come to."""
    given = (drafted, draft_ms, check_ms, accepted)
    controls = [
        blocks.count(name, words, value, 0, MOST)
        for (name, (words, _)), value in zip(FIELDS.items(), given, strict=True)
    ]
    stated, whole, alone = stated_rates(*given)
    words = [
        "Counting the accepted tokens: ", f"{stated:.0f} tokens/s", ". The check also writes one token of the target's "
        "own: ", f"{whole:.0f} tokens/s", f". If a token without a draft takes as long as a check, that is {alone:.0f} "
        "tokens/s, and drafting makes it ", f"{whole / alone:.2f}x", " as fast, at c = "
        f"{draft_ms / drafted / check_ms:.3f}.",
    ]  # fmt: skip
    lead = "Type in the numbers of a worked example, as introductions give them, and see what they come to."
    controls.append(blocks.button("work", "Work it out"))
    return blocks.section(NUMBERS, "A claim's own numbers", lead, controls, [blocks.words(words)])
