"""The share drawer: a link to the run on the stage and the files that hold it, and the use of a link that came.

A link sets the fields and runs nothing, and nothing is stored. When the person has made that run, its text is compared
with the shared one by their hashes, the selected place by the token that stands there.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gradio as gr

from specviz.drafters import METHODS, find_method
from specviz.errors import SpecvizError
from specviz.models.catalog import without_format
from specviz.models.files.hub import find
from specviz.request import Request, spell_options
from specviz.rules.facts import FACTS
from specviz.session.setup import models_named
from specviz.settings import settings
from specviz.trace import Step, Trace
from specviz.trace.link import Link, decode, digest, encode
from specviz.ui import components
from specviz.ui.choices import Offer
from specviz.ui.events import as_fields, callback, data_of
from specviz.ui.explore.form import Frame, refuse_unoffered
from specviz.ui.explore.standing import OF_ANY_METHOD, TITLES, counts_under
from specviz.ui.view import View
from specviz.views.blocks import Props
from specviz.views.explore.inspector import LAST
from specviz.views.explore.titles import last_token
from specviz.views.words import Sentence, label, quantity, reveal

FILES = (
    (
        "page",
        "Page (.html)",
        "this view with the run inside; opens without a server",
        "page/{}.html?charts=1",
    ),
    ("page-small", "Page without charts (.html)", "the same, smaller", "page/{}.html?charts=0"),
    ("trace", "Trace (.jsonl.gz)", "everything recorded; the library opens it again", "trace/{}"),
    ("tokens", "Tokens (.csv)", "a table, one line per token", "tokens/{}.csv"),
    ("steps", "Steps (.csv)", "a table, one line per step", "steps/{}.csv"),
)
"""(name, title, description, address)."""
PROMISE = (
    "The link contains the prompt and all settings: whoever has it can read them. Opening it fills them in and runs "
    "nothing. No server stores it."
)
WHOLE = "The files below hold the run itself."
SPACES = "https://huggingface.co/spaces/"
MOST_HIDDEN = 4
"""Invisible characters that are listed when a prompt holds more."""
MOST_NAMED = 3
"""Settings that are named when two runs differ in more."""
_TITLES = TITLES | {"draft": "draft model", "chat_options": "chat options", "stop": "stop texts"}
_NAMES = {name: known.title for name, known in (METHODS | FACTS).items()}
_OTHERS = {"prompt": "another prompt", "prompt_ids": "another prompt"}
_OF_ANY_METHOD = [name for name in OF_ANY_METHOD if name not in Request.DRAFT_SAMPLING]
Place = tuple[int, str]
"""A step and a token in it, as the browser names it."""


def add(frame: Frame) -> None:
    @callback
    def apply(event: gr.EventData) -> list[Any]:
        """The fields as the link has them."""
        return open_link(frame, data_of(event).get("link"))[1]

    with gr.Column(elem_id="share"):
        part = components.panel("share-panel", events=["apply"], calls=calls_of(frame))
    frame.fill(part.apply, apply)


def calls_of(frame: Frame) -> list[Callable[[Any], Props | None]]:
    """The functions that the drawer calls; nothing of their data has been checked."""

    def offered(data: Any) -> Props:
        """How a run can be shared; `gone` for one that is not kept."""
        view = frame.registry.get(as_fields(data).get("run"))
        step, ref = as_fields(data).get("step"), as_fields(data).get("ref")
        place = (step, ref) if type(step) is int and isinstance(ref, str) else None
        return {"gone": True} if view is None else share_props(view, place, frame.offer)

    def linked(data: Any) -> Props:
        """The run of a link in words, or why it cannot be used here."""
        try:
            request, _ = open_link(frame, as_fields(data).get("link"))
        except SpecvizError as error:
            return {
                "state": "refused",
                "words": ["This link cannot be used here: ", reveal(str(error)), "."],
            }
        return {"state": "ready", "words": invitation(request)}

    def compared(data: Any) -> Props | None:
        """How a run compares with the link's; None for one that is not kept or was only recorded here."""
        view = frame.registry.get(as_fields(data).get("run"))
        if view is None or view.run is None:
            return None
        try:
            return comparison(decode(as_fields(data).get("link")), view.run.request, view.trace)
        except SpecvizError:
            return None

    return [offered, linked, compared]


def open_link(frame: Frame, letters: Any) -> tuple[Request, list[Any]]:
    """The request of a link that came, and updates of the fields. Raises SpecvizError if it cannot be used here."""
    request = decode(letters).request
    fields = frame.form.fill(request, frame.offer)
    if name := next(filter(_is_folder, _unknown_models(frame.offer, request)), None):
        raise SpecvizError(
            f"the model {name!r:.100} would be a local folder; a link may name public models only"
        )
    return request, fields


