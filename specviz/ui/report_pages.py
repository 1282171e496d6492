"""The report pages by name, each with its sections."""

from __future__ import annotations

from specviz.session import Workbench
from specviz.ui.checking import Checking
from specviz.ui.comparing import Comparing
from specviz.ui.learning import Learning
from specviz.ui.offer import Offer
from specviz.ui.pairing import Pairing
from specviz.ui.racing import Racing
from specviz.ui.registry import Registry
from specviz.ui.reports import Report


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, Report]:
    race, two_runs = Racing(bench, offer, registry).section(), Pairing(registry).section()
    compare = [race, two_runs, *Comparing(bench, offer).sections()]
    learn = Learning(bench, offer, registry).sections()
    pages = {"compare": compare, "check": Checking(bench, offer).sections(), "learn": learn}
    return {name: Report(sections, registry, bench) for name, sections in pages.items()}
