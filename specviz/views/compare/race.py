"""The section of a race (`specviz.bench.race`): controls, verdicts, numbers per prompt, a replay, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from specviz.analysis.rounds import FEWEST, LEVEL, NEAR, ONE_RUN
from specviz.request import MAX_K
from specviz.trace import Step, Timing, Trace
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, metrics
from specviz.views import blocks
from specviz.views.blocks import (
    BarsBlock,
    Cell,
    ChoiceControl,
    CountControl,
    LinesControl,
    Options,
    PageBlock,
    PageControl,
    PageSection,
    TableBlock,
    Tone,
    Words,
)
from specviz.views.compare.race_words import (
    ENOUGH_TOKENS,
    Titles,
    bare_title,
    sides,
    speed_verdict,
    text_verdict,
)
from specviz.views.compare.side_by_side_player import SideBySideBlock, side_by_side_block
from specviz.views.words import label, percent, quantity, reveal

if TYPE_CHECKING:
    from specviz.analysis.rounds import SpeedComparison
    from specviz.bench.race import Heat, Race

NAME = "race"
TITLE = "Race"
LEAD = (
    "Two setups continue the same prompts from the same seed. Each really runs on this machine, twice per prompt, in "
    "alternation, after a warm-up. Reading the prompt counts on both sides. Then both are replayed side by side."
)
NOTHING = "Nothing raced yet. Choose two setups and press Race."
BEFORE = (
    "This race was run before the run that is on Explore now. Its own settings are stated below."
)
LETTERS = ("A", "B")
SHOWN = (
    "tokens_per_s",
    "emitted",
    "target_calls",
    "tokens_per_target_call",
    "acceptance_rate_judged",
)
WORDS = ("tokens/s", "tokens", "target calls", "tokens per target call", "acceptance rate")
COLUMNS = ("setup", "time", *WORDS)
PROMPT_COLUMNS = (
    "prompt", "A tokens/s", "B tokens/s", "B over A", "A target calls", "B target calls", "A acceptance rate",
    "B acceptance rate", "texts", "replay",
)  # fmt: skip
FEWEST_TOKENS = 8
MOST_TOKENS = 256
MOST_PROMPTS = 12
MOST_CHARACTERS = 8_000  # of own prompts
HINT = "Empty: the prompt above, then ready-made ones"
UNDER_LOAD = "under load"
FILE_FORMAT = 1
PROMPT_FIELDS = ("prompt", "prompt_ids")  # the fields of a request that hold its prompt
FILE_METRICS = (*SHOWN[:3], "draft_calls", *SHOWN[3:])
HOW = (
    "The ratio is one side's tokens per second divided by the other's on the same prompt. Each side runs every "
    "prompt twice, in the order A B B A or B A A B, chosen at random. A side's faster run counts; it is the one "
    "replayed.",
    f"A side is called faster when the median ratio is at least {percent(NEAR - 1)} away from 1 and its interval "
    f"excludes 1. This takes {FEWEST} prompts or more with {ENOUGH_TOKENS} tokens or more. The interval is the range "
    "of all ratios for 6 prompts, without one at either end for 9, without two for 12. Two equal setups are called "
    f"different in at most {percent(LEVEL)} of races, however busy the machine is.",
    "“It depends on the prompt” means that each side won a prompt with both of its runs. Each win is by at least "
    f"{percent(ONE_RUN)}, and by more than any two runs of one setup differed in the race.",
    "One unrecorded run of each side comes first, to warm up. No run starts with its prompt already read, so reading "
    "it counts on both sides.",
    "Against no draft, a side cannot be more times as fast than it writes tokens per target call. Where the runs say "
    "more, this machine was busy, and no ratio is given.",
    "If this server does other work during the race, no speedup is given. Other programs on the machine go "
    "unnoticed; they show in how much two runs of the same setup differ.",
)


@dataclass(frozen=True, slots=True)
class Seat:
    """The part of a stored race that a page shows."""

    key: str = ""
    """The id of the race."""
    heat: int | None = None
    """The heat that is replayed; None: the one that `heat_to_replay` names."""
    files: tuple[str, ...] = ()
    """The ids under which these two runs can be saved."""


@dataclass(frozen=True, slots=True)
class RaceOffer:
    """What can be raced here."""

    setups: Options  # (words, value) of each
    temperatures: Sequence[str]
    most_tokens: int  # the server's limit
    prompt: str  # the first prompt, in words
    problem: str = ""  # a note on the setups


@dataclass(frozen=True, slots=True)
class RaceChoices:
    """The values of the controls: two setups, each with its K, and what both sides share."""

    left: str
    right: str
    k_left: int
    k_right: int
    temperature: float
    tokens: int
    prompts: int
    own: str = ""  # prompts of the visitor's own, one per line


def race(
    offer: RaceOffer,
    choices: RaceChoices,
    result: Race | None = None,
    titles: Titles = LETTERS,
    seat: Seat = Seat(),
) -> PageSection:
    """The section of a race. titles: of both sides."""
    shown: list[PageBlock] = []
    if offer.problem and (result is None or result.heats):
        shown.append(blocks.notice(offer.problem))
    if result is None:
        shown.append(blocks.notice(NOTHING))
    elif result.done < result.total and seat.heat is None:
        shown += _progress_blocks(result, titles, seat)
    else:
        shown += _result_blocks(result, titles, seat)
    lead = [
        f"{LEAD} The first prompt: ",
        offer.prompt,
        ". To race another, run it on Explore first.",
    ]
    return blocks.PageSection(
        NAME, TITLE, lead, _controls(offer, choices), shown, _options(offer, choices)
    )


def with_earlier_result(fresh: PageSection, shown: PageSection) -> PageSection:
    """The section of another run on Explore, with the result of the race that was shown before."""
    notices = [block for block in fresh.blocks if blocks.is_notice(block)]
    notices = [notice for notice in notices if notice.words != NOTHING]
    result = [block for block in shown.blocks if not blocks.is_passing(block)]
    return msgspec.structs.replace(fresh, blocks=[*notices, blocks.notice(BEFORE), *result])


def has_result(section: PageSection) -> bool:
    return not all(blocks.is_passing(block) for block in section.blocks)


def chosen_values(section: PageSection) -> dict[str, str | int]:
    """The values of a section's fields by name."""
    values = {}
    for control in (*section.controls, *section.options):
        if isinstance(control, (ChoiceControl, CountControl, LinesControl)):
            values[control.name] = control.value
    return values


