"""The report pages by name, each with its sections."""

from __future__ import annotations

from specviz.session import Workbench
from specviz.ui.checking import Checking
from specviz.ui.comparing import Comparing
from specviz.ui.offer import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports import Report


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, Report]:
    pages = {"compare": Comparing(bench, offer), "check": Checking(bench, offer)}
    return {name: Report(page.sections(), registry, bench) for name, page in pages.items()}
