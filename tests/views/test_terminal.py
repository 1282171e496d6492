"""Laws of the terminal view: nothing a terminal would obey gets through, and marks work without colour."""

import io
import re
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specviz.trace import Footer, Trace, UnknownEvent
from specviz.trace.metrics import METRICS
from specviz.views.palette import palette
from specviz.views.terminal import MARKS, escape, event_text, generated_text, nearest_256, numbers_text, wants_colour
from tests.helpers import evidence_traces, traces

every_trace = pytest.mark.parametrize("make", traces.ALL.values(), ids=traces.ALL.keys())
OWN_CODES = re.compile(r"\x1b\[(?:[0-9]+(?:;[0-9]+)*)m")


def is_harmless(text: str) -> bool:
    return all(char == "\n" or unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in text)


@every_trace
def test_nothing_that_a_terminal_obeys_gets_through(make: Callable[[], Trace]) -> None:
    made = make()
    assert all(is_harmless(event_text(event)) for event in made.events())
    assert is_harmless(generated_text(made))
    assert is_harmless(numbers_text(made))


@every_trace
def test_colours_add_only_codes_of_our_own(make: Callable[[], Trace]) -> None:
    for event in make().events():
        assert OWN_CODES.sub("", event_text(event, colours=True)) == event_text(event)


@given(st.text())
def test_any_text_becomes_harmless(text: str) -> None:
    assert is_harmless(escape(text))
    assert "\n" not in escape(text)


def test_a_footer_message_is_untrusted_too() -> None:
    assert event_text(Footer("error", "bad \x1b[2J end", None)) == r"ended   error: bad·\x1b[2J·end"


def test_marks_tell_the_statuses_apart_without_colour() -> None:
    line = event_text(traces.chain().steps[1])
    assert re.fullmatch(r" +2  _\S+_ _\S+_ ~\S+~ \(\S+\) \[↪\S+\]", line)


def test_bonus_and_plain_tokens_have_their_marks() -> None:
    assert event_text(traces.chain().steps[0]).split()[-1].startswith("+")
    assert re.fullmatch(r" +1  [^_~(\[+]\S*", event_text(traces.plain().steps[0]))


def test_half_characters_are_shown_as_bytes() -> None:
    assert "<c3>" in event_text(traces.halves().steps[0])


def test_live_changes_are_told_before_the_step() -> None:
    assert event_text(traces.changed_k().steps[2]).splitlines()[0].strip() == "now k = 2"


def test_a_lossy_run_is_marked_where_it_begins_and_above_its_numbers() -> None:
    made = traces.Builder().chain(changed={"rule": "typical", "lossless": False}).chain()
    made = made.chain(changed={"rule": "lenience"}).chain(changed={"rule": None, "lossless": True}).trace
    shown = [event_text(step).splitlines() for step in made.steps]
    assert shown[0][-2].strip() == "lossy: Typical acceptance"
    assert len(shown[1]) == 1
    assert shown[2][-2].strip() == "lossy: Lenience"
    assert numbers_text(made).startswith("lossy in part (steps 1–3): ")
    assert "lossy in part (steps 1–3)" in next(line for line in numbers_text(made).splitlines() if "tokens/s " in line)


def test_a_refused_reasoning_step_is_struck_out() -> None:
    line = event_text(evidence_traces.refused().steps[0]).splitlines()[-1]
    assert "~a·reasoning·step·of·13·tokens~" in line


def test_scratch_nodes_are_not_shown() -> None:
    assert "{" not in event_text(traces.scratch().steps[0])


def test_unknown_events_say_nothing() -> None:
    assert event_text(UnknownEvent({"event": "note"})) == ""


def test_generated_text_keeps_its_lines() -> None:
    assert generated_text(traces.chain()) == traces.chain().text


@every_trace
def test_every_number_is_listed_with_its_formula_or_reason(make: Callable[[], Trace]) -> None:
    lines = numbers_text(make()).splitlines()
    assert len(lines) == len(METRICS)
    for line, metric in zip(lines, METRICS.values(), strict=True):
        assert line.startswith(metric.label)
        assert line.endswith((metric.formula, ")"))


def test_the_terminal_knows_every_mark_of_the_palette() -> None:
    assert {entry["mark"] for entry in palette()["statuses"].values()} <= MARKS.keys()


@pytest.mark.parametrize(("colour", "entry"), [("#000000", 16), ("#ffffff", 231), ("#ff0000", 196), ("#0087af", 31)])
def test_nearest_colour(colour: str, entry: int) -> None:
    assert nearest_256(colour) == entry


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "wanted"),
    [
        (Screen(), {}, True),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"TERM": "dumb"}, False),
        (io.StringIO(), {}, False),
    ],
)
def test_colour_is_wanted_on_a_terminal_that_was_not_told_otherwise(
    stream: io.StringIO, environment: dict, wanted: bool
) -> None:
    assert wants_colour(stream, environment) is wanted
