"""The share drawer: a link to the run on the stage, and the files that hold it; and what becomes of a link that came.

A link sets the fields and nothing more: nobody's run begins by itself, and nothing is stored. When the person has made
that run, its text is compared with the one that was shared, by their hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gradio as gr

from specviz.catalog import HEADS, MODELS, without_format
from specviz.drafters import METHODS, method_named
from specviz.errors import SpecvizError
from specviz.fetch import find
from specviz.link import Link, decode, digest, encode
from specviz.request import Request
from specviz.rules import RULES
from specviz.settings import settings
from specviz.trace import Settings, Step, Trace
from specviz.ui import components
from specviz.ui.form import refuse_unoffered
from specviz.ui.frame import Frame
from specviz.ui.handlers import speaks, told
from specviz.ui.models_of import models_named
from specviz.ui.offer import Offer, drafts, sets_k
from specviz.ui.registry import View
from specviz.views.inspector import LAST
from specviz.views.names import METHOD_TITLES
from specviz.views.sentences import Sentence, counted, visible

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
        part = components.panel("sharing", frame.files, events=["apply"], calls=calls(frame))
    frame.fill(part.apply, apply)


def calls(frame: Frame) -> list[Callable[[Any], Props | None]]:
    """What the drawer asks the server; of what it is asked with nothing has been checked."""

    def offered(data: Any) -> Props | None:
        """How a run can be shared; None for one that is not kept."""
        view = frame.registry.get(_asked(data).get("run"))
        return None if view is None else offer_of(view, _selected(_asked(data)), frame.offer)

    def linked(data: Any) -> Props:
        """What a link leads to, or why it leads nowhere here."""
        try:
            request, _ = _opened(frame, _asked(data).get("link"))
        except SpecvizError as error:
            return {"state": "refused", "words": ["This link cannot be used here: ", visible(str(error)), "."]}
        return {"state": "ready", "words": invitation(request)}

    def compared(data: Any) -> Props | None:
        """What a run has to do with the link; None for one that is not kept or was only recorded here."""
        view = frame.registry.get(_asked(data).get("run"))
        if view is None or view.run is None:
            return None
        try:
            return comparison(decode(_asked(data).get("link")), view)
        except SpecvizError:
            return None

    return [offered, linked, compared]


def _opened(frame: Frame, letters: Any) -> tuple[Request, list[Any]]:
    """The request of a link that came, and the fields as it has them. Raises SpecvizError if it cannot be used here."""
    request = decode(letters).request
    fields = frame.form.showing(request, frame.offer)
    _refuse_folders(frame.offer, request)
    return request, fields


def _asked(data: Any) -> Told:
    return data if isinstance(data, dict) else {}


def _selected(asked: Told) -> tuple[int, str] | None:
    step, ref = asked.get("step"), asked.get("ref")
    return (step, ref) if type(step) is int and isinstance(ref, str) else None


# ---- what can be shared of a run ------------------------------------------------------------------------------------


def offer_of(view: View, selection: tuple[int, str] | None, offer: Offer) -> Props:
    """The link to a view, if it has one, in words what it carries, and the addresses of the files."""
    text, words = None, []
    try:
        link, is_whole = link_to(view.trace, selection, offer)
        text, words = encode(link), carried(link, is_whole=is_whole)
    except SpecvizError as error:
        words = [f"No link leads to this run: {visible(str(error))}.", WHOLE]
    space = settings().space
    at = place_in(view.trace.steps, selection)
    files = [[name, title, about, _address(place.format(view.id), at)] for name, title, about, place in FILES]
    return {"link": text, "page": space and f"{SPACES}{space}", "words": words, "files": files}


def _address(place: str, at: tuple[int, str] | None) -> str:
    """Where a file is made; a page shows what is selected when it is saved."""
    return f"/specviz/{place}" + (f"&step={at[0]}&ref={at[1]}" if at and "?" in place else "")


def link_to(trace: Trace, selection: tuple[int, str] | None, offer: Offer) -> tuple[Link, bool]:
    """A link to the run as it was asked for, and whether all steps so far were made so.

    Raises SpecvizError if that request cannot be made here or by others.
    """
    request = _complete(first_request(trace))
    refuse_unoffered(offer, request)
    _refuse_unknown(offer, request)
    steps = list(trace.steps)
    count = steps_as_asked(steps, request)
    ids = ids_of(steps[:count])
    return Link(request, place_in(steps[:count], selection), len(ids), digest(ids) if ids else ""), count == len(steps)


def place_in(steps: Sequence[Step], selection: tuple[int, str] | None) -> tuple[int, str] | None:
    """What is selected, if these steps have such a token."""
    step, ref = selection or (-1, "")
    has_it = 0 <= step < len(steps) and ref in (LAST, *map(str, range(len(steps[step].draft))))
    return selection if has_it else None


def first_request(trace: Trace) -> Request:
    """The request that a trace says it began with. Raises SpecvizError; a trace may come from anywhere."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    return Request.from_dict({**trace.header.request, "time_limit_s": None})


