"""What a piece of code prints while it runs."""

import sys
from pathlib import Path

import specviz

PACKAGE = str(Path(specviz.__file__).parent)


def lines_during(action):
    """How many lines of specviz are executed while `action` runs: loops count, which calls alone do not show."""
    count = 0

    def note(frame, event, argument):
        nonlocal count
        count += 1
        return note if frame.f_code.co_filename.startswith(PACKAGE) else None

    sys.settrace(note)
    try:
        action()
    finally:
        sys.settrace(None)
    return count
