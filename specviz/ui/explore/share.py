"""The share drawer: a link to the run on the stage and the files that hold it, and the use of a link that came.

A link sets the fields and runs nothing, and nothing is stored. Once the person has made that run, two hashes tell
whether its text is the shared one, and the token that stands there tells whether the selected place is.
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
from specviz.views.explore.inspector import LAST
from specviz.views.explore.message import TokenPlace
from specviz.views.explore.panels import GoneRun, SharedRunLine, ShareOffer
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
"""The files that hold a run: name, title, description, address."""
PROMISE = (
    "The link contains the prompt and all settings: whoever has it can read them. Opening it fills them in and runs "
    "nothing. No server stores it."
)
WHOLE = "The files below hold the run itself."
SPACES = "https://huggingface.co/spaces/"
MOST_HIDDEN = 4
"""Invisible characters that are listed where a prompt holds more."""
MOST_NAMED = 3
"""Settings that are named where two runs differ in more."""
_TITLES = TITLES | {"draft": "draft model", "chat_options": "chat options", "stop": "stop texts"}
_NAMES = {name: known.title for name, known in (METHODS | FACTS).items()}
_OTHERS = {"prompt": "another prompt", "prompt_ids": "another prompt"}
_OF_ANY_METHOD = [name for name in OF_ANY_METHOD if name not in Request.DRAFT_SAMPLING]
Place = tuple[int, str]
"""The number of a step, and a token in it as the browser names it."""


def add(frame: Frame) -> None:
    @callback
    def apply(event: gr.EventData) -> list[Any]:
        """The fields as the link has them."""
        return open_link(frame, data_of(event).get("link"))[1]

    with gr.Column(elem_id="share"):
        part = components.panel("share-panel", events=["apply"], calls=calls_of(frame))
    frame.fill(part.apply, apply)


def calls_of(frame: Frame) -> list[Callable[[Any], Any]]:
    """The functions that the drawer calls; nothing of their data has been checked."""

    def offered(data: Any) -> ShareOffer | GoneRun:
        """The ways to share a run."""
        fields = as_fields(data)
        view = frame.registry.get(fields.get("run"))
        if view is None:
            return GoneRun()
        step = fields.get("step")
        ref = fields.get("ref")
        place = (step, ref) if type(step) is int and isinstance(ref, str) else None
        return share_props(view, place, frame.offer)

    def linked(data: Any) -> SharedRunLine:
        """The run of a link in words, or why it cannot be used here."""
        try:
            request, _ = open_link(frame, as_fields(data).get("link"))
        except SpecvizError as error:
            words = ["This link cannot be used here: ", reveal(str(error)), "."]
            return SharedRunLine("refused", words)
        return SharedRunLine("ready", invitation(request))

    def compared(data: Any) -> SharedRunLine | None:
        """The comparison of a run with the link's; None for a run that is not stored or was only opened here."""
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
    for name in _unknown_models(frame.offer, request):
        if _is_folder(name):
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
    """The models in a request that are unknown to the page and to the catalogue."""
    return [name for _, name in models_named(request) if not offer.knows(name)]


# ---- a link to a run ------------------------------------------------------------------------------------------------


def share_props(view: View, selection: Place | None, offer: Offer) -> ShareOffer:
    """The link to a view, if it has one, what it carries in words, and the addresses of the files."""
    place = place_in(view.trace.steps, selection)
    letters = None
    try:
        link = link_to(view.trace, selection, offer)
        letters = encode(link)
        words = describe_link(link, place)
    except SpecvizError as error:
        words = [f"No link leads to this run: {reveal(str(error))}.", WHOLE]
    files = []
    for name, title, description, path in FILES:
        address = f"specviz/{path.format(view.id)}"
        if place and "?" in path:  # a page shows the selected place
            address += f"&step={place[0]}&ref={place[1]}"
        files.append((name, title, description, address))
    space = settings().space
    page = None if space is None else f"{SPACES}{space}"
    return ShareOffer(letters, page, words, files)


