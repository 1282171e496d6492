"""The two games of the Learn page: predict the verdict, and you are the draft model.

The first needs no model. The server keeps the newest games of the second by unguessable ids; between two turns a game
holds no model.
"""

import threading
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from specviz.drafters import facts_of
from specviz.errors import SpecvizError
from specviz.lessons.draft_game import MOST_CHARACTERS, MOST_TYPED, Game, RefusedDraft, most_tokens
from specviz.request import Request
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.trace.shipped import FIRST_VISIT, shipped_runs, shipped_trace
from specviz.ui.choices import FIRST_SEED, Offer
from specviz.ui.registry import Registry
from specviz.ui.reports.section import Look, Section, Work, one_of, whole_number
from specviz.ui.reports.trace_models import NO_RUN, RunModels
from specviz.ui.view import View
from specviz.views import blocks
from specviz.views.blocks import PageBlock, PageControl, PageSection
from specviz.views.explore.feed import SO_FAR, Feed
from specviz.views.learn.draft_game import turns_blocks
from specviz.views.learn.predict import predict_block
from specviz.views.words import quantity

PREDICT = "predict"
DRAFT = "be-the-draft"
ON_STAGE = "on the stage"
MOST_GAMES = 64
MOST_SEED = 1_000_000
KINDS = ("Story", "Arithmetic")  # ready prompts that a line of words can go on with
TEMPERATURES = (
    ("0: only the target's most likely token", "0"),
    ("1: the target's own probabilities", "1"),
)
PREDICT_LEAD = (
    "You see the draft token and both models' probabilities, as the target did before it judged. Accepted or rejected? "
    "Then the random draw falls."
)
DRAFT_LEAD = (
    "Type what comes next, at most {typed} tokens a turn. The target reads all of it in one call and judges your "
    "words by speculative sampling. Your words come without probabilities, so each is accepted as often as the target "
    "itself would write it. The first rejected token is resampled by the target, perhaps as a piece of a word. Go on "
    "from there until the text has {most}, or finish early."
)
NO_MODEL = (
    "This game needs a model, and {name} is not loaded here. "
    "Load it with a run on Explore, then open this page again."
)


@dataclass(frozen=True, slots=True)
class GameSetup:
    """The beginning of a game: a ready prompt by its title, the temperature and the seed, as the fields send them."""

    prompt: str
    temperature: str
    seed: str

    def request(self, offer: Offer, draft: str | None) -> Request:
        return replace(
            offer.first,
            prompt=texts(offer)[self.prompt],
            temperature=float(self.temperature),
            seed=int(self.seed),
            draft=draft,
        )


def texts(offer: Offer) -> dict[str, str]:
    """The prompts of the game: title -> text."""
    kinds = [kind for kind in KINDS if kind in offer.prompts] or list(offer.prompts)[:1]
    found: dict[str, str] = {}
    for kind in kinds:
        found |= offer.prompts[kind]
    return found


