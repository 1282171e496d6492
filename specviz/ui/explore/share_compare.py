"""A run and a link to it: how far the run was made as it was asked for, what is selected in it, and how a run of this
machine compares with the one that was shared.

The texts are compared by their hashes, the selected place by the token that stands there. Knows no page, no model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from specviz.drafters import METHODS, find_method
from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.rules.facts import FACTS
from specviz.trace.file import Settings, Step, Trace
from specviz.trace.link import Link, digest
from specviz.views.explore.inspector import LAST
from specviz.views.explore.sentences import Sentence, counted, label
from specviz.views.explore.titles import last_token

MOST_NAMED = 3
"""Settings that are named when two runs differ in more."""
_TITLES = {
    "draft": "draft model",
    "k": "K",
    "top_k": "top-k",
    "top_p": "top-p",
    "max_new_tokens": "most new tokens",
    "chat": "chat template",
}
_NAMES = {name: known.title for name, known in (METHODS | FACTS).items()}
_OTHERS = {"prompt": "another prompt", "prompt_ids": "another prompt"}
_OF_ANY_METHOD = ("prompt", "chat", "target", "method", *Request.SAMPLING, "seed", "max_new_tokens")
Place = tuple[int, str]
Props = dict[str, Any]


# ---- what a run says of itself --------------------------------------------------------------------------------------


def first_request(trace: Trace) -> Request:
    """The request that a trace says it began with. Raises SpecvizError; a trace may come from anywhere."""
    if trace.header is None:
        raise SpecvizError("it has not begun yet")
    return Request.from_dict({**trace.header.request, "time_limit_s": None})


def complete(request: Request) -> Request:
    """With the rule that is meant and all parameters. Raises SpecvizError for a method that nobody knows here."""
    method = find_method(request.method)
    values = {**request.to_dict(), "rule": request.rule or method.default_rule, "time_limit_s": None}
    return Request.from_dict({**values, "params": method.checked(request.params)})


def steps_as_asked(steps: Sequence[Step], request: Request) -> int:
    """How many steps there are before the first one that was made with other settings than a complete request's."""
    wanted = settings_of(request)
    return next((step.index for step in steps if not _has(step.settings, wanted)), len(steps))


def settings_of(request: Request) -> dict[str, Any]:
    """What the steps of a complete request say of their settings, as far as it counts under its method."""
    method = find_method(request.method)
    wanted = {name: getattr(request, name) for name in ("method", "target", *Request.SAMPLING)}
    wanted |= {"draft_model": request.draft} if "draft" in method.roles else {}
    wanted |= {"rule": request.rule} if method.drafts else {}
    return wanted | ({"k": request.num_speculative_tokens} if method.sets_k else {})


def _has(made: Settings, wanted: Mapping[str, Any]) -> bool:
    return all(getattr(made, name) == value for name, value in wanted.items())


def ids_of(steps: Sequence[Step]) -> list[int]:
    return [token.id for step in steps for token in step.emitted]


def place_in(steps: Sequence[Step], selection: Place | None) -> Place | None:
    """What is selected, if these steps have such a token."""
    return None if selection is None or _id_at(steps, *selection) is None else selection


def mark_of(steps: Sequence[Step], place: Place) -> tuple[int, int]:
    """What tells a place that these steps have from others: the tokens before its step, and the id of its own."""
    return len(ids_of(steps[: place[0]])), _id_at(steps, *place)


def _id_at(steps: Sequence[Step], step: int, ref: str) -> int | None:
    if not 0 <= step < len(steps):
        return None
    if ref == LAST:
        token = last_token(steps[step])
        return token and token.id
    return next((token.id for node, token in enumerate(steps[step].draft) if ref == str(node)), None)


# ---- how a run of this machine compares with the shared one ---------------------------------------------------------


