"""The report of an alignment job as one HTML file."""

from __future__ import annotations

from collections.abc import Iterable

from specviz.alignment.report.sections import TITLE, sections
from specviz.alignment.report.texts import TextView, texts_block
from specviz.alignment.summary import Summary
from specviz.views.document import page


def report_page(summary: Summary, texts: Iterable[TextView] = ()) -> str:
    """The report of an alignment job. texts: read once, in order; those beyond the page's limit are counted only."""
    names = [draft.name for draft in summary.drafts]
    return page(TITLE, sections(summary, texts_block(texts, names, summary.num_prompts)))
