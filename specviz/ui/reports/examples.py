"""What the sections of the Compare page show before they have found anything: recorded runs and published numbers.

Every example says where it comes from. None of them was measured on this machine.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial

from specviz.alignment.report import live
from specviz.analysis.draft_temperature import read_overlaps
from specviz.drafters import METHODS
from specviz.trace.metrics import metrics
from specviz.trace.shipped import FIRST_VISIT, shipped_runs, shipped_trace
from specviz.views.blocks import (
    ChartBlock,
    DetailsBlock,
    DownloadBlock,
    ExampleBlock,
    PageBlock,
    WordsBlock,
)
from specviz.views.compare import costs, plan, race, two_runs
from specviz.views.compare.race import LETTERS
from specviz.views.documentation import document_table
from specviz.views.site import OF_A_RUN, of_run

MEASURED = "docs/measured.md"
RACED = ("one-by-one", FIRST_VISIT)
PAIR = ("right-rule", "broken-residual")
DRAFTS = (FIRST_VISIT, "tiny-draft", "misaligned-draft")
TEXTS = (FIRST_VISIT, "sum", "program")
OWN_TEXTS = (
    "Each of these runs has a text of its own. Below, all draft models are asked on one text."
)
TABLES = {
    "waits": "pair",
    "claims": "they say",
    "poor-cases": "whole answers of fable-target-x4",
    "lossy": "rule",
}
"""The sections whose example is a table of a document -> the head of its first column."""


def _of_runs(names: Sequence[str], shown: Sequence[PageBlock]) -> ExampleBlock:
    titles = ", ".join(f"“{shipped_runs()[name].title}”" for name in names)
    runs = "run" if len(names) == 1 else "runs"
    return ExampleBlock([f"Example, from the recorded {runs} ", titles, "."], shown)


def _of_document(heading: str, shown: PageBlock) -> ExampleBlock:
    end = ". It was not measured on this machine."
    return ExampleBlock(["Example, from the document ", heading, end], [shown])


def _race() -> ExampleBlock:
    runs = []
    for name in RACED:
        trace = shipped_trace(name)
        runs.append((METHODS[trace.steps[-1].settings.method].title, trace))
    return _of_runs(RACED, [race.calls_bars(runs)])


def _two_runs() -> ExampleBlock:
    left, right = PAIR
    titles = tuple(
        f"{letter} · {shipped_runs()[name].title}"
        for letter, name in zip(LETTERS, PAIR, strict=True)
    )
    traces = (shipped_trace(left), shipped_trace(right))
    return _of_runs(PAIR, two_runs.summary(traces, titles))


def _of_text(name: str) -> ExampleBlock:
    """A section that speaks of the run on the stage, for a recorded run."""
    (section,) = (each for each in of_run(shipped_trace(FIRST_VISIT)) if each.id == name)
    left_out = (DetailsBlock, DownloadBlock)
    shown = [block for block in section.blocks if not isinstance(block, left_out)]
    return _of_runs([FIRST_VISIT], shown)


def _costs() -> ExampleBlock:
    heading, table = document_table(MEASURED, "tokens in one target forward")
    ns = [int(head) for head in table.columns[1:]]
    verify_ms = [float(cell) for cell in table.rows[0][1:]]
    return _of_document(heading, ChartBlock(costs.growth_chart(ns, verify_ms)))


def _other_drafts() -> ExampleBlock:
    runs = []
    for name in DRAFTS:
        trace = shipped_trace(name)
        runs.append((trace.steps[-1].settings.draft_model, metrics(trace)["alpha"]))
    shown = [live.agreement_bars(runs, "draft model"), WordsBlock(OWN_TEXTS)]
    return _of_runs(DRAFTS, shown)


def _draft_temperature() -> ExampleBlock:
    section = plan.draft_temperature(read_overlaps(shipped_trace(FIRST_VISIT)))
    return _of_runs([FIRST_VISIT], section.blocks)


def _many_prompts() -> ExampleBlock:
    runs = []
    for name in TEXTS:
        trace = shipped_trace(name)
        runs.append((trace.header.prompt.text, metrics(trace)["alpha"]))
    return _of_runs(TEXTS, [live.agreement_bars(runs, "prompt")])


def _why_slow() -> ExampleBlock:
    return _of_runs([FIRST_VISIT], plan.tokens_left(shipped_trace(FIRST_VISIT)))


def _table(head: str) -> ExampleBlock:
    return _of_document(*document_table(MEASURED, head))


EXAMPLES: Mapping[str, Callable[[], ExampleBlock]] = {
    race.NAME: cache(_race),
    two_runs.NAME: cache(_two_runs),
    costs.NAME: cache(_costs),
    plan.OTHER_DRAFTS[0]: cache(_other_drafts),
    plan.DRAFT_TEMPERATURE[0]: cache(_draft_temperature),
    live.NAME: cache(_many_prompts),
    plan.WHY_SLOW[0]: cache(_why_slow),
    **{name: cache(partial(_of_text, name)) for name in OF_A_RUN},
    **{name: cache(partial(_table, head)) for name, head in TABLES.items()},
}
"""The examples by the sections' names; each is made when it is first shown."""