def comparison(link: Link, request: Request, trace: Trace) -> Props:
    """How the run of a request compares with the shared one, as far as it can be said: `state`, `words`, and `at` for
    the place that is to be selected."""
    if others := list(differences(link.request, request)):
        more = " and more" if len(others) > MOST_NAMED else ""
        named = f"{', '.join(others[:MOST_NAMED])}{more}"
        return {"state": "other", "words": [f"The run below has other settings than the shared one: {named}."]}
    steps, end = list(trace.steps), trace.footer
    steps, was_changed = _as_asked(steps, link.request)
    ids = ids_of(steps)
    if end is None and len(ids) < link.num_tokens and not was_changed:
        return {"state": "waiting", "words": ["The shared run is being made on this machine."]}
    if not link.num_tokens:
        return _unknown("The shared run was made here. Its link tells nothing of its text.")
    if len(ids) >= link.num_tokens:
        is_equal = digest(ids[: link.num_tokens]) == link.digest
        return _equal(link, steps) if is_equal else _different(link)
    return _shorter(link, end and end.reason, was_changed=was_changed)


def _as_asked(steps: Sequence[Step], request: Request) -> tuple[Sequence[Step], bool]:
    """The steps that were made with the settings of a request, and whether others follow."""
    count = steps_as_asked(steps, complete(request))
    return steps[:count], count < len(steps)


def _shorter(link: Link, reason: str | None, *, was_changed: bool) -> Props:
    """reason: for the end of a run that has fewer tokens than the shared one."""
    if was_changed:
        return _unknown("The settings were changed on the way: this text cannot be compared with the shared one.")
    if reason in ("eos", "length", "context"):
        return _different(link)
    return _unknown(
        f"This run ended before the {counted(link.num_tokens, 'token')} of the shared one: they cannot be compared."
    )


def _unknown(words: str) -> Props:
    return {"state": "unknown", "words": [words]}


def _equal(link: Link, steps: Sequence[Step]) -> Props:
    words = _equal_words(link)
    if link.selection is None:
        return {"state": "same", "words": words}
    is_there = place_in(steps, link.selection) and link.mark in (None, mark_of(steps, link.selection))
    if not is_there:
        return {"state": "same", "words": [*words[:2], f"{words[2]} What was selected there is not in this run."]}
    step, ref = link.selection
    selected = f"{words[2]} What was selected there is selected here."
    return {"state": "same", "words": [*words[:2], selected], "at": {"step": step, "ref": ref}}


def _equal_words(link: Link) -> Sentence:
    if not link.goes_on:
        return ["", "The same text as the shared run", f": {counted(link.num_tokens, 'token')}."]
    are = "token is" if link.num_tokens == 1 else f"{link.num_tokens:,} tokens are"
    return [
        "",
        f"The first {are} the same",
        "; after that the shared run went on with other settings: its file holds it.",
    ]


def _different(link: Link) -> Props:
    dropped = " The selection was dropped." if link.selection else ""
    words = f"This machine's run gave another text than the shared one: models or numbers differ.{dropped}"
    return {"state": "differs", "words": [words]}


# ---- what two requests differ in ------------------------------------------------------------------------------------


def is_same(one: Request, other: Request) -> bool:
    """Whether two requests ask for the same text, leaving out what does not count under their method."""
    return not any(differences(one, other))


def differences(shared: Request, here: Request) -> Iterator[str]:
    """What of `here` asks for another text than `shared`, each in words: "K 3 instead of 6"."""
    wanted, got = _counting(shared), _counting(here)
    if wanted["method"] != got["method"]:
        wanted, got = ({name: told[name] for name in _OF_ANY_METHOD} for told in (wanted, got))
    for name, before in wanted.items():
        if got[name] != before:
            yield _OTHERS.get(name) or f"{_TITLES.get(name, name)} {_spelled(got[name])} instead of {_spelled(before)}"


def _counting(request: Request) -> dict[str, Any]:
    """What counts under the method of a request; its parameters stand among the rest, by their titles."""
    method, values = find_method(request.method), complete(request).to_dict()
    own = {param.title: values["params"][param.name] for param in method.params}
    idle = {"draft": "draft" in method.roles, "k": method.sets_k, "rule": method.drafts, "params": False}
    return {name: value for name, value in values.items() if idle.get(name, True)} | own


def _spelled(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "on", False: "off", None: "none"}[value]
    if not isinstance(value, str):
        return f"{value:g}" if isinstance(value, float) else f"{value:,}"
    return _NAMES.get(value) or label(value)
