"""The sections of two runs: a race with its numbers, its verdict and its replay, and two known runs side by side.

Pure data in, props out; every number worded. A race is what `specviz.race` yields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from specviz.measures import METRICS, metrics
from specviz.trace import Trace
from specviz.views import blocks
from specviz.views.blocks import Cell, Props, Words
from specviz.views.duel import duel_block, num_shown, parting_words
from specviz.views.sentences import label, percent, visible
from specviz.views.speed import ONE_RUN

if TYPE_CHECKING:
    from specviz.race import Difference, Race, Reading

NAME, TITLE = "race", "Race"
LEAD = (
    "Two setups continue the same prompt from the same seed. Each is really run on this machine, in turn, alone and "
    "warmed up, its reading of the prompt counted too. Then both are replayed side by side."
)
NOTHING = "Nothing raced yet. Choose two setups and press Race; it takes some seconds."
PAIR_NAME, PAIR_TITLE = "two-runs", "Two runs side by side"
PAIR_LEAD = (
    "Any two runs that are known here: recorded ones, the one on Explore, or two that you tick in the library. They "
    "move together, token by token, until their texts part."
)
PAIR_NOTHING = "Choose two runs and press Show."
PAIR_PACE = "By time, each moves at the pace at which it was recorded, maybe on another machine: that is no race."
LETTERS = ("A", "B")
SHOWN = ("tokens_per_s", "emitted", "target_calls", "tokens_per_target_call", "kept")
WORDS = ("tokens/s", "tokens", "target calls", "tokens per target call", "judged draft tokens kept")
COLUMNS = ("setup", "time", *WORDS)
FEWEST_TOKENS, MOST_TOKENS, MOST_PROMPTS = 8, 256, 12
SAME_LAW = "Two draws from the same law; texts differ by design."
HOW = (
    "A ratio is one side's tokens per second over the other's on the same prompt. The result is the median over the "
    "prompts; beside it stand the smallest and the largest. The replay shows the first prompt.",
    "Who begins changes from prompt to prompt. One unrecorded run of each side comes first, to warm up. Every run "
    "starts with nothing read, so reading the prompt counts on both sides.",
)
Options = Sequence[tuple[str, str]]


# ---- the race -------------------------------------------------------------------------------------------------------


def race(
    options: Options,
    chosen: Mapping[str, Any],
    result: Race | None = None,
    titles: tuple[str, str] = LETTERS,
    problem: str = "",
) -> Props:
    """options: (words, value) per setup. chosen: the values of the controls by name. titles: what the sides are called.
    problem: what should be known before anything is raced."""
    shown = [blocks.words(problem)] if problem else []
    if result is None:
        shown.append(blocks.words(NOTHING))
    elif result.done < result.total:
        words = f"{result.done} of {result.total} runs · {visible(result.note)}"
        shown.append(blocks.progress(result.done, result.total, words))
    else:
        shown += _raced(result, titles)
    return blocks.section(NAME, TITLE, LEAD, _controls(options, chosen), shown)


def _controls(options: Options, chosen: Mapping[str, Any]) -> list[Props]:
    temperatures = [(_warmth(float(each)), each) for each in chosen["temperatures"]]
    return [
        blocks.choice("left", LETTERS[0], options, chosen["left"]),
        blocks.choice("right", LETTERS[1], options, chosen["right"]),
        blocks.choice("temperature", "Temperature", temperatures, repr(chosen["temperature"])),
        blocks.count("tokens", "Tokens", chosen["tokens"], FEWEST_TOKENS, MOST_TOKENS),
        blocks.count("prompts", "Prompts", chosen["prompts"], 1, MOST_PROMPTS),
        blocks.button("race", "Race", primary=True),
    ]


def _warmth(temperature: float) -> str:
    return "0: the favourite token" if temperature == 0 else f"{temperature:g}"


def _raced(result: Race, titles: tuple[str, str]) -> list[Props]:
    first = result.heats[0]
    caption = f"the first prompt, “{visible(first.title)}”: the two runs below"
    rows = [_row(*each) for each in zip(titles, (first.left, first.right), strict=True)]
    several = [_prompts(result)] if len(result.heats) > 1 else []
    return [
        blocks.verdict(*_speed(result, titles)),
        *_identity(result, titles),
        blocks.table(COLUMNS, rows, caption=caption),
        duel_block(first.left, first.right, "time", titles),
        *several,
        blocks.details("How it is measured", [*map(blocks.words, HOW)]),
    ]


def _row(title: str, trace: Trace) -> list[Cell]:
    values = metrics(trace)
    working = sum(step.timing.total_ms - step.timing.wait_ms for step in trace.steps)
    return [label(title), f"{working / 1000:.2f} s", *(METRICS[name].spell(values[name]) for name in SHOWN)]


def _speed(result: Race, titles: tuple[str, str]) -> tuple[str, Words]:
    """The verdict of the clock: its state, and words with both sides' names."""
    if result.is_shared:
        return "unsure", "Under load: others used the engine meanwhile, so no speedup is told. Race again later."
    if result.ratio is None:
        return "unsure", "No time was measured, so neither side can be called faster."
    low, high, ratio = min(result.ratios), max(result.ratios), result.ratio
    spread = f" ({_over(result)})"
    first, second = (label(title) for title in titles)
    is_clear = low > 1 or high < 1 if len(result.ratios) > 1 else abs(ratio - 1) >= ONE_RUN
    if not is_clear:
        return "unsure", ["No clear difference: ", second, f" ran at {ratio:.2f}× the speed of ", first, f"{spread}."]
    how = "faster" if ratio > 1 else "slower"
    return "consistent", ["", second, f" was {how}: {ratio:.2f}× the speed of ", first, f"{spread}{_lossy(result)}."]


