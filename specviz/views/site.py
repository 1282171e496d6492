"""specviz without a server: a folder that any web server hands out and a browser opens from disk.

The views and the runs are those of the one-file pages, each text in a file of its own; what models had to find out
(races, checks) is handed in as it was recorded. Loads no torch.
"""

from collections.abc import Mapping, Sequence

from specviz.trace import Trace
from specviz.trace.shipped import WELCOME, shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import Props, pack
from specviz.views.compare import plan, plan_theory
from specviz.views.document import folder
from specviz.views.documentation import document_page, documents
from specviz.views.explore.every_k import every_k
from specviz.views.explore.library import shipped_entry
from specviz.views.explore.opening import opening, telling_step
from specviz.views.learn.lesson_file import (
    learn_page,
    lesson_pairs,
    lesson_panels,
    run_text,
    side_by_side,
    site_body,
)
from specviz.views.words import reveal

TITLE = "specviz: speculative decoding, recorded"
PAGES = {
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
NO_COSTS = blocks.words(plan.NO_COSTS)
"""What a page without a button to measure with leaves out."""
OF_A_RUN = ("every-k", "theory", "tool-names")
"""Sections of Compare that speak of the run on the stage, by their ids."""


def site_files(
    recorded: Mapping[str, Sequence[Props]], report: str | None = None
) -> dict[str, str]:
    """Every file of the site by its path. recorded: the sections of "compare" and "check" that models have filled;
    report: the HTML page of an alignment job. Raises SpecvizError where a lesson or a run cannot be read."""
    runs = [WELCOME, *(name for name in shipped_runs() if name != WELCOME)]
    pairs = list(dict.fromkeys([*RACES, *lesson_pairs()]))
    side_by_sides = {"-".join(pair): pack(side_by_side(pair)) for pair in pairs}
    data = {
        "sv-data": pack(
            {
                "lessons": lesson_panels(),
                "pages": _pages(recorded, runs, pairs),
                "runs": runs,
                "side_by_sides": list(side_by_sides),
            }
        ),
        **{f"sv-side-by-side-{name}": text for name, text in side_by_sides.items()},
    }
    for name in runs:
        trace = shipped_trace(name)
        openings = (opening(trace, index) for index in range(len(trace.steps)))
        data |= {
            f"sv-run-{name}": run_text(name, charts=True),
            f"sv-opening-{name}": pack({"telling": telling_step(trace), "steps": [*openings]}),
            f"sv-of-{name}": pack(_of_run(trace)),
            f"sv-every-k-{name}": pack(every_k(trace)),
        }
    files = folder(
        TITLE,
        site_body("specviz", "explore", _links(report is not None)),
        entry="site.js",
        data=data,
    )
    helps = {
        f"{name.removesuffix('.md')}.html": document_page(name, ".html")
        for name in sorted(documents())
    }
    return files | helps | ({} if report is None else {"report.html": report})


def _links(has_report: bool) -> str:
    """The pages of the site, and the ways to its other files."""
    places = {f"#{name}": title for name, title in PAGES.items()} | {"docs/README.html": "Help"}
    places |= {"report.html": "Report"} if has_report else {}
    links = "".join(f'<a href="{place}">{title}</a>' for place, title in places.items())
    return f'<nav class="sv-pages" aria-label="Pages">{links}</nav>'


def _pages(
    recorded: Mapping[str, Sequence[Props]], runs: Sequence[str], pairs: Sequence[tuple[str, str]]
) -> dict[str, Props]:
    """The pages of sections; Compare has room for what speaks of the run on the stage."""
    known = shipped_runs()
    opened = [{**shipped_entry(known[name]), "href": f"#run={name}"} for name in runs]
    raced = [
        {
            "href": f"#side-by-side={'-'.join(pair)}",
            "title": " and ".join(reveal(known[name].title) for name in pair),
            "words": reveal(known[pair[1]].about),
            "facts": "",
        }
        for pair in pairs
    ]
    races = blocks.section("races", "Recorded races", RACES_LEAD, blocks=[blocks.places(raced)])
    compare = blocks.whole_page([races, *recorded.get("compare", ())])
    return {
        "runs": blocks.whole_page(
            [blocks.section("runs", "Recorded runs", RUNS_LEAD, blocks=[blocks.places(opened)])]
        ),
        "compare": {**compare, "order": [*compare["order"], *OF_A_RUN]},
        "check": blocks.whole_page(
            recorded.get("check") or [blocks.section("none", "Check", NOT_RECORDED)]
        ),
        "learn": learn_page(),
    }


def _of_run(trace: Trace) -> list[Props]:
    """The sections of OF_A_RUN, computed from the trace alone."""
    sections = [*plan_theory.given_text(trace), plan.tool_names(trace)]
    return [
        {**section, "blocks": [each for each in section["blocks"] if each != NO_COSTS]}
        for section in sections
    ]
