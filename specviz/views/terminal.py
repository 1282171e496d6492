"""A trace as terminal text: one line per event, tokens with marks that work without colour, and a block of numbers.

Token texts are untrusted: every control, format and unassigned character is escaped, so no escape sequence gets
through. Colours come from the palette, as the nearest of the 256 that terminals share.
"""

import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from typing import TextIO

from specviz.models.generation import describe
from specviz.rules.facts import FACTS
from specviz.trace import (
    DraftToken,
    EmittedToken,
    Event,
    Footer,
    Header,
    ModelInfo,
    Models,
    Scores,
    Step,
    Trace,
)
from specviz.trace.counters import Counters
from specviz.trace.metrics import METRICS, count, lossy_words, metrics, rounding_words
from specviz.views.explore.steps import most_telling, others_words
from specviz.views.palette import colour, palette
from specviz.views.words import num_refused, title_of, why_nothing

MARKS: Mapping[str, tuple[str, str, str]] = {  # mark -> before, after, ANSI attribute
    "underline": ("_", "_", "4"),
    "strike": ("~", "~", "9"),
    "dotted": ("(", ")", "2"),
    "box": ("[↪", "]", "1"),
    "plus": ("+", "", "1"),
    "none": ("", "", ""),
    "faint": ("{", "}", "2"),
}
GLYPHS = {"\n": "⏎", "\t": "⇥", "\r": "␍", " ": "·"}
HIDDEN = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
MAX_LINE = 300
CUBE = (0, 95, 135, 175, 215, 255)  # the steps of each channel in the 256-colour cube
RESET = "\x1b[0m"
UNMARKED = ("plain", "scratch")  # not in the legend
Mark = Callable[[str, str], str]
"""A status, a token's text -> the text with its mark."""


def wants_colour(stream: TextIO, environment: Mapping[str, str]) -> bool:
    """Colour only on a terminal, and not where NO_COLOR (https://no-color.org) or a dumb terminal asks for none."""
    refused = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return not refused and stream.isatty()


def escape(text: str, keep: str = "") -> str:
    """`text` with nothing in it that a terminal would obey; characters of `keep` stay as they are."""
    return "".join(char if char in keep else _escape_char(char) for char in text)


def event_text(event: Event, *, colours: bool = False) -> str:
    """The lines for one event, without a last newline; "" for events with nothing to show."""
    mark = partial(_mark, colours)
    if isinstance(event, Header):
        legend = [
            mark(name, each["label"])
            for name, each in palette()["statuses"].items()
            if name not in UNMARKED
        ]
        return f"prompt  {_clip(event.prompt.text)}\nmarks   {'  '.join(legend)}"
    if isinstance(event, Models):
        draft = f"   draft {_model(event.draft_model)}" if event.draft_model else ""
        models = [event.target, *filter(None, [event.draft_model])]
        asked = [
            f"        {escape(model.name)}: {escape(words)}"
            for model in models
            if (words := describe(model.generation_config))
        ]
        return "\n".join([f"target {_model(event.target)}{draft}", *asked])
    if isinstance(event, Step):
        return _step(event, mark)
    if isinstance(event, Scores):
        return f"scored  {len(event.p):,} tokens with both models"
    if isinstance(event, Footer):
        why = event.message or (event.stop["text"] if event.stop else "")
        return f"ended   {event.reason}{': ' + _clip(why) if why else ''}"
    return ""


def generated_text(trace: Trace) -> str:
    """The generated text up to a stop text, its newlines kept and everything else made harmless."""
    return escape(trace.answer, keep=" \n")


def numbers_text(source: Trace | Counters) -> str:
    """All metrics as a table: label, value, formula; the reason where there is no value."""
    counters = source if isinstance(source, Counters) else count(source)
    values = metrics(counters)
    width = max(len(metric.label) for metric in METRICS.values())
    lossy = lossy_words(counters)
    lines = [
        f"{lossy}: the text is not distributed as the target's own"
        if lossy
        else rounding_words(counters)
    ]
    for name, metric in METRICS.items():
        note = f"({values['reasons'][name]})" if name in values["reasons"] else metric.formula
        note += f" ({metric.note(counters)})" if metric.note(counters) else ""
        lines.append(f"{metric.label:<{width}}  {metric.spell(values[name]):<8}  {note}")
    return "\n".join(lines if lines[0] else lines[1:])


def _mark(colours: bool, status: str, text: str) -> str:
    """A token with the mark of its status, and with its colour on a dark ground."""
    before, after, attribute = MARKS[palette()["statuses"][status]["mark"]]
    if not colours:
        return f"{before}{text}{after}"
    codes = ";".join(filter(None, (attribute, f"38;5;{nearest_256(colour(status, 'dark'))}")))
    return f"\x1b[{codes}m{before}{text}{after}{RESET}"


def nearest_256(hex_colour: str) -> int:
    """The entry of the 256-colour cube nearest to "#rrggbb"."""
    channels = (int(hex_colour[i : i + 2], 16) for i in (1, 3, 5))
    red, green, blue = (
        min(range(6), key=lambda step: abs(CUBE[step] - channel)) for channel in channels
    )
    return 16 + 36 * red + 6 * green + blue


def _step(step: Step, mark: Mark) -> str:
    changes = [
        f"{name} = {escape(str(getattr(step.settings, name, '?')))}"
        for name in map(escape, step.changed)
    ]
    nodes, num_others = most_telling(step)
    drafted = [mark(step.draft[node].status, _token_text(step.draft[node])) for node in nodes]
    if refused := num_refused(step):
        drafted.append(mark("rejected", f"a·reasoning·step·of·{refused}·tokens"))
    drafted += ["".join(others_words(step, num_others))] if num_others else []
    last = [mark(token.kind, _token_text(token)) for token in step.emitted if token.node is None]
    cut = [f"   {step.truncated} after the end"] if step.truncated else []
    why = why_nothing(step)
    cut += [f"   K is 0: {escape(why)}"] if why else []
    lines = [f"        now {', '.join(changes)}"] if changes else []
    if not step.settings.lossless and (step.index == 0 or changes):
        lines.append(f"        lossy: {escape(title_of(step.settings.rule or '', FACTS))}")
    return "\n".join([*lines, f"{step.index + 1:>6}  {' '.join([*drafted, *last, *cut])}"])


def _token_text(token: DraftToken | EmittedToken) -> str:
    return f"<{token.bytes}>" if token.bytes else _clip(token.text)


def _clip(text: str) -> str:
    return escape(text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…").replace(
        " ", GLYPHS[" "]
    )


def _model(model: ModelInfo) -> str:
    size = (
        "" if model.num_parameters is None else f" ({model.num_parameters / 1e6:,.1f} M parameters)"
    )
    return f"{escape(model.name)}{size}"


def _escape_char(char: str) -> str:
    if char in GLYPHS and char != " ":
        return GLYPHS[char]
    return char.encode("unicode_escape").decode() if unicodedata.category(char) in HIDDEN else char
