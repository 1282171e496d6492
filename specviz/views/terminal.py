"""A trace as terminal text: one line per event, tokens with marks that work without colour, and a block of numbers.

Token texts are untrusted: every control, format and unassigned character is escaped, so no escape sequence gets
through. Each colour is the one nearest to the palette's among the 256 that terminals share.
"""

import unicodedata
from collections.abc import Callable, Mapping
from typing import TextIO

from specviz.analysis.calibration import calibration
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
from specviz.views.words import between_words, headline, num_refused, percent, title_of, why_nothing

MARKS: Mapping[str, tuple[str, str, str]] = {  # mark -> (text before, text after, ANSI attribute)
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
    """Whether this is a terminal, unless NO_COLOR (https://no-color.org) or a dumb terminal asks for no colour."""
    refused = environment.get("NO_COLOR") or environment.get("TERM") == "dumb"
    return not refused and stream.isatty()


def escape(text: str, keep: str = "") -> str:
    """The text without anything that a terminal would obey; characters of `keep` stay as they are."""
    return "".join(_escape_char(char, keep) for char in text)


def event_text(event: Event, *, colours: bool = False) -> str:
    """The lines for one event, without a last newline; "" for events with nothing to show."""

    def mark(status: str, text: str) -> str:
        return _mark(colours, status, text)

    if isinstance(event, Header):
        legend = []
        for name, status in palette()["statuses"].items():
            if name not in UNMARKED:
                legend.append(mark(name, status["label"]))
        return f"prompt  {_clip(event.prompt.text)}\nmarks   {'  '.join(legend)}"
    if isinstance(event, Models):
        return _models(event)
    if isinstance(event, Step):
        return _step(event, mark)
    if isinstance(event, Scores):
        return f"scored  {len(event.p):,} tokens with both models"
    if isinstance(event, Footer):
        why = event.message or (event.stop["text"] if event.stop else "")
        return f"ended   {event.reason}: {_clip(why)}" if why else f"ended   {event.reason}"
    return ""


def generated_text(trace: Trace) -> str:
    """The generated text up to a stop text, its newlines kept and everything else made harmless."""
    return escape(trace.answer, keep=" \n")


def numbers_text(source: Trace | Counters) -> str:
    """All metrics as a table: label, value, formula; the reason where there is no value."""
    counters = source if isinstance(source, Counters) else count(source)
    values = metrics(counters)
    width = max(len(metric.label) for metric in METRICS.values())
    lines = []
    if lossy := lossy_words(counters):
        lines.append(f"{lossy}: the text is not distributed as the target's own")
    elif rounding := rounding_words(counters):
        lines.append(rounding)
    for name, metric in METRICS.items():
        reason = values["reasons"].get(name)
        note = metric.formula if reason is None else f"({reason})"
        if metric.note(counters):
            note += f" ({metric.note(counters)})"
        lines.append(f"{metric.label:<{width}}  {metric.spell(values[name]):<8}  {note}")
    return "\n".join(lines)


def calibration_text(trace: Trace) -> str:
    """Estimated against observed acceptance as a table; "" for a run whose drafts hold no estimates."""
    rows = calibration(trace.steps)
    if not rows:
        return ""
    lines = ["estimated acceptance  accepted       95 % interval (Wilson)"]
    for row in rows:
        counts = f"{row.accepted} of {row.judged}"
        lines.append(f"{percent(row.estimate):<22}{counts:<15}{between_words(row.between)}")
    return "\n".join(lines)


def _mark(colours: bool, status: str, text: str) -> str:
    """A token with the mark of its status, and with its colour on a dark ground."""
    before, after, attribute = MARKS[palette()["statuses"][status]["mark"]]
    marked = f"{before}{text}{after}"
    if not colours:
        return marked
    code = f"38;5;{nearest_256(colour(status, 'dark'))}"
    if attribute:
        code = f"{attribute};{code}"
    return f"\x1b[{code}m{marked}{RESET}"


def nearest_256(hex_colour: str) -> int:
    """The entry of the 256-colour cube nearest to "#rrggbb"."""
    entry = 0
    for start in (1, 3, 5):
        channel = int(hex_colour[start : start + 2], 16)
        distances = [abs(level - channel) for level in CUBE]
        entry = 6 * entry + distances.index(min(distances))
    return 16 + entry


def _models(event: Models) -> str:
    """The models with their sizes, and the options in their files."""
    words = f"target {_model(event.target)}"
    if event.draft_model:
        words += f"   draft {_model(event.draft_model)}"
    for model in (event.target, event.draft_model):
        if model and (options := describe(model.generation_config)):
            words += f"\n        {escape(model.name)}: {escape(options)}"
    return words


def _step(step: Step, mark: Mark) -> str:
    """The line of one step, below lines for the settings that were changed before it."""
    lines = []
    changes = []
    for name in step.changed:
        value = getattr(step.settings, escape(name), "?")
        changes.append(f"{escape(name)} = {escape(str(value))}")
    if changes:
        lines.append(f"        now {', '.join(changes)}")
    if step.settings.lossless is False and (step.index == 0 or changes):
        lines.append(f"        lossy: {escape(title_of(step.settings.rule or '', FACTS))}")
    if step.settings.is_foreign and step.index == 0:
        lines.append(f"        {''.join(headline(step.settings))}")
    nodes, num_others = most_telling(step)
    words = []
    for node in nodes:
        token = step.draft[node]
        words.append(mark(token.status, _token_text(token)))
    if size := num_refused(step):
        words.append(mark("rejected", f"a·reasoning·step·of·{size}·tokens"))
    if num_others:
        words.append("".join(others_words(step, num_others)))
    words += [mark(token.kind, _token_text(token)) for token in step.emitted if token.node is None]
    if step.truncated:
        words.append(f"   {step.truncated} after the end")
    if why := why_nothing(step):
        words.append(f"   K is 0: {escape(why)}")
    lines.append(f"{step.index + 1:>6}  {' '.join(words)}")
    return "\n".join(lines)


def _token_text(token: DraftToken | EmittedToken) -> str:
    return f"<{token.bytes}>" if token.bytes else _clip(token.text)


def _clip(text: str) -> str:
    """The beginning of a text on one line, with its spaces shown."""
    shown = text if len(text) <= MAX_LINE else f"{text[:MAX_LINE]}…"
    return escape(shown).replace(" ", GLYPHS[" "])


def _model(model: ModelInfo) -> str:
    if model.num_parameters is None:
        return escape(model.name)
    return f"{escape(model.name)} ({model.num_parameters / 1e6:,.1f} M parameters)"


def _escape_char(char: str, keep: str) -> str:
    if char in keep:
        return char
    if char in GLYPHS and char != " ":
        return GLYPHS[char]
    if unicodedata.category(char) in HIDDEN:
        return char.encode("unicode_escape").decode()
    return char
