"""What models had to find out for a site without a server: the app's own sections, with every button pressed once."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone

import torch

from specviz import __version__
from specviz.errors import SpecvizError
from specviz.models.memory import environment
from specviz.session.workbench import Workbench, workbench
from specviz.trace.shipped import FIRST_VISIT
from specviz.ui.choices import Offer, make_offer
from specviz.ui.registry import Registry
from specviz.ui.reports.check import CheckSections
from specviz.ui.reports.compare import CompareSections
from specviz.ui.reports.race import RaceSection
from specviz.ui.reports.section import Look, Section, StagePlace
from specviz.views import blocks
from specviz.views.blocks import Props
from specviz.views.compare.race import chosen_values
from specviz.views.site import OF_A_RUN
from specviz.views.words import reveal

WHEN = (
    "Found by specviz {version} on {date} with torch {torch} on {device_name}, {threads} threads, for one "
    "recorded run. Speeds are those of that machine: your browser measures nothing."
)


def recorded_sections(say: Callable[[str], None]) -> dict[str, list[Props]]:
    """The sections of each page, after minutes of real work of the bundled models. say: is told what is done next."""
    bench, registry, offer = workbench(), Registry(), make_offer()
    view = registry.show(registry.find_recorded(FIRST_VISIT), None)
    return press_all(Look(StagePlace(view.id), view.trace), bench, registry, offer, say)


def press_all(
    look: Look, bench: Workbench, registry: Registry, offer: Offer, say: Callable[[str], None]
) -> dict[str, list[Props]]:
    """The same for a run of models that the workbench has."""
    pages = {
        "compare": [
            RaceSection(bench, offer, registry).section(),
            *CompareSections(bench, offer).sections(),
        ],
        "check": CheckSections(bench, offer).sections(),
    }
    machine = environment(torch.device(bench.pool.load(offer.first.target).info.device))
    when = WHEN.format(
        version=__version__, date=f"{datetime.now(timezone.utc):%Y-%m-%d}", **machine
    )
    found: dict[str, list[Props]] = {}
    for name, sections in pages.items():
        found[name] = [blocks.section("found", "How this was found", when)]
        for section in sections:
            if section.name not in OF_A_RUN:  # the site has those for every run
                say(re.sub("[-_]", " ", section.name))
                found[name].append(_without_server(_pressed(section, look, bench)))
    return found


def _pressed(section: Section, look: Look, bench: Workbench) -> Props:
    """The section once its first button was pressed, with the values of its fields; why not, where it could not be."""
    shown = section.begin(look)
    press = next(iter(section.acts.values()), None)
    values = {name: str(value) for name, value in chosen_values(shown).items()}
    work = press(look, values) if press else section.opening(look) if section.opening else None
    try:
        for state in bench.in_turns(work) if work else ():
            shown = state
    except SpecvizError as error:
        shown = {**shown, "blocks": [*shown["blocks"], blocks.words(reveal(str(error)))]}
    return shown


def _without_server(part: Props) -> Props:
    """A section or a fold without what only a server answers: files, and buttons in tables."""
    kept = [_without_server(each) for each in part.get("blocks", ()) if each["kind"] != "links"]
    rows = (
        [[_words(cell) for cell in row] for row in part.get("rows", ())]
        if part.get("kind") == "table"
        else None
    )
    return {
        **part,
        **({"blocks": kept} if "blocks" in part else {}),
        **({} if rows is None else {"rows": rows}),
    }


def _words(cell: blocks.Cell) -> blocks.Cell:
    return (
        {name: value for name, value in cell.items() if name != "does"}
        if isinstance(cell, Mapping)
        else cell
    )
