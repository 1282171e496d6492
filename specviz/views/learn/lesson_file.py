"""All lessons in one HTML file: their texts, the recorded runs that they use, the stage, two runs side by side, a game.

It opens from disk without network and server, and leaves out what needs a model. Runs are stored compressed and are
unpacked when they are first shown; no text from outside becomes markup (see views.document).
"""

from collections.abc import Iterator

from specviz import __version__
from specviz.errors import SpecvizError
from specviz.lessons.load import lessons
from specviz.trace.recorded import recorded_runs, recorded_trace
from specviz.views import blocks
from specviz.views.blocks import Props, pack
from specviz.views.compare.side_by_side_player import duel_block
from specviz.views.document import document, stage_template
from specviz.views.explore.feed import Feed
from specviz.views.explore.run_file import without_charts
from specviz.views.learn.lesson import SHIPPED, lesson_props
from specviz.views.learn.plan import NONE_YET, PREDICT, plan
from specviz.views.learn.predict import predict_block

TITLE = "specviz: lessons in speculative decoding"
GAMES = ("first-visit", "hot", "tiny-draft", "misaligned-draft")
LEAD = "See both models' probabilities of a draft token. Accepted or rejected? Then the random draw falls."
BODY = f"""<header class="sv-report sv-lessons-head"><h1><a href="#plan">{TITLE}</a></h1>
<span class="sv-lessons-by">written by specviz {__version__}; works without a network</span>
<button type="button" class="sv-button" id="sv-present" aria-pressed="false">Present</button>
<button type="button" class="sv-button" id="sv-theme">Dark</button></header>
<main id="sv-file"><div id="lesson"></div><div id="stage"></div>
<div id="compare"><div class="sv-report"><section class="sv-card sv-section"><h2>Two runs side by side</h2>
<div class="sv-blocks"></div></section></div></div>
<div id="learn"><div class="sv-report"><div class="sv-report-body"></div>
<p class="sv-live sv-hidden" aria-live="polite"></p></div></div></main>"""


def lesson_page() -> str:
    """The whole HTML page. Raises SpecvizError where the lessons cannot be read, or where there are none."""
    known = lessons()
    if not known:
        raise SpecvizError(NONE_YET)
    runs = dict.fromkeys(name for lesson in known.values() for name in lesson.runs())
    shows = [screen.show for lesson in known.values() for screen in lesson.screens]
    pairs = dict.fromkeys(show.compare for show in shows if show is not None and show.compare)
    data = {
        "sv-data": pack({"lessons": {name: lesson_props(name, has_server=False) for name in known}, "page": _page()}),
        **{f"sv-run-{name}": "\n".join(map(pack, _parts(name))) for name in runs},
        **{f"sv-duel-{'-'.join(pair)}": pack(_duel(pair)) for pair in pairs},
    }
    body = BODY + stage_template()
    return document(TITLE, body, entry="lesson_file.js", data=data, has_charts=False)


def _page() -> Props:
    """The plan and the game over the runs of GAMES that exist, as a page of sections is sent."""
    games = {recorded_runs()[name].title: recorded_trace(name) for name in GAMES if name in recorded_runs()}
    game = blocks.section(PREDICT.section, PREDICT.title, LEAD, (), [predict_block(games)])
    shown = [plan(has_server=False), game]
    return {"sections": shown, "order": [section["id"] for section in shown], "busy": None, "say": ""}


def _parts(run: str) -> Iterator[Props]:
    """The run in the parts that a stage takes, from the first step on."""
    view_id = f"{SHIPPED}{run}"
    for part in Feed.from_trace(recorded_trace(run), view_id).recorded_parts(view_id):
        yield without_charts(part)


def _duel(names: tuple[str, str]) -> Props:
    return duel_block(*map(recorded_trace, names), "token", tuple(recorded_runs()[name].title for name in names))