def _is_folder(name: str) -> bool:
    try:
        return find(without_format(name), allow_any=True).folder is not None
    except SpecvizError:
        return False


def _unknown_models(offer: Offer, request: Request) -> list[str]:
    """The models that a request names and neither the page nor the catalogue does."""
    return [name for _, name in models_named(request) if not offer.knows(name)]


# ---- a link to a run ------------------------------------------------------------------------------------------------


def share_props(view: View, selection: Place | None, offer: Offer) -> Props:
    """The link to a view, if it has one, what it carries in words, and the addresses of the files."""
    place, text = place_in(view.trace.steps, selection), None
    try:
        link = link_to(view.trace, selection, offer)
        text, words = encode(link), describe_link(link, place)
    except SpecvizError as error:
        words = [f"No link leads to this run: {reveal(str(error))}.", WHOLE]
    at = f"&step={place[0]}&ref={place[1]}" if place else ""  # a page shows the selected place
    files = [
        [*about, f"specviz/{path.format(view.id)}{at if '?' in path else ''}"]
        for *about, path in FILES
    ]
    space = settings().space
    return {"link": text, "page": space and f"{SPACES}{space}", "words": words, "files": files}


def link_to(trace: Trace, selection: Place | None, offer: Offer) -> Link:
    """A link to the run as it was asked for. Raises SpecvizError if that cannot be made here or by others."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    request = complete(Request.from_dict({**trace.header.request, "time_limit_s": None}))
    refuse_unoffered(offer, request)
    if name := next((name for name in _unknown_models(offer, request) if "/" not in name), None):
        raise SpecvizError(
            f"the model {name!r:.100} has no public name by which others could find it"
        )
    steps, goes_on = steps_as_asked(list(trace.steps), request)
    ids, place = ids_of(steps), place_in(steps, selection)
    return Link(
        request,
        place,
        len(ids),
        digest(ids) if ids else "",
        place and mark_of(steps, place),
        goes_on,
    )


def describe_link(link: Link, selection: Place | None = None) -> list[str]:
    """Sentences: what a link carries and what it lacks. selection: the place that is selected in the run."""
    if not link.goes_on:
        place = ", and shows the token that is selected now" if link.selection else ""
        after = (
            f"After that run, specviz says whether the text is the same{place}."
            if link.num_tokens
            else ""
        )
        return [PROMISE, *filter(None, [after])]
    leads = (
        f" It reproduces the first {quantity(link.num_tokens, 'token')} of this run."
        if link.num_tokens
        else ""
    )
    lost = (
        " The selected token comes after them and is not in the link."
        if selection and not link.selection
        else ""
    )
    changed = "The settings changed during this run; the link carries those it began with."
    return [PROMISE, changed + leads + lost, WHOLE]


def invitation(request: Request) -> Sentence:
    """The line over the stage before the run of a link is made."""
    method = METHODS[request.method]
    models = ", ".join(reveal(name) for _, name in models_named(request))
    rule = FACTS[request.rule or method.default_rule]
    parts = (
        f"{method.title} with {models}",
        method.sets_k and f"K {request.num_speculative_tokens}",
        f"temperature {request.temperature:g}",
        method.drafts and not rule.lossless and f"{rule.title} (lossy)",
        _name_hidden(request.prompt),
    )
    return [
        "",
        "A shared run: press Run to see it",
        "".join(f" · {words}" for words in parts if words),
    ]


def _name_hidden(prompt: str) -> str:
    """The characters of a prompt that nobody sees in the field, such as those that turn the direction of reading."""
    names = [
        reveal(char)
        for char in dict.fromkeys(prompt)
        if char not in "\n\r\t" and reveal(char) != char
    ]
    more = ["…"] if len(names) > MOST_HIDDEN else []
    shown = " ".join([*names[:MOST_HIDDEN], *more])
    return f"its prompt contains invisible characters: {shown}" if names else ""


# ---- what a run and a link have in common ---------------------------------------------------------------------------


def complete(request: Request) -> Request:
    """With the rule that is meant and all parameters. Raises SpecvizError for an unknown method."""
    method = find_method(request.method)
    values = {
        **request.to_dict(),
        "rule": request.rule or method.default_rule,
        "time_limit_s": None,
    }
    return Request.from_dict({**values, "params": method.validate(request.params)})


def _values_that_count(request: Request) -> dict[str, Any]:
    """The values of a complete request that have a meaning under its method, without the method's parameters."""
    counts = counts_under(find_method(request.method)) | {"params": False}
    return {name: value for name, value in request.to_dict().items() if counts.get(name, True)}


