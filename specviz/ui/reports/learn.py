"""The Learn page: the plan with its lessons, and the two games."""

from __future__ import annotations

from specviz.session.workbench import Workbench
from specviz.ui.choices import Offer
from specviz.ui.registry import Registry
from specviz.ui.reports.games import Playing
from specviz.ui.reports.section import Look, Props, Section
from specviz.views.learn.plan import NAME, plan


class Learning:
    """The sections of the page."""

    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._games = Playing(bench, offer, registry)

    def sections(self) -> list[Section]:
        return [Section(NAME, _always, _plan), *self._games.sections()]


def _always(look: Look) -> str:
    return NAME


def _plan(look: Look) -> Props:
    return plan()
