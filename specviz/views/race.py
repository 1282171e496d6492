"""The section of a race: its numbers, its verdict and its replay.

Pure data in, props out; every number worded. A race is what `specviz.race` yields.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specviz.measures import METRICS, count, metrics
from specviz.trace import Step, Trace
from specviz.views import blocks
from specviz.views.blocks import Cell, Props, Words
from specviz.views.duel import duel_block
from specviz.views.sentences import label, percent, visible
from specviz.views.speed import ONE_RUN

if TYPE_CHECKING:
    from specviz.race import Difference, Heat, Race, Reading

NAME, TITLE = "race", "Race"
LEAD = (
    "Two setups continue the same prompt from the same seed. Each is really run on this machine, in turn, alone and "
    "warmed up, its reading of the prompt counted too. Then both are replayed side by side."
)
NOTHING = "Nothing raced yet. Choose two setups and press Race; it takes some seconds."
LETTERS = ("A", "B")
SHOWN = ("tokens_per_s", "emitted", "target_calls", "tokens_per_target_call", "kept")
WORDS = ("tokens/s", "tokens", "target calls", "tokens per target call", "judged draft tokens kept")
COLUMNS = ("setup", "time", *WORDS)
FEWEST_TOKENS, MOST_TOKENS, MOST_PROMPTS = 8, 256, 12
ENOUGH_PROMPTS, ENOUGH_TOKENS = 5, 32  # for a side to be called faster
SEVERAL = 3  # prompts: fewer are chance
UNDER_LOAD = "under load"
MOST_TITLE = 160  # characters
SAME_LAW = "Two draws from the same law; texts differ by design."
HOW = (
    "A ratio is one side's tokens per second over the other's on the same prompt. The result is the median over the "
    "prompts; beside it stand the smallest and the largest.",
    f"It is a result when one side was ahead on each of {ENOUGH_PROMPTS} prompts or more, with {ENOUGH_TOKENS} tokens "
    f"or more, by {100 * ONE_RUN:.0f} % or more. The replay shows the first prompt; where texts differ that should "
    "not, the first on which they do.",
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
    problem: what should be known before anything is raced. chosen["prompt"]: what stands for the prompt raced first;
    chosen["most_tokens"]: as many may be asked for."""
    shown = [blocks.words(problem)] if problem and (result is None or result.heats) else []
    if result is None:
        shown.append(blocks.words(NOTHING))
    elif result.done < result.total:
        shown += _running(result, titles)
    else:
        shown += _raced(result, titles)
    return blocks.section(NAME, TITLE, _lead(chosen["prompt"]), _controls(options, chosen), shown)


def _lead(prompt: str) -> Words:
    return [f"{LEAD} The first prompt: ", prompt, ". For another one, press Run with it on Explore first."]


def _controls(options: Options, chosen: Mapping[str, Any]) -> list[Props]:
    temperatures = [(_warmth(float(each)), each) for each in chosen["temperatures"]]
    most = chosen["most_tokens"]
    return [
        blocks.choice("left", LETTERS[0], options, chosen["left"]),
        blocks.choice("right", LETTERS[1], options, chosen["right"]),
        blocks.choice("temperature", "Temperature", temperatures, repr(chosen["temperature"])),
        blocks.count("tokens", "Tokens", chosen["tokens"], min(FEWEST_TOKENS, most), most),
        blocks.count("prompts", "Prompts", chosen["prompts"], 1, MOST_PROMPTS),
        blocks.button("race", "Race", primary=True),
    ]


def _warmth(temperature: float) -> str:
    return "0: the favourite token" if temperature == 0 else f"{temperature:g}"


def _running(result: Race, titles: tuple[str, str]) -> list[Props]:
    """How far the race is, and what is known of the prompts that are over: it may be stopped here."""
    words = f"{result.done} of {result.total} runs · {visible(result.note)}"
    bar = blocks.progress(result.done, result.total, words)
    return [bar, blocks.verdict(*_speed(result, titles)), _prompts(result)] if result.heats else [bar]


