"""Finds a trace, and exports it: CSV of its tokens and steps, JSON lines, file names.

Texts that a spreadsheet would run as formulas get an apostrophe in front; ids, `text_json` and JSON lines are exact.
pandas is loaded when a CSV is made. Cells are written here, as pandas and Python's csv change bytes between versions.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specviz.errors import SpecvizError
from specviz.trace import frames
from specviz.trace.engines.dspark import load_run
from specviz.trace.events import dump_event
from specviz.trace.file import Trace
from specviz.trace.shipped import shipped_runs, shipped_trace

if TYPE_CHECKING:
    import pandas

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a formula begins with one of them and goes on
QUOTED = ('"', ",", "\r", "\n")
EXACT = "text_json"
"""The column with a token's text as a JSON string: no reader takes it for a number, a formula or a missing value."""


def find_trace(named: Trace | str | Path) -> Trace:
    """The trace itself, the trace in this file, or the recorded run of this name where there is no such file.

    Raises SpecvizError where there is no trace of this name, ValueError for another type.
    """
    if isinstance(named, Trace):
        return named
    if not isinstance(named, (str, Path)):
        raise ValueError(
            f"trace must be a Trace, a file or the name of a recorded run (got {type(named).__name__})"
        )
    if os.path.exists(named):
        return load_run(named)
    if str(named) in shipped_runs():
        return shipped_trace(str(named))
    names = ", ".join(shipped_runs())
    raise SpecvizError(
        f"a trace must be a file, or one of the recorded runs {names} (got {str(named)!r:.200})"
    )


def tokens_csv(trace: Trace) -> str:
    """A CSV file of one line per drafted or emitted token; columns: `frames.TOKEN_COLUMNS`, with EXACT after `text`."""
    frame = frames.tokens(trace)
    frame.insert(frame.columns.get_loc("text") + 1, EXACT, frame["text"].map(json.dumps))
    return _csv(frame)


def steps_csv(trace: Trace) -> str:
    """A CSV file of one line per step; columns: `frames.STEP_COLUMNS`."""
    return _csv(frames.steps(trace))


def json_lines(trace: Trace) -> str:
    """The content of the trace's own file."""
    return "".join(f"{dump_event(event)}\n" for event in trace.events())


def file_name(trace: Trace, suffix: str) -> str:
    """A safe file name: the time and the method of the trace, and this suffix, such as ".jsonl"."""
    words = ["specviz"]
    if trace.header:
        words += [trace.header.created, str(trace.header.request.get("method", ""))]
    safe = [re.sub(r"[^A-Za-z0-9_]+", "", word)[:60] for word in words]
    return "-".join(word for word in safe if word) + suffix


def escape_formula(text: str) -> str:
    """The text, with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{text}" if len(text) > 1 and text.startswith(FORMULA) else text


def _csv(frame: pandas.DataFrame) -> str:
    columns = []
    for _, column in frame.items():
        columns.append(map(_cell, column, column.isna()))
    lines = [frame.columns, *zip(*columns, strict=True)]
    return "".join(f"{','.join(line)}\r\n" for line in lines)


def _cell(value: Any, is_missing: bool) -> str:
    """A cell after RFC 4180: quoted where it holds a comma, a quote or a line end; "" where it is missing."""
    if is_missing:
        return ""
    text = escape_formula(value) if isinstance(value, str) else str(value)
    if not any(sign in text for sign in QUOTED):
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'
