"""What every callback of the page shares: how an event's data is read, and how an error reaches the person."""

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
from specviz.ui.visitors import asker_of

QUIET = {"show_progress": "hidden", "api_visibility": "private"}
NOW = {"queue": False, **QUIET}
FAILED = "this request cannot be served"


@contextmanager
def errors_on_page(*, mildly: bool = False, as_html: bool = True) -> Iterator[None]:
    """The ONE place where an error becomes a message to the person: an error, or mildly a warning. Of what is no
    SpecvizError the log has the rest."""
    try:
        yield
    except gr.Error:
        raise
    except SpecvizError as error:
        if not mildly:
            raise gr.Error(
                html.escape(str(error)) if as_html else str(error), print_exception=False
            ) from error
        warn(str(error))
    except Exception as error:
        raise gr.Error(FAILED) from error


def callback(function: Callable[..., Any], *, as_html: bool = True) -> Callable[..., Any]:
    """A callback, plain or streaming, whose errors are shown to the person. A stream needs a listener.

    as_html: whether a page shows them, and not a program.
    """

    @functools.wraps(function)
    def stream(*args: Any, **named: Any) -> Iterator[Any]:
        with errors_on_page(as_html=as_html):
            for request in (each for each in args if isinstance(each, gr.Request)):
                asker_of_call(request)
            yield from function(*args, **named)

    return (
        stream
        if inspect.isgeneratorfunction(function)
        else errors_on_page(as_html=as_html)(function)
    )


def asker_of_call(request: Any) -> Asker:
    """Who makes the call that is being answered. Raises SpecvizError where nobody listens to it."""
    return asker_of(request, LocalContext.event_id.get(None))


def warn(words: str) -> None:
    gr.Warning(html.escape(words))


def data_of(event: gr.EventData) -> dict[str, Any]:
    """What the browser sent with an event; nothing of it has been checked."""
    return as_fields(event._data)


def as_fields(data: Any) -> dict[str, Any]:
    """Anything at all as named values; empty where it has none."""
    return data if isinstance(data, dict) else {}


def text_or_none(value: Any) -> str | None:
    """A value as a name; None for anything but a text that is not empty."""
    return value if isinstance(value, str) and value else None
