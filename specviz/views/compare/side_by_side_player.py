"""Two runs on two stages that one player moves: by recorded time, or token by token until the texts differ.

`side_by_side_block` makes a block of a report page, with every position, width and word, frame by frame.
side_by_side_player.js plays it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

from msgspec.structs import replace

from specviz.trace import Footer, Scores, Step, Trace
from specviz.trace.first_difference import are_of_one_prompt, first_difference, should_be_one_text
from specviz.trace.metrics import count, rounding_words
from specviz.views.blocks import PageBlock, PageRecord, pack
from specviz.views.explore.feed import Feed
from specviz.views.explore.message import RunMessage
from specviz.views.words import Sentence, label, quantity, token_label

# of a run that is shown beside another
MOST_STEPS = 400
MOST_TOKENS = 4_000
NUM_FRAMES = 300  # of a replay by time
LONG_ENOUGH_MS = 6_000  # a replay that takes this long can be followed
SLOWER = (1, 4, 16, 64)
TOKEN_PACES = (("slow", 800), ("normal", 250), ("fast", 80))
NO_TIME = 1e-6
ModeName = Literal["time", "token"]


class PlayerSide(PageRecord):
    """A run on its stage."""

    title: str
    said: Sequence[str]  # over the stage after 0, 1, ... steps
    widths: Sequence[float]  # of the bar there after as many steps, in percent
    message: RunMessage  # what the stage shows


class PlayerFrame(PageRecord, array_like=True):
    """A place of the player."""

    words: str
    num_steps: Sequence[int]  # shown on each side
    num_tokens: int | None  # shown without marks on both sides; None: all


class PlayerPace(PageRecord, array_like=True):
    """A speed of the player."""

    words: str
    ms: float  # per frame
    is_chosen: bool


class PlayerMode(PageRecord):
    """A way in which the player moves both runs."""

    name: ModeName
    label: str
    frames: Sequence[PlayerFrame]
    paces: Sequence[PlayerPace]
    ends: Sequence[str]  # the words of each side once it is done
    rest: int = -1  # the frame at which the replay pauses; -1: none


class PlayerData(PageRecord):
    """The contents of the player of two runs."""

    sides: Sequence[PlayerSide]
    modes: Sequence[PlayerMode]
    part: int | None  # the token from which the texts differ
    parted: Sentence


class SideBySideBlock(PageBlock, tag="side_by_side"):
    """Two runs on two stages that one player moves."""

    by: ModeName  # the mode at first
    titles: Sequence[str]
    data: str  # packed `PlayerData`


class _Side:
    """A run on one side, with its totals after 0, 1, ... steps."""

    def __init__(self, title: str, trace: Trace) -> None:
        steps = trace.steps
        self.title = label(title)
        self.trace = trace
        self.tokens = [0, *accumulate(len(step.emitted) for step in steps)]
        self.calls = [0, *accumulate(step.calls["target"] for step in steps)]
        # working milliseconds
        self.clock = [0.0, *accumulate(step.timing.working_ms for step in steps)]


def side_by_side_block(
    left: Trace,
    right: Trace,
    by: ModeName = "token",
    titles: tuple[str, str] = ("A · first run", "B · second run"),
) -> SideBySideBlock:
    """The block of two runs. by: the player's first mode; without recorded times always "token"."""
    sides = [_Side(titles[0], _first_steps(left)), _Side(titles[1], _first_steps(right))]
    difference = None
    if are_of_one_prompt(left, right):
        difference = first_difference(sides[0].trace, sides[1].trace)
    modes = [_token_mode(sides, difference)]
    time_mode = _time_mode(sides)
    if time_mode is None:
        by = "token"
    else:
        modes.insert(0, time_mode)
    most_tokens = max(1, sides[0].tokens[-1], sides[1].tokens[-1])
    stages = [_stage(side, most_tokens) for side in sides]
    data = PlayerData(stages, modes, difference, difference_words(left, right, titles))
    return SideBySideBlock(by, [side.title for side in sides], pack(data))


def difference_words(left: Trace, right: Trace, titles: tuple[str, str]) -> Sentence:
    """The sentence that says where the two texts first differ, or that they do not."""
    if not are_of_one_prompt(left, right):
        return [
            "The two runs have different prompts, or one has none, so their texts cannot be compared token by token."
        ]
    place = first_difference(left, right)
    if place is None:
        num_left = len(left.tokens)
        num_right = len(right.tokens)
        if num_left == num_right:
            return [f"The texts are identical: {num_left:,} tokens."]
        shorter = min(num_left, num_right)
        return [f"The texts are identical for {shorter:,} tokens, where one of them ends."]
    rounding = rounding_words(count(left)) or rounding_words(count(right))
    end = "."
    if rounding and should_be_one_text(left, right):
        end = f". {rounding.capitalize()}."
    return [
        f"The texts differ from token {place + 1:,}: ",
        label(titles[0]),
        " wrote ",
        token_label(left.tokens[place]),
        ", ",
        label(titles[1]),
        " wrote ",
        token_label(right.tokens[place]),
        end,
    ]


