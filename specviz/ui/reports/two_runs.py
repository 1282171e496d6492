"""The section "two runs side by side": the runs to choose from, the two that are shown, and how they differ."""

from collections.abc import Mapping

import msgspec

from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.rules.facts import FACTS
from specviz.trace import Trace
from specviz.trace.first_difference import are_of_one_prompt
from specviz.trace.shipped import FIRST_VISIT, shipped_runs, shipped_trace
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Look, Section, Work
from specviz.views.blocks import PageSection
from specviz.views.compare import two_runs as pair
from specviz.views.compare.race import LETTERS, chosen_values
from specviz.views.compare.side_by_side_player import SideBySideBlock
from specviz.views.explore import library
from specviz.views.learn.lesson import SHIPPED
from specviz.views.words import CHANGE_NAMES, OF_TARGET, label, title_of

SEPARATOR = " · "  # of the parts of a title in the library
ONE_BY_ONE = "one-by-one"
GONE = "this run is gone, or has written nothing yet: open it again from the library"
MAY_DIFFER = {
    "seed": "seed",
    "rule": "rule",
    "k": "K",
    **{name: CHANGE_NAMES[name] for name in Request.ALL_SAMPLING},
    "max_new_tokens": "tokens",
    "target": "target",
    "draft": "draft",
    "params": "parameters",
    "stop": "stop texts",
}
"""The settings of a request in which two runs may differ, with their words."""


class TwoRunsSection:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def section(self) -> Section:
        return Section(
            pair.NAME,
            _id_on_stage,
            self._begin,
            {"show": self._show},
            engine=False,
            again=self._begin_again,
        )

    def _begin(self, look: Look) -> PageSection:
        options = self._options(look)
        left = SHIPPED + ONE_BY_ONE
        if left not in options:
            left = next(iter(options))
        right = _id_on_stage(look)
        if right is None:
            right = SHIPPED + FIRST_VISIT
        return pair.two_runs(_as_choices(options), (left, right))

    def _begin_again(self, look: Look, shown: PageSection) -> PageSection:
        """The section with another run on the stage: choices and results stay, and the lists are renewed."""
        chosen = tuple(chosen_values(shown).values())
        has_runs = any(isinstance(block, SideBySideBlock) for block in shown.blocks)
        if not has_runs or not all(self._is_known(value) for value in chosen):
            return self._begin(look)
        options = self._options(look, *chosen)
        section = pair.two_runs(_as_choices(options), chosen)
        return msgspec.structs.replace(section, blocks=shown.blocks)

    def _is_known(self, value: str) -> bool:
        try:
            return bool(self._trace(value).steps)
        except SpecvizError:
            return False

    def _options(self, look: Look, *chosen: str) -> dict[str, str]:
        """The runs to choose from, value -> words: the one on the stage, the recorded ones, and those chosen before."""
        options = {}
        run = _id_on_stage(look)
        if run is not None:
            options[run] = f"on Explore: {_describe(look.trace)}"
        for recorded in shipped_runs().values():
            options[SHIPPED + recorded.name] = f"recorded: {recorded.title}"
        for value in chosen:
            if value not in options:
                options[value] = _describe(self._trace(value))
        return options

    def _trace(self, value: str) -> Trace:
        """The run of this name or id, as it is now. Raises SpecvizError where there is none."""
        if value.startswith(SHIPPED):
            return shipped_trace(value.removeprefix(SHIPPED))
        view = self._registry.get(value)
        if view is None or not view.trace.steps:
            raise SpecvizError(GONE)
        return Trace(view.trace.events())

    def _show(self, look: Look, values: Mapping[str, str]) -> Work:
        chosen = (values.get("left", ""), values.get("right", ""))
        traces = (self._trace(chosen[0]), self._trace(chosen[1]))
        options = self._options(look, *chosen)
        names = [options[value] for value in chosen]
        is_recorded = any(value.startswith(SHIPPED) for value in chosen)
        if are_of_one_prompt(*traces) and not is_recorded:
            titles = [library.entry(trace).title for trace in traces]
            names = _drop_common(*titles)
        if names[0] == names[1]:
            differences = _differences(*traces)
            names = [_join(names[0], differences[0]), _join(names[1], differences[1])]
        titles = (f"{LETTERS[0]} · {names[0]}", f"{LETTERS[1]} · {names[1]}")
        yield pair.two_runs(_as_choices(options), chosen, traces, titles)


def _id_on_stage(look: Look) -> str | None:
    return None if look.run is None else look.place.run


def _as_choices(options: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(words, value) for value, words in options.items()]


def _drop_common(one: str, other: str) -> list[str]:
    """Two titles of the library without the parts that both have, except the method, which comes first."""
    parts = one.split(SEPARATOR)
    other_parts = other.split(SEPARATOR)
    if one == other or len(parts) != len(other_parts):
        return [one, other]
    left = [parts[0]]
    right = [other_parts[0]]
    for part, other_part in zip(parts[1:], other_parts[1:], strict=True):
        if part != other_part:
            left.append(part)
            right.append(other_part)
    return [SEPARATOR.join(left), SEPARATOR.join(right)]


def _describe(trace: Trace) -> str:
    """The run in the words of the library."""
    entry = library.entry(trace)
    return _join(entry.title, entry.words)


def _join(*words: str) -> str:
    return ", ".join(filter(None, words))


def _differences(one: Trace, other: Trace) -> list[str]:
    """Words for each of two runs with one title: the settings in which they differ, else when they were made."""
    left = {**Request.FILTERS, **one.header.request}
    right = {**Request.FILTERS, **other.header.request}
    names = [name for name in MAY_DIFFER if left.get(name) != right.get(name)]
    if names:
        return [_list_settings(names, left), _list_settings(names, right)]
    times = [label(one.header.created), label(other.header.created)]
    if times[0] == times[1]:
        return ["", ""]
    return [f"made {time}" for time in times]


def _list_settings(names: list[str], request: Mapping[str, object]) -> str:
    return ", ".join(f"{MAY_DIFFER[name]} {_spell(name, request.get(name))}" for name in names)


def _spell(name: str, value: object) -> str:
    if value is not None:
        return title_of(str(value), FACTS)
    return OF_TARGET if name in Request.DRAFT_SAMPLING else "its own"