def heat_to_replay(result: Race) -> int:
    """The place of the heat with different greedy texts; without one, the first."""
    return 0 if result.difference is None else result.difference.heat


def _controls(offer: RaceOffer, choices: RaceChoices) -> list[PageControl]:
    return [
        blocks.ChoiceControl("left", LETTERS[0], offer.setups, choices.left),
        blocks.ChoiceControl("right", LETTERS[1], offer.setups, choices.right),
        blocks.CountControl("prompts", "Prompts", choices.prompts, 1, MOST_PROMPTS),
        blocks.ButtonControl("race", "Race", primary=True),
    ]


def _options(offer: RaceOffer, choices: RaceChoices) -> list[PageControl]:
    temperatures = []
    for value in offer.temperatures:
        words = f"{float(value):g}"
        temperatures.append(("0: the most likely token" if float(value) == 0 else words, value))
    most = offer.most_tokens
    return [
        blocks.CountControl("k_left", f"K of {LETTERS[0]}", choices.k_left, 1, MAX_K),
        blocks.CountControl("k_right", f"K of {LETTERS[1]}", choices.k_right, 1, MAX_K),
        blocks.ChoiceControl("temperature", "Temperature", temperatures, repr(choices.temperature)),
        blocks.CountControl("tokens", "Tokens", choices.tokens, min(FEWEST_TOKENS, most), most),
        blocks.LinesControl("own", "Own prompts, one per line", choices.own, HINT, MOST_CHARACTERS),
    ]


def calls_bars(runs: Sequence[tuple[str, Trace]]) -> BarsBlock:
    """The target calls of recorded runs with these names, without times: those were not taken in turn."""
    rows = []
    most = max(metrics(trace)["target_calls"] for _, trace in runs)
    for name, trace in runs:
        calls = metrics(trace)["target_calls"]
        tone: Tone = "accepted" if trace.steps[-1].settings.drafts else "plain"
        values = metric_cells(trace)[2:4]
        rows.append(blocks.bar(name, [(tone, 100 * calls / most)], values))
    return BarsBlock(rows, heads=WORDS[2:4], first="setup")


