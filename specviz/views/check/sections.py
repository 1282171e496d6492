"""Sections of the Check page except "End to end" (whole_texts.py), from results of `specviz.checks`. Loads no torch.

A section without a result says what is missing and which button computes it. `names` gives a token id's text.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from specviz.checks.report import EXIT_WORDS
from specviz.checks.statistics import round_up
from specviz.request import RunSettings
from specviz.views import blocks
from specviz.views.blocks import (
    BarsBlock,
    CountControl,
    Options,
    PageBlock,
    PageSection,
    TableBlock,
    VerdictBlock,
    Words,
)
from specviz.views.words import label, percent

if TYPE_CHECKING:
    from specviz.checks.end_to_end import EndToEnd, FirstToken
    from specviz.checks.enumerated import Enumeration
    from specviz.checks.greedy import Greedy
    from specviz.checks.one_step import Redraws, RuleHere, SumIdentity
    from specviz.checks.self_checks import SelfCheck
    from specviz.checks.statistics import Cells

Names = Callable[[int], str]
OTHERS = "all others"
REDRAWS = (1_000, 5_000, 1_000_000)  # fewest, at first, most
MOST_SEED = 999_999_999
SAME = 1e-6  # distributions from rows in float32 that lie no farther apart are equal
SAMPLE = {
    "prompt_ids": [11, 42, 7],
    "ids": [5, 19, 23],
    "sampling": {"temperature": 1.0, **RunSettings.FILTERS},
}


IDENTITY = (
    "identity",
    "The identity",
    "What both models agree on is accepted. Where the target's probability is higher, there is a shortfall; "
    "replacements are drawn from exactly that. Together they make up the target's own distribution.",
)
PINNED = "the pinned token. "
FIRST = (
    "the first one of the run, as no token with the draft's probabilities is pinned on Explore. "
)


def identity(
    result: SumIdentity | None, names: Names, *, is_pinned: bool = True, refusal: str = ""
) -> PageSection:
    """The section that stacks min(p, q) and max(0, p - q) of each token to p.

    is_pinned: whether the token is pinned on Explore. refusal: why there is no result.
    """
    if result is None:
        missing = (
            "Nothing to show yet. Make a run with a draft model on Explore and pin a drafted token."
        )
        return blocks.PageSection(*IDENTITY, blocks=[blocks.WordsBlock(refusal or missing)])
    key = [
        ("both", "both models agree: min(p, q)"),
        ("shortfall", "shortfall: p - q where p is larger"),
    ]
    heads = ("p, target", "q, draft", "agreed", "shortfall", "agreed + shortfall")
    scale = 100 / max(share.p for share in result.rows)
    rows = []
    for share in result.rows:
        parts = [("both", scale * share.overlap), ("shortfall", scale * share.shortfall)]
        shares = (share.p, share.q, share.overlap, share.shortfall, share.written)
        values = [percent(value) for value in shares]
        rows.append(blocks.bar(_token_words(share.token, names), parts, values, scale * share.p))
    tokens = f"each of {result.num_tokens:,} tokens, largest difference {result.largest_error:.1e}"
    if result.largest_error <= SAME:
        words = f"exact (enumerated): agreed + shortfall = p for {tokens}"
        verdict = blocks.VerdictBlock("exact", words)
    else:
        words = f"differs: agreed + shortfall is not p for {tokens}"
        verdict = blocks.VerdictBlock("differs", words)
    which = PINNED if is_pinned else FIRST
    place = f"Step {result.step + 1}, drafted token {result.node + 1}: {which}"
    sums = result.sums
    balance = [
        f"{place}Agreed ", percent(sums.overlap), " and shortfall ", percent(sums.shortfall), " make ",
        percent(min(1.0, sums.written)),
        f". The draft has {percent(sums.excess)} too much on other tokens: it is rejected, and equals the shortfall.",
    ]  # fmt: skip
    bars = blocks.BarsBlock(rows, heads=heads, key=key)
    return blocks.PageSection(*IDENTITY, blocks=[bars, blocks.WordsBlock(balance), verdict])


ONE_STEP = (
    "one_step",
    "One step",
    "What does a rule write where it judges one drafted token? The formula says it exactly; redraws with the rule's "
    "own program show it. The sample size is fixed in advance, and the verdict waits for the last draw.",
)


def one_step(
    options: Options,
    rule: str,
    here: RuleHere | None,
    redraws: Redraws | None,
    names: Names,
    *,
    n: int = REDRAWS[1],
    at: tuple[int, int] | None = None,
    others: Sequence[RuleHere] = (),
    refusal: str = "",
    seed: int = 0,
    enumerated: Enumeration | None = None,
) -> PageSection:
    """The section on one drafted token under a rule.

    options: the rules as (words, name). at: (step, drafted token), counted from 0. others: the same token under every
    rule. refusal: why there is none. enumerated: the rule's program over texts.
    """
    controls = [
        blocks.ChoiceControl("rule", "Rule", options, rule),
        blocks.CountControl("n", "Redraws", n, REDRAWS[0], REDRAWS[2]),
        seed_control(seed),
        blocks.ButtonControl("redraw", "Redraw", primary=True),
    ]
    if here is None or at is None:
        missing = (
            "Nothing to show yet. Make a run with a draft model on Explore, then press Redraw."
        )
        return blocks.PageSection(*ONE_STEP, controls, [blocks.WordsBlock(refusal or missing)])
    shown = []
    if enumerated is not None:
        shown += state_blocks(enumerated, "Enumerating the rule's program over small texts")
    shown += [blocks.WordsBlock(_choice_words(here, at)), _formula_verdict(here)]
    if redraws is not None:
        counted = f"{redraws.done:,} of {redraws.total:,} redraws; the verdict comes after the last"
        shown += state_blocks(redraws, counted)
        is_done = redraws.outcome is not None
        shown.append(cell_bars(redraws.cells, redraws.tokens, names, is_done=is_done))
    if others:
        table = _rules_table(others, rule)
        shown.append(blocks.DetailsBlock("Every rule on this token, by formula", [table]))
    return blocks.PageSection(*ONE_STEP, controls, shown)


def _choice_words(here: RuleHere, at: tuple[int, int]) -> Words:
    """The drafted token that was chosen, the reason, and how often the rule accepts it."""
    step, token = at
    reason = "the models' agreement is closest to one half"
    if _errs(here):
        reason = "its mistake shows clearly"
    accepts = (
        f" accepts the drafted token {percent(here.accepted)} of the time here, judged alone. "
    )
    return [
        f"Step {step + 1}, drafted token {token + 1}: chosen for this rule, whatever is pinned, as {reason} there. ",
        here.rule.title,
        f"{accepts}{here.rule.summary}",
    ]


def seed_control(seed: int) -> CountControl:
    """The control of the seed: the same seed repeats the same draws, another one draws independently."""
    return blocks.CountControl("seed", "Seed", seed, 0, MOST_SEED)


def state_blocks(
    result: Enumeration | Redraws | EndToEnd | FirstToken | Greedy, words: str
) -> list[PageBlock]:
    """The verdict, once there is one, and the progress in these words until all is done."""
    shown: list[PageBlock] = []
    if result.outcome is not None:
        shown.append(blocks.VerdictBlock(result.outcome.state, result.outcome.words))
    if result.done < result.total:
        shown.append(blocks.progress(result.done, result.total, words))
    return shown


def _formula_verdict(here: RuleHere) -> VerdictBlock:
    if _errs(here):
        words = f"differs: by formula, {percent(here.distance)} of its probability here lies on the wrong tokens"
        effort = effort_words(here.draws_needed, "redraws")
        return blocks.VerdictBlock("differs", f"{words}; {effort} show it")
    if here.rule.lossless:
        words = "exact by formula, one token judged alone: what it writes here follows the target's probabilities"
        return blocks.VerdictBlock("exact", words)
    words = "cannot tell: the rule's error has no effect on this token; another token shows it"
    return blocks.VerdictBlock("unsure", words)


def cell_bars(cells: Cells, tokens: Sequence[int], names: Names, *, is_done: bool) -> BarsBlock:
    """How often each token was drawn; with is_done beside the target's share, as a tick."""
    n = max(1, cells.n)
    seen = [count / n for count in cells.counts]
    longest = max([*seen, 1e-9])
    heads: tuple[str, ...] = ("count",)
    key = []
    if is_done:
        longest = max([longest, *cells.distribution])
        heads = ("count", "written", "target's probability")
        key = [("plain", "how often it was written"), ("tick", "the target's probability")]
    scale = 100 / longest
    rows = []
    for token, count, share, expected in zip(
        [*tokens, None], cells.counts, seen, cells.distribution, strict=True
    ):
        values = [f"{count:,}"]
        tick = None
        if is_done:
            values += [percent(share), percent(expected)]
            tick = scale * expected
        parts = [("plain", scale * share)]
        rows.append(blocks.bar(_token_words(token, names), parts, values, tick))
    return blocks.BarsBlock(rows, heads=heads, key=key)