def steps_as_asked(steps: Sequence[Step], request: Request) -> tuple[Sequence[Step], bool]:
    """The steps before the first one that was made with other settings than a request's, and whether others follow."""
    values = _values_that_count(complete(request))
    names = [name for name in (*Request.NAMES, *Request.ALL_SAMPLING, "k") if name in values]
    wanted = {"draft_model" if name == "draft" else name: values[name] for name in names}
    has_them = (
        all(getattr(step.settings, name) == value for name, value in wanted.items())
        for step in steps
    )
    count = next((index for index, has in enumerate(has_them) if not has), len(steps))
    return steps[:count], count < len(steps)


def ids_of(steps: Sequence[Step]) -> list[int]:
    return [token.id for step in steps for token in step.emitted]


def place_in(steps: Sequence[Step], selection: Place | None) -> Place | None:
    """The selection, if these steps have such a token."""
    return None if selection is None or _id_at(steps, *selection) is None else selection


def mark_of(steps: Sequence[Step], place: Place) -> tuple[int, int]:
    """What identifies a place in these steps: the number of tokens before its step, and the id of its own token."""
    return len(ids_of(steps[: place[0]])), _id_at(steps, *place)


def _id_at(steps: Sequence[Step], step: int, ref: str) -> int | None:
    if not 0 <= step < len(steps):
        return None
    if ref == LAST:
        token = last_token(steps[step])
        return token and token.id
    return next(
        (token.id for node, token in enumerate(steps[step].draft) if ref == str(node)), None
    )


# ---- how a run of this machine compares with the shared one ---------------------------------------------------------


def comparison(link: Link, request: Request, trace: Trace) -> Props:
    """How the run of a request compares with the shared one so far: `state`, `words`, and `at`, the place to select."""
    if others := list(differences(link.request, request)):
        named = ", ".join(others[:MOST_NAMED]) + (" and more" if len(others) > MOST_NAMED else "")
        return {"state": "other", "words": [f"The run below differs from the shared one: {named}."]}
    whole, end = list(trace.steps), trace.footer
    steps, was_changed = steps_as_asked(whole, link.request)
    ids = ids_of(steps)
    if not link.num_tokens:
        return _say_unknown("The shared run was made here. Its link does not describe its text.")
    if len(ids) >= link.num_tokens:
        return (
            _say_equal(link, steps)
            if digest(ids[: link.num_tokens]) == link.digest
            else _say_different(link)
        )
    if was_changed:
        return _say_unknown(
            "The settings changed during this run: its text cannot be compared with the shared one."
        )
    if end is None:
        return {"state": "waiting", "words": ["The shared run is being made on this machine."]}
    if end.reason in ("eos", "stop", "length", "context"):
        return _say_different(link)
    tokens = quantity(link.num_tokens, "token")
    return _say_unknown(
        f"This run ended before the {tokens} of the shared one: the two cannot be compared."
    )


def _say_unknown(words: str) -> Props:
    return {"state": "unknown", "words": [words]}


def _say_different(link: Link) -> Props:
    dropped = " The selection was dropped." if link.selection else ""
    words = (
        f"This machine wrote another text than the shared run: models or rounding differ.{dropped}"
    )
    return {"state": "differs", "words": [words]}


def _say_equal(link: Link, steps: Sequence[Step]) -> Props:
    words = ["", "The same text as the shared run", f": {quantity(link.num_tokens, 'token')}."]
    if link.goes_on:
        are = "token is" if link.num_tokens == 1 else f"{link.num_tokens:,} tokens are"
        more = ". After that the shared run continued with other settings: its file holds it."
        words = ["", f"The first {are} the same", more]
    if link.selection is None:
        return {"state": "same", "words": words}
    is_here = place_in(steps, link.selection) and link.mark in (
        None,
        mark_of(steps, link.selection),
    )
    words[2] += f" The token selected there is {'selected here' if is_here else 'not in this run'}."
    at = {"at": dict(zip(("step", "ref"), link.selection, strict=True))} if is_here else {}
    return {"state": "same", "words": words, **at}


def differences(shared: Request, here: Request) -> Iterator[str]:
    """The settings by which `here` asks for another text than `shared`, each in words: "K 3 instead of 6"."""
    wanted, got = _titled_values(shared), _titled_values(here)
    if wanted["method"] != got["method"]:
        wanted, got = ({name: values[name] for name in _OF_ANY_METHOD} for values in (wanted, got))
    for name, before in wanted.items():
        if got[name] != before:
            yield (
                _OTHERS.get(name)
                or f"{_TITLES.get(name, name)} {_spell(got[name])} instead of {_spell(before)}"
            )


def _titled_values(request: Request) -> dict[str, Any]:
    """The values that count under the method of a request; its parameters stand among the rest, by their titles."""
    request = complete(request)
    own = {param.title: request.params[param.name] for param in find_method(request.method).params}
    return _values_that_count(request) | own


def _spell(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    if isinstance(value, dict):
        value = spell_options(value)
    if isinstance(value, list):
        return label(", ".join(value)) if value else "none"
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else f"{value:,}"
    return _NAMES.get(value) or label(value)
