"""The sections of the Compare page on the claims of introductions (see waits, claims and lossy in specviz.bench)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.analysis.theory import stated_rates
from specviz.views import blocks
from specviz.views.blocks import Cell, PageSection, Tone

if TYPE_CHECKING:
    from specviz.bench.claims import ClaimReading
    from specviz.bench.report import BenchProgress

ABOUT = {
    "waits": (
        "First token, whole answer, memory",
        "Before a draft saves time, it must read the prompt too. So the first token comes later with a draft; the "
        "whole answer may come sooner. The draft also takes memory: introductions often promise less than 10 % of the "
        "target's.",
    ),
    "claims": (
        "Claims, tested here",
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
EMPTY = "Nothing measured yet. The numbers are only good if nothing else runs meanwhile."
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
TONES: dict[bool | None, Tone] = {True: "accepted", False: "rejected", None: "ignored"}
NUMBERS = "claim-numbers"
MOST = 1_000
RATES = ("accepted tokens alone", "with the target's own", "without a draft")
FIELDS = {"drafted": ("tokens drafted", 5), "draft_ms": ("ms to draft them", 2), "check_ms": ("ms to check them", 33),
          "accepted": ("of them accepted", 4)}  # fmt: skip


def finding(name: str, found: BenchProgress | None, *, may_measure: bool = True) -> PageSection:
    """A section of ABOUT. found: the results so far; None before the first."""
    is_done = found is not None and found.done == found.total
    shown = []
    if not found:
        shown.append(blocks.WordsBlock(NO_WAITS if name == "waits" else EMPTY))
    else:
        if not is_done:
            words = f"{found.doing}: {found.done:,} of {found.total:,}"
            shown.append(blocks.progress(found.done, found.total, words))
        for (heads, rows), caption in zip(found.tables, CAPTIONS[name], strict=False):
            cells = []
            for row in rows:
                cells.append([_cell(value) for value in row])
            shown.append(blocks.TableBlock(heads, cells, caption=caption))
    controls = (
        [blocks.ButtonControl("measure", "Measure", primary=not is_done)] if may_measure else []
    )
    return blocks.PageSection(name, *ABOUT[name], controls, shown)


def _cell(value: str | ClaimReading) -> Cell:
    if isinstance(value, str):
        return value
    return blocks.TableCell(str(value), tone=TONES[value.holds])


def claim_numbers(drafted: int, draft_ms: int, check_ms: int, accepted: int) -> PageSection:
    """The section that works out a claim's own numbers."""
    values = (drafted, draft_ms, check_ms, accepted)
    fields = []
    options = []
    for (name, (words, _)), value in zip(FIELDS.items(), values, strict=True):
        place = options if name == "draft_ms" else fields
        place.append(blocks.CountControl(name, words, value, 0, MOST))
    rates = stated_rates(*values)
    stated, whole, alone = rates
    rows = []
    for name, tone, rate in zip(RATES, ("accepted", "bonus", "plain"), rates, strict=True):
        width = 100 * rate / max(rates)
        rows.append(blocks.bar(name, [(tone, width)], [f"{rate:.0f} tokens/s"]))
    words = [
        "Counting the accepted tokens: ", f"{stated:.0f} tokens/s", ". The check also writes one token of the target's "
        "own: ", f"{whole:.0f} tokens/s", f". If a token without a draft takes as long as a check, that is {alone:.0f} "
        "tokens/s, and drafting makes it ", f"{whole / alone:.2f}x", " as fast, at c = "
        f"{draft_ms / drafted / check_ms:.3f}.",
    ]  # fmt: skip
    lead = "Type in the numbers of a worked example, as introductions give them, and see what they come to."
    button = blocks.ButtonControl("work", "Work it out", free=True)
    shown = [blocks.WordsBlock(words), blocks.BarsBlock(rows, first="count")]
    title = "A claim's own numbers"
    return blocks.PageSection(NUMBERS, title, lead, [*fields, button], shown, options)
