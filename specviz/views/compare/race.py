"""The section of a race (`specviz.bench.race`): controls, verdicts, numbers per prompt, a replay, and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from specviz.analysis.rounds import FEWEST, LEVEL, NEAR, ONE_RUN
from specviz.request import MAX_K
from specviz.trace import Step, Timing, Trace
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, count, metrics
from specviz.views import blocks
from specviz.views.blocks import Cell, Options, Props, Words
from specviz.views.compare.race_words import (
    ENOUGH_TOKENS,
    Titles,
    bare_title,
    sides,
    speed_verdict,
    text_verdict,
)
from specviz.views.compare.side_by_side_player import side_by_side_block
from specviz.views.words import label, percent, quantity, reveal

if TYPE_CHECKING:
    from specviz.analysis.rounds import SpeedComparison
    from specviz.bench.race import Heat, Race

NAME, TITLE = "race", "Race"
LEAD = (
    "Two setups continue the same prompts from the same seed. Each really runs on this machine, twice per prompt, in "
    "alternation, after a warm-up. Reading the prompt counts on both sides. Then both are replayed side by side."
)
NOTHING = "Nothing raced yet. Choose two setups and press Race. It takes some seconds."
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
WORDS = ("tokens/s", "tokens", "target calls", "tokens per target call", "accepted of judged")
COLUMNS = ("setup", "time", *WORDS)
PROMPT_COLUMNS = (
    "prompt", "A tokens/s", "B tokens/s", "B over A", "A target calls", "B target calls", "A accepted of judged",
    "B accepted of judged", "texts", "replay",
)  # fmt: skip
FEWEST_TOKENS, MOST_TOKENS, MOST_PROMPTS = 8, 256, 12
MOST_CHARACTERS = 8_000  # of own prompts
HINT = "Empty: the prompt above, then ready-made ones"
UNDER_LOAD = "under load"
FILE_FORMAT = 1
PROMPT_FIELDS = ("prompt", "prompt_ids")  # of a request
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
    """What a page shows of a race that it keeps. key: its id; heat: whose runs are replayed (None: those of
    `heat_to_replay`); files: the ids by which these two runs can be saved."""

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
    """options: (words, value) per setup. chosen: the values of the controls by name, "prompt": the first prompt, in
    words, and "most_tokens": the server's limit. titles: of both sides. problem: a note on what would be raced."""
    shown = [blocks.notice(problem)] if problem and (result is None or result.heats) else []
    if result is None:
        shown.append(blocks.notice(NOTHING))
    elif result.done < result.total and seat.heat is None:
        shown += _progress_blocks(result, titles, seat)
    else:
        shown += _result_blocks(result, titles, seat)
    lead = [
        f"{LEAD} The first prompt: ",
        chosen["prompt"],
        ". To race another, run it on Explore first.",
    ]
    return blocks.section(NAME, TITLE, lead, _controls(options, chosen), shown)


def with_earlier_result(fresh: Props, shown: Props) -> Props:
    """The section of another run on Explore, with the result of the race that was shown before."""
    news = [
        block for block in fresh["blocks"] if blocks.is_notice(block) and block["words"] != NOTHING
    ]
    found = [block for block in shown["blocks"] if not blocks.is_notice(block)]
    return {**fresh, "blocks": [*news, blocks.notice(BEFORE), *found]}


def has_result(section: Props) -> bool:
    return any(not blocks.is_notice(block) for block in section["blocks"])


def chosen_values(section: Props) -> dict[str, Any]:
    """The values of a section's controls by name."""
    return {each["name"]: each["value"] for each in section["controls"] if "name" in each}


def heat_to_replay(result: Race) -> int:
    """The heat whose greedy texts differ, if there is one, else the first."""
    return 0 if result.difference is None else result.difference.heat


