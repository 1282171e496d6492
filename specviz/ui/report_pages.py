"""The report pages by name, each with its sections."""

from __future__ import annotations

from specviz.session import Workbench
from specviz.ui.offer import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports import Report


def reports(registry: Registry, bench: Workbench, offer: Offer) -> dict[str, Report]:
    return {"compare": Report([], registry, bench), "check": Report([], registry, bench)}
