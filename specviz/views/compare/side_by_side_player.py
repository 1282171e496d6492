"""Two runs on two stages that one player moves: by time as both were recorded, or token by token until the texts part.

`duel_block` gives a block of a report page; the browser's half is duel.js. Every place, width and word of the player
stands in it, frame by frame.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from specviz.trace.file import Footer, Scores, Step, Trace
from specviz.trace.first_difference import are_of_one_prompt, first_difference, should_be_one_text
from specviz.trace.metrics import count, rounding_words
from specviz.views.blocks import Props, packed
from specviz.views.explore.feed import Feed
from specviz.views.explore.sentences import Sentence, counted, label

MOST_STEPS, MOST_TOKENS = 400, 4_000  # of a run that is shown beside another
NUM_FRAMES = 300  # of a replay by time
LONG_ENOUGH_MS = 6_000  # a replay that takes this long can be followed
SLOWER = (1, 4, 16, 64)
TOKEN_PACES = (("slow", 800), ("reading", 250), ("fast", 80))
NO_TIME = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class _Runner:
    """One side: after each number of steps, from none on, the tokens, the target calls, and the working time."""

    title: str
    trace: Trace
    tokens: Sequence[int]
    calls: Sequence[int]
    clock: Sequence[float]

    def within(self, ms: float) -> int:
        """Steps that are over at this time."""
        return bisect_right(self.clock, ms) - 1

    def reaching(self, num_tokens: int) -> int:
        """Steps that it takes to this many tokens, or to the end."""
        return min(bisect_left(self.tokens, num_tokens), len(self.trace.steps))


def duel_block(
    left: Trace, right: Trace, by: str = "token", titles: tuple[str, str] = ("A · first run", "B · second run")
) -> Props:
    """by: "time" or "token", what the player begins with; without recorded times there is only "token"."""
    runners = [_runner(title, _start(each)) for title, each in zip(titles, (left, right), strict=True)]
    part = first_difference(*(runner.trace for runner in runners)) if are_of_one_prompt(left, right) else None
    modes = [mode for mode in (_by_time(runners), _by_token(runners, part)) if mode is not None]
    most = max(1, *(runner.tokens[-1] for runner in runners))
    data = {
        "sides": [_side(runner, most) for runner in runners],
        "modes": modes,
        "part": part,
        "parted": parting_words(left, right, titles),
    }
    begins = by if by in [mode["name"] for mode in modes] else "token"
    return {"kind": "duel", "by": begins, "titles": [label(title) for title in titles], "data": packed(data)}


def parting_words(left: Trace, right: Trace, titles: tuple[str, str]) -> Sentence:
    """Where the two texts part, or that they do not."""
    if not are_of_one_prompt(left, right):
        return ["The two runs continue different prompts, so their texts cannot be laid side by side token by token."]
    part, names = first_difference(left, right), [label(title) for title in titles]
    if part is not None:
        one, other = (label(each.text, each.bytes) for each in (left.tokens[part], right.tokens[part]))
        return [
            f"The texts part at token {part + 1:,}: ", names[0], " wrote ", one, ", ", names[1], " wrote ", other,
            f".{_rounding(left, right)}",
        ]  # fmt: skip
    lengths = len(left.tokens), len(right.tokens)
    if lengths[0] == lengths[1]:
        return [f"The texts are the same, token for token: {lengths[0]:,} tokens."]
    return [f"The texts are the same as far as both go: {min(lengths):,} tokens. One of them ends there."]


def _rounding(left: Trace, right: Trace) -> str:
    """What may have parted two texts that a lossless rule writes alike but for rounding."""
    told = [words for each in (left, right) if (words := rounding_words(count(each)))]
    return f" {told[0].capitalize()}." if told and should_be_one_text(left, right) else ""


def beside_words(trace: Trace, other: Trace) -> str:
    """Of two runs that should be one text, for the end of the first: where they part, or that they do not."""
    drafted = "with" if any(step.settings.drafts for step in other.steps) else "without"
    part = first_difference(trace, other)
    if part is None:
        return f"as far as both go the same text as the run {drafted} a draft"
    here, there = (label(each.tokens[part].text, each.tokens[part].bytes) for each in (trace, other))
    return f"parts from the run {drafted} a draft at token {part + 1:,}: {here} here, {there} there"


def num_shown(trace: Trace) -> int:
    """The steps of a run that are shown beside another: all but of a very long one."""
    tokens = accumulate(len(step.emitted) for step in trace.steps[:MOST_STEPS])
    return max(1, sum(number <= MOST_TOKENS for number in tokens))


def _start(trace: Trace) -> Trace:
    """The run as far as it is shown."""
    most = num_shown(trace)
    if most >= len(trace.steps):
        return trace
    events = (event for event in trace.events() if not isinstance(event, (Scores, Footer)))
    return Trace(event for event in events if not isinstance(event, Step) or event.index < most)


def _runner(title: str, trace: Trace) -> _Runner:
    steps = trace.steps
    return _Runner(
        label(title),
        trace,
        [*accumulate((len(step.emitted) for step in steps), initial=0)],
        [*accumulate((step.calls["target"] for step in steps), initial=0)],
        [*accumulate((step.timing.working_ms for step in steps), initial=0.0)],
    )


def _side(runner: _Runner, most: int) -> Props:
    """What stands over a stage after each number of steps, and all that the stage shows."""
    counts = zip(runner.tokens, runner.calls, strict=True)
    return {
        "title": runner.title,
        "said": [f"{counted(tokens, 'token')} · {counted(calls, 'target call')}" for tokens, calls in counts],
        "widths": [round(100 * tokens / most, 1) for tokens in runner.tokens],
        "message": _message(runner.trace),
    }


def _message(trace: Trace) -> Mapping[str, Any]:
    """The stage's message of a whole run."""
    feed = Feed.from_trace(trace, "duel")
    message = json.loads(feed.message(0, None))
    while len(message["steps"]) < len(feed):
        message["steps"] += feed.since(len(message["steps"]))["steps"]
    return message


