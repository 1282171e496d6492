"""The two games of the Learn page: predict the verdict, and you are the draft model."""

from __future__ import annotations

from specviz.session import Workbench
from specviz.ui.offer import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports import Section


class Playing:
    """The sections "predict" and "be-the-draft"."""

    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench, self._offer, self._registry = bench, offer, registry

    def sections(self) -> list[Section]:
        return []
