"""The share drawer: a link to the run on the stage, and the files that hold it; and what a link that came leads to.

A link sets the fields and nothing more: nobody's run begins by itself, and nothing is stored. When the person has made
that run, its text is compared with the one that was shared, by their hashes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.models.catalog import HEADS, MODELS, without_format
from specviz.models.hub import find
from specviz.request import Request
from specviz.rules import RULES
from specviz.session.setup import models_named
from specviz.settings import settings
from specviz.trace.file import Trace
from specviz.trace.link import Link, decode, digest, encode
from specviz.ui import components
from specviz.ui.choices import Offer
from specviz.ui.explore.form import refuse_unoffered
from specviz.ui.explore.frame import Frame
from specviz.ui.explore.handlers import fields_of, speaks, told
from specviz.ui.explore.share_compare import (
    comparison,
    complete,
    first_request,
    ids_of,
    mark_of,
    place_in,
    steps_as_asked,
)
from specviz.ui.view import View
from specviz.views.explore.sentences import Sentence, counted, visible

FILES = (
    (
        "page",
        "Page (.html)",
        "this stage with the run inside; it opens without a server",
        "page/{}.html?charts=1",
    ),
    ("page-small", "Page without charts (.html)", "the same, smaller", "page/{}.html?charts=0"),
    ("trace", "Trace (.jsonl.gz)", "all that was recorded; the library opens it again", "trace/{}"),
    ("tokens", "Tokens (.csv)", "a table with a line per token", "tokens/{}.csv"),
    ("steps", "Steps (.csv)", "a table with a line per step", "steps/{}.csv"),
)
"""name, title, what it is, and where it is made."""
PROMISE = (
    "The link itself holds the prompt and all settings, so whoever has it can read them. It fills them in and runs "
    "nothing; nothing of it is stored on a server."
)
WHOLE = "The files below hold the run itself."
MOST_HIDDEN = 4
"""Characters that are named."""
SPACES = "https://huggingface.co/spaces/"
Told = dict[str, Any]
Props = dict[str, Any]


def add(frame: Frame) -> None:
    """Makes the drawer and wires it."""

    @speaks
    def apply(event: gr.EventData) -> list[Any]:
        """The fields as the link has them."""
        return _opened(frame, told(event).get("link"))[1]

    with gr.Column(elem_id="share"):
        part = components.panel("sharing", events=["apply"], calls=calls(frame))
    frame.fill(part.apply, apply)


def calls(frame: Frame) -> list[Callable[[Any], Props | None]]:
    """What the drawer asks the server; of what it is asked with nothing has been checked."""

    def offered(data: Any) -> Props:
        """How a run can be shared; `gone` for one that is not kept."""
        view = frame.registry.get(fields_of(data).get("run"))
        return {"gone": True} if view is None else offer_of(view, _selected(fields_of(data)), frame.offer)

    def linked(data: Any) -> Props:
        """What a link leads to, or why it leads nowhere here."""
        try:
            request, _ = _opened(frame, fields_of(data).get("link"))
        except SpecvizError as error:
            return {"state": "refused", "words": ["This link cannot be used here: ", visible(str(error)), "."]}
        return {"state": "ready", "words": invitation(request)}

    def compared(data: Any) -> Props | None:
        """What a run has to do with the link; None for one that is not kept or was only recorded here."""
        view = frame.registry.get(fields_of(data).get("run"))
        if view is None or view.run is None:
            return None
        try:
            return comparison(decode(fields_of(data).get("link")), view.run.request, view.trace)
        except SpecvizError:
            return None

    return [offered, linked, compared]


def _opened(frame: Frame, letters: Any) -> tuple[Request, list[Any]]:
    """The request of a link that came, and the fields as it has them. Raises SpecvizError if it cannot be used here."""
    request = decode(letters).request
    fields = frame.form.showing(request, frame.offer)
    _refuse_folders(frame.offer, request)
    return request, fields


def _selected(asked: Told) -> tuple[int, str] | None:
    step, ref = asked.get("step"), asked.get("ref")
    return (step, ref) if type(step) is int and isinstance(ref, str) else None


# ---- what can be shared of a run ------------------------------------------------------------------------------------


def offer_of(view: View, selection: tuple[int, str] | None, offer: Offer) -> Props:
    """The link to a view, if it has one, in words what it carries, and the addresses of the files."""
    text, words = None, []
    try:
        link = link_to(view.trace, selection, offer)
        text, words = encode(link), carried(link, selection if place_in(view.trace.steps, selection) else None)
    except SpecvizError as error:
        words = [f"No link leads to this run: {visible(str(error))}.", WHOLE]
    space = settings().space
    at = place_in(view.trace.steps, selection)
    files = [[name, title, about, _address(place.format(view.id), at)] for name, title, about, place in FILES]
    return {"link": text, "page": space and f"{SPACES}{space}", "words": words, "files": files}


def _address(place: str, at: tuple[int, str] | None) -> str:
    """Where a file is made; a page shows what is selected when it is saved."""
    return f"/specviz/{place}" + (f"&step={at[0]}&ref={at[1]}" if at and "?" in place else "")


def link_to(trace: Trace, selection: tuple[int, str] | None, offer: Offer) -> Link:
    """A link to the run as it was asked for. Raises SpecvizError if that cannot be made here or by others."""
    request = complete(first_request(trace))
    refuse_unoffered(offer, request)
    _refuse_unknown(offer, request)
    steps = list(trace.steps)
    count = steps_as_asked(steps, request)
    asked = steps[:count]
    ids, place = ids_of(asked), place_in(asked, selection)
    mark = place and mark_of(asked, place)
    return Link(request, place, len(ids), digest(ids) if ids else "", mark, count < len(steps))


def _refuse_unknown(offer: Offer, request: Request) -> None:
    """Raises SpecvizError for a model that others cannot find by its name: a folder of this machine."""
    if name := next((name for name in _unlisted(offer, request) if "/" not in name), None):
        raise SpecvizError(f"the model {name!r:.100} has no public name by which others could find it")


def _refuse_folders(offer: Offer, request: Request) -> None:
    """Raises SpecvizError for a name by which this machine would open a folder of its own that is not on offer."""
    if name := next(filter(_is_folder, _unlisted(offer, request)), None):
        raise SpecvizError(f"the model {name!r:.100} would be a folder of this machine, and a link names public models")


def _is_folder(name: str) -> bool:
    try:
        return find(without_format(name), allow_any=True).folder is not None
    except SpecvizError:
        return False


def _unlisted(offer: Offer, request: Request) -> list[str]:
    """The models that a request names and neither the page nor the catalogue does."""
    known = {name for _, name in (*offer.targets, *offer.drafts)} | MODELS.keys() | HEADS.keys()
    return [name for name in _models(request) if name not in known]


def _models(request: Request) -> list[str]:
    return [name for _, name in models_named(request)]


def carried(link: Link, selection: tuple[int, str] | None = None) -> list[str]:
    """What a link carries and what it does not, in sentences. selection: what is selected in the run."""
    if not link.goes_on:
        place = ", and shows the place that is selected now" if link.selection else ""
        after = f"After that run specviz says whether the text is the same{place}." if link.num_tokens else ""
        return [PROMISE, *filter(None, [after])]
    leads = f" It leads to the first {counted(link.num_tokens, 'token')} of this run." if link.num_tokens else ""
    lost = " What is selected now lies behind them, and is not in it." if selection and not link.selection else ""
    changed = "The settings were changed while this run went on, and a link carries those that it began with."
    return [PROMISE, changed + leads + lost, WHOLE]


# ---- what becomes of a link that came -------------------------------------------------------------------------------


def invitation(request: Request) -> Sentence:
    """The line over the stage before the run is made."""
    method = METHODS[request.method]
    models = ", ".join(visible(name) for name in _models(request))
    rule = RULES[request.rule or method.default_rule]
    told = (
        f"{method.title} with {models}",
        method.sets_k and f"K {request.num_speculative_tokens}",
        f"temperature {request.temperature:g}",
        method.drafts and not rule.lossless and f"{rule.title} (lossy)",
        _hidden(request.prompt),
    )
    return ["", "A shared run: press Run to see it", "".join(f" · {words}" for words in told if words)]


def _hidden(prompt: str) -> str:
    """What a prompt holds that nobody sees in the field, such as what turns the direction of reading."""
    written = [visible(char) for char in dict.fromkeys(prompt) if char not in "\n\r\t" and visible(char) != char]
    if not written:
        return ""
    more = [] if len(written) <= MOST_HIDDEN else ["…"]
    return f"its prompt holds characters that cannot be seen: {' '.join([*written[:MOST_HIDDEN], *more])}"