def _rules_table(found: Sequence[RuleHere], chosen: str) -> TableBlock:
    rows = []
    marked = -1
    for here in found:
        distance = "0"
        effort = "–"
        if _errs(here):
            distance = percent(here.distance)
            effort = effort_words(here.draws_needed, "")
        kind = "lossless" if here.rule.lossless else "not exact"
        if here.rule.name == chosen and marked < 0:
            marked = len(rows)
        rows.append([here.rule.title, kind, percent(here.accepted), distance, effort])
    columns = ("rule", "kind", "accepted", "distance to the target", "redraws to detect it")
    caption = "Same acceptance, right text or wrong: acceptance alone cannot tell."
    return blocks.TableBlock(columns, rows, caption=caption, marked=marked)


def _errs(here: RuleHere) -> bool:
    return here.distance > SAME


def effort_words(number: int | None, unit: str) -> str:
    """How many draws or tokens show a mistake."""
    if number:
        return f"about {round_up(number):,} {unit}".strip()
    return f"more {unit} than fit here" if unit else "more than fit here"


SELF_CHECKS = (
    "self_checks",
    "The pair itself",
    "The parts that the rule relies on: the cache, the draft's q, and a target that drafts for itself.",
)


def self_checks(results: Sequence[SelfCheck]) -> PageSection:
    """The section with one verdict per check; no results before the button was pressed."""
    if not results:
        shown = [
            blocks.WordsBlock("Not checked yet. Press Check this pair; it takes a few seconds.")
        ]
    else:
        shown = [
            blocks.VerdictBlock(check.verdict, f"{check.name}: {check.words}") for check in results
        ]
        last = results[-1]
        if last.done < last.total:
            words = f"{last.done} of {last.total} checks"
            shown.append(blocks.progress(last.done, last.total, words))
    controls = [blocks.ButtonControl("self", "Check this pair", primary=True)]
    return blocks.PageSection(*SELF_CHECKS, controls, shown)


