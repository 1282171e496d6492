"""What an alignment job found, as sections of a report: a `Summary` in, `blocks` out, every number worded here.

Texts from outside (names, ids, tags, tokens) are written out so that none of them steers the page. Shares are worded
as percent, differences of agreement in points of a percent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specviz.alignment.columns import COLUMNS
from specviz.alignment.summary import ENOUGH_PROMPTS
from specviz.views import alignment_cells as cells
from specviz.views import alignment_parts as parts
from specviz.views import blocks
from specviz.views.alignment_charts import spread
from specviz.views.blocks import Cell, Props, Words
from specviz.views.sentences import label, visible

if TYPE_CHECKING:
    from specviz.alignment.summary import DraftSummary, Summary

TITLE = "Why does the target reject this draft?"
OFF = {"top_k": 0, "top_p": 1}
COLUMN_WORDS = (
    "p: the target's probabilities, q: the draft's. Agreement is averaged over all tokens that the draft can read; the "
    "paper calls it alpha. Kept: the mean chance, min(1, q/p), of the token that stands there. Intervals: bootstrap "
    "over prompts."
)
SAVED = ("tokens", "prompts", "slices")


@dataclass(frozen=True, slots=True)
class Part:
    """One section of the report. `make` gives no blocks where there is nothing to say."""

    name: str
    title: str
    lead: str
    make: Callable[[Summary], list[Props]]


def sections(summary: Summary, texts: Props | None = None) -> list[Props]:
    """The whole report. texts: the block of `alignment_texts`, if there is one."""
    made = [(part, part.make(summary)) for part in PARTS]
    shown = [blocks.section(part.name, part.title, part.lead, blocks=found) for part, found in made if found]
    if texts is not None:
        shown.insert(len(shown) - 1, blocks.section(*TEXTS, blocks=[texts]))
    return shown


def compact(summary: Summary, texts: Props | None = None) -> list[Props]:
    """The same as blocks of one section: the overview, and the other parts to be opened."""
    made = [(part.title, [blocks.words(part.lead, small=True), *found]) for part in PARTS[1:]
            if (found := part.make(summary))]  # fmt: skip
    if texts is not None:
        made.insert(len(made) - 1, (TEXTS[1], [blocks.words(TEXTS[2], small=True), texts]))
    return [*overview(summary), *(blocks.details(title, found) for title, found in made)]


# ---- overview -------------------------------------------------------------------------------------------------------


def overview(summary: Summary) -> list[Props]:
    shown = [blocks.words(_found_words(summary))]
    if not summary.exact:
        words = "Not every text is known to be the target's own at these settings, so the numbers hold for these texts."
        shown.append(blocks.verdict("unsure", words))
    shown.append(blocks.words(visible(summary.note), small=True))
    findings = [finding for draft in summary.drafts for finding in draft.findings]
    shown += [
        blocks.verdict("differs", ["", label(finding.draft), f": {visible(finding.words)}"]) for finding in findings
    ]
    shown += [blocks.verdict("unsure", visible(warning)) for warning in summary.warnings]
    shown += [_drafts_table(summary), blocks.words(COLUMN_WORDS, small=True)]
    if not any(draft.speedups for draft in summary.drafts):
        shown.append(blocks.words("No speedup is given: the costs of these models are not known.", small=True))
    if summary.num_refused:
        shown.append(_refused(summary))
    return shown


def _found_words(summary: Summary) -> Words:
    told = ["", f"{summary.num_prompts:,} prompts", ", ", f"{summary.num_tokens:,} tokens", " of text by ",
            label(summary.target), f", {_sampling(summary)}."]  # fmt: skip
    if not any(draft.findings for draft in summary.drafts):
        told[-1] += " None of the faults that are looked for was found."
    return told


def _sampling(summary: Summary) -> str:
    values = summary.sampling
    filters = [f"{name.replace('_', '-')} {values[name]:g}" for name in OFF if _narrows(name, values)]
    return ", ".join([f"temperature {values.get('temperature', 1):g}", *filters])


def _narrows(name: str, values: Mapping[str, float]) -> bool:
    return name in values and values[name] != OFF[name]


def _drafts_table(summary: Summary) -> Props:
    columns = [
        "draft model", "agreement, sum min(p, q)", "95 % interval", "same favourite", "kept, on average",
        f"tokens per target call at K = {summary.k}", "best K", "speedup there", "prompts", "tokens",
    ]  # fmt: skip
    known = [place for place, draft in enumerate(summary.drafts) if cells.is_known(draft.alpha)]
    best = max(known, key=lambda place: summary.drafts[place].alpha, default=-1)
    rows = [_draft_row(draft, summary.k) for draft in summary.drafts]
    marked = best if len(rows) > 1 else -1
    return blocks.table(columns, rows, marked=marked, sortable=len(rows) > 1)


def _draft_row(draft: DraftSummary, k: int) -> list[Cell]:
    per_call = draft.tokens_per_call[k - 1] if k <= len(draft.tokens_per_call) else None
    return [
        label(draft.name),
        cells.share(draft.alpha),
        spread(draft.alpha_interval),
        cells.share(draft.greedy_agreement),
        cells.share(draft.mean_keep),
        cells.number(per_call, "{:.2f}"),
        cells.best_k(draft.best_k),
        cells.speedup(max(draft.speedups, default=None) if draft.speedups else None),
        cells.number(draft.num_prompts),
        cells.number(draft.num_tokens),
    ]


def _refused(summary: Summary) -> Props:
    rows = [[blocks.cell(f"{line:,}", sort=line), visible(reason)] for line, reason in summary.refused]
    caption = "" if len(rows) == summary.num_refused else f"The first {len(rows):,} of them."
    title = f"Lines that could not be used: {summary.num_refused:,}"
    return blocks.details(title, [blocks.table(["line", "why"], rows, caption=caption)])


# ---- how it was made ------------------------------------------------------------------------------------------------


def how(summary: Summary) -> list[Props]:
    settings = [
        ["target", label(summary.target)],
        ["draft models", ", ".join(label(draft.name) for draft in summary.drafts)],
        ["sampling", _sampling(summary)],
        ["seed", f"{summary.seed}"],
        ["most new tokens", f"{summary.max_new_tokens:,}"],
        ["K at which rejections are priced", f"{summary.k}"],
        ["made", f"{label(summary.created)} by specviz {label(summary.specviz)}"],
    ]
    shown = [blocks.table(["setting", "value"], settings)]
    if summary.costs:
        shown.append(_costs_table(summary))
    return [*shown, *(_columns_table(name) for name in SAVED)]


def _costs_table(summary: Summary) -> Props:
    columns = ["draft model", "one drafted token", "one target call", "tokens of context", "device", "numbers as"]
    rows = [_costs_row(name, costs) for name, costs in summary.costs.items()]
    return blocks.table(columns, rows, caption="Measured or given costs that the speedups rest on.")


def _costs_row(name: str, costs: Mapping[str, Any]) -> list[Cell]:
    plain_ms = next(iter(costs.get("verify_ms") or ()), None)
    told = [str(costs.get(field, cells.NONE)) for field in ("context_length", "device", "dtype")]
    return [label(name), *map(cells.milliseconds, (costs.get("draft_ms"), plain_ms)), *map(label, told)]


def _columns_table(name: str) -> Props:
    rows = [[column, each.type, each.meaning] for column, each in COLUMNS[name].items()]
    return blocks.details(f"Columns of {name}.parquet", [blocks.table(["column", "type", "meaning"], rows)])


PARTS = (
    Part("overview", "Overview", "How well each draft model foresees the target on these texts.", overview),
    Part(
        "against",
        "Where the drafts differ",
        "Both drafts are asked about the same texts, so each prompt is compared with itself. A difference over fewer "
        f"than {ENOUGH_PROMPTS} prompts is not called significant.",
        parts.against,
    ),
    Part(
        "every-k",
        "Every K",
        "The same texts cut into steps as speculative sampling would cut them at each K; no speculative run is needed.",
        parts.every_k,
    ),
    Part(
        "slices",
        "Where in the text",
        "Agreement for parts of the tokens. A fall of 10 points or more from one bucket to the next is marked.",
        parts.slices,
    ),
    Part(
        "reasons",
        "Why p and q part",
        "What is lost to full agreement, 1 - sum min(p, q), shared out: every place has one reason, and the target's "
        "mass outside the draft's vocabulary is a part of its own.",
        parts.reasons,
    ),
    Part(
        "calibration",
        "Is the draft's confidence worth anything?",
        "Over all tokens that the draft might have drafted: how sure it was (q), and how often such a token is kept. "
        "Where both lines lie together, the draft knows what it knows.",
        parts.calibration,
    ),
    Part(
        "costliest",
        "The costliest rejections",
        "How many target calls it would save if the draft were sure to be kept at this one place: the what-if for the "
        "K of this job, taken backwards. The list shows what to train on.",
        parts.costliest,
    ),
    Part("how", "How it was made", "Settings, costs, and what stands in the saved tables.", how),
)
TEXTS = (
    "texts",
    "Texts, token by token",
    "Choose a text. The stronger the shade and the underline, the less both models agree on what comes next at that "
    "place. Point at a token, or go along the text with the arrow keys.",
)