def _complete(request: Request) -> Request:
    """With the rule that is meant and all parameters. Raises SpecvizError for a method that nobody knows here."""
    method = method_named(request.method)
    values = {**request.to_dict(), "rule": request.rule or method.default_rule, "time_limit_s": None}
    return Request.from_dict({**values, "params": method.checked(request.params)})


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


def ids_of(steps: Sequence[Step]) -> list[int]:
    return [token.id for step in steps for token in step.emitted]


def steps_as_asked(steps: Sequence[Step], request: Request) -> int:
    """How many steps there are before the first one that was made with other settings than a complete request's."""
    wanted = settings_of(request)
    return next((step.index for step in steps if not _has(step.settings, wanted)), len(steps))


def settings_of(request: Request) -> dict[str, Any]:
    """What the steps of a complete request say of their settings, as far as it counts under its method."""
    method = method_named(request.method)
    wanted = {name: getattr(request, name) for name in ("method", "target", "temperature", "top_k", "top_p")}
    wanted |= {"draft_model": request.draft} if "draft" in method.roles else {}
    wanted |= {"rule": request.rule} if drafts(method) else {}
    return wanted | ({"k": request.k} if sets_k(method) else {})


def _has(made: Settings, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(made, name) == value for name, value in wanted.items())


def carried(link: Link, *, is_whole: bool) -> list[str]:
    """What a link carries and what it does not, in sentences. is_whole: it leads to all of the run so far."""
    if is_whole:
        place = ", and shows the place that is selected now" if link.selection else ""
        after = f"After that run specviz says whether the text is the same{place}." if link.num_tokens else ""
        return [PROMISE, *filter(None, [after])]
    leads = f" It leads to the first {counted(link.num_tokens, 'token')} of this run." if link.num_tokens else ""
    changed = "The settings were changed while this run went on, and a link carries those that it began with."
    return [PROMISE, changed + leads, WHOLE]


# ---- what becomes of a link that came -------------------------------------------------------------------------------


def invitation(request: Request) -> Sentence:
    """The line over the stage before the run is made."""
    method = METHODS[request.method]
    models = ", ".join(visible(name) for name in _models(request))
    rule = RULES[request.rule or method.default_rule]
    told = (
        f"{METHOD_TITLES[request.method]} with {models}",
        sets_k(method) and f"K {request.k}",
        f"temperature {request.temperature:g}",
        drafts(method) and not rule.lossless and f"{rule.title} (lossy)",
    )
    return ["", "A shared run: press Run to see it", "".join(f" · {words}" for words in told if words)]


def comparison(link: Link, view: View) -> Props:
    """How a run of this machine compares with the shared one, once it can be said."""
    if not is_same(link.request, view.run.request):
        return {"state": "other", "words": ["The run below has other settings than the shared one."]}
    end = view.trace.footer
    steps = list(view.trace.steps)
    count = steps_as_asked(steps, _complete(link.request))
    ids, was_changed = ids_of(steps[:count]), count < len(steps)
    if end is None and len(ids) < link.num_tokens and not was_changed:
        return {"state": "waiting", "words": ["The shared run is being made on this machine."]}
    return _judged(link, ids, was_changed=was_changed, reason=end and end.reason)


def _judged(link: Link, ids: Sequence[int], *, was_changed: bool, reason: str | None) -> Props:
    """ids: the text, as far as it was made with the link's settings; reason: for the end of the run."""
    if not link.num_tokens:
        return _unknown("The shared run was made here. Its link tells nothing of its text.")
    if len(ids) >= link.num_tokens:
        is_equal = digest(ids[: link.num_tokens]) == link.digest
        return _equal(link) if is_equal else _different(link)
    if was_changed:
        return _unknown("The settings were changed on the way: this text cannot be compared with the shared one.")
    if reason in ("eos", "length", "context"):
        return _different(link)
    return _unknown(
        f"This run ended before the {counted(link.num_tokens, 'token')} of the shared one: they cannot be compared."
    )


def _unknown(words: str) -> Props:
    return {"state": "unknown", "words": [words]}


def _equal(link: Link) -> Props:
    words = ["", "The same text as the shared run", f": {counted(link.num_tokens, 'token')}."]
    if link.selection is None:
        return {"state": "same", "words": words}
    step, ref = link.selection
    more = " What was selected there is selected here."
    return {"state": "same", "words": [*words[:2], words[2] + more], "at": {"step": step, "ref": ref}}


def _different(link: Link) -> Props:
    dropped = " The selection was dropped." if link.selection else ""
    words = f"This machine's run gave another text than the shared one: models or numbers differ.{dropped}"
    return {"state": "differs", "words": [words]}


def is_same(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same text, leaving out what does not count under their method."""
    return _counting(one) == _counting(other)


def _counting(request: Request) -> Mapping[str, Any]:
    method = method_named(request.method)
    values = _complete(request).to_dict()
    idle = {"draft": "draft" in method.roles, "k": sets_k(method), "rule": drafts(method)}
    return {name: value for name, value in values.items() if idle.get(name, True)}