def _progress_blocks(result: Race, titles: Titles, seat: Seat) -> list[PageBlock]:
    """The progress, and the results of the finished prompts, at which a race may be stopped."""
    words = f"{result.done} of {result.total} runs · {reveal(result.note)}"
    bar = blocks.progress(result.done, result.total, words)
    if not result.heats:
        return [bar]
    return [bar, blocks.VerdictBlock(*speed_verdict(result, titles)), _prompts_table(result, seat)]


def _result_blocks(result: Race, titles: Titles, seat: Seat) -> list[PageBlock]:
    """The verdicts, the replay of one heat, the numbers of all, and how they were measured."""
    place = heat_to_replay(result) if seat.heat is None else seat.heat
    heat = result.heats[place]
    shown: list[PageBlock] = []
    if result.done < result.total:
        words = f"Stopped after {result.done} of {result.total} runs."
        shown.append(blocks.WordsBlock(words, small=True))
    text, *details = text_verdict(result, titles)
    shown += [
        blocks.VerdictBlock(*speed_verdict(result, titles)),
        text,
        blocks.WordsBlock(["Both runs on the prompt ", f"“{reveal(heat.title)}”", ":"]),
        _replay(result, heat, titles),
        *details,
    ]
    rows = [
        _side_row(title, counters, result.is_shared)
        for title, counters in zip(titles, heat.counters, strict=True)
    ]
    shown.append(blocks.TableBlock(COLUMNS, rows, caption="The two runs above"))
    if len(result.heats) > 1:
        shown.append(_prompts_table(result, seat, place))
    if seat.files:
        links = []
        for letter, name in zip(LETTERS, seat.files, strict=True):
            links.append((f"Save this run of {letter} as a trace", f"specviz/trace/{name}"))
        shown.append(blocks.LinksBlock(links))
    how = [blocks.WordsBlock(note) for note in _how_measured(result, titles)]
    return [
        *shown,
        blocks.WordsBlock(_request_words(result), small=True),
        blocks.DetailsBlock("How it is measured", how),
        blocks.DownloadBlock("Save this race as JSON", "race.json", _json_file(result, titles)),
    ]


def _replay(result: Race, heat: Heat, titles: Titles) -> SideBySideBlock:
    """The two runs of a heat, side by side."""
    left = heat.left
    right = heat.right
    if result.is_shared:
        left = _without_times(left)
        right = _without_times(right)
    by = "time" if result.difference is None or heat.parting is None else "token"
    return side_by_side_block(left, right, by, titles)


