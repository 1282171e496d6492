"""What the library says of a run, in words: how it was made, how its prompt begins, its numbers and its date.

Everything in a trace is untrusted: names and texts are cut short and made harmless. Loads no model.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from itertools import groupby
from typing import Any

from specviz.drafters import METHODS
from specviz.errors import SpecvizError
from specviz.request import MAX_SEED
from specviz.rules.facts import FACTS, facts_of
from specviz.trace import Header, Settings, Trace
from specviz.trace.metrics import METRICS, count, lossy_words, metrics, rounding_words
from specviz.trace.shipped import ShippedRun, shipped_trace
from specviz.views.blocks import Props
from specviz.views.explore.feed import INCOMPLETE
from specviz.views.words import label, own_sampling, quantity, reveal, title_of

MOST_WORDS = 12  # of a prompt
MOST_CHARACTERS = 64  # of these
MOST_CHANGES = 3  # values of one setting that a title names
MOST_PARAMS = 3  # of a method
PER_CALL = "tokens_per_target_call"
Usual = Callable[[str], Mapping[str, Any]]
"""A method's name -> its parameters as they usually are, and its `rule`."""


def entry(trace: Trace, usual: Usual | None = None) -> Props:
    """The `title`, the `words` below it and the `facts` of one run that is over; `date`: when it was made, for the
    browser to write in local time. Without `usual` the parameters of methods are left out."""
    created = "" if trace.header is None else trace.header.created
    is_date = _is_date(created)
    facts = (
        _numbers(trace),
        _seed(trace.header),
        trace.footer is None and INCOMPLETE,
        not is_date and label(created),
    )
    return {
        "title": _title(trace, usual),
        "words": _beginning(trace.header),
        "facts": " · ".join(filter(None, facts)),
        "date": created if is_date else "",
    }


def shipped_entry(run: ShippedRun) -> Props:
    """The same of a run that comes with specviz, with its `name`, without a date; one that cannot be read says so."""
    try:
        facts = _numbers(shipped_trace(run.name))
    except SpecvizError as error:
        facts = f"cannot be read: {reveal(str(error))}"
    return {"name": run.name, "title": run.title, "words": run.about, "facts": facts}


def _title(trace: Trace, usual: Usual | None) -> str:
    """Method, draft, K, temperature, and whatever else is not as usual, with the changes made during the run."""
    parts = (
        _list_values(trace, lambda now: title_of(now.method, METHODS)),
        _list_values(trace, lambda now: now.draft_model and label(now.draft_model)),
        _list_values(trace, lambda now: now.k and str(now.k), "K "),
        _list_values(trace, lambda now: f"{now.temperature:g}", "temperature "),
        _list_values(trace, lambda now: f"{now.top_p:g}", "top-p ", usual="1"),
        _list_values(trace, lambda now: str(now.top_k), "top-k ", usual="0"),
        _list_values(trace, own_sampling),
        _rules(trace, usual),
        usual and _list_values(trace, lambda now: _params(now, usual)),
        _chat_options(trace.header),
    )
    return " · ".join(filter(None, parts)) or "No step was made"


def _rules(trace: Trace, usual: Usual | None) -> str:
    """Empty where every step was judged by its method's own rule."""
    own = [
        (usual(step.settings.method) if usual else {}).get("rule", facts_of(None).name)
        for step in trace.steps
    ]
    is_usual = all(
        step.settings.rule in (None, name) for step, name in zip(trace.steps, own, strict=True)
    )
    return (
        "" if is_usual else _list_values(trace, lambda now: now.rule and title_of(now.rule, FACTS))
    )


def _params(now: Settings, usual: Usual) -> str:
    """The method's own parameters, as far as they are not what is usual."""
    own = usual(now.method)
    others = {
        name: value
        for name, value in now.params.items()
        if value is not None and value != own.get(name)
    }
    return _list_named(others)


def _chat_options(header: Header | None) -> str:
    """The switches of the chat template that were set."""
    options = None if header is None else header.request.get("chat_options")
    return _list_named(options) if isinstance(options, Mapping) else ""


def _list_named(values: Mapping[str, Any]) -> str:
    words = [
        f"{label(name.replace('_', ' '))} {label(str(value))}" for name, value in values.items()
    ]
    more = ["…"] if len(words) > MOST_PARAMS else []
    return ", ".join([*words[:MOST_PARAMS], *more])


def _list_values(
    trace: Trace, value: Callable[[Settings], Any], name: str = "", *, usual: str = ""
) -> str:
    """The values of one setting in the order of the steps: "K 4 → 8"; "" where all are `usual` or there is none."""
    values = [str(now) for now, _ in groupby(value(step.settings) for step in trace.steps) if now]
    more = ["…"] if len(values) > MOST_CHANGES else []
    return (
        name + " → ".join([*values[:MOST_CHANGES], *more]) if values and values != [usual] else ""
    )


def _beginning(header: Header | None) -> str:
    """The first words of the prompt as it was typed, in quotation marks."""
    if header is None:
        return ""
    typed = header.request.get("prompt")
    text = typed if isinstance(typed, str) and typed.strip() else header.prompt.text
    words = text[: 16 * MOST_CHARACTERS].split()
    shown = reveal(" ".join(words[:MOST_WORDS]))[:MOST_CHARACTERS].rstrip()
    is_whole = (
        len(words) <= MOST_WORDS
        and shown == reveal(" ".join(words))
        and len(text) <= 16 * MOST_CHARACTERS
    )
    return f"“{shown}{'' if is_whole else ' …'}”"


def _seed(header: Header | None) -> str:
    seed = None if header is None else header.request.get("seed")
    return f"seed {seed}" if type(seed) is int and 0 < seed <= MAX_SEED else ""


def _numbers(trace: Trace) -> str:
    counters = count(trace)
    per_call = metrics(counters)[PER_CALL]
    words = (
        quantity(counters.num_emitted, "token"),
        per_call is not None and f"{METRICS[PER_CALL].spell(per_call)} {METRICS[PER_CALL].label}",
        lossy_words(counters) or rounding_words(counters),
    )
    return " · ".join(filter(None, words))


def _is_date(created: str) -> bool:
    try:
        datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True
