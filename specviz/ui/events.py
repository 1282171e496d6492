"""The parts that all callbacks of the page share: how an event's data is read, and how an error reaches the person."""

import functools
import html
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import gradio as gr
from gradio.context import LocalContext

from specviz.decoding.turns import Asker
from specviz.errors import SpecvizError
from specviz.session.workbench import Workbench
from specviz.ui.visitors import asker_of

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
NOW = {"queue": False, **QUIET}
FAILED = "this request cannot be served"


@contextmanager
def errors_on_page(*, mildly: bool = False, as_html: bool = True) -> Iterator[None]:
    """Turns an error into a message to the person: an error, or mildly a warning. No other place does. What is no
    SpecvizError stays vague for the person; the log has the rest."""
    try:
        yield
    except gr.Error:
        raise
    except SpecvizError as error:
        words = str(error)
        if not mildly:
            shown = html.escape(words) if as_html else words
            raise gr.Error(shown, print_exception=False) from error
        warn(words)
    except Exception as error:
        raise gr.Error(FAILED) from error


def callback(function: Callable[..., Any], *, as_html: bool = True) -> Callable[..., Any]:
    """A callback, plain or streaming, that shows its errors to the person. A stream needs a listener.

    as_html: whether a page shows the errors, and not a program.
    """

    @functools.wraps(function)
    def stream(*args: Any, **named: Any) -> Iterator[Any]:
        with errors_on_page(as_html=as_html):
            for argument in args:
                if isinstance(argument, gr.Request):
                    asker_of_call(argument)
            yield from function(*args, **named)

    if inspect.isgeneratorfunction(function):
        return stream
    return errors_on_page(as_html=as_html)(function)


def asker_of_call(request: Any) -> Asker:
    """The asker who makes the call that is being answered. Raises SpecvizError where nobody listens to the call."""
    return asker_of(request, LocalContext.event_id.get(None))


def in_one_turn(bench: Workbench, work: Callable[[], Any], asker: Asker) -> Any:
    """Does the work in one turn at the engine, and returns its result."""
    results = list(bench.in_turns((work() for _ in range(1)), asker))
    return results[0]


def warn(words: str) -> None:
    gr.Warning(html.escape(words))


def data_of(event: gr.EventData) -> dict[str, Any]:
    """The data that the browser sent with an event; nothing of it has been checked."""
    return as_fields(event._data)


def as_fields(data: Any) -> dict[str, Any]:
    """The data as named values; empty where it has none."""
    return data if isinstance(data, dict) else {}


def text_or_none(value: Any) -> str | None:
    """The value as a name; None for anything but a text that is not empty."""
    return value if isinstance(value, str) and value else None
