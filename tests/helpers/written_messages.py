"""Messages as the server and the files write them, by their record's name: made from recorded runs, without models."""

from collections.abc import Iterator, Sequence
from typing import Any

from specviz.alignment.report.sections import sections as alignment_sections
from specviz.alignment.report.texts import texts_block
from specviz.analysis.costs import Measured
from specviz.bench.race import Heat, Race
from specviz.checks.one_step import Share, SumIdentity
from specviz.drafters import METHODS
from specviz.lessons.draft_game import Ending, Rival
from specviz.models.pool import ModelPool
from specviz.rules import RULES
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.trace.shipped import shipped_trace
from specviz.ui.explore import library, share
from specviz.ui.explore.handlers import standing_of
from specviz.ui.registry import Registry
from specviz.ui.reports.examples import EXAMPLES
from specviz.ui.view import view_of
from specviz.views import site
from specviz.views.blocks import PageBlock, PageMessage, PageRecord, PageSection, TextsBlock, whole_page
from specviz.views.check import sections as check
from specviz.views.compare import costs, plan, plan_theory, two_runs
from specviz.views.compare.race import RaceChoices, RaceOffer, Seat, race
from specviz.views.compare.side_by_side_player import SideBySideBlock
from specviz.views.explore.every_k import every_k
from specviz.views.explore.feed import Feed
from specviz.views.explore.help import method_help
from specviz.views.explore.message import EveryK, NoOtherK, Opening, RunMessage, TokenPlace
from specviz.views.explore.opening import opening
from specviz.views.explore.panels import SharedRunLine
from specviz.views.learn import draft_game
from specviz.views.learn.draft_game import DraftGameStageBlock
from specviz.views.learn.lesson import lesson_props
from specviz.views.learn.lesson_file import lesson_panels
from specviz.views.learn.plan import plan as lesson_plan
from specviz.views.learn.predict import PredictBlock, predict_block
from tests.helpers import evidence_traces, traces
from tests.helpers.made_costs import made_costs
from tests.helpers.made_summaries import NAMES, made_summary, made_text
from tests.helpers.messages import as_json
from tests.helpers.one_file import unpacked
from tests.helpers.page_records import every_block
from tests.helpers.tiny_server import tiny_offer

PAIR = ("one-by-one", "first-visit")
TITLES = ("A · one", "B · other")
OPTIONS = [("one", "one"), ("other", "other")]
OFFER = RaceOffer(OPTIONS, ["0.0"], most_tokens=256, prompt="“Once”")
CHOICES = RaceChoices("one", "other", k_left=4, k_right=4, temperature=0.0, tokens=64, prompts=1)
AT = TokenPlace(1, "0")
RECORDED = ("first-visit", "sum")


def written_messages() -> dict[str, list[Any]]:
    """Whole messages, parsed, by the name of their record. What lies packed in one of them is a message of its own."""
    runs = [make() for make in (*traces.ALL.values(), *evidence_traces.ALL.values())]
    runs = [*(trace for trace in runs if trace.steps), *map(shipped_trace, RECORDED)]
    pages = [*_pages()]
    records = [*_run_messages(runs), *_openings(runs), *_answers(runs), *lesson_panels().values(), *pages, *_panels()]
    records += [lesson_props(next(iter(lesson_panels()))), SharedRunLine("same", ["The ", "same", " text."], AT)]
    by_record: dict[str, list[Any]] = {}
    for record in records:
        by_record.setdefault(type(record).__name__, []).append(as_json(record))
    for page in pages:
        for section in page.sections:
            for block in every_block(section.blocks):
                for name, packed in _packed_in(block):
                    by_record.setdefault(name, []).append(unpacked(packed))
    return by_record


def _packed_in(block: PageBlock) -> Iterator[tuple[str, str]]:
    """Yields the packed messages in a block, each with the name of its record."""
    if isinstance(block, SideBySideBlock):
        yield "PlayerData", block.data
    elif isinstance(block, PredictBlock):
        yield from (("PredictGame", packed) for _, packed in block.runs)
    elif isinstance(block, DraftGameStageBlock):
        yield "RunMessage", block.feed
    elif isinstance(block, TextsBlock):
        yield from (("TextChunk", chunk) for chunk in block.chunks)