class Games:
    def __init__(self, bench: Workbench, offer: Offer, registry: Registry) -> None:
        self._bench = bench
        self._offer = offer
        self._registry = registry
        self._models = RunModels(bench, offer)
        # the least recently played first
        self._games: OrderedDict[str, tuple[GameSetup, Game]] = OrderedDict()
        self._guard = threading.Lock()

    def sections(self) -> list[Section]:
        acts = {"turn": self._turn, "finish": self._finish, "new": self._new}
        return [
            Section(
                PREDICT, lambda look: (), self._begin_predict, {"take": self._take}, engine=False
            ),
            Section(
                DRAFT,
                lambda look: self._is_playable(),
                self._begin_draft,
                acts,
                needs=self._list_models,
            ),
        ]

    def _begin_predict(self, look: Look) -> PageSection:
        runs = _titles_of_runs()
        name = FIRST_VISIT if FIRST_VISIT in runs else next(iter(runs), ON_STAGE)
        return _predict_section(name, _find_trace(name, look) if runs else Trace())

    def _take(self, look: Look, values: Mapping[str, str]) -> Work:
        name = one_of(values, "run", [*_titles_of_runs(), ON_STAGE])
        yield _predict_section(name, _find_trace(name, look))

    def _is_playable(self) -> bool:
        return self._models.is_at_hand(self._offer.first.target)

    def _rival(self) -> str | None:
        draft = self._offer.first.draft
        return draft if draft is not None and self._models.is_at_hand(draft) else None

    def _list_models(self, look: Look) -> list[str]:
        return [name for name in (self._offer.first.target, self._rival()) if name is not None]

    def _begin_draft(self, look: Look) -> PageSection:
        if not self._is_playable():
            name = self._bench.pool.shown_name(self._offer.first.target)
            return _draft_section([], [blocks.WordsBlock(NO_MODEL.format(name=name))])
        return self._section(GameSetup(next(iter(texts(self._offer))), "1", str(FIRST_SEED)))

    def _new(self, look: Look, values: Mapping[str, str]) -> Work:
        yield self._section(self._setup(values))

    def _turn(self, look: Look, values: Mapping[str, str]) -> Work:
        game_id = values.get("game", "")
        typed = values.get("words", "")
        if game_id:
            setup, game = self._find_game(game_id)
        else:
            setup = self._setup(values)
            game = Game(setup.request(self._offer, self._rival()))
        try:
            game.turn(typed, self._bench.pool, joined=values.get("joined") == "yes")
        except RefusedDraft as error:  # shown under the line
            # without half surrogate pairs
            sendable = typed[: MOST_CHARACTERS + 1].encode("utf-8", "replace").decode()
            yield self._section(setup, game if game_id else None, game_id, str(error), sendable)
            return
        yield self._section(setup, game, game_id or self._keep(setup, game))

    def _finish(self, look: Look, values: Mapping[str, str]) -> Work:
        game_id = values.get("game", "")
        setup, game = self._find_game(game_id)
        game.finish()
        yield self._section(setup, game, game_id)

    def _setup(self, values: Mapping[str, str]) -> GameSetup:
        prompt = one_of(values, "prompt", list(texts(self._offer)))
        temperature = one_of(values, "temperature", [value for _, value in TEMPERATURES])
        return GameSetup(prompt, temperature, str(whole_number(values, "seed", 0, MOST_SEED)))

    def _find_game(self, game_id: str) -> tuple[GameSetup, Game]:
        with self._guard:
            if game_id not in self._games:
                raise SpecvizError("this game is gone: begin a new one")
            self._games.move_to_end(game_id)
            return self._games[game_id]

    def _keep(self, setup: GameSetup, game: Game) -> str:
        game_id = uuid.uuid4().hex
        with self._guard:
            self._games[game_id] = setup, game
            while len(self._games) > MOST_GAMES:
                self._games.popitem(last=False)
        return game_id

    def _section(
        self,
        setup: GameSetup,
        game: Game | None = None,
        game_id: str = "",
        refusal: str = "",
        typed: str = "",
    ) -> PageSection:
        trace = Trace()
        message = ""
        rivals = []
        ending = None
        if game is not None:  # the trace can be saved by the game's id, like any other
            trace = Trace(game.trace.events())
            feed = Feed.from_trace(trace, game_id, unended="")
            view = View(game_id, feed, trace, unended=SO_FAR)
            message = self._registry.show(view, None).whole()
            rivals = game.rivals
            ending = game.ending
        prompts = texts(self._offer)
        rival = self._rival()
        rival_name = None if rival is None else self._bench.pool.shown_name(rival)
        shown = turns_blocks(
            game_id,
            asdict(setup),
            trace,
            rivals,
            prompt=prompts[setup.prompt],
            rival=rival_name,
            most=MOST_CHARACTERS,
            message=message,
            ending=ending,
            refusal=refusal,
            typed=typed,
        )
        controls = [
            blocks.ChoiceControl(
                "prompt", "Text", [(title, title) for title in prompts], setup.prompt
            ),
            blocks.ChoiceControl("temperature", "Temperature", TEMPERATURES, setup.temperature),
            blocks.CountControl("seed", "Seed", int(setup.seed), 0, MOST_SEED),
            blocks.ButtonControl("new", "New game"),
        ]
        return _draft_section(controls, shown)


def _draft_section(controls: list[PageControl], shown: list[PageBlock]) -> PageSection:
    lead = DRAFT_LEAD.format(typed=MOST_TYPED, most=quantity(most_tokens(), "token"))
    return blocks.PageSection(DRAFT, "You are the draft model", lead, controls, shown)


def _predict_section(name: str, trace: Trace) -> PageSection:
    titles = {**_titles_of_runs(), ON_STAGE: "The run on the stage"}
    options = [(title, run) for run, title in titles.items()]
    controls = [
        blocks.ChoiceControl("run", "Run", options, name),
        blocks.ButtonControl("take", "Play this run"),
    ]
    shown = [predict_block({titles[name]: trace})]
    return blocks.PageSection(PREDICT, "Predict the verdict", PREDICT_LEAD, controls, shown)


def _titles_of_runs() -> dict[str, str]:
    """The recorded runs that draft chains for the common rule, with their titles; none where they cannot be read."""
    try:
        runs = [run for run in shipped_runs().values() if not run.broken]
    except SpecvizError:
        return {}
    titles = {}
    for run in runs:
        method = run.request.get("method", "draft_model")
        params = run.request.get("params", {})
        if facts_of(method).under(params).in_chains:
            titles[run.name] = run.title
    return titles


def _find_trace(name: str, look: Look) -> Trace:
    """The trace of a recorded run, or of the one on the stage. Raises SpecvizError where there is none."""
    if name != ON_STAGE:
        return shipped_trace(name)
    if look.trace is None:
        raise SpecvizError(NO_RUN)
    return look.trace
