"""Two runs on two stages that one player moves: by recorded time, or token by token until the texts differ.

`side_by_side_block` gives a block of a report page, which side_by_side_player.js plays: every position, width and
word, frame by frame.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from specviz.trace import Footer, Scores, Step, Trace
from specviz.trace.first_difference import are_of_one_prompt, first_difference, should_be_one_text
from specviz.trace.metrics import count, rounding_words
from specviz.views.blocks import Props, pack
from specviz.views.explore.feed import Feed
from specviz.views.words import Sentence, label, quantity, token_label

MOST_STEPS, MOST_TOKENS = 400, 4_000  # of a run that is shown beside another
NUM_FRAMES = 300  # of a replay by time
LONG_ENOUGH_MS = 6_000  # a replay that takes this long can be followed
SLOWER = (1, 4, 16, 64)
TOKEN_PACES = (("slow", 800), ("reading", 250), ("fast", 80))
NO_TIME = 1e-6


class _Runner:
    """One side. tokens, calls, clock: tokens, target calls and working milliseconds after 0, 1, ... steps."""

    def __init__(self, title: str, trace: Trace) -> None:
        self.title, self.trace = label(title), trace
        self.tokens = [*accumulate((len(step.emitted) for step in trace.steps), initial=0)]
        self.calls = [*accumulate((step.calls["target"] for step in trace.steps), initial=0)]
        self.clock = [*accumulate((step.timing.working_ms for step in trace.steps), initial=0.0)]


def side_by_side_block(
    left: Trace,
    right: Trace,
    by: str = "token",
    titles: tuple[str, str] = ("A · first run", "B · second run"),
) -> Props:
    """by: "time" or "token", the player's first mode; a run without recorded times has only "token"."""
    runners = [
        _Runner(title, _first_steps(each))
        for title, each in zip(titles, (left, right), strict=True)
    ]
    part = (
        first_difference(*(runner.trace for runner in runners))
        if are_of_one_prompt(left, right)
        else None
    )
    modes = [mode for mode in (_time_mode(runners), _token_mode(runners, part)) if mode is not None]
    most = max(1, *(runner.tokens[-1] for runner in runners))
    data = {
        "sides": [_side(runner, most) for runner in runners],
        "modes": modes,
        "part": part,
        "parted": difference_words(left, right, titles),
    }
    begins = by if by in [mode["name"] for mode in modes] else "token"
    return {
        "kind": "side_by_side",
        "by": begins,
        "titles": [label(title) for title in titles],
        "data": pack(data),
    }


def difference_words(left: Trace, right: Trace, titles: tuple[str, str]) -> Sentence:
    """Where the two texts first differ, or that they do not."""
    if not are_of_one_prompt(left, right):
        return [
            "The two runs have different prompts, so their texts cannot be compared token by token."
        ]
    part, names = first_difference(left, right), [label(title) for title in titles]
    if part is not None:
        one, other = (token_label(each) for each in (left.tokens[part], right.tokens[part]))
        rounding = rounding_words(count(left)) or rounding_words(count(right))
        why = f" {rounding.capitalize()}." if rounding and should_be_one_text(left, right) else ""
        return [
            f"The texts differ from token {part + 1:,}: ", names[0], " wrote ", one, ", ", names[1], " wrote ", other,
            f".{why}",
        ]  # fmt: skip
    lengths = len(left.tokens), len(right.tokens)
    if lengths[0] == lengths[1]:
        return [f"The texts are identical: {lengths[0]:,} tokens."]
    return [f"The texts are identical for {min(lengths):,} tokens, where one of them ends."]


def comparison_words(trace: Trace, other: Trace) -> str:
    """A phrase for the end of the first of two runs that should be one text: whether the other one's is the same."""
    drafted = "with" if any(step.settings.drafts for step in other.steps) else "without"
    part = first_difference(trace, other)
    if part is None:
        return f"same text as the run {drafted} a draft, as far as both go"
    here, there = (token_label(each.tokens[part]) for each in (trace, other))
    return (
        f"differs from the run {drafted} a draft at token {part + 1:,}: {here} here, {there} there"
    )