def _raced(result: Race, titles: tuple[str, str]) -> list[Props]:
    heat = _replayed(result)
    caption = f"the prompt “{visible(heat.title)}”: the two runs below"
    rows = [_row(*each, result.is_shared) for each in zip(titles, (heat.left, heat.right), strict=True)]
    several = [blocks.details("Prompt by prompt", [_prompts(result)])] if len(result.heats) > 1 else []
    return [
        blocks.verdict(*_speed(result, titles)),
        *_identity(result, titles),
        blocks.table(COLUMNS, rows, caption=caption),
        _replay(result, heat, titles),
        *several,
        blocks.details("How it is measured", [*map(blocks.words, (*HOW, *_writing(result, titles)))]),
    ]


def _replayed(result: Race) -> Heat:
    """The first heat whose texts should not part and do, else the first."""
    return result.heats[0 if result.difference is None else result.difference.heat]


def _replay(result: Race, heat: Heat, titles: tuple[str, str]) -> Props:
    """Both runs of a heat; no clock that others have slowed down."""
    both = [_untimed(each) if result.is_shared else each for each in (heat.left, heat.right)]
    return duel_block(*both, "time" if result.difference is None else "token", titles)


def _untimed(trace: Trace) -> Trace:
    return Trace(_still(event) if isinstance(event, Step) else event for event in trace.events())


def _still(step: Step) -> Step:
    timing = step.timing
    none = dict.fromkeys(("draft_ms", "verify_ms", "accept_ms", "record_ms", "wait_ms", "total_ms"), 0.0)
    return replace(step, at_ms=0.0, timing=replace(timing, **none, extra={}))


def _writing(result: Race, titles: tuple[str, str]) -> list[Words]:
    """How much of the sides' times went into recording the runs; nothing where no time was measured."""
    sides = zip(*((heat.left, heat.right) for heat in result.heats), strict=True)
    shares = [_recorder_share(traces) for traces in sides]
    if result.is_shared or None in shares:
        return []
    one, other = (bare_title(title) for title in titles)
    first = "Writing down every step for this page counts as well: "
    return [[first, one, f" spent {percent(shares[0])} of its time on it, ", other, f" {percent(shares[1])}."]]


def _recorder_share(traces: Sequence[Trace]) -> float | None:
    working = sum(count(trace).working_ms for trace in traces)
    return sum(step.timing.record_ms for trace in traces for step in trace.steps) / working if working > 0 else None


def _row(title: str, trace: Trace, is_shared: bool) -> list[Cell]:
    values = metrics(trace)
    numbers = [METRICS[name].spell(values[name]) for name in SHOWN]
    times = [f"{count(trace).working_ms / 1000:.2f} s", numbers[0]]
    return [bare_title(title), *([UNDER_LOAD] * 2 if is_shared else times), *numbers[1:]]


def _speed(result: Race, titles: tuple[str, str]) -> tuple[str, Words]:
    """The verdict of the clock: its state, and words with both sides' names."""
    if result.is_shared:
        return "unsure", "Under load: others used the engine meanwhile, so no speedup is told. Race again later."
    if result.ratio is None:
        return "unsure", "No time was measured, so neither side can be called faster."
    one, other = (bare_title(title) for title in titles)
    begins, how = ("", f"{_how(result)}:") if _is_clear(result) else ("No clear difference: ", "ran at")
    doubt = "" if begins else _doubt(result)
    end, *lossy = _lossy(result, titles)
    told, over = f" {how} {result.ratio:.2f}× the speed of ", f" ({_over(result)})."
    words = [begins, other, told, one, f"{over}{doubt}{end}", *lossy]
    return "unsure" if begins or doubt else "consistent", words


def _is_clear(result: Race) -> bool:
    """Whether one side was ahead on every prompt, and by more than chance moves a single run."""
    is_ahead = min(result.ratios) > 1 or max(result.ratios) < 1
    return is_ahead and abs(result.ratio - 1) >= ONE_RUN


