"""What models find out for a site: the app's own sections, every button pressed once, and nothing left to press."""

import pytest
from msgspec import UNSET

from specviz.session import workbench
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Look, StagePlace
from specviz.ui.reports.site import press_all
from specviz.views.blocks import LinksBlock, ProgressBlock, TableBlock, TableCell, VerdictBlock
from specviz.views.compare.side_by_side_player import SideBySideBlock
from specviz.views.site import site_files
from tests.helpers import tiny_server as pages
from tests.helpers.few_claims import few_claims
from tests.helpers.page_records import every_block

pytestmark = pytest.mark.slow

KINDS = {
    "compare": [
        "found",
        "race",
        "costs",
        "other-drafts",
        "draft-temperature",
        "many-prompts",
        "why-slow",
        "waits",
        "claims",
        "poor-cases",
        "lossy",
        "claim-numbers",
    ],
    "check": ["found", "identity", "one_step", "end_to_end", "side_by_side", "self_checks", "someone_else"],
}


def test_every_section_is_filled_by_real_work_and_asks_for_no_server(tmp_path, monkeypatch):
    few_claims(monkeypatch)
    with pages.served(tmp_path) as served:
        bench, registry, said = served.page.bench, Registry(), []
        monkeypatch.setattr(workbench, "_shared", [workbench.Workbench(bench.pool)])
        view = registry.keep(served.trace())
        found = press_all(Look(StagePlace(view.id), view.trace), bench, registry, pages.tiny_offer(), said.append)
    assert {page: [section.id for section in sections] for page, sections in found.items()} == KINDS
    shown = {section.id: list(every_block(section.blocks)) for sections in found.values() for section in sections}
    assert any(isinstance(block, SideBySideBlock) for block in shown["race"])
    assert any(isinstance(block, VerdictBlock) for block in shown["end_to_end"])
    assert any(isinstance(block, (VerdictBlock, TableBlock)) for block in shown["self_checks"])
    assert all(not isinstance(block, (LinksBlock, ProgressBlock)) for each in shown.values() for block in each)
    cells = [
        cell
        for each in shown.values()
        for block in each
        if isinstance(block, TableBlock)
        for row in block.rows
        for cell in row
    ]
    assert not [cell for cell in cells if isinstance(cell, TableCell) and cell.does is not UNSET]
    assert any(name.startswith("data/") for name in site_files(found))
    assert "race" in said