def _run_messages(runs: Sequence[Trace]) -> Iterator[RunMessage]:
    for number, trace in enumerate(runs):
        yield from Feed.from_trace(trace, f"run-{number}").recorded_parts(f"run-{number}")


def _openings(runs: Sequence[Trace]) -> Iterator[Opening]:
    for trace in runs:
        for index in range(min(len(trace.steps), 4)):
            yield opening(trace, index)


def _answers(runs: Sequence[Trace]) -> Iterator[EveryK | NoOtherK]:
    for trace in runs:
        if trace.footer is not None:
            yield every_k(trace)


# ---- report pages ---------------------------------------------------------------------------------------------------


def _pages() -> Iterator[PageMessage]:
    yield whole_page(alignment_sections(made_summary(), texts_block(map(made_text, range(20)), NAMES, 40)))
    sections = [*_compare(), *_check(), *_learn()]
    yield PageMessage(sections, order=[section.id for section in sections], busy="race", say="A race goes on.")
    yield from site._pages({}, RECORDED, [PAIR]).values()


def _compare() -> Iterator[PageSection]:
    recorded = shipped_trace("first-visit")
    measured = made_costs("fable-draft", "fable-target")
    both = (shipped_trace(PAIR[0]), recorded)
    heat = Heat("a prompt", *both, (900.0, 800.0))
    yield race(OFFER, CHOICES, Race(8, 8, "", (heat,)), TITLES, seat=Seat("key", files=("one", "other")))
    yield two_runs.two_runs(OPTIONS, ("one", "other"), both, TITLES)
    yield from plan_theory.given_text(recorded, measured)
    yield plan.tool_names(recorded)
    yield PageSection(
        "examples", "Examples", "", blocks=[make() for make in EXAMPLES.values()], takes="It takes a day."
    )
    yield costs.costs(measured, context_length=128, most_context=900, running=Measured(3, 12, "checking 4 tokens"))


def _check() -> Iterator[PageSection]:
    rows = (Share(0, 0.5, 0.2, 0.2, 0.3, 0.0), Share(None, 0.5, 0.8, 0.5, 0.0, 0.3))
    found = SumIdentity(2, 1, rows, Share(None, 1.0, 1.0, 0.7, 0.3, 0.3), 4096, 1e-17)
    yield check.identity(found, lambda token: f"token {token}")
    yield check.self_checks([])
    yield check.someone_else("fable-target")


def _learn() -> Iterator[PageSection]:
    yield lesson_plan()
    yield PageSection("predict", "Guess", "A game.", blocks=[predict_block({"one": traces.chain()})])
    yield _game(Trace(), prompt="Once", rival="small", ending=Ending("fo", goes_on=True))
    yield _game(Trace(), prompt="Once", rival=None, refusal="too long", typed="a")
    begun = traces.chain()
    message = Feed.from_trace(begun, "game").since(0)
    rivals = [Rival(("a", "b"), 1, 2)] * len(begun.steps)
    yield _game(begun, rivals, "game", prompt="", rival="small", message=message)


def _game(recorded: Trace, rivals: Sequence[Rival] = (), game: str = "", **more: Any) -> PageSection:
    shown = draft_game.turns_blocks(game, {}, recorded, rivals, most=9, **more)
    return PageSection(f"be-the-draft-{more['rival']}-{game}", "You are the draft", "A game.", blocks=shown)


# ---- panels ---------------------------------------------------------------------------------------------------------


def _panels() -> Iterator[PageRecord]:
    registry = Registry()
    offer = tiny_offer()
    view = registry.show(view_of(traces.chain()), "one")
    yield share.share_props(view, None, offer)
    yield standing_of(registry, offer, Workbench(ModelPool()))({"run": view.id})
    listed, _, kept, _ = library.calls_of(registry)
    yield from listed({})
    yield kept({"run": view.id, "has": []})
    for method in METHODS.values():
        for rule in (None, *RULES.values()):
            yield method_help(method, rule, has_k=method.sets_k, lacks="The target has no heads.")
