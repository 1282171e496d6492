"""The first part of an alignment report: the texts, the answer for each draft, its faults, the table of drafts.

Takes a `Summary`, returns a list of `blocks`.
"""

from collections.abc import Mapping, Sequence

from specviz.alignment.causes.verdict import BROKEN, SOUND, WEAK, floor_words
from specviz.alignment.causes.verdict import loss_words as lost_words
from specviz.alignment.report import cells
from specviz.alignment.report.parts import losing_slices, loss_words
from specviz.alignment.summary import IGNORED, DraftSummary, Reason, Summary
from specviz.analysis.rounds import is_far
from specviz.request import Request
from specviz.views import blocks
from specviz.views.blocks import DetailsBlock, PageBlock, TableBlock, VerdictState, Words
from specviz.views.explore.titles import join
from specviz.views.words import draft_label, label, percent, quantity, reveal

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
    "states": "costs need the target's weights",
    "given": "the costs that were given leave it out",
    "measured": "costs are measured for draft models alone",
    "served": "servers are not timed",
    "": "the summary does not say why",
}


def overview(summary: Summary, *, no_costs: str = "") -> list[PageBlock]:
    """The blocks of the overview. no_costs: what to do where costs are not known."""
    shown = _verdicts(summary)
    shown.append(blocks.WordsBlock(_source_words(summary)))
    if not summary.exact:
        words = "Some texts may not be the target's own at these settings. The numbers hold for these texts only."
        shown.append(blocks.VerdictBlock("unsure", words))
    shown.append(blocks.WordsBlock(reveal(summary.note), small=True))
    for draft in summary.drafts:
        if cells.is_known(draft.alpha):
            shown.append(blocks.WordsBlock(_answer(summary, draft)))
    for warning in summary.warnings:
        if not is_aside(warning):
            shown.append(blocks.VerdictBlock("unsure", reveal(warning)))
    if not summary.is_remote:
        shown.append(blocks.WordsBlock(_faults_words(summary), small=True))
    shown += _fastest_words(summary)
    shown.append(_drafts_table(summary))
    shown.append(blocks.WordsBlock(COLUMN_WORDS, small=True))
    lacking = [
        draft_label(draft.name) for draft in summary.drafts if draft.name not in summary.costs
    ]
    if lacking:
        why = no_costs or NO_COSTS.get(summary.costs_from, NO_COSTS[""])
        words = f"No speedup is given for {', '.join(lacking)}: {why}."
        shown.append(blocks.WordsBlock(words, small=True))
    if summary.num_refused:
        shown.append(_refused_table(summary))
    return shown


_STATES: Mapping[str, VerdictState] = {SOUND: "consistent", WEAK: "unsure", BROKEN: "differs"}


def _verdicts(summary: Summary) -> list[PageBlock]:
    """The verdict on each draft beside the floors, its faults, and what to do next."""
    shown: list[PageBlock] = []
    for draft in summary.drafts:
        if draft.verdict is not None:
            lost = lost_words(draft.alpha, draft.findings)
            words = f" is {draft.verdict}: {lost}. Next: {reveal(draft.next_step)}."
            state = _STATES.get(draft.verdict, "unsure")
            shown.append(blocks.VerdictBlock(state, ["", draft_label(draft.name), words]))
        for finding in draft.findings:
            words = ["", draft_label(finding.draft), f": {reveal(finding.words)}"]
            shown.append(blocks.VerdictBlock("differs", words))
    if summary.floors is not None:
        words = f"Beside the drafts: {floor_words(summary.floors)}."
        shown.append(blocks.WordsBlock(words, small=True))
    return shown


def is_aside(warning: str) -> bool:
    """Whether a warning is about ignored fields of the file only: it stands in the part "How it was made"."""
    return warning.startswith(IGNORED)


def _source_words(summary: Summary) -> Words:
    """How many prompts and tokens there are, and how the target wrote the texts."""
    prompts = quantity(summary.num_prompts, "prompt")
    refused = ""
    if summary.num_refused:
        total = quantity(summary.num_prompts + summary.num_refused, "prompt")
        prompts = f"{summary.num_prompts:,} of {total}"
        refused = f" ({summary.num_refused:,} could not be used, see below)"
    cut_words = ""
    if summary.num_cut:
        ends = "text ends" if summary.num_cut == 1 else "texts end"
        cut_words = f" {summary.num_cut:,} {ends} where the target's context ends."
    return [
        "",
        prompts,
        f"{refused}, ",
        quantity(summary.num_tokens, "token"),
        " of text by ",
        label(summary.target),
        f", {sampling_words(summary)}.{cut_words}",
    ]