def link_to(trace: Trace, selection: Place | None, offer: Offer) -> Link:
    """A link to the run as it was asked for. Raises SpecvizError if that cannot be made here or by others."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    if any(step.settings.is_foreign for step in trace.steps):
        raise SpecvizError("another engine made it, and its request is not recorded")
    request = complete(Request.from_dict({**trace.header.request, "time_limit_s": None}))
    refuse_unoffered(offer, request)
    for name in _unknown_models(offer, request):
        if "/" not in name:
            raise SpecvizError(
                f"the model {name!r:.100} has no public name by which others could find it"
            )
    steps, goes_on = steps_as_asked(list(trace.steps), request)
    ids = ids_of(steps)
    place = place_in(steps, selection)
    mark = None if place is None else mark_of(steps, place)
    return Link(request, place, len(ids), digest(ids) if ids else "", mark, goes_on)


def describe_link(link: Link, selection: Place | None = None) -> list[str]:
    """Sentences that say what a link carries and what it lacks. selection: the place selected in the run."""
    if not link.goes_on:
        if not link.num_tokens:
            return [PROMISE]
        place = ", and shows the token that is selected now" if link.selection else ""
        return [PROMISE, f"After that run, specviz says whether the text is the same{place}."]
    words = "The settings changed during this run; the link carries those it began with."
    if link.num_tokens:
        words += f" It reproduces the first {quantity(link.num_tokens, 'token')} of this run."
    if selection and not link.selection:
        words += " The selected token comes after them and is not in the link."
    return [PROMISE, words, WHOLE]


def invitation(request: Request) -> Sentence:
    """The line over the stage before the run of a link is made."""
    method = METHODS[request.method]
    models = ", ".join(reveal(name) for _, name in models_named(request))
    rule = FACTS[request.rule or method.default_rule]
    parts = [f"{method.title} with {models}"]
    if method.sets_k:
        parts.append(f"K {request.num_speculative_tokens}")
    parts.append(f"temperature {request.temperature:g}")
    if method.drafts and not rule.lossless:
        parts.append(f"{rule.title} (lossy)")
    if hidden := _name_hidden(request.prompt):
        parts.append(hidden)
    words = "".join(f" · {part}" for part in parts)
    return ["", "A shared run: press Run to see it", words]


def _name_hidden(prompt: str) -> str:
    """The characters of a prompt that nobody sees in the field, such as those that turn the direction of reading."""
    visible = "\n\r\t"
    chars = [char for char in dict.fromkeys(prompt) if char not in visible]
    names = [reveal(char) for char in chars if reveal(char) != char]
    if not names:
        return ""
    shown = names[:MOST_HIDDEN]
    if len(names) > MOST_HIDDEN:
        shown.append("…")
    return f"its prompt contains invisible characters: {' '.join(shown)}"


# ---- what a run and a link have in common ---------------------------------------------------------------------------


def complete(request: Request) -> Request:
    """The request with the rule that is meant and all parameters. Raises SpecvizError for an unknown method."""
    method = find_method(request.method)
    values = request.to_dict()
    values["rule"] = request.rule or method.default_rule
    values["time_limit_s"] = None
    values["params"] = method.validate(request.params)
    return Request.from_dict(values)


def _values_that_count(request: Request) -> dict[str, Any]:
    """The values of a complete request that have a meaning under its method, without the method's parameters."""
    counts = counts_under(find_method(request.method)) | {"params": False}
    return {name: value for name, value in request.to_dict().items() if counts.get(name, True)}


def steps_as_asked(steps: Sequence[Step], request: Request) -> tuple[Sequence[Step], bool]:
    """The steps before the first one that was made with other settings than a request's, and whether others follow."""
    values = _values_that_count(complete(request))
    wanted = {}
    for name in (*Request.NAMES, *Request.ALL_SAMPLING, "k"):
        if name in values:
            wanted["draft_model" if name == "draft" else name] = values[name]
    count = 0
    for step in steps:
        if any(getattr(step.settings, name) != value for name, value in wanted.items()):
            break
        count += 1
    return steps[:count], count < len(steps)


def ids_of(steps: Sequence[Step]) -> list[int]:
    """The ids of all tokens that these steps emitted."""
    ids = []
    for step in steps:
        ids += [token.id for token in step.emitted]
    return ids


def place_in(steps: Sequence[Step], selection: Place | None) -> Place | None:
    """The selection, if these steps have such a token."""
    if selection is None or _id_at(steps, *selection) is None:
        return None
    return selection


