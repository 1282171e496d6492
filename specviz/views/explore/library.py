"""A run's entry in the library, in words: how it was made, how its prompt begins, its numbers and its date.

Everything in a trace is untrusted: names and texts are shortened and made harmless. Loads no model.
"""

from collections.abc import Callable, Mapping, Sequence
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
from specviz.views.explore.feed import INCOMPLETE
from specviz.views.explore.panels import RunEntry, ShippedEntry
from specviz.views.words import label, own_sampling, quantity, reveal, title_of

MOST_WORDS = 12  # of a prompt
MOST_CHARACTERS = 64  # of these
MOST_CHANGES = 3  # values of one setting that a title names
MOST_PARAMS = 3  # of a method
PER_CALL = "tokens_per_target_call"
Usual = Callable[[str], Mapping[str, Any]]
"""A method's name -> its usual parameters, and its `rule`."""


def entry(trace: Trace, usual: Usual | None = None) -> RunEntry:
    """The entry of one run that is over.

    The browser writes the date in local time. Without `usual` the parameters of methods are left out.
    """
    created = "" if trace.header is None else trace.header.created
    is_date = _is_date(created)
    facts = [
        _numbers(trace),
        _seed(trace.header),
        INCOMPLETE if trace.footer is None else "",
        "" if is_date else label(created),
    ]
    date = created if is_date else ""
    return RunEntry(_title(trace, usual), _beginning(trace.header), _join(facts), date)


def shipped_entry(run: ShippedRun) -> ShippedEntry:
    """The entry of a run that comes with specviz. It says if the run is unreadable."""
    try:
        facts = _numbers(shipped_trace(run.name))
    except SpecvizError as error:
        facts = f"cannot be read: {reveal(str(error))}"
    return ShippedEntry(run.name, run.title, run.about, facts)


def _join(parts: Sequence[str]) -> str:
    return " · ".join(part for part in parts if part)


def _title(trace: Trace, usual: Usual | None) -> str:
    """Method, draft, K, temperature, and whatever else is not as usual, with the changes made during the run."""
    parts = [
        _record(trace.header),
        _list_values(trace, lambda settings: title_of(settings.method, METHODS)),
        _list_values(trace, lambda settings: label(settings.draft_model or "")),
        _list_values(trace, lambda settings: str(settings.k or ""), "K "),
        _list_values(trace, lambda settings: f"{settings.temperature:g}", "temperature "),
        _list_values(trace, lambda settings: f"{settings.top_p:g}", "top-p ", usual="1"),
        _list_values(trace, lambda settings: str(settings.top_k), "top-k ", usual="0"),
        _list_values(trace, lambda settings: f"{settings.min_p:g}", "min-p ", usual="0"),
        _list_values(trace, own_sampling),
        _rules(trace, usual),
    ]
    if usual is not None:
        parts.append(_list_values(trace, lambda settings: _params(settings, usual)))
    parts.append(_chat_options(trace.header))
    return _join(parts) or "No step was made"


def _record(header: Header | None) -> str:
    """The request of another engine's record that the steps belong to; empty for a run of specviz."""
    if header is None or "record" not in header.environment:
        return ""
    words = label(str(header.environment["record"]))
    return f"{words}, request {label(str(header.environment.get('request')))}"


def _rules(trace: Trace, usual: Usual | None) -> str:
    """The rules that judged the steps; empty where every step was judged by its method's own rule."""
    is_usual = True
    for step in trace.steps:
        usual_params = usual(step.settings.method) if usual else {}
        own_rule = usual_params.get("rule", facts_of(None).name)
        is_usual = is_usual and step.settings.rule in (None, own_rule)
    if is_usual:
        return ""
    return _list_values(
        trace, lambda settings: title_of(settings.rule, FACTS) if settings.rule else ""
    )


def _params(settings: Settings, usual: Usual) -> str:
    """The method's own parameters, as far as they are not usual."""
    usual_params = usual(settings.method)
    changed = {}
    for name, value in settings.params.items():
        if value is not None and value != usual_params.get(name):
            changed[name] = value
    return _list_named(changed)


def _chat_options(header: Header | None) -> str:
    """The switches of the chat template that were set."""
    options = None if header is None else header.request.get("chat_options")
    return _list_named(options) if isinstance(options, Mapping) else ""


def _list_named(values: Mapping[str, Any]) -> str:
    words = []
    for name, value in values.items():
        words.append(f"{label(name.replace('_', ' '))} {label(str(value))}")
    more = ["…"] if len(words) > MOST_PARAMS else []
    return ", ".join([*words[:MOST_PARAMS], *more])


def _list_values(
    trace: Trace, spell: Callable[[Settings], str], name: str = "", *, usual: str = ""
) -> str:
    """The values of one setting in the order of the steps: "K 4 → 8"; "" where all are `usual` or there is none."""
    spelled = [spell(step.settings) for step in trace.steps if not step.settings.is_foreign]
    values = [value for value, _ in groupby(spelled) if value]
    if not values or values == [usual]:
        return ""
    more = ["…"] if len(values) > MOST_CHANGES else []
    return name + " → ".join([*values[:MOST_CHANGES], *more])


def _beginning(header: Header | None) -> str:
    """The first words of the prompt as it was typed, in quotation marks."""
    if header is None:
        return ""
    typed = header.request.get("prompt")
    text = typed if isinstance(typed, str) and typed.strip() else header.prompt.text
    most_read = 16 * MOST_CHARACTERS
    words = text[:most_read].split()
    shown = reveal(" ".join(words[:MOST_WORDS]))[:MOST_CHARACTERS].rstrip()
    is_whole = len(text) <= most_read and shown == reveal(" ".join(words))
    if len(words) > MOST_WORDS or not is_whole:
        shown += " …"
    return f"“{shown}”" if shown else ""


def _seed(header: Header | None) -> str:
    seed = None if header is None else header.request.get("seed")
    return f"seed {seed}" if type(seed) is int and 0 < seed <= MAX_SEED else ""


def _numbers(trace: Trace) -> str:
    """The run's length, its tokens per target call, and the caveat on its text."""
    counters = count(trace)
    words = [quantity(counters.num_emitted, "token")]
    per_call = metrics(counters)[PER_CALL]
    if per_call is not None:
        words.append(f"{METRICS[PER_CALL].spell(per_call)} {METRICS[PER_CALL].label}")
    words.append(lossy_words(counters) or rounding_words(counters))
    return _join(words)


def _is_date(created: str) -> bool:
    try:
        datetime.strptime(created, "%Y-%m-%dT%H:%M:%SZ")
    except ValueError:
        return False
    return True
