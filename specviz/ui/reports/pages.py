"""The report pages by name, each with its sections."""

from __future__ import annotations

from specviz.session.workbench import Workbench
from specviz.ui.choices import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports.check import Checking
from specviz.ui.reports.compare import Comparing
from specviz.ui.reports.learn import Learning
from specviz.ui.reports.race import Racing
from specviz.ui.reports.report import Report
from specviz.ui.reports.two_runs import Pairing


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, Report]:
    race, two_runs = Racing(bench, offer, registry).section(), Pairing(registry).section()
    compare = [race, two_runs, *Comparing(bench, offer).sections()]
    learn = Learning(bench, offer, registry).sections()
    pages = {"compare": compare, "check": Checking(bench, offer).sections(), "learn": learn}
    return {name: Report(sections, registry, bench) for name, sections in pages.items()}
