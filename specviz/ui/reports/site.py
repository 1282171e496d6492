"""The sections of a site without a server: the app's own, with every button pressed once while there are models."""

import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone

import msgspec
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
from specviz.views.blocks import (
    DetailsBlock,
    LinksBlock,
    PageBlock,
    PageSection,
    TableBlock,
    TableCell,
)
from specviz.views.compare.race import chosen_values
from specviz.views.site import OF_A_RUN
from specviz.views.words import reveal

WHEN = (
    "Found by specviz {version} on {date} with torch {torch} on {device_name}, {threads} threads, for one "
    "recorded run. Speeds are those of that machine: your browser measures nothing."
)


def recorded_sections(say: Callable[[str], None]) -> dict[str, list[PageSection]]:
    """The sections of each page, after minutes of real work of the bundled models. say: is told what is done next."""
    bench = workbench()
    registry = Registry()
    view = registry.show(registry.find_recorded(FIRST_VISIT), None)
    look = Look(StagePlace(view.id), view.trace)
    return press_all(look, bench, registry, make_offer(), say)


def press_all(
    look: Look, bench: Workbench, registry: Registry, offer: Offer, say: Callable[[str], None]
) -> dict[str, list[PageSection]]:
    """The sections of each page for a run of models that the workbench has."""
    race = RaceSection(bench, offer, registry).section()
    pages = {
        "compare": [race, *CompareSections(bench, offer).sections()],
        "check": CheckSections(bench, offer).sections(),
    }
    target = bench.pool.load(offer.first.target)
    machine = environment(torch.device(target.info.device))
    date = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    when = WHEN.format(version=__version__, date=date, **machine)
    found: dict[str, list[PageSection]] = {}
    for name, sections in pages.items():
        found[name] = [blocks.PageSection("found", "How this was found", when)]
        for section in sections:
            if section.name not in OF_A_RUN:  # the site has those for every run
                say(re.sub("[-_]", " ", section.name))
                pressed = _press_first(section, look, bench)
                shown = _without_server(pressed.blocks)
                found[name].append(msgspec.structs.replace(pressed, blocks=shown))
    return found


def _press_first(section: Section, look: Look, bench: Workbench) -> PageSection:
    """The section once its first button was pressed, with the values of its fields, or why that could not be done."""
    shown = section.begin(look)
    values = {name: str(value) for name, value in chosen_values(shown).items()}
    work = None
    if section.acts:
        press = next(iter(section.acts.values()))
        work = press(look, values)
    elif section.opening:
        work = section.opening(look)
    if work is None:
        return shown
    try:
        for state in bench.in_turns(work):
            shown = state
    except SpecvizError as error:
        words = blocks.WordsBlock(reveal(str(error)))
        shown = msgspec.structs.replace(shown, blocks=[*shown.blocks, words])
    return shown


def _without_server(shown: Sequence[PageBlock]) -> list[PageBlock]:
    """The blocks without what only a server answers: files, and buttons in tables."""
    left = []
    for block in shown:
        if isinstance(block, DetailsBlock):
            inside = _without_server(block.blocks)
            left.append(msgspec.structs.replace(block, blocks=inside))
        elif isinstance(block, TableBlock):
            rows = []
            for row in block.rows:
                rows.append([_without_button(cell) for cell in row])
            left.append(msgspec.structs.replace(block, rows=rows))
        elif not isinstance(block, LinksBlock):
            left.append(block)
    return left


def _without_button(cell: blocks.Cell) -> blocks.Cell:
    if isinstance(cell, TableCell):
        return msgspec.structs.replace(cell, does=msgspec.UNSET)
    return cell