SOMEONE_ELSE = (
    "someone_else",
    "Someone else's decoder",
    "Any other decoder can be checked in the same way, on your own machine. Write its token ids into a file, one "
    "text per line, and let the target read them.",
)


def someone_else(target: str) -> PageSection:
    """The section that says how to check another decoder with the command line."""
    line = json.dumps(SAMPLE)
    meanings = {**EXIT_WORDS, 2: "unusable input"}
    codes = ", ".join(f"{code} {words}" for code, words in meanings.items())
    name = shlex.quote("".join(character for character in target if character.isprintable()))
    command = f"python -m specviz prove --target {name} --samples samples.jsonl"
    shown = [
        blocks.WordsBlock(["One line per text: ", line]),
        blocks.WordsBlock(["Then: ", command]),
        blocks.WordsBlock(
            "Give token ids, not text: the same text can be split into tokens in several ways, and the check is "
            "about the tokens that were drawn. Each line is an independent draw at its own settings."
        ),
        blocks.WordsBlock(
            "Text made in bf16 or fp16 differs from float32 at near-ties. Say so with --made-in bf16 or with "
            '"made_in" in its line; near-ties within that format\'s rounding are then counted separately.'
        ),
        blocks.WordsBlock(f"Exit codes, for automatic tests: {codes}.", small=True),
        blocks.DownloadBlock("Example line", "samples.jsonl", line + "\n"),
    ]
    return blocks.PageSection(*SOMEONE_ELSE, blocks=shown)


def _token_words(token: int | None, names: Names) -> str:
    return OTHERS if token is None else label(names(token))