def _faults_words(summary: Summary) -> str:
    if not summary.looked_for:
        return NOTHING_LOOKED_FOR
    number = sum(len(draft.findings) for draft in summary.drafts)
    found = f"Faults found: {number}, see above." if number else "No fault was found."
    return f"{found} Looked for: {', '.join(map(reveal, summary.looked_for))}."


def sampling_words(summary: Summary) -> str:
    """The temperature, and the filters that are on."""
    values = summary.sampling
    narrow = [name for name, off in Request.FILTERS.items() if values.get(name, off) != off]
    filters = [f"{name.replace('_', '-')} {values[name]:g}" for name in narrow]
    return ", ".join([f"temperature {values.get('temperature', 1):g}", *filters])


def _answer(summary: Summary, draft: DraftSummary) -> Words:
    """How far the draft agrees, where the rest is lost, and how fast it is at best."""
    sentences = [["", draft_label(draft.name), " agrees ", percent(draft.alpha), "."]]
    reasons = [reason for reason in draft.reasons if reason.share > 0]
    if reasons:
        reasons.sort(key=lambda reason: -reason.share)
        sentences.append(_lost_words(draft.alpha, reasons[:MOST_REASONS]))
    for part in losing_slices(summary, draft):
        if part.kind != "tag":  # tags have findings
            sentences.append(["The ", *loss_words(part)])
            break
    if draft.speedups:
        best = max(draft.speedups)
        best_words = f"K = {draft.speedups.index(best) + 1}, {best:.2f}x"
        slower = ", slower" if best < 1 else ""
        end = f" the speed without a draft (predicted){slower}."
        sentences.append(["Best: ", best_words, end])
    return join(sentences)


def _lost_words(alpha: float, reasons: Sequence[Reason]) -> list[str]:
    lost = 100 * (1 - alpha)
    words = ["", f"{_points(lost)}\u00a0%", " disagreement"]
    of_it = " of it"
    for reason in reasons:
        words[-1] += f"; {_points(lost * reason.share)}{of_it}: "
        words += [label(reason.name), ""]
        of_it = ""
    words[-1] = "."
    return words


def _points(value: float) -> str:
    """Points of a percent, without a sign."""
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _fastest_words(summary: Summary) -> list[PageBlock]:
    """The fastest of several drafts, or why none can be named."""
    timed = [(max(draft.speedups), draft.name) for draft in summary.drafts if draft.speedups]
    if len(timed) < 2:
        return []
    target_ms = []  # the target's time alone, measured with each draft
    for costs in summary.costs.values():
        target_ms += (costs.get("verify_ms") or ())[:1]
    if target_ms and is_far(max(target_ms) / min(target_ms)):
        words = (
            "The drafts' costs were measured separately, and the target's own time differed between them. So their "
            "speedups are not ranked: measure all in one job."
        )
        return [blocks.VerdictBlock("unsure", words)]
    timed.sort(reverse=True)
    best, best_name = timed[0]
    second, second_name = timed[1]
    if second > best * (1 - TOO_CLOSE):
        close = f" differ by less than {percent(TOO_CLOSE)}: too little to call one the fastest."
        names = [draft_label(best_name), " and ", draft_label(second_name)]
        return [blocks.WordsBlock(["The predicted speedups of ", *names, close])]
    end = ": still slower than no draft." if best < 1 else "."
    words = f" is predicted to be fastest of the {len(timed)}, {best:.2f}x{end}"
    return [blocks.WordsBlock(["", draft_label(best_name), words])]


def _drafts_table(summary: Summary) -> TableBlock:
    drafts = summary.drafts
    k = summary.k
    columns = {
        "draft model": lambda draft: draft_label(draft.name),
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
    best = _agrees_most(drafts)
    caption = "Bold: agrees most." if best >= 0 else ""
    return blocks.table_of(drafts, columns, caption=caption, marked=best, sortable=len(drafts) > 1)


def _agrees_most(drafts: Sequence[DraftSummary]) -> int:
    """The place of the draft that agrees most; -1 for a single draft, or where no agreement is known."""
    known = [place for place, draft in enumerate(drafts) if cells.is_known(draft.alpha)]
    if len(drafts) < 2 or not known:
        return -1
    return max(known, key=lambda place: drafts[place].alpha)


def _refused_table(summary: Summary) -> DetailsBlock:
    shown = summary.refused
    caption = "" if len(shown) == summary.num_refused else f"The first {len(shown):,} of them."
    columns = {"line": lambda row: cells.number(row[0]), "why": lambda row: reveal(row[1])}
    title = f"Lines that could not be used: {summary.num_refused:,}"
    return blocks.DetailsBlock(title, [blocks.table_of(shown, columns, caption=caption)])
