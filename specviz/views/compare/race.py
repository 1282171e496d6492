"""The section of a race: its controls, its verdicts, prompt by prompt its numbers, and the replay of one of them.

Pure data in, props out; every number worded. A race is what `specviz.bench.race` yields.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specviz.request import MAX_K
from specviz.trace.counters import Counters
from specviz.trace.file import Step, Trace
from specviz.trace.metrics import METRICS, count, metrics
from specviz.views import blocks
from specviz.views.blocks import Cell, Props, Words
from specviz.views.compare.race_file import race_file
from specviz.views.compare.race_texts import identity
from specviz.views.compare.race_words import HOW, Titles, bare_title, sides, speed_verdict, steadiness
from specviz.views.compare.side_by_side_player import duel_block
from specviz.views.explore.sentences import counted, label, percent, visible

if TYPE_CHECKING:
    from specviz.bench.race import Heat, Race

NAME, TITLE = "race", "Race"
LEAD = (
    "Two setups continue the same prompts from the same seed. Each is really run on this machine, twice per prompt, in "
    "turn and warmed up, its reading of the prompt counted too. Then both are replayed side by side."
)
NOTHING = "Nothing raced yet. Choose two setups and press Race; it takes some seconds."
BEFORE = "This race was run before the present run came on Explore; what was raced is said below it."
LETTERS = ("A", "B")
SHOWN = ("tokens_per_s", "emitted", "target_calls", "tokens_per_target_call", "acceptance_rate_judged")
WORDS = ("tokens/s", "tokens", "target calls", "tokens per target call", "judged draft tokens kept")
COLUMNS = ("setup", "time", *WORDS)
PROMPT_COLUMNS = (
    "prompt", "A tokens/s", "B tokens/s", "B over A", "A target calls", "B target calls", "A kept", "B kept", "texts",
    "replay",
)  # fmt: skip
FEWEST_TOKENS, MOST_TOKENS, MOST_PROMPTS = 8, 256, 12
MOST_CHARACTERS = 8_000  # of own prompts
HINT = "Empty: the prompt above, then ready ones"
UNDER_LOAD = "under load"
Options = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Seat:
    """What a page shows of a race that is kept: `key`: by which it is found again, `heat`: whose runs are replayed
    (None: the most telling one), `files`: the ids of these two runs, where they can be saved."""

    key: str = ""
    heat: int | None = None
    files: tuple[str, ...] = ()


def race(
    options: Options,
    chosen: Mapping[str, Any],
    result: Race | None = None,
    titles: Titles = LETTERS,
    problem: str = "",
    seat: Seat = Seat(),
) -> Props:
    """options: (words, value) per setup. chosen: the values of the controls by name. titles: what the sides are called.
    problem: what should be known before anything is raced. chosen["prompt"]: what stands for the prompt raced first;
    chosen["most_tokens"]: as many may be asked for."""
    shown = [blocks.passing(problem)] if problem and (result is None or result.heats) else []
    if result is None:
        shown.append(blocks.passing(NOTHING))
    elif result.done < result.total and seat.heat is None:
        shown += _running(result, titles, seat)
    else:
        shown += _raced(result, titles, seat)
    return blocks.section(NAME, TITLE, _lead(chosen["prompt"]), _controls(options, chosen), shown)


def raced_before(fresh: Props, shown: Props) -> Props:
    """A section for another run on Explore, with what the one before had found."""
    news = [block for block in fresh["blocks"] if blocks.is_passing(block) and block["words"] != NOTHING]
    found = [block for block in shown["blocks"] if not blocks.is_passing(block)]
    return {**fresh, "blocks": [*news, blocks.passing(BEFORE), *found]}


def has_result(section: Props) -> bool:
    return any(not blocks.is_passing(block) for block in section["blocks"])


def chosen_values(section: Props) -> dict[str, Any]:
    """The values that the controls of a section were given."""
    return {each["name"]: each["value"] for each in section["controls"] if "name" in each}


def _lead(prompt: str) -> Words:
    return [f"{LEAD} The first prompt: ", prompt, ". For another one, press Run with it on Explore first."]


def _controls(options: Options, chosen: Mapping[str, Any]) -> list[Props]:
    temperatures = [(_warmth(float(each)), each) for each in chosen["temperatures"]]
    most = chosen["most_tokens"]
    return [
        blocks.choice("left", LETTERS[0], options, chosen["left"]),
        blocks.count("k_left", f"K of {LETTERS[0]}", chosen["k_left"], 1, MAX_K),
        blocks.choice("right", LETTERS[1], options, chosen["right"]),
        blocks.count("k_right", f"K of {LETTERS[1]}", chosen["k_right"], 1, MAX_K),
        blocks.choice("temperature", "Temperature", temperatures, repr(chosen["temperature"])),
        blocks.count("tokens", "Tokens", chosen["tokens"], min(FEWEST_TOKENS, most), most),
        blocks.count("prompts", "Prompts", chosen["prompts"], 1, MOST_PROMPTS),
        blocks.lines("own", "Own prompts, one per line", chosen.get("own", ""), HINT, MOST_CHARACTERS),
        blocks.button("race", "Race", primary=True),
    ]


def _warmth(temperature: float) -> str:
    return "0: the favourite token" if temperature == 0 else f"{temperature:g}"


def _running(result: Race, titles: Titles, seat: Seat) -> list[Props]:
    """How far the race is, and what is known of the prompts that are over: it may be stopped here."""
    words = f"{result.done} of {result.total} runs · {visible(result.note)}"
    bar = blocks.progress(result.done, result.total, words)
    return [bar, blocks.verdict(*speed_verdict(result, titles)), _prompts(result, seat)] if result.heats else [bar]


def _raced(result: Race, titles: Titles, seat: Seat) -> list[Props]:
    place = replayed(result) if seat.heat is None else seat.heat
    heat = result.heats[place]
    caption = f"the prompt “{visible(heat.title)}”: the two runs below"
    rows = [_row(*each, result.is_shared) for each in zip(titles, (heat.left, heat.right), strict=True)]
    stopped = f"Stopped after {result.done} of {result.total} runs."
    how = [*steadiness(result), *HOW, *_writing(result, titles)]
    return [
        *([blocks.words(stopped, small=True)] if result.done < result.total else []),
        blocks.verdict(*speed_verdict(result, titles)),
        *identity(result, titles),
        *([_prompts(result, seat, place)] if len(result.heats) > 1 else []),
        blocks.table(COLUMNS, rows, caption=caption),
        _replay(result, heat, titles),
        *_files(seat),
        blocks.words(_terms(result), small=True),
        blocks.details("How it is measured", [*map(blocks.words, how)]),
        blocks.download("Save this race as JSON", "race.json", race_file(result, titles)),
    ]


def replayed(result: Race) -> int:
    """The first heat whose texts should not part and do, else the first."""
    return 0 if result.difference is None else result.difference.heat


def _replay(result: Race, heat: Heat, titles: Titles) -> Props:
    """Both runs of a heat; no clock that others have slowed down."""
    both = [_untimed(each) if result.is_shared else each for each in (heat.left, heat.right)]
    is_odd = result.difference is not None and heat.parted is not None
    return duel_block(*both, "token" if is_odd else "time", titles)


def _untimed(trace: Trace) -> Trace:
    return Trace(_still(event) if isinstance(event, Step) else event for event in trace.events())


def _still(step: Step) -> Step:
    timing = step.timing
    none = dict.fromkeys(("draft_ms", "verify_ms", "accept_ms", "record_ms", "wait_ms", "total_ms"), 0.0)
    return replace(step, at_ms=0.0, timing=replace(timing, **none, extra={}))


def _files(seat: Seat) -> list[Props]:
    pairs = zip(LETTERS, seat.files, strict=False)
    entries = [(f"Save this run of {letter} as a trace", f"/specviz/trace/{name}") for letter, name in pairs]
    return [blocks.links(entries)] if entries else []


def _terms(result: Race) -> Words:
    """What was raced, whatever is on Explore by now."""
    request, number = result.heats[0].left.header.request, counted(len(result.heats), "prompt")
    law = f"temperature {request.get('temperature'):g}, seed {request.get('seed')}"
    return [
        f"Raced at {law}, at most {request.get('max_new_tokens')} tokens, on {number}, the first: ",
        visible(result.heats[0].title),
    ]


def _writing(result: Race, titles: Titles) -> list[Words]:
    """How much of the sides' times went into recording the runs; nothing where no time was measured."""
    shares = [_recorder_share(traces) for traces in sides(result)]
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