def _by_time(runners: Sequence[_Runner]) -> Props | None:
    """Both at their recorded pace, or slowed down equally."""
    end = max(runner.clock[-1] for runner in runners)
    if end < NO_TIME or any(runner.clock[-1] < NO_TIME for runner in runners):
        return None
    places = [end * number / NUM_FRAMES for number in range(NUM_FRAMES)] + [end]
    frames = [[_seconds(ms), [runner.within(ms) for runner in runners], None] for ms in places]
    factor = next((each for each in SLOWER if each * end >= LONG_ENOUGH_MS), SLOWER[-1])
    paces = [[_slower(each), round(each * end / NUM_FRAMES, 3), each == factor] for each in SLOWER]
    return _mode("time", "By time", frames, paces, _finishes(runners))


def _by_token(runners: Sequence[_Runner], part: int | None) -> Props:
    """Both with the same number of tokens; the replay rests where the texts part."""
    most = max(runner.tokens[-1] for runner in runners)
    frames = [
        [counted(number, "token"), [runner.reaching(number) for runner in runners], number]
        for number in range(most + 1)
    ]
    paces = [[words, ms, words == "reading"] for words, ms in TOKEN_PACES]
    ends = [
        f"{counted(runner.tokens[-1], 'token')} in {counted(runner.calls[-1], 'target call')}" for runner in runners
    ]
    return _mode("token", "By token", frames, paces, ends, -1 if part is None else part + 1)


def _mode(
    name: str, words: str, frames: Sequence[list], paces: Sequence[list], ends: Sequence[str], rest: int = -1
) -> Props:
    """frames: [words, steps shown on each side, tokens shown plainly or None]; paces: [words, ms per frame, chosen];
    ends: what is said of a side when it is done; rest: the frame at which the replay rests."""
    return {"name": name, "label": words, "frames": frames, "paces": paces, "ends": list(ends), "rest": rest}


def _finishes(runners: Sequence[_Runner]) -> list[str]:
    times = [runner.clock[-1] for runner in runners]
    if times[0] == times[1]:
        return [f"done after {_seconds(ms)}, both at once" for ms in times]
    return [f"done after {_seconds(ms)}, {'first' if ms == min(times) else 'second'}" for ms in times]


def _seconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms < 1e6 else f"{ms / 1000:,.0f} s"


def _slower(factor: int) -> str:
    return "as recorded" if factor == 1 else f"{factor}× slower"