def _how(result: Race) -> str:
    """What one side did; only of several prompts that it was faster."""
    number, is_faster = len(result.ratios), result.ratio > 1
    if number < SEVERAL:
        times = "this once" if number == 1 else "both times"
        return f"{'took less time' if is_faster else 'took longer'} {times}"
    return f"was {'faster' if is_faster else 'slower'}"


def _doubt(result: Race) -> str:
    """What a clear difference still lacks to be called one; empty where it lacks nothing."""
    lengths = [min(len(heat.left.tokens), len(heat.right.tokens)) for heat in result.heats]
    lacks = [
        f"over {ENOUGH_PROMPTS} prompts or more" if len(result.ratios) < ENOUGH_PROMPTS else "",
        f"with texts of {ENOUGH_TOKENS} tokens or more" if statistics.median(lengths) < ENOUGH_TOKENS else "",
    ]
    needed = " and ".join(filter(None, lacks))
    return f" Repeat {needed} to be sure." if needed else ""


def _over(result: Race) -> str:
    """What the ratio stands on: how many prompts, and how far apart they were."""
    number, low, high = len(result.ratios), min(result.ratios), max(result.ratios)
    return f"median of {number} prompts, {low:.2f}× to {high:.2f}×" if number > 1 else "one prompt only"


def _lossy(result: Race, titles: tuple[str, str]) -> list[str]:
    """A speed of a text that does not follow the target's own odds says so, of whichever side."""
    names = _lossy_names(result, titles)
    are = " is lossy: its text is" if len(names) == 1 else " are lossy: their texts are"
    return [" ", " and ".join(names), f"{are} not the target's own."] if names else [""]


def bare_title(title: str) -> str:
    """A side's title; it may hold names from outside."""
    return visible(title[:MOST_TITLE])


def _lossy_names(result: Race, titles: tuple[str, str]) -> list[str]:
    sides = zip(*((heat.left, heat.right) for heat in result.heats), strict=True)
    return [bare_title(title) for title, traces in zip(titles, sides, strict=True) if not all(map(_is_exact, traces))]


def _prompts(result: Race) -> Props:
    """Every prompt's own ratio."""
    columns = ("prompt", "A, tokens/s", "B, tokens/s", "B over A", "texts")
    rows = [
        [
            label(heat.title),
            *(_rate(each, result.is_shared) for each in (heat.left, heat.right)),
            "no ratio" if heat.ratio is None or result.is_shared else f"{heat.ratio:.2f}×",
            "same" if heat.parted is None else f"part at token {heat.parted + 1:,}",
        ]
        for heat in result.heats
    ]
    return blocks.table(columns, rows)


def _rate(trace: Trace, is_shared: bool) -> str:
    return UNDER_LOAD if is_shared else METRICS["tokens_per_s"].spell(metrics(trace)["tokens_per_s"])


# ---- are the texts identical? ---------------------------------------------------------------------------------------


def _identity(result: Race, titles: tuple[str, str]) -> list[Props]:
    lossy = _lossy_names(result, titles)
    if result.heats[0].left.header.request.get("temperature") != 0:
        return [blocks.words(_by_chance(lossy))]
    if result.difference is None:
        return [blocks.verdict("exact", _identical(result))]
    return _differs(result, result.difference, lossy, titles)


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
    names = [bare_title(title) for title in titles]
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
    target = found.readings[0]
    gap = abs(target.logits[0] - target.logits[1])
    if found.is_tie:
        return (
            f"The target's two candidates are {gap:.2g} apart in logits: a tie, as far as its numbers can tell. "
            "Reading one token at a time and several at once adds up in another order, so either may come first."
        )
    if lossy:
        return f"{' and '.join(lossy)} follows a lossy rule, which may keep what the target would not write."
    if target.best > max(target.logits):
        return "The target's favourite there is neither of the two: this should not happen."
    return f"The target's two candidates are {gap:.2g} apart in logits. That is no tie: this should not happen."


def _reading(each: Reading) -> list[Cell]:
    return [f"{each.role} {label(each.name)}", *(f"{logit:.5f}" for logit in each.logits), *map(percent, each.odds)]


def _is_exact(trace: Trace) -> bool:
    return all(step.settings.lossless for step in trace.steps)