def _prompts(result: Race, seat: Seat, place: int = -1) -> Props:
    """Every prompt's own numbers, and all of them together."""
    rows = [[*_prompt(heat, result.is_shared), _again(seat, number)] for number, heat in enumerate(result.heats)]
    if len(rows) > 1:
        rows.append(_together(result))
    return blocks.table(PROMPT_COLUMNS, rows, caption="Prompt by prompt", marked=place)


def _prompt(heat: Heat, is_shared: bool) -> list[Cell]:
    both = metrics(heat.left), metrics(heat.right)
    texts = "same" if heat.parted is None else f"part at token {heat.parted + 1:,}"
    return [label(heat.title), *_numbers(both, heat.ratio, is_shared), texts]


def _again(seat: Seat, number: int) -> Cell:
    values = {"race": seat.key, "heat": str(number)}
    return blocks.doer("Replay", NAME, "replay", values) if seat.key else ""


def _together(result: Race) -> list[Cell]:
    both = tuple(metrics(_counted(runs)) for runs in sides(result))
    num_same = sum(heat.parted is None for heat in result.heats)
    found = result.comparison
    _, _, *numbers = _numbers(both, None if found is None else found.ratio, result.is_shared)
    return ["all together; the median ratio", "", "", *numbers, f"{num_same} of {len(result.heats)} the same", ""]


def _counted(runs: Sequence[Trace]) -> Counters:
    counters = Counters()
    for event in (event for run in runs for event in run.events() if isinstance(event, Step)):
        counters.add(event)
    return counters


def _numbers(both: tuple[Mapping, Mapping], ratio: float | None, is_shared: bool) -> list[str]:
    """Both sides' speed, their ratio, and what no clock is needed for."""
    spelled = [
        METRICS[name].spell(each[name])
        for name in ("tokens_per_s", "target_calls", "acceptance_rate_judged")
        for each in both
    ]
    told = "no ratio" if ratio is None or is_shared else f"{ratio:.2f}×"
    return [*([UNDER_LOAD] * 2 if is_shared else spelled[:2]), told, *spelled[2:]]
