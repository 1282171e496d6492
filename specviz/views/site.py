"""A site of specviz without a server: a folder that any web server hands out and a browser opens from disk.

It has the views and the runs of the one-file pages, each text in a file of its own. Results that need models (races,
checks) are handed in as they were recorded. Loads no torch.
"""

from collections.abc import Mapping, Sequence

import msgspec

from specviz.trace import Trace
from specviz.trace.shipped import WELCOME, shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import PageMessage, PageRecord, PageSection, PlaceLink, pack
from specviz.views.compare import plan, plan_theory
from specviz.views.document import folder
from specviz.views.documentation import document_page, documents
from specviz.views.explore.every_k import every_k
from specviz.views.explore.library import shipped_entry
from specviz.views.explore.message import Opening
from specviz.views.explore.opening import opening, telling_step
from specviz.views.languages import packed_languages
from specviz.views.learn.lesson_file import (
    SiteContent,
    learn_page,
    lesson_pairs,
    lesson_panels,
    run_text,
    side_by_side,
    site_body,
)
from specviz.views.live import LIVE, live_data
from specviz.views.words import reveal

TITLE = "specviz: speculative decoding"
PAGES = {
    "live": "Try it",
    "explore": "Explore",
    "runs": "Runs",
    "compare": "Compare",
    "check": "Check",
    "learn": "Learn",
}
RACES = (
    ("one-by-one", "first-visit"),
    ("real-alone", "real-eagle"),
    ("first-visit", "misaligned-draft"),
)
RUNS_LEAD = "Each opens on Explore, with every probability behind every token. All were recorded on a real machine."
RACES_LEAD = (
    "Two recorded runs side by side: one player moves both, by recorded time or token by token."
)
NOT_RECORDED = "Nothing was recorded here: this site was written without its measurements."
NO_COSTS = blocks.WordsBlock(plan.NO_COSTS)
"""The block that a page without a button to measure with leaves out."""
OF_A_RUN = ("every-k", "theory", "tool-names")
"""The ids of the sections of Compare that speak of the run on the stage."""


class RunOpenings(PageRecord):
    """The explanations of all steps of a recorded run."""

    telling: int  # the step that is explained at first
    steps: Sequence[Opening]


def site_files(
    recorded: Mapping[str, Sequence[PageSection]], report: str | None = None
) -> dict[str, str]:
    """Every file of the site by its path.

    recorded: the sections of "compare" and "check" that models have filled. report: the HTML page of an alignment job.
    Raises SpecvizError where a lesson or a run cannot be read.
    """
    runs = [WELCOME, *(name for name in shipped_runs() if name != WELCOME)]
    pairs = list(dict.fromkeys([*RACES, *lesson_pairs()]))
    names_of_pairs = ["-".join(pair) for pair in pairs]
    pages = _pages(recorded, runs, pairs)
    content = SiteContent(lesson_panels(), pages, runs, names_of_pairs)
    data = {"sv-data": pack(content), **packed_languages(), **live_data()}
    for name, pair in zip(names_of_pairs, pairs, strict=True):
        data[f"sv-side-by-side-{name}"] = pack(side_by_side(pair))
    for name in runs:
        data |= _run_data(name)
    body = site_body("specviz", "live", _links(report is not None), LIVE)
    files = folder(TITLE, body, entry="site.js", data=data, computes=True)
    for name in sorted(documents()):
        files[f"{name.removesuffix('.md')}.html"] = document_page(name, ".html")
    if report is not None:
        files["report.html"] = report
    return files


def _run_data(name: str) -> dict[str, str]:
    """The data files of one recorded run."""
    trace = shipped_trace(name)
    openings = [opening(trace, index) for index in range(len(trace.steps))]
    return {
        f"sv-run-{name}": run_text(name, charts=True),
        f"sv-opening-{name}": pack(RunOpenings(telling_step(trace), openings)),
        f"sv-of-{name}": pack(of_run(trace)),
        f"sv-every-k-{name}": pack(every_k(trace)),
    }


def _links(has_report: bool) -> str:
    """Links to the pages of the site, and to its other files."""
    places = {f"#{name}": title for name, title in PAGES.items()}
    places["docs/README.html"] = "Help"
    if has_report:
        places["report.html"] = "Report"
    links = [f'<a href="{place}">{title}</a>' for place, title in places.items()]
    return f'<nav class="sv-pages" aria-label="Pages">{"".join(links)}</nav>'


def _pages(
    recorded: Mapping[str, Sequence[PageSection]],
    runs: Sequence[str],
    pairs: Sequence[tuple[str, str]],
) -> dict[str, PageMessage]:
    """The pages of sections; Compare has room for the sections on the run that is on the stage."""
    known = shipped_runs()
    opened = []
    for name in runs:
        entry = shipped_entry(known[name])
        opened.append(PlaceLink(f"#run={name}", entry.title, entry.words, entry.facts))
    raced = []
    for first, second in pairs:
        href = f"#side-by-side={first}-{second}"
        title = f"{reveal(known[first].title)} and {reveal(known[second].title)}"
        raced.append(PlaceLink(href, title, reveal(known[second].about), ""))
    run_list = blocks.PageSection(
        "runs", "Recorded runs", RUNS_LEAD, blocks=[blocks.PlacesBlock(opened)]
    )
    races = blocks.PageSection(
        "races", "Recorded races", RACES_LEAD, blocks=[blocks.PlacesBlock(raced)]
    )
    compare = blocks.whole_page([races, *recorded.get("compare", ())])
    order = [*(section.id for section in compare.sections), *OF_A_RUN]
    compare = msgspec.structs.replace(compare, order=order)
    checks = recorded.get("check") or [blocks.PageSection("none", "Check", NOT_RECORDED)]
    return {
        "runs": blocks.whole_page([run_list]),
        "compare": compare,
        "check": blocks.whole_page(checks),
        "learn": learn_page(),
    }


def of_run(trace: Trace) -> list[PageSection]:
    """The sections of OF_A_RUN, computed from the trace alone."""
    sections = []
    for section in (*plan_theory.given_text(trace), plan.tool_names(trace)):
        shown = [block for block in section.blocks if block != NO_COSTS]
        sections.append(msgspec.structs.replace(section, blocks=shown))
    return sections