def mark_of(steps: Sequence[Step], place: Place) -> tuple[int, int]:
    """The mark that identifies a place in these steps: the number of tokens before its step, and the id of its own
    token."""
    return len(ids_of(steps[: place[0]])), _id_at(steps, *place)


def _id_at(steps: Sequence[Step], step: int, ref: str) -> int | None:
    """The id of a token in a step; None where there is no such token."""
    if not 0 <= step < len(steps):
        return None
    if ref == LAST:
        token = last_token(steps[step])
        return None if token is None else token.id
    for node, token in enumerate(steps[step].draft):
        if ref == str(node):
            return token.id
    return None


# ---- how a run of this machine compares with the shared one ---------------------------------------------------------


def comparison(link: Link, request: Request, trace: Trace) -> SharedRunLine:
    """The comparison of a request's run with the shared one so far."""
    if found := list(differences(link.request, request)):
        named = ", ".join(found[:MOST_NAMED])
        if len(found) > MOST_NAMED:
            named += " and more"
        words = [f"The run below differs from the shared one: {named}."]
        return SharedRunLine("other", words)
    end = trace.footer
    steps, was_changed = steps_as_asked(list(trace.steps), link.request)
    ids = ids_of(steps)
    if not link.num_tokens:
        return _say_unknown("The shared run was made here. Its link does not describe its text.")
    if len(ids) >= link.num_tokens:
        is_same = digest(ids[: link.num_tokens]) == link.digest
        return _say_equal(link, steps) if is_same else _say_different(link)
    if was_changed:
        return _say_unknown(
            "The settings changed during this run: its text cannot be compared with the shared one."
        )
    if end is None:
        return SharedRunLine("waiting", ["The shared run is being made on this machine."])
    if end.reason in ("eos", "stop", "length", "context"):
        return _say_different(link)
    tokens = quantity(link.num_tokens, "token")
    return _say_unknown(
        f"This run ended before the {tokens} of the shared one: the two cannot be compared."
    )


def _say_unknown(words: str) -> SharedRunLine:
    return SharedRunLine("unknown", [words])


def _say_different(link: Link) -> SharedRunLine:
    dropped = " The selection was dropped." if link.selection else ""
    words = (
        f"This machine wrote another text than the shared run: models or rounding differ.{dropped}"
    )
    return SharedRunLine("differs", [words])


def _say_equal(link: Link, steps: Sequence[Step]) -> SharedRunLine:
    words = ["", "The same text as the shared run", f": {quantity(link.num_tokens, 'token')}."]
    if link.goes_on:
        subject = "token is" if link.num_tokens == 1 else f"{link.num_tokens:,} tokens are"
        more = ". After that the shared run continued with other settings: its file holds it."
        words = ["", f"The first {subject} the same", more]
    if link.selection is None:
        return SharedRunLine("same", words)
    is_here = place_in(steps, link.selection) is not None
    if is_here and link.mark is not None:
        is_here = link.mark == mark_of(steps, link.selection)
    if not is_here:
        words[2] += " The token selected there is not in this run."
        return SharedRunLine("same", words)
    words[2] += " The token selected there is selected here."
    return SharedRunLine("same", words, TokenPlace(*link.selection))


def differences(shared: Request, here: Request) -> Iterator[str]:
    """The settings by which `here` asks for another text than `shared`, each in words: "K 3 instead of 6"."""
    shared_values = _titled_values(shared)
    values = _titled_values(here)
    names = list(shared_values)
    if shared_values["method"] != values["method"]:
        names = _OF_ANY_METHOD
    for name in names:
        before = shared_values[name]
        now = values[name]
        if now == before:
            continue
        if name in _OTHERS:
            yield _OTHERS[name]
        else:
            yield f"{_TITLES.get(name, name)} {_spell(now)} instead of {_spell(before)}"


def _titled_values(request: Request) -> dict[str, Any]:
    """The values that count under the method of a request; its parameters stand among the rest, by their titles."""
    request = complete(request)
    values = _values_that_count(request)
    for param in find_method(request.method).params:
        values[param.title] = request.params[param.name]
    return values


def _spell(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        value = spell_options(value)
    if isinstance(value, list):
        return label(", ".join(value)) if value else "none"
    if isinstance(value, str):
        return _NAMES.get(value) or label(value)
    return f"{value:,}"
