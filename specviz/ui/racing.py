"""The first sections of the Compare page: a race of two setups on one prompt, and two runs side by side."""

from __future__ import annotations

from specviz.session import Workbench
from specviz.ui.offer import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports import Section


class Racing:
    """The sections "race" and "two-runs"."""

    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench, self._offer, self._registry = bench, offer, registry

    def sections(self) -> list[Section]:
        return []
