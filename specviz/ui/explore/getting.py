"""The button that fetches a model which is not bundled: it says size and source, shows progress, and can be stopped."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.models import get
from specviz.models.files.hub import is_here
from specviz.session.workbench import BackgroundTask
from specviz.ui.choices import Offer, as_options
from specviz.ui.components import button
from specviz.ui.events import NOW, QUIET, callback

SLICE_S = 0.25


class Getting:
    """A download of one model. Of all who watch the page, one at a time may start it."""

    def __init__(self, name: str, offer: Offer) -> None:
        self._name = name
        self._offer = offer
        self._task: BackgroundTask | None = None

    @callback
    def fetch(self) -> Iterator[list[Any]]:
        """Downloads the model. Yields updates of the words, the button and the list of targets."""
        if self._task is not None:
            raise SpecvizError(f"{self._name} is already being downloaded")
        task = BackgroundTask(partial(get.get, self._name))
        self._task = task
        try:
            while not task.wait(SLICE_S):
                message, share = task.news
                yield _say(message if share is None else f"{message}: {share:.0%}")
            if task.is_abandoned:
                yield _say(f"Stopped: finished files stay. {get.describe(self._name)}")
                return
            task.result()
        except SpecvizError:
            yield _say(f"Not fetched. {get.describe(self._name)}")
            raise
        finally:
            task.abandon()
            self._task = None
        targets = gr.update(choices=list(as_options(name for _, name in self._offer.targets)))
        yield [f"{self._name} is ready: choose it as the target", gr.update(visible=False), targets]

    def stop(self) -> None:
        if self._task is not None:
            self._task.abandon()


def _say(words: str) -> list[Any]:
    """Updates that show the words and change nothing else."""
    return [words, gr.skip(), gr.skip()]


def add(offer: Offer, targets: gr.Dropdown) -> None:
    """Makes and wires the parts of each model that is not here, where the page's owner allows it."""
    if not offer.may_get:
        return
    for name in get.on_offer():
        if is_here(name):
            continue
        getting = Getting(name, offer)
        words = gr.Textbox(
            get.describe(name),
            label=f"{name} is not on this machine",
            lines=2,
            interactive=False,
            elem_id="get-words",
        )
        with gr.Row(elem_classes="sv-own"):
            start = button("get", f"Get {name}")
            stop = button("get-stop", "Stop the download")
        start.click(getting.fetch, None, [words, start, targets], concurrency_limit=None, **QUIET)
        stop.click(getting.stop, None, None, **NOW)
