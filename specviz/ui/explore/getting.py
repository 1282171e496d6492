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
    """One model's download; of all who watch the page one at a time may start it."""

    def __init__(self, name: str, offer: Offer) -> None:
        self._name, self._offer, self._task = name, offer, None

    @callback
    def fetch(self) -> Iterator[list[Any]]:
        if self._task is not None:
            raise SpecvizError(f"{self._name} is already being downloaded")
        self._task = task = BackgroundTask(partial(get.get, self._name))
        try:
            while not task.wait(SLICE_S):
                message, share = task.news
                yield [
                    message if share is None else f"{message}: {share:.0%}",
                    gr.skip(),
                    gr.skip(),
                ]
            if task.is_abandoned:
                yield [
                    f"Stopped: finished files stay. {get.describe(self._name)}",
                    gr.skip(),
                    gr.skip(),
                ]
                return
            task.result()
        except SpecvizError:
            yield [f"Not fetched. {get.describe(self._name)}", gr.skip(), gr.skip()]
            raise
        finally:
            task.abandon()
            self._task = None
        targets = gr.update(choices=list(as_options(name for _, name in self._offer.targets)))
        yield [f"{self._name} is ready: choose it as the target", gr.update(visible=False), targets]

    def stop(self) -> None:
        if self._task is not None:
            self._task.abandon()


def add(offer: Offer, targets: gr.Dropdown) -> None:
    """Makes and wires the parts of each model that is not here, where the page's owner allows it."""
    for name in get.on_offer() if offer.may_get else ():
        if not is_here(name):
            getting, label = Getting(name, offer), f"{name} is not on this machine"
            words = gr.Textbox(
                get.describe(name), label=label, lines=2, interactive=False, elem_id="get-words"
            )
            with gr.Row(elem_classes="sv-own"):
                start, stop = button("get", f"Get {name}"), button("get-stop", "Stop the download")
            start.click(
                getting.fetch, None, [words, start, targets], concurrency_limit=None, **QUIET
            )
            stop.click(getting.stop, None, None, **NOW)
