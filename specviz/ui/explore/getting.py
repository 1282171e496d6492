"""The card that fetches a model which is not bundled: it says size and source, shows progress, and can be stopped."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import gradio as gr

from specviz.errors import SpecvizError
from specviz.models import get
from specviz.models.catalog import MODELS
from specviz.models.files.hub import is_here
from specviz.session.workbench import BackgroundTask
from specviz.ui.choices import Offer, as_options, make_offer
from specviz.ui.components import get_card
from specviz.ui.events import callback
from specviz.ui.explore.form import Form
from specviz.views.blocks import dump
from specviz.views.explore.feed import progress_bar
from specviz.views.explore.panels import GetCard

SLICE_S = 0.25
INVITE = "{title} wrote the answer that a first visit sees. Get it to run it here: {size}\u00a0MB."
READY = "{title} is here."
STOPPED = "Stopped: finished files stay. {invite}"


class Getting:
    """A download of one model. Of all who watch the page, one at a time may start it."""

    def __init__(self, name: str, offer: Offer) -> None:
        self._name = name
        self._offer = offer
        self._task: BackgroundTask | None = None
        title = MODELS[name].title
        size, _ = get.on_offer()[name].megabytes
        self._invite = INVITE.format(title=title, size=size)
        self._ready = READY.format(title=title)

    def card(self) -> str:
        """The card before anything is fetched, as JSON."""
        return self._say(self._invite)

    @callback
    def fetch(self) -> Iterator[list[Any]]:
        """Downloads the model. Yields updates of the card and the list of targets."""
        if self._task is not None:
            raise SpecvizError(f"{self._name} is already being downloaded")
        task = BackgroundTask(partial(get.get, self._name))
        self._task = task
        try:
            while not task.wait(SLICE_S):
                message, share = task.news
                bar = progress_bar(0.0 if share is None else share)
                yield [self._say(message, progress=bar), gr.skip()]
            if task.is_abandoned:
                yield [self._say(STOPPED.format(invite=self._invite)), gr.skip()]
                return
            task.result()
        except SpecvizError:
            yield [self._say(f"Not fetched. {self._invite}"), gr.skip()]
            raise
        finally:
            task.abandon()
            self._task = None
        targets = gr.update(choices=list(as_options(name for _, name in self._offer.targets)))
        yield [self._say(self._ready, is_here=True), targets]

    def stop(self) -> None:
        if self._task is not None:
            self._task.abandon()

    def fill(self, form: Form) -> list[Any]:
        """Updates that put the model's first request into the fields."""
        return form.fill(make_offer(self._name).first, self._offer)

    def _say(self, words: str, **more: Any) -> str:
        return dump(GetCard(words=words, about=get.describe(self._name), **more))


def add(offer: Offer) -> tuple[Getting, gr.HTML] | None:
    """Makes the card of a model that is not here, where the page's owner allows it; None where there is nothing to
    fetch."""
    missing = [name for name in get.on_offer() if not is_here(name)]
    if not offer.may_get or not missing:
        return None
    getting = Getting(missing[0], offer)
    return getting, get_card(getting.card())
