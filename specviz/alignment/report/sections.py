"""A report of what an alignment job found: takes a `Summary`, returns sections of `blocks` with every number in words.

Texts from outside (names, ids, tags, tokens) are written out so that none of them steers the page. Shares are in
percent, differences of agreement in points of a percent.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from specviz.alignment.report import as_served, cells, parts
from specviz.alignment.report.command import command_of
from specviz.alignment.report.overview import KEPT_WORDS, is_aside, overview, sampling_words
from specviz.alignment.report.texts import TextView, texts_block
from specviz.alignment.summary import ENOUGH_PROMPTS, Summary
from specviz.alignment.tables.columns import COLUMNS
from specviz.request import spell_options
from specviz.views import blocks
from specviz.views.blocks import PageBlock, PageSection, TableBlock, TextsBlock
from specviz.views.document import page
from specviz.views.words import draft_label, label, reveal

TITLE = "Why does the target reject this draft?"
BY_DEPTH = "by-depth"
HASH_SHOWN = 8  # characters
SAVED = ("tokens", "prompts", "slices")
CPUS = ("x86_64", "AMD64", "aarch64", "arm64")  # what machines call themselves
COSTS_NOTE = (
    "Each pair is timed separately, at this many tokens of context, so the target's time varies a little from row to "
    "row. Speedups are predicted from these times; differences of a few percent mean nothing."
)


def sections(summary: Summary, texts: TextsBlock | None = None) -> list[PageSection]:
    """The whole report. texts: the block of `texts_block`, if there is one."""
    shown = []
    for name, title, lead, found in _parts(summary, texts):
        shown.append(blocks.PageSection(name, title, lead, blocks=found))
    return shown


def report_page(summary: Summary, texts: Iterable[TextView] = ()) -> str:
    """The report as one HTML file.

    texts: are read once, in order; those beyond the page's limit are left out.
    """
    names = [draft.name for draft in summary.drafts]
    return page(TITLE, sections(summary, texts_block(texts, names, summary.num_prompts)))


def compact(
    summary: Summary, texts: TextsBlock | None = None, opened: Collection[str] = ()
) -> list[PageBlock]:
    """The report as blocks of one section of the Compare page: the overview, and the other parts to be opened.

    opened: the names of parts that stand in sight, before the overview.
    """
    no_costs = "press Measure costs above for each draft model, then Analyse again"
    in_sight: list[PageBlock] = []
    folded: list[PageBlock] = []
    for name, title, lead, found in _parts(summary, texts)[1:]:
        if name in opened:
            in_sight += [blocks.WordsBlock(lead), *found]
        else:
            folded.append(blocks.DetailsBlock(title, [blocks.WordsBlock(lead, small=True), *found]))
    return [*in_sight, *overview(summary, no_costs=no_costs), *folded]


def _parts(
    summary: Summary, texts: TextsBlock | None
) -> list[tuple[str, str, str, list[PageBlock]]]:
    """Name, title, lead and blocks of the parts that have something to say. The texts stand before the last part."""
    numbers = frozenset() if texts is None else frozenset(texts.numbers)
    shown = []
    for name, title, lead, make in PARTS:
        opens_texts = make in (parts.against, parts.training)
        found = make(summary, texts=numbers) if opens_texts else make(summary)
        shown.append((name, title, lead, found))
    shown.insert(-1, (*TEXTS, [] if texts is None else [texts]))
    return [part for part in shown if part[-1]]


def how(summary: Summary) -> list[PageBlock]:
    """How the job was made: settings, costs, minor warnings, and the columns of the saved tables."""
    settings = [
        ["target", _model_words(summary, summary.target)],
        ["draft models", ", ".join(_model_words(summary, draft.name) for draft in summary.drafts)],
        ["prompts", _prompt_words(summary)],
        ["sampling", sampling_words(summary)],
        ["seed", f"{summary.seed}"],
        ["most new tokens", f"{summary.max_new_tokens:,}"],
        ["prompts in the chat format", "yes" if summary.chat else "no"],
    ]
    options = spell_options(summary.chat_options)
    if options:
        settings.append(["chat options", label(", ".join(options))])
    settings.append(["K", f"{summary.k}"])
    settings.append(["made", f"{label(summary.created)} by specviz {label(summary.specviz)}"])
    settings.append(["command", command_of(summary)])
    shown = [blocks.TableBlock(["setting", "value"], settings)]
    if summary.costs:
        shown += [_costs_table(summary), blocks.WordsBlock(COSTS_NOTE, small=True)]
    for warning in summary.warnings:
        if is_aside(warning):
            shown.append(blocks.WordsBlock(reveal(warning), small=True))
    columns = {
        "column": lambda row: row[0],
        "type": lambda row: row[1].type,
        "meaning": lambda row: row[1].meaning,
    }
    for name in SAVED:
        table = blocks.table_of(list(COLUMNS[name].items()), columns)
        shown.append(blocks.DetailsBlock(f"Columns of {name}.parquet", [table]))
    return shown


def _model_words(summary: Summary, name: str) -> str:
    """A model with its number format and the start of its hash, as far as they are known."""
    facts = [summary.number_formats.get(name, ""), summary.models.get(name, "")[:HASH_SHOWN]]
    known = ", ".join(label(fact) for fact in facts if fact)
    return f"{draft_label(name)} ({known})" if known else draft_label(name)


def _prompt_words(summary: Summary) -> str:
    fingerprint = label(summary.prompts[:HASH_SHOWN])
    return f"{label(summary.prompt_file)} ({fingerprint})" if summary.prompt_file else fingerprint


def _costs_table(summary: Summary) -> TableBlock:
    def words_of(costs: Mapping[str, Any], name: str) -> str:
        return reveal(str(costs.get(name, cells.NONE)))

    def device_words(costs: Mapping[str, Any]) -> str:
        device = words_of(costs, "device")
        return f"CPU ({device})" if costs.get("device") in CPUS else device

    def call_ms(costs: Mapping[str, Any]) -> Any:
        return next(iter(costs.get("verify_ms") or ()), None)

    columns = {
        "draft model": lambda row: draft_label(row[0]),
        "one drafted token": lambda row: cells.milliseconds(row[1].get("draft_ms")),
        "one target call": lambda row: cells.milliseconds(call_ms(row[1])),
        "tokens of context": lambda row: words_of(row[1], "context_length"),
        "device": lambda row: device_words(row[1]),
        "number format": lambda row: words_of(row[1], "dtype"),
    }
    caption = "Measured or given costs behind the predicted speedups."
    return blocks.table_of(list(summary.costs.items()), columns, caption=caption)


PARTS = (  # name, title, lead, and the function that makes the blocks
    (
        "overview",
        "Overview",
        "How well each draft model predicts the target on these texts.",
        overview,
    ),
    (
        "against",
        "Where the drafts differ",
        "Both drafts read the same texts, so each prompt is compared with itself. A difference over fewer than "
        f"{ENOUGH_PROMPTS} prompts is not called significant.",
        parts.against,
    ),
    (
        "every-k",
        "Every K",
        "The same texts, divided into steps as speculative sampling would at each K. No speculative run is needed.",
        parts.every_k,
    ),
    (
        "ways",
        "Drawn or most likely tokens",
        "The same draft used in both ways. A drawn token is accepted as often as both models overlap, the most likely "
        "one as often as the target draws it. A served log means the way of its engine.",
        parts.ways,
    ),
    ("as-served", "As served", as_served.LEAD, as_served.as_served),
    (
        "slices",
        "Where in the text",
        "Agreement for groups of tokens. A fall of 10 points or more from one group to the next is marked.",
        parts.slices,
    ),
    (
        BY_DEPTH,
        "By depth in the draft",
        "Agreement at the first, second, third token of a draft and so on, over all places of the texts where a draft "
        "may begin. The text's own tokens stand before each place.",
        parts.by_depth,
    ),
    (
        "reasons",
        "Why p and q differ",
        "Why agreement falls short of 100 %. Each position has one reason for its loss, 1 - sum min(p, q); the "
        "target's probability outside the draft's vocabulary is counted separately.",
        parts.reasons,
    ),
    (
        "calibration",
        "Is the draft's confidence worth anything?",
        "The draft's confidence (q), and how often such a token is accepted. A draft equal to the target is always "
        "accepted, even where it is unsure, so acceptance above confidence is no fault. Acceptance below confidence "
        "means that the draft is too sure. If acceptance climbs steeply, stopping at low confidence can help.",
        parts.calibration,
    ),
    (
        "training",
        "What to train on",
        "Rejections in groups: what stands before, the target's token, the draft's most likely token. Each place "
        "counts the target calls that the job would save at its K if the draft were always accepted there. A group is "
        "listed if its interval leaves out 0: it costs calls in several texts. The option --export-rows writes the "
        "texts as training rows.",
        parts.training,
    ),
    ("how", "How it was made", "Settings, costs, and the columns of the saved tables.", how),
)
TEXTS = (
    "texts",
    "Texts, token by token",
    "Choose a text. The stronger the shade and the underline, the less the models agree on the next token at that "
    "position. Point at a token, or move along the text with the arrow keys. " + KEPT_WORDS,
)
