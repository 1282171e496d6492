"""The first part of an alignment report: what was read, the answer for each draft, its faults, the table of drafts.

A `Summary` in, a list of `blocks` out.
"""

from collections.abc import Sequence
from itertools import islice

from specviz.alignment.report import cells
from specviz.alignment.report.parts import losing_slices, loss_words
from specviz.alignment.summary import IGNORED, DraftSummary, Reason, Summary
from specviz.analysis.rounds import is_far
from specviz.views import blocks
from specviz.views.blocks import Props, Words
from specviz.views.explore.titles import join
from specviz.views.words import label, percent, quantity, reveal

OFF = {"top_k": 0, "top_p": 1}
KEPT_WORDS = (
    "For the token in the target's text, the acceptance probability is min(1, q/p); for a drafted token, it is "
    "min(1, p/q). On average, either gives the agreement."
)
COLUMN_WORDS = (
    "p: the target's probabilities, q: the draft's. Agreement is averaged over all tokens that the draft can read; "
    f"the paper calls it alpha. {KEPT_WORDS} So the two columns of agreement should be close. Intervals: 95 %, by "
    "Student's t over prompts; they are wide if prompts are few. Speedups are predicted from costs, not timed."
)
NOTHING_LOOKED_FOR = "Too few prompts to look for faults in the draft models."
MOST_REASONS = 3
TOO_CLOSE = 0.1  # speedups that differ by less are not ranked: costs timed again differ as much


NO_COSTS = {  # why a draft has none, by where the job's costs come from
    "left out": "the job was made with --no-costs",
    "given": "the costs that were given leave it out",
    "measured": "costs are measured for draft models alone",
    "": "the summary does not say why",
}


def overview(summary: Summary, *, no_costs: str = "") -> list[Props]:
    """no_costs: what to do about costs that are not known."""
    shown = [blocks.words(_source_words(summary))]
    if not summary.exact:
        words = "Some texts may not be the target's own at these settings. The numbers hold for these texts only."
        shown.append(blocks.verdict("unsure", words))
    shown.append(blocks.words(reveal(summary.note), small=True))
    shown += [
        blocks.words(_answer(summary, draft))
        for draft in summary.drafts
        if cells.is_known(draft.alpha)
    ]
    for found in (finding for draft in summary.drafts for finding in draft.findings):
        shown.append(
            blocks.verdict("differs", ["", label(found.draft), f": {reveal(found.words)}"])
        )
    shown += [
        blocks.verdict("unsure", reveal(warning))
        for warning in summary.warnings
        if not is_aside(warning)
    ]
    shown.append(blocks.words(_faults_words(summary), small=True))
    shown += [
        *_fastest_words(summary),
        _drafts_table(summary),
        blocks.words(COLUMN_WORDS, small=True),
    ]
    if lacking := [
        label(draft.name) for draft in summary.drafts if draft.name not in summary.costs
    ]:
        why = no_costs or NO_COSTS.get(summary.costs_from, NO_COSTS[""])
        shown.append(
            blocks.words(f"No speedup is given for {', '.join(lacking)}: {why}.", small=True)
        )
    if summary.num_refused:
        shown.append(_refused_table(summary))
    return shown


def is_aside(warning: str) -> bool:
    """Whether a warning is about ignored fields of the file only: it stands in the part "How it was made"."""
    return warning.startswith(IGNORED)


def _source_words(summary: Summary) -> Words:
    prompts = quantity(summary.num_prompts, "prompt")
    refused = ""
    if summary.num_refused:
        prompts = f"{summary.num_prompts:,} of {quantity(summary.num_prompts + summary.num_refused, 'prompt')}"
        refused = f" ({summary.num_refused:,} could not be used, see below)"
    told = ["", prompts, f"{refused}, ", quantity(summary.num_tokens, "token"), " of text by ",
            label(summary.target), f", {sampling_words(summary)}."]  # fmt: skip
    if summary.num_cut:
        ends = "text ends" if summary.num_cut == 1 else "texts end"
        told[-1] += f" {summary.num_cut:,} {ends} where the target's context ends."
    return told


def _faults_words(summary: Summary) -> str:
    if not summary.looked_for:
        return NOTHING_LOOKED_FOR
    number = sum(len(draft.findings) for draft in summary.drafts)
    found = f"Faults found: {number}, see above." if number else "No fault was found."
    return f"{found} Looked for: {', '.join(map(reveal, summary.looked_for))}."


