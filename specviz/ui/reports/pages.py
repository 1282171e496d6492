"""The report pages by name, each with its sections."""

from __future__ import annotations

from specviz.session.workbench import Workbench
from specviz.ui.choices import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports.check import CheckSections
from specviz.ui.reports.compare import CompareSections
from specviz.ui.reports.games import Games
from specviz.ui.reports.race import RaceSection
from specviz.ui.reports.report import Report
from specviz.ui.reports.section import Section
from specviz.ui.reports.two_runs import TwoRunsSection
from specviz.views.learn import plan


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, Report]:
    race, two_runs = RaceSection(bench, offer, registry).section(), TwoRunsSection(registry).section()
    lessons = Section(plan.NAME, lambda look: plan.NAME, lambda look: plan.plan())
    pages = {
        "compare": [race, two_runs, *CompareSections(bench, offer).sections()],
        "check": CheckSections(bench, offer).sections(),
        "learn": [lessons, *Games(bench, offer, registry).sections()],
    }
    return {name: Report(sections, registry, bench) for name, sections in pages.items()}
