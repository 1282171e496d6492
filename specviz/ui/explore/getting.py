"""The button that fetches a model which is not bundled: it says size and source, shows progress, and can be stopped."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.models import get
from specviz.models.hub import is_here
from specviz.session.workbench import BackgroundTask
from specviz.ui.choices import Offer, as_options
from specviz.ui.components import button
from specviz.ui.events import NOW, QUIET, callback

SLICE_S = 0.25


def add(offer: Offer, targets: gr.Dropdown) -> None:
    """Makes and wires the parts of each model that is not here, where the page's owner allows it."""
    for name in get.on_offer() if offer.may_get else ():
        if not is_here(name):
            _Getting(name, offer).add(targets)


class _Getting:
    """One model's parts; of all who watch the page one at a time may fetch it."""

    def __init__(self, name: str, offer: Offer) -> None:
        self._name, self._offer, self._task, self._is_stopped = name, offer, None, False

    def add(self, targets: gr.Dropdown) -> None:
        label = f"{self._name} is not on this machine"
        words = gr.Textbox(get.describe(self._name), label=label, lines=2, interactive=False, elem_id="get-words")
        with gr.Row(elem_classes="sv-own"):
            start, stop = button("get", f"Get {self._name}"), button("get-stop", "Stop the download")
        start.click(self.fetch, None, [words, start, targets], concurrency_limit=None, **QUIET)
        stop.click(self.stop, None, None, **NOW)

    @callback
    def fetch(self) -> Iterator[list[Any]]:
        if self._task is not None:
            raise SpecvizError(f"{self._name} is being fetched already")
        task, self._is_stopped = BackgroundTask(partial(get.get, self._name)), False
        self._task = task
        try:
            while not task.wait(SLICE_S):
                message, fraction = task.news
                yield [message if fraction is None else f"{message}: {fraction:.0%}", gr.skip(), gr.skip()]
            if self._is_stopped:
                yield [f"Stopped: what is whole is kept. {get.describe(self._name)}", gr.skip(), gr.skip()]
                return
            task.result()
            choices = list(as_options(name for _, name in self._offer.targets))
            yield [
                f"{self._name} is here: choose it as the target",
                gr.update(visible=False),
                gr.update(choices=choices),
            ]
        finally:
            task.abandon()
            self._task = None

    def stop(self) -> None:
        if self._task is not None:
            self._is_stopped = True
            self._task.abandon()