def _without_times(trace: Trace) -> Trace:
    """The run without its times, which other work has distorted."""
    none = Timing(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    events = []
    for event in trace.events():
        if isinstance(event, Step):
            event = replace(event, at_ms=0.0, timing=none)
        events.append(event)
    return Trace(events)


def _request_words(result: Race) -> Words:
    request = result.heats[0].left.header.request
    sampling = f"temperature {request.get('temperature'):g}, seed {request.get('seed')}"
    prompts = quantity(len(result.heats), "prompt")
    return [
        f"Raced at {sampling}, at most {request.get('max_new_tokens')} tokens, on {prompts}, the first: ",
        reveal(result.heats[0].title),
    ]


def _how_measured(result: Race, titles: Titles) -> list[Words]:
    """The method, how far two runs of one setup lay apart, and the cost of recording, if any time says something."""
    words: list[Words] = list(HOW)
    comparison = result.comparison
    if result.is_shared or comparison is None:
        return words
    slower = f"The slower run of the same setup on the same prompt took {percent(comparison.spread)} more time"
    words.insert(0, f"{slower} (median over both sides and all prompts).")
    left, right = zip(*[heat.counters for heat in result.heats], strict=True)
    left_share = _recorder_share(left)
    right_share = _recorder_share(right)
    if left_share is not None and right_share is not None:
        recording = [
            "Recording every step for this page counts as well: ",
            bare_title(titles[0]),
            f" spent {percent(left_share)} of its time on it, ",
            bare_title(titles[1]),
            f" {percent(right_share)}.",
        ]
        words.append(recording)
    return words


def _recorder_share(runs: Sequence[Counters]) -> float | None:
    """The share of the working time that recording took; None without times."""
    working_ms = sum(run.working_ms for run in runs)
    if working_ms <= 0:
        return None
    return sum(run.times_ms["record_ms"] for run in runs) / working_ms


def _side_row(title: str, counters: Counters, is_shared: bool) -> list[Cell]:
    speed, *others = metric_cells(counters)
    time = f"{counters.working_ms / 1000:.2f} s"
    if is_shared:
        time = UNDER_LOAD
        speed = UNDER_LOAD
    return [bare_title(title), time, speed, *others]


def metric_cells(source: Trace | Counters) -> list[Cell]:
    """The cells under WORDS."""
    values = metrics(source)
    return [METRICS[name].spell(values[name]) for name in SHOWN]


def _prompts_table(result: Race, seat: Seat, place: int = -1) -> TableBlock:
    """A row per prompt, and one of all together; place: the heat that is replayed."""
    rows = []
    for number, heat in enumerate(result.heats):
        texts = "same" if heat.parting is None else f"differ from token {heat.parting + 1:,}"
        replay: Cell = ""
        if seat.key:
            values = {"race": seat.key, "heat": str(number)}
            replay = blocks.button_cell("Replay", NAME, "replay", values)
        numbers = _numbers(*heat.counters, heat.comparison, result.is_shared)
        rows.append([label(heat.title), *numbers, texts, replay])
    if len(rows) > 1:
        rows.append(_all_prompts_row(result))
    return blocks.TableBlock(PROMPT_COLUMNS, rows, caption="Prompt by prompt", marked=place)


def _all_prompts_row(result: Race) -> list[Cell]:
    left, right = (_count_all(traces) for traces in sides(result))
    _, _, *numbers = _numbers(left, right, result.comparison, result.is_shared)
    num_same = sum(heat.parting is None for heat in result.heats)
    same = f"{num_same} of {len(result.heats)} the same"
    return ["all prompts; median ratio", "", "", *numbers, same, ""]


def _count_all(traces: Sequence[Trace]) -> Counters:
    """The counts of all steps of these runs together."""
    counters = Counters()
    for trace in traces:
        for step in trace.steps:
            counters.add(step)
    return counters


def _numbers(
    left: Counters,
    right: Counters,
    comparison: SpeedComparison | None,
    is_shared: bool,
) -> list[str]:
    """The cells of both sides from tokens/s to the accepted share, with the ratio of their speeds."""
    values = (metrics(left), metrics(right))

    def cells(name: str) -> list[str]:
        return [METRICS[name].spell(side[name]) for side in values]

    speeds = [UNDER_LOAD, UNDER_LOAD] if is_shared else cells("tokens_per_s")
    ratio = "no ratio"
    if comparison is not None and comparison.is_possible and not is_shared:
        ratio = f"{comparison.ratio:.2f}×"
    return [*speeds, ratio, *cells("target_calls"), *cells("acceptance_rate_judged")]


def _json_file(result: Race, titles: Titles) -> str:
    """The file of a race: both setups, the machine, the verdict and every prompt's numbers."""
    state, words = speed_verdict(result, titles)
    first = result.heats[0]
    header = first.left.header
    both = []
    for title, run in zip(titles, (first.left, first.right), strict=True):
        request = dict(run.header.request)
        for name in PROMPT_FIELDS:
            request.pop(name, None)
        both.append({"title": bare_title(title), "request": request})
    comparison = result.comparison
    is_possible = comparison is not None and comparison.is_possible
    content = {
        "specviz_race": FILE_FORMAT,
        "specviz": header.specviz,
        "created": header.created,
        "machine": header.environment,
        "sides": both,
        "verdict": {"state": state, "words": "".join(words)},
        "under_load": result.is_shared,
        "unsteadiness": None if comparison is None else comparison.spread,
        "runs": {"done": result.done, "planned": result.total},
        "median_ratio_b_over_a": comparison.ratio if is_possible else None,
        "median_between": comparison.between if is_possible else None,
        "prompts": [_heat_record(heat) for heat in result.heats],
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)


def _heat_record(heat: Heat) -> dict[str, Any]:
    """One prompt in the file."""
    runs = []
    for quick, slower_ms in zip(heat.counters, heat.slower_ms, strict=True):
        values = metrics(quick)
        numbers = {name: values[name] for name in FILE_METRICS}
        runs.append({"times_ms": [quick.working_ms, slower_ms], **numbers})
    comparison = heat.comparison
    is_possible = comparison is not None and comparison.is_possible
    return {
        "title": heat.title,
        "prompt": {name: heat.left.header.request.get(name) for name in PROMPT_FIELDS},
        "a_and_b": runs,
        "ratio_b_over_a": comparison.ratio if is_possible else None,
        "texts_part_after_tokens": heat.parting,
    }