def _controls(options: Options, chosen: Mapping[str, Any]) -> list[Props]:
    warmths = [("0: the most likely token" if float(each) == 0 else f"{float(each):g}", each)
               for each in chosen["temperatures"]]  # fmt: skip
    most = chosen["most_tokens"]
    return [
        blocks.choice("left", LETTERS[0], options, chosen["left"]),
        blocks.count("k_left", f"K of {LETTERS[0]}", chosen["k_left"], 1, MAX_K),
        blocks.choice("right", LETTERS[1], options, chosen["right"]),
        blocks.count("k_right", f"K of {LETTERS[1]}", chosen["k_right"], 1, MAX_K),
        blocks.choice("temperature", "Temperature", warmths, repr(chosen["temperature"])),
        blocks.count("tokens", "Tokens", chosen["tokens"], min(FEWEST_TOKENS, most), most),
        blocks.count("prompts", "Prompts", chosen["prompts"], 1, MOST_PROMPTS),
        blocks.lines(
            "own", "Own prompts, one per line", chosen.get("own", ""), HINT, MOST_CHARACTERS
        ),
        blocks.button("race", "Race", primary=True),
    ]


def _progress_blocks(result: Race, titles: Titles, seat: Seat) -> list[Props]:
    """The progress, and the results of the finished prompts, at which a race may be stopped."""
    bar = blocks.progress(
        result.done, result.total, f"{result.done} of {result.total} runs · {reveal(result.note)}"
    )
    if not result.heats:
        return [bar]
    return [bar, blocks.verdict(*speed_verdict(result, titles)), _prompts_table(result, seat)]


def _result_blocks(result: Race, titles: Titles, seat: Seat) -> list[Props]:
    place = heat_to_replay(result) if seat.heat is None else seat.heat
    heat, shown = result.heats[place], []
    both = heat.left, heat.right
    if result.done < result.total:
        shown.append(
            blocks.words(f"Stopped after {result.done} of {result.total} runs.", small=True)
        )
    about_text, *how_close = text_verdict(result, titles)
    shown += [blocks.verdict(*speed_verdict(result, titles)), about_text]
    shown.append(blocks.words(["Both runs on the prompt ", f"“{reveal(heat.title)}”", ":"]))
    by = "time" if result.difference is None or heat.parting is None else "token"
    shown.append(
        side_by_side_block(*(map(_without_times, both) if result.is_shared else both), by, titles)
    )
    rows = [_side_row(*each, result.is_shared) for each in zip(titles, both, strict=True)]
    shown += [*how_close, blocks.table(COLUMNS, rows, caption="The two runs above")]
    if len(result.heats) > 1:
        shown.append(_prompts_table(result, seat, place))
    if seat.files:
        names = zip(LETTERS, seat.files, strict=True)
        links = [
            (f"Save this run of {letter} as a trace", f"specviz/trace/{name}")
            for letter, name in names
        ]
        shown.append(blocks.links(links))
    return [
        *shown,
        blocks.words(_request_words(result), small=True),
        blocks.details("How it is measured", [*map(blocks.words, _how_measured(result, titles))]),
        blocks.download("Save this race as JSON", "race.json", _json_file(result, titles)),
    ]


