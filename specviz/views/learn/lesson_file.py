"""All lessons in one HTML file: their texts, the recorded runs that they use, the stage, two runs side by side, a game.

It opens from disk without network and server, and leaves out all parts that need a model. Runs are stored compressed
and are unpacked when they are first shown. No text from outside becomes markup (see views.document).
"""

from collections.abc import Mapping, Sequence

from specviz import __version__
from specviz.errors import SpecvizError
from specviz.lessons.load import lessons
from specviz.lessons.types import Lesson
from specviz.trace.shipped import shipped_runs, shipped_trace
from specviz.views import blocks
from specviz.views.blocks import PageBlock, PageMessage, PageRecord, pack
from specviz.views.compare.side_by_side_player import side_by_side_block
from specviz.views.document import REPORT_HTML, document, stage_template
from specviz.views.explore.feed import Feed
from specviz.views.explore.run_file import packed_run
from specviz.views.languages import packed_languages
from specviz.views.learn.lesson import SHIPPED, LessonPanel, lesson_props
from specviz.views.learn.plan import NONE_YET, PREDICT, plan
from specviz.views.learn.predict import predict_block

TITLE = "specviz: lessons in speculative decoding"
GAMES = ("first-visit", "hot", "tiny-draft", "misaligned-draft")
LEAD = "See both models' probabilities of a draft token. Accepted or rejected? Then the random draw falls."
BODY = """<header class="sv-report sv-site-head"><h1><a href="#{home}">{title}</a></h1>{pages}
<span class="sv-site-by">written by specviz {version}; works without a network</span>
<button type="button" class="sv-button" id="sv-present" aria-pressed="false">Present</button>
<button type="button" class="sv-button" id="sv-theme">Dark</button></header>
<main id="sv-file">{live}<div id="lesson"></div><div id="stage"></div>
<div id="compare"><div class="sv-report sv-pairs"><section class="sv-card sv-section">
<h2>Two runs side by side</h2>
<div class="sv-blocks"></div></section></div><div id="compare-page">{report}</div></div>
<div id="check"><div id="check-page">{report}</div></div><div id="runs"><div id="runs-page">{report}</div></div>
<div id="learn"><div id="learn-page">{report}</div></div></main>{template}"""


class SiteContent(PageRecord):
    """What a page without a server shows, apart from its runs."""

    lessons: Mapping[str, LessonPanel]
    pages: Mapping[str, PageMessage]
    runs: Sequence[str]  # the recorded runs that are offered by name
    pairs: Sequence[str]  # of these, the names of two with a dash between them


def lesson_page() -> str:
    """The whole HTML page. Raises SpecvizError where the lessons cannot be read, or where there are none."""
    content = SiteContent(lesson_panels(), {"learn": learn_page()}, runs=(), pairs=())
    data = {"sv-data": pack(content), **packed_languages()}
    for lesson in _known_lessons().values():
        for name in lesson.runs():
            key = f"sv-run-{name}"
            if key not in data:
                data[key] = run_text(name, charts=False)
    for pair in lesson_pairs():
        data[f"sv-side-by-side-{'-'.join(pair)}"] = pack(side_by_side(pair))
    body = site_body(TITLE, home="plan")
    return document(TITLE, body, entry="site.js", data=data, has_charts=False)


def site_body(title: str, home: str, pages: str = "", live: str = "") -> str:
    """The markup around the views of site.js.

    home: the page that the title leads to. pages: links to others. live: the place of the live page, if there is one.
    """
    return BODY.format(
        title=title,
        home=home,
        pages=pages,
        live=live,
        report=REPORT_HTML,
        version=__version__,
        template=stage_template(),
    )


def _known_lessons() -> Mapping[str, Lesson]:
    """All lessons. Raises SpecvizError where there are none."""
    known = lessons()
    if not known:
        raise SpecvizError(NONE_YET)
    return known


def lesson_panels() -> dict[str, LessonPanel]:
    """Each lesson as it is without a server, by name."""
    return {name: lesson_props(name, has_server=False) for name in _known_lessons()}


def lesson_pairs() -> list[tuple[str, str]]:
    """The recorded runs that lessons show side by side."""
    pairs: dict[tuple[str, str], None] = {}  # an ordered set
    for lesson in _known_lessons().values():
        for screen in lesson.screens:
            if screen.show is not None and screen.show.compare:
                pairs[screen.show.compare] = None
    return list(pairs)


def learn_page() -> PageMessage:
    """The plan and the game over the runs of GAMES that exist."""
    games = {}
    for name in GAMES:
        if name in shipped_runs():
            games[shipped_runs()[name].title] = shipped_trace(name)
    game = blocks.PageSection(PREDICT.section, PREDICT.title, LEAD, (), [predict_block(games)])
    return blocks.whole_page([plan(has_server=False), game])


def run_text(run: str, *, charts: bool) -> str:
    """A recorded run as a page holds it, under the id that the app gives it."""
    view_id = f"{SHIPPED}{run}"
    feed = Feed.from_trace(shipped_trace(run), view_id)
    packed, _ = packed_run(feed, view_id, charts=charts)
    return packed


def side_by_side(names: tuple[str, str]) -> PageBlock:
    """The block of two recorded runs."""
    left, right = names
    titles = (shipped_runs()[left].title, shipped_runs()[right].title)
    return side_by_side_block(shipped_trace(left), shipped_trace(right), "token", titles)