def num_shown(trace: Trace) -> int:
    """How many steps of a run are shown: all, unless it is very long."""
    tokens = accumulate(len(step.emitted) for step in trace.steps[:MOST_STEPS])
    return max(1, sum(number <= MOST_TOKENS for number in tokens))


def _first_steps(trace: Trace) -> Trace:
    """The run with the steps that are shown."""
    most = num_shown(trace)
    if most >= len(trace.steps):
        return trace
    events = (event for event in trace.events() if not isinstance(event, (Scores, Footer)))
    return Trace(event for event in events if not isinstance(event, Step) or event.index < most)


def _side(runner: _Runner, most: int) -> Props:
    """A stage: the words and the bar above it after 0, 1, ... steps, and the message that it shows."""
    counts = zip(runner.tokens, runner.calls, strict=True)
    first, *others = Feed.from_trace(runner.trace, "side_by_side").recorded_parts("side_by_side")
    return {
        "title": runner.title,
        "said": [
            f"{quantity(tokens, 'token')} · {quantity(calls, 'target call')}"
            for tokens, calls in counts
        ],
        "widths": [round(100 * tokens / most, 1) for tokens in runner.tokens],
        "message": {
            **first,
            "steps": [step for part in (first, *others) for step in part["steps"]],
        },
    }


def _time_mode(runners: Sequence[_Runner]) -> Props | None:
    """Both at their recorded pace, or slowed down by the same factor; None without times.

    frames: [words, steps shown on each side, tokens shown without marks or None]; paces: [words, ms per frame, is
    chosen]; ends: a side's words when it is done; rest: the frame at which the replay pauses.
    """
    end = max(runner.clock[-1] for runner in runners)
    if end < NO_TIME or any(runner.clock[-1] < NO_TIME for runner in runners):
        return None
    places = [end * number / NUM_FRAMES for number in range(NUM_FRAMES)] + [end]
    frames = [
        [_format_seconds(ms), [bisect_right(runner.clock, ms) - 1 for runner in runners], None]
        for ms in places
    ]
    factor = next((each for each in SLOWER if each * end >= LONG_ENOUGH_MS), SLOWER[-1])
    paces = [
        [
            "as recorded" if each == 1 else f"{each}× slower",
            round(each * end / NUM_FRAMES, 3),
            each == factor,
        ]
        for each in SLOWER
    ]
    times = [runner.clock[-1] for runner in runners]
    first, second = ("both at once",) * 2 if times[0] == times[1] else ("first", "second")
    ends = [
        f"done after {_format_seconds(ms)}, {first if ms == min(times) else second}" for ms in times
    ]
    return {
        "name": "time",
        "label": "By time",
        "frames": frames,
        "paces": paces,
        "ends": ends,
        "rest": -1,
    }


def _token_mode(runners: Sequence[_Runner], part: int | None) -> Props:
    """Both with the same number of tokens; the replay pauses where the texts differ."""
    most = max(runner.tokens[-1] for runner in runners)
    frames = []
    for number in range(most + 1):
        steps = [
            bisect_left(runner.tokens, number, hi=len(runner.trace.steps)) for runner in runners
        ]
        frames.append([quantity(number, "token"), steps, number])
    paces = [[words, ms, words == "reading"] for words, ms in TOKEN_PACES]
    ends = [
        f"{quantity(runner.tokens[-1], 'token')} in {quantity(runner.calls[-1], 'target call')}"
        for runner in runners
    ]
    rest = -1 if part is None else part + 1
    return {
        "name": "token",
        "label": "By token",
        "frames": frames,
        "paces": paces,
        "ends": ends,
        "rest": rest,
    }


def _format_seconds(ms: float) -> str:
    return f"{ms / 1000:.2f} s" if ms < 1e6 else f"{ms / 1000:,.0f} s"