def comparison_words(trace: Trace, other: Trace) -> str:
    """Whether two runs that should be one text are: a phrase for the end of the first run."""
    drafted = "with" if any(step.settings.drafts for step in other.steps) else "without"
    place = first_difference(trace, other)
    if place is None:
        return f"same text as the run {drafted} a draft, as far as both go"
    here = token_label(trace.tokens[place])
    there = token_label(other.tokens[place])
    where = f"at token {place + 1:,}: {here} here, {there} there"
    return f"differs from the run {drafted} a draft {where}"


def num_shown(trace: Trace) -> int:
    """The number of steps of a run that are shown: all, unless it is very long."""
    tokens = accumulate(len(step.emitted) for step in trace.steps[:MOST_STEPS])
    return max(1, sum(number <= MOST_TOKENS for number in tokens))


def _first_steps(trace: Trace) -> Trace:
    """The run with the steps that are shown."""
    most = num_shown(trace)
    if most >= len(trace.steps):
        return trace
    events = (event for event in trace.events() if not isinstance(event, (Scores, Footer)))
    return Trace(event for event in events if not isinstance(event, Step) or event.index < most)


def _stage(side: _Side, most_tokens: int) -> PlayerSide:
    """A stage: the message that it shows, and the words and the bar above it after 0, 1, ... steps."""
    words = []
    widths = []
    for num_tokens, num_calls in zip(side.tokens, side.calls, strict=True):
        words.append(f"{quantity(num_tokens, 'token')} · {quantity(num_calls, 'target call')}")
        widths.append(round(100 * num_tokens / most_tokens, 1))
    feed = Feed.from_trace(side.trace, "side_by_side")
    parts = list(feed.recorded_parts("side_by_side"))
    steps = [step for part in parts for step in part.steps]
    return PlayerSide(side.title, words, widths, replace(parts[0], steps=steps))


def _time_mode(sides: Sequence[_Side]) -> PlayerMode | None:
    """The mode that plays both runs at their recorded pace, or slowed down by the same factor; None without times."""
    times = [side.clock[-1] for side in sides]
    end = max(times)
    if min(times) < NO_TIME:
        return None
    frames = []
    for number in range(NUM_FRAMES + 1):
        ms = end * number / NUM_FRAMES if number < NUM_FRAMES else end
        num_steps = [bisect_right(side.clock, ms) - 1 for side in sides]
        frames.append(PlayerFrame(_format_seconds(ms), num_steps, None))
    factor = next((factor for factor in SLOWER if factor * end >= LONG_ENOUGH_MS), SLOWER[-1])
    paces = []
    for slower in SLOWER:
        words = "as recorded" if slower == 1 else f"{slower}× slower"
        wait_ms = round(slower * end / NUM_FRAMES, 3)
        paces.append(PlayerPace(words, wait_ms, slower == factor))
    ends = []
    for ms in times:
        place = "first" if ms == min(times) else "second"
        if times[0] == times[1]:
            place = "both at once"
        ends.append(f"done after {_format_seconds(ms)}, {place}")
    return PlayerMode("time", "By time", frames, paces, ends)


def _token_mode(sides: Sequence[_Side], difference: int | None) -> PlayerMode:
    """The mode that shows the same number of tokens of both runs, and pauses where the texts differ."""
    frames = []
    for number in range(max(side.tokens[-1] for side in sides) + 1):
        num_steps = []
        for side in sides:
            num_steps.append(bisect_left(side.tokens, number, hi=len(side.trace.steps)))
        frames.append(PlayerFrame(quantity(number, "token"), num_steps, number))
    paces = [PlayerPace(words, ms, words == "normal") for words, ms in TOKEN_PACES]
    ends = []
    for side in sides:
        calls = quantity(side.calls[-1], "target call")
        ends.append(f"{quantity(side.tokens[-1], 'token')} in {calls}")
    rest = -1 if difference is None else difference + 1
    return PlayerMode("token", "By token", frames, paces, ends, rest)


def _format_seconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms < 1e6 else f"{ms / 1000:,.0f} s"