def _over(result: Race) -> str:
    """What the ratio stands on: how many prompts, and how far apart they were."""
    number, low, high = len(result.ratios), min(result.ratios), max(result.ratios)
    several = f"median of {number} prompts, {low:.2f}× to {high:.2f}×"
    return several if number > 1 else "one prompt only: repeat over more to be sure"


def _lossy(result: Race) -> str:
    """A speed of a text that does not follow the target's own odds says so."""
    return ", and its text is not the target's own (lossy)" if not _is_exact(result.heats[0].right) else ""


def _prompts(result: Race) -> Props:
    """Every prompt's own ratio."""
    columns = ("prompt", "A, tokens/s", "B, tokens/s", "B over A", "texts")
    rows = [
        [
            label(heat.title),
            *(METRICS["tokens_per_s"].spell(metrics(each)["tokens_per_s"]) for each in (heat.left, heat.right)),
            "no ratio" if heat.ratio is None or result.is_shared else f"{heat.ratio:.2f}×",
            "same" if heat.parted is None else f"part at token {heat.parted + 1:,}",
        ]
        for heat in result.heats
    ]
    return blocks.details("Prompt by prompt", [blocks.table(columns, rows)])


# ---- are the texts identical? ---------------------------------------------------------------------------------------


def _identity(result: Race, titles: tuple[str, str]) -> list[Props]:
    first = result.heats[0]
    lossy = [label(title) for title, each in zip(titles, (first.left, first.right), strict=True) if not _is_exact(each)]
    if first.left.header.request.get("temperature") != 0:
        return [blocks.words(_by_chance(lossy))]
    if result.difference is None:
        return [blocks.verdict("exact", _identical(result))]
    own = [] if first.parted is not None else [blocks.words(parting_words(first.left, first.right, titles))]
    return [*_differs(result, result.difference, lossy, titles), *own]


def _by_chance(lossy: Sequence[str]) -> Words:
    if not lossy:
        return SAME_LAW
    names = " and ".join(lossy)
    return ["Two draws, but not from the same law: ", names, " is lossy, so its words come with other odds."]