def sampling_words(summary: Summary) -> str:
    values = summary.sampling
    narrow = [name for name, off in OFF.items() if values.get(name, off) != off]
    filters = [f"{name.replace('_', '-')} {values[name]:g}" for name in narrow]
    return ", ".join([f"temperature {values.get('temperature', 1):g}", *filters])


def _answer(summary: Summary, draft: DraftSummary) -> Words:
    """How far it agrees, where the rest is lost, and what it is good for."""
    told = [["", label(draft.name), " agrees ", percent(draft.alpha), "."]]
    largest = sorted(
        (reason for reason in draft.reasons if reason.share > 0), key=lambda reason: -reason.share
    )
    if largest:
        told.append(_lost_words(draft.alpha, largest[:MOST_REASONS]))
    losing = (
        each for each in losing_slices(summary, draft) if each.kind != "tag"
    )  # tags have findings
    told += [["The ", *loss_words(each)] for each in islice(losing, 1)]
    if draft.speedups:
        best = max(draft.speedups)
        at = f"K = {draft.speedups.index(best) + 1}, {best:.2f}x"
        told.append(
            [
                "Best: ",
                at,
                f" the speed without a draft (predicted){', slower' if best < 1 else ''}.",
            ]
        )
    return join(told)


def _lost_words(alpha: float, parts: Sequence[Reason]) -> list[str]:
    lost = 100 * (1 - alpha)
    told = ["It loses ", _points(lost), " points: "]
    for reason in parts:
        told[-1] += f"{_points(lost * reason.share)} "
        told += [label(reason.name), "; "]
    return [*told[:-1], "."]


def _points(value: float) -> str:
    """Points of a percent, without a sign."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _fastest_words(summary: Summary) -> list[Props]:
    """The fastest of several drafts, or why none can be named."""
    timed = sorted(
        ((max(draft.speedups), draft.name) for draft in summary.drafts if draft.speedups),
        reverse=True,
    )
    if len(timed) < 2:
        return []
    plain_ms = [ms for costs in summary.costs.values() for ms in (costs.get("verify_ms") or ())[:1]]
    if plain_ms and is_far(max(plain_ms) / min(plain_ms)):
        apart = "The drafts' costs were measured separately, and the target's own time differed between them"
        return [
            blocks.verdict(
                "unsure", f"{apart}. So their speedups are not ranked: measure all in one job."
            )
        ]
    (best, name), (second, other) = timed[:2]
    if second > best * (1 - TOO_CLOSE):
        close = f" differ by less than {percent(TOO_CLOSE)}: too little to call one the fastest."
        return [
            blocks.words(["The predicted speedups of ", label(name), " and ", label(other), close])
        ]
    end = ": still slower than no draft." if best < 1 else "."
    words = f" is predicted to be fastest of the {len(timed)}, {best:.2f}x{end}"
    return [blocks.words(["", label(name), words])]


def _drafts_table(summary: Summary) -> Props:
    drafts, k = summary.drafts, summary.k
    columns = {
        "draft model": lambda draft: label(draft.name),
        "agreement, sum min(p, q)": lambda draft: cells.share(draft.alpha),
        **cells.INTERVAL_AND_MOST_LIKELY,
        "agreement, by the tokens in the text": lambda draft: cells.share(draft.mean_acceptance),
        f"tokens per target call at K = {k}": lambda draft: cells.number(
            draft.tokens_per_call[k - 1] if k <= len(draft.tokens_per_call) else None,
            "{:.2f}".format,
        ),
        "best K": lambda draft: cells.best_k(draft.best_k),
        "predicted speedup at best K": lambda draft: cells.speedup(
            max(draft.speedups or (), default=None)
        ),
        **cells.COUNTS,
    }
    known = [place for place, draft in enumerate(drafts) if cells.is_known(draft.alpha)]
    best = max(known, key=lambda place: drafts[place].alpha, default=-1) if len(drafts) > 1 else -1
    caption = "Bold: agrees most." if best >= 0 else ""
    return blocks.table_of(drafts, columns, caption=caption, marked=best, sortable=len(drafts) > 1)


def _refused_table(summary: Summary) -> Props:
    shown = summary.refused
    caption = "" if len(shown) == summary.num_refused else f"The first {len(shown):,} of them."
    columns = {"line": lambda row: cells.number(row[0]), "why": lambda row: reveal(row[1])}
    title = f"Lines that could not be used: {summary.num_refused:,}"
    return blocks.details(title, [blocks.table_of(shown, columns, caption=caption)])