def _without_times(trace: Trace) -> Trace:
    """The run without the times that other work has distorted."""
    events = trace.events()
    none = Timing(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    return Trace(
        replace(each, at_ms=0.0, timing=none) if isinstance(each, Step) else each for each in events
    )


def _request_words(result: Race) -> Words:
    request, number = result.heats[0].left.header.request, quantity(len(result.heats), "prompt")
    distribution = f"temperature {request.get('temperature'):g}, seed {request.get('seed')}"
    return [
        f"Raced at {distribution}, at most {request.get('max_new_tokens')} tokens, on {number}, the first: ",
        reveal(result.heats[0].title),
    ]


def _how_measured(result: Race, titles: Titles) -> list[Words]:
    """With how far two runs of one setup lay apart and what recording took, where times say anything."""
    told, found = list(HOW), result.comparison
    if result.is_shared or found is None:
        return told
    took = f"The slower run of the same setup on the same prompt took {percent(found.spread)} more time"
    told.insert(0, f"{took} (median over both sides and all prompts).")
    shares = [_recorder_share(traces) for traces in sides(result)]
    if None not in shares:
        one, other = map(bare_title, titles)
        first = "Recording every step for this page counts as well: "
        told.append(
            [
                first,
                one,
                f" spent {percent(shares[0])} of its time on it, ",
                other,
                f" {percent(shares[1])}.",
            ]
        )
    return told


def _recorder_share(traces: Sequence[Trace]) -> float | None:
    working = sum(count(trace).working_ms for trace in traces)
    return (
        sum(step.timing.record_ms for trace in traces for step in trace.steps) / working
        if working > 0
        else None
    )


def _side_row(title: str, trace: Trace, is_shared: bool) -> list[Cell]:
    speed, *others = metric_cells(trace)
    times = [UNDER_LOAD] * 2 if is_shared else [f"{count(trace).working_ms / 1000:.2f} s", speed]
    return [bare_title(title), *times, *others]


def metric_cells(trace: Trace) -> list[Cell]:
    """The cells under WORDS."""
    values = metrics(trace)
    return [METRICS[name].spell(values[name]) for name in SHOWN]


def _prompts_table(result: Race, seat: Seat, place: int = -1) -> Props:
    """A row per prompt, and one of all together; place: the heat that is replayed."""
    rows = []
    for number, heat in enumerate(result.heats):
        texts = "same" if heat.parting is None else f"differ from token {heat.parting + 1:,}"
        again = (
            blocks.button_cell("Replay", NAME, "replay", {"race": seat.key, "heat": str(number)})
            if seat.key
            else ""
        )
        numbers = _numbers((heat.left, heat.right), heat.comparison, result.is_shared)
        rows.append([label(heat.title), *numbers, texts, again])
    if len(rows) > 1:
        found, num_same = result.comparison, sum(heat.parting is None for heat in result.heats)
        all_steps = ((step for run in runs for step in run.steps) for runs in sides(result))
        both = [reduce(Counters.add, steps, Counters()) for steps in all_steps]
        _, _, *numbers = _numbers(both, found, result.is_shared)
        rows.append(
            [
                "all prompts; median ratio",
                "",
                "",
                *numbers,
                f"{num_same} of {len(result.heats)} the same",
                "",
            ]
        )
    return blocks.table(PROMPT_COLUMNS, rows, caption="Prompt by prompt", marked=place)


def _numbers(
    both: Sequence[Trace | Counters], found: SpeedComparison | None, is_shared: bool
) -> list[str]:
    """The cells of both sides from tokens/s to the kept share, with the ratio of their speeds."""
    values = [metrics(each) for each in both]
    speeds, calls, kept = (
        [METRICS[name].spell(each[name]) for each in values]
        for name in ("tokens_per_s", "target_calls", "acceptance_rate_judged")
    )
    times = (
        "no ratio" if found is None or is_shared or not found.is_possible else f"{found.ratio:.2f}×"
    )
    return [*([UNDER_LOAD] * 2 if is_shared else speeds), times, *calls, *kept]


def _json_file(result: Race, titles: Titles) -> str:
    """Both setups, the machine, the verdict and every prompt's numbers."""
    state, words = speed_verdict(result, titles)
    first, found = result.heats[0], result.comparison
    told = found if found is not None and found.is_possible else None
    header = first.left.header
    content = {
        "specviz_race": FILE_FORMAT,
        "specviz": header.specviz,
        "created": header.created,
        "machine": header.environment,
        "sides": [
            {
                "title": bare_title(title),
                "request": {k: v for k, v in run.header.request.items() if k not in PROMPT_FIELDS},
            }
            for title, run in zip(titles, (first.left, first.right), strict=True)
        ],
        "verdict": {"state": state, "words": "".join(words)},
        "under_load": result.is_shared,
        "unsteadiness": None if found is None else found.spread,
        "runs": {"done": result.done, "planned": result.total},
        "median_ratio_b_over_a": told and told.ratio,
        "median_between": told and told.between,
        "prompts": [_heat_record(heat) for heat in result.heats],
    }
    return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1)


def _heat_record(heat: Heat) -> dict[str, Any]:
    """One prompt in the file."""
    runs = zip((heat.left, heat.right), heat.slower_ms, strict=True)
    return {
        "title": heat.title,
        "prompt": {name: heat.left.header.request.get(name) for name in PROMPT_FIELDS},
        "a_and_b": [
            {
                "times_ms": [count(quick).working_ms, slower_ms],
                **{name: metrics(quick)[name] for name in FILE_METRICS},
            }
            for quick, slower_ms in runs
        ],
        "ratio_b_over_a": heat.comparison.ratio
        if heat.comparison and heat.comparison.is_possible
        else None,
        "texts_part_after_tokens": heat.parting,
    }