def _identical(result: Race) -> str:
    number, lengths = len(result.heats), {len(each.tokens) for heat in result.heats for each in (heat.left, heat.right)}
    pairs = "the two texts are" if number == 1 else f"on all {number} prompts the two texts are"
    each = f" ({max(lengths):,} tokens each)" if len(lengths) == 1 else ""
    ends = [heat for heat in result.heats if len(heat.left.tokens) != len(heat.right.tokens)]
    early = "; where one side ended early, as far as both go" if ends else ""
    return f"Identical: {pairs} the same, token for token{each}{early}."


def _differs(result: Race, found: Difference, lossy: Sequence[str], titles: tuple[str, str]) -> list[Props]:
    """The verdict, and what the models give both tokens at the first difference."""
    count = sum(heat.parted is None for heat in result.heats)
    same = f" {count} of {len(result.heats)} prompts gave the same text." if len(result.heats) > 1 else ""
    names = [label(title) for title in titles]
    one, other = (label(token.text, token.bytes) for token in (found.left, found.right))
    where = [
        f"Not identical: on “{visible(found.title)}” the texts part at token {found.place + 1:,}: ", names[0],
        " wrote ", one, ", ", names[1], " wrote ", other, f".{same} {_why(found, lossy)}",
    ]  # fmt: skip
    state = "unsure" if found.is_tie or lossy else "differs"
    columns = ("read once more, both texts up to there", f"logit of {one}", f"logit of {other}", f"odds of {one}",
               f"odds of {other}")  # fmt: skip
    return [blocks.verdict(state, where), blocks.table(columns, [_reading(each) for each in found.readings])]


def _why(found: Difference, lossy: Sequence[str]) -> str:
    gap = abs(found.readings[0].logits[0] - found.readings[0].logits[1])
    if found.is_tie:
        return (
            f"The target's two candidates are {gap:.2g} apart in logits: a tie, as far as its numbers can tell. "
            "Reading one token at a time and several at once adds up in another order, so either may come first."
        )
    if lossy:
        return f"{' and '.join(lossy)} follows a lossy rule, which may keep what the target would not write."
    return f"The target's two candidates are {gap:.2g} apart in logits. That is no tie: this should not happen."


def _reading(each: Reading) -> list[Cell]:
    return [f"{each.role} {label(each.name)}", *(f"{logit:.5f}" for logit in each.logits), *map(percent, each.odds)]


def _is_exact(trace: Trace) -> bool:
    return all(step.settings.lossless for step in trace.steps)


# ---- two runs that are known already --------------------------------------------------------------------------------


def two_runs(
    options: Options,
    chosen: tuple[str, str],
    traces: tuple[Trace, Trace] | None = None,
    titles: tuple[str, str] = LETTERS,
) -> Props:
    """options: (words, value) per known run. traces: the two that are shown, if any."""
    controls = [
        blocks.choice("left", LETTERS[0], options, chosen[0]),
        blocks.choice("right", LETTERS[1], options, chosen[1]),
        blocks.button("show", "Show", primary=True),
    ]
    shown = [blocks.words(PAIR_NOTHING)] if traces is None else _paired(*traces, titles)
    return blocks.section(PAIR_NAME, PAIR_TITLE, PAIR_LEAD, controls, shown)


def _paired(left: Trace, right: Trace, titles: tuple[str, str]) -> list[Props]:
    long = [
        blocks.words(f"{label(title)} is long: only its first {num_shown(each):,} steps are shown here.")
        for title, each in zip(titles, (left, right), strict=True)
        if num_shown(each) < len(each.steps)
    ]
    rows = [[label(title), *_numbers(each)] for title, each in zip(titles, (left, right), strict=True)]
    return [
        blocks.table(("run", *WORDS[1:]), rows),
        *long,
        duel_block(left, right, "token", titles),
        blocks.words(PAIR_PACE, small=True),
    ]


def _numbers(trace: Trace) -> list[Cell]:
    values = metrics(trace)
    return [METRICS[name].spell(values[name]) for name in SHOWN[1:]]
