"""The section "two runs side by side": the runs to choose from, the two that are shown, and how they differ."""

from collections.abc import Mapping
from itertools import compress

from specviz.errors import SpecvizError
from specviz.request import Request
from specviz.rules.facts import FACTS
from specviz.trace import Trace
from specviz.trace.first_difference import are_of_one_prompt
from specviz.trace.shipped import FIRST_VISIT, shipped_runs, shipped_trace
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Look, Props, Section, Work
from specviz.views.compare import two_runs as pair
from specviz.views.compare.race import LETTERS, chosen_values
from specviz.views.explore import library
from specviz.views.learn.lesson import SHIPPED
from specviz.views.words import CHANGE_NAMES, OF_TARGET, label, title_of

SEPARATOR = " · "  # of the parts of a title in the library
ONE_BY_ONE = "one-by-one"
GONE = "this run is gone, or has written nothing yet: open it again from the library"
MAY_DIFFER = {
    "seed": "seed", "rule": "rule", "top_p": "top-p", "top_k": "top-k", "k": "K", "temperature": "temperature",
    "max_new_tokens": "tokens", "target": "target", "draft": "draft", "params": "parameters", "stop": "stop texts",
    **{name: CHANGE_NAMES[name] for name in Request.DRAFT_SAMPLING},
}  # fmt: skip


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

    def _begin(self, look: Look) -> Props:
        options, run = self._options(look), _id_on_stage(look)
        left = SHIPPED + ONE_BY_ONE if SHIPPED + ONE_BY_ONE in options else next(iter(options))
        return pair.two_runs(
            _as_choices(options), (left, SHIPPED + FIRST_VISIT if run is None else run)
        )

    def _begin_again(self, look: Look, shown: Props) -> Props:
        """With another run on the stage: choices and results stay, and the lists are made again."""
        chosen = tuple(chosen_values(shown).values())
        has_runs = any(block["kind"] == "side_by_side" for block in shown["blocks"])
        if not has_runs or not all(map(self._is_known, chosen)):
            return self._begin(look)
        return {
            **pair.two_runs(_as_choices(self._options(look, *chosen)), chosen),
            "blocks": shown["blocks"],
        }

    def _is_known(self, value: str) -> bool:
        try:
            return bool(self._trace(value).steps)
        except SpecvizError:
            return False

    def _options(self, look: Look, *others: str) -> dict[str, str]:
        """value -> words: the run on the stage, the recorded ones, and `others` of the registry."""
        run = _id_on_stage(look)
        stage = {} if run is None else {run: f"on Explore: {_describe(look.trace)}"}
        known = stage | {
            SHIPPED + each.name: f"recorded: {each.title}" for each in shipped_runs().values()
        }
        return known | {each: _describe(self._trace(each)) for each in others if each not in known}

    def _trace(self, value: str) -> Trace:
        """The run of this name or id, as it is now. SpecvizError where there is none."""
        if value.startswith(SHIPPED):
            return shipped_trace(value.removeprefix(SHIPPED))
        seen = self._registry.get(value)
        if seen is None or not seen.trace.steps:
            raise SpecvizError(GONE)
        return Trace(seen.trace.events())

    def _show(self, look: Look, values: Mapping[str, str]) -> Work:
        chosen = values.get("left", ""), values.get("right", "")
        traces = self._trace(chosen[0]), self._trace(chosen[1])
        options = self._options(look, *chosen)
        names = [options[value] for value in chosen]
        if are_of_one_prompt(*traces) and not any(value.startswith(SHIPPED) for value in chosen):
            names = _drop_common(*(library.entry(trace)["title"] for trace in traces))
        if names[0] == names[1]:
            names = [
                ", ".join(filter(None, each))
                for each in zip(names, _differences(*traces), strict=True)
            ]
        left, right = (f"{letter} · {name}" for letter, name in zip(LETTERS, names, strict=True))
        yield pair.two_runs(_as_choices(options), chosen, traces, (left, right))


def _id_on_stage(look: Look) -> str | None:
    return None if look.run is None else look.place.run


def _as_choices(options: Mapping[str, str]) -> list[tuple[str, str]]:
    return [(words, value) for value, words in options.items()]


def _drop_common(one: str, other: str) -> list[str]:
    """Two titles of the library without the parts that both have, except the method."""
    parts = [title.split(SEPARATOR) for title in (one, other)]
    if one == other or len(parts[0]) != len(parts[1]):
        return [one, other]
    keeps = [not place or both[0] != both[1] for place, both in enumerate(zip(*parts, strict=True))]
    return [SEPARATOR.join(compress(each, keeps)) for each in parts]


def _describe(trace: Trace) -> str:
    """A run in the words of the library."""
    entry = library.entry(trace)
    return ", ".join(filter(None, [entry["title"], entry["words"]]))


def _differences(one: Trace, other: Trace) -> list[str]:
    """The settings in which two runs with one title differ, for each of them; of equal ones when they were made."""
    requests = [trace.header.request for trace in (one, other)]
    names = [name for name in MAY_DIFFER if requests[0].get(name) != requests[1].get(name)]
    if names:
        return [
            ", ".join(f"{MAY_DIFFER[name]} {_spell(name, each.get(name))}" for name in names)
            for each in requests
        ]
    made = [label(trace.header.created) for trace in (one, other)]
    return [f"made {when}" for when in made] if made[0] != made[1] else ["", ""]


def _spell(name: str, value: object) -> str:
    if value is None and name in Request.DRAFT_SAMPLING:
        return OF_TARGET
    return "its own" if value is None else title_of(str(value), FACTS)
