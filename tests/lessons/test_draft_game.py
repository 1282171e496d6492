"""Laws of "you are the draft model": typed words are judged as point masses by the target's own odds, in real steps."""

import copy
import gc
import json
import weakref
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from specviz.errors import SpecvizError
from specviz.lessons.draft_game import (
    METHOD,
    MOST_TOKENS,
    MOST_TYPED,
    Ending,
    Game,
    RefusedDraft,
    Rival,
    _find_ending,
    typed_ids,
)
from specviz.models.pool import ModelPool
from specviz.request import Request
from specviz.session.run import Run
from specviz.session.workbench import Workbench
from specviz.trace import Trace
from specviz.ui.choices import make_offer
from specviz.ui.registry import Registry
from specviz.ui.reports import games as playing
from specviz.ui.reports.games import DRAFT, ON_STAGE, PREDICT, Games, texts
from specviz.ui.reports.section import Look, StagePlace
from specviz.views.explore.feed import SO_FAR, Feed
from specviz.views.learn.draft_game import DraftGameBlock, turns_blocks
from specviz.views.learn.predict import PredictBlock
from tests.helpers import tiny_server, traces
from tests.helpers.runs import REQUEST, make_steps

WORDS = ("the small dog", "said hello", ", and", "the fox said", "hello")
NOTHING = Look(StagePlace(), None)


def played(pool, words=WORDS, **changes):
    game = Game(replace(REQUEST, **changes))
    for each in words:
        game.turn(each, pool)
    return game


def ids_before(game, index):
    steps = game.trace.steps[:index]
    return [token.id for token in game.trace.header.prompt.tokens] + [t.id for step in steps for t in step.emitted]


def reference_rows(pool, ids):
    """The target's odds after each of these ids, by the model alone."""
    with torch.inference_mode():
        return pool.load("big").model(torch.tensor([ids])).logits[0].double().softmax(-1)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_each_typed_token_is_kept_as_the_target_alone_says(named_models, temperature):
    game = played(named_models, temperature=temperature)
    fates = set()
    for index, step in enumerate(game.trace.steps):
        before = ids_before(game, index)
        rows = reference_rows(named_models, before + [token.id for token in step.draft])
        judged = [token for token in step.draft if token.is_judged]
        for place, token in enumerate(judged):
            row = rows[len(before) - 1 + place]
            p = row[token.id].item() if temperature else float(row.argmax() == token.id)
            fates.add(token.status)
            assert token.q is None
            assert token.p == pytest.approx(p, abs=1e-5)
            assert (token.status == "accepted") == (token.u < token.p_judged)
        kept = [token.id for token in judged if token.status == "accepted"]
        assert [token.id for token in step.emitted][:-1] == kept
        if judged[-1].status == "rejected":
            assert step.emitted[-1].kind == "resampled"
            assert step.emitted[-1].id != judged[-1].id
    assert "rejected" in fates


def test_what_the_target_would_write_itself_is_kept_whole():
    pool = ModelPool(allow_any=False)
    target = pool.load("fable-target")
    ids = target.text.encode("Once upon a time, there was a little")
    with torch.inference_mode():
        written = target.model.generate(torch.tensor([ids]), max_new_tokens=5, do_sample=False, pad_token_id=0)
    *greedy, last = written[0, len(ids) :].tolist()
    words = b"".join(map(target.text.bytes_of, greedy)).decode()
    request = Request(prompt="Once upon a time, there was a little", target="fable-target", temperature=0.0)
    step = Game(request).turn(words, pool)
    assert [(token.id, token.status) for token in step.draft] == [(token, "accepted") for token in greedy]
    assert (step.emitted[-1].id, step.emitted[-1].kind) == (last, "bonus")


def test_a_turn_is_one_target_call_of_a_real_trace(named_models):
    game = played(named_models)
    assert [step.calls for step in game.trace.steps] == [{"target": 1, "draft": 0}] * len(WORDS)
    assert {(s.settings.method, s.settings.draft_model, s.settings.lossless) for s in game.trace.steps} == {
        (METHOD, None, True)
    }
    assert game.trace.header.request["method"] == METHOD
    assert game.trace.header.request["draft"] is None
    assert traces.read_events(traces.events_of(game.trace)) == game.trace
    shown = json.loads(Feed.from_trace(game.trace, "run").message(0, None))
    assert len(shown["steps"]) == len(WORDS)
    assert all(step["looks"][step["focus"]]["view"] in ("overlay", "draw") for step in shown["steps"])


def test_the_rival_is_the_first_step_of_a_run_from_the_same_place(named_models):
    game = played(named_models)
    for index, (step, rival) in enumerate(zip(game.trace.steps, game.rivals, strict=True)):
        ids = tuple(ids_before(game, index))
        run = Run(
            replace(REQUEST, prompt_ids=ids, num_speculative_tokens=len(step.draft), max_new_tokens=32),
            Workbench(named_models),
        )
        make_steps(run, 1)
        theirs = run.trace.steps[0]
        assert rival.num_emitted == len(theirs.emitted)
        assert rival.num_accepted == sum(token.status == "accepted" for token in theirs.draft)
        assert list(rival.drafted) == [token.text for token in theirs.draft]


def test_without_a_draft_model_nobody_is_beside(named_models):
    assert played(named_models, WORDS[:2], draft=None).rivals == []


BAD = {
    "": "type at least one word",
    "  \t ": "type at least one word",
    "x" * 201: "at most 200 characters",
    "a\nb": "on one line",
    "a\x00b": "on one line",
    "\ud800": "on one line",
    "a\u2028b": "on one line",
    "a\u202eb": "on one line",
    " ".join(["fox"] * 30): f"at most {MOST_TYPED} tokens",
}


@pytest.mark.parametrize(("words", "why"), BAD.items(), ids=range(len(BAD)))
def test_what_cannot_be_judged_is_refused_in_words_and_changes_nothing(named_models, words, why):
    game = played(named_models, WORDS[:1])
    before = traces.lines_of(game.trace)
    with pytest.raises(RefusedDraft, match=why):
        game.turn(words, named_models)
    assert traces.lines_of(game.trace) == before
    assert len(game.rivals) == 1


def test_a_sign_of_the_models_own_is_no_word():
    text = ModelPool(allow_any=False).load("fable-target").text
    with pytest.raises(SpecvizError, match="must be ordinary text"):
        typed_ids(text, text.encode("One day"), "and <|endoftext|>")
    ending = copy.copy(text)
    ending.eos_ids = frozenset(text.encode(" fox"))  # an ordinary token that ends a text
    with pytest.raises(SpecvizError, match="must be ordinary text \\(got ' fox'"):
        typed_ids(ending, text.encode("One day"), "a fox")


@pytest.mark.parametrize(
    ("before", "words", "joined", "spelled"),
    [
        ("One day", "a fox", False, " a fox"),
        ("One day", "  a fox ", False, " a fox"),
        ("One day", ", a fox", False, ", a fox"),
        ("One d", "ay", True, "ay"),
        ("Sum: 2\n\n", "4", False, "4"),
        ("One day", "ü🦊", False, " ü🦊"),
        ("One day", "a\u00a0fox\u202f!", False, " a fox !"),
        ("One day", "\u3000a\u2003fox", False, " a fox"),
        ("One day", "नमस्\u200dते 👩\u200d🚀", False, None),
    ],
)
def test_a_space_stands_where_one_belongs(before, words, joined, spelled):
    text = ModelPool(allow_any=False).load("fable-target").text
    if spelled is None:  # written rightly; only too long for a turn
        with pytest.raises(RefusedDraft, match="at most 8 tokens"):
            typed_ids(text, text.encode(before), words, joined=joined)
        return
    ids = typed_ids(text, text.encode(before), words, joined=joined)
    assert b"".join(map(text.bytes_of, ids)).decode() == spelled


def test_a_game_ends_at_its_length_and_then_takes_no_turn(named_models):
    game = Game(REQUEST)
    while not game.is_over:
        game.turn("the fox", named_models)
    assert game.trace.footer.reason == "length"
    assert MOST_TOKENS <= len(game.trace.tokens) <= MOST_TOKENS + 2
    with pytest.raises(SpecvizError, match="begin a new game"):
        game.turn("the", named_models)


def test_a_game_is_no_longer_than_the_server_allows(named_models, monkeypatch):
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", "3")
    game = Game(REQUEST)
    while not game.is_over:
        game.turn("the", named_models)
    assert game.trace.footer.reason == "length"
    assert 3 <= len(game.trace.tokens) <= 4


def test_a_person_may_end_a_game(named_models):
    with pytest.raises(SpecvizError, match="no turn yet"):
        Game(REQUEST).finish()
    game = played(named_models, WORDS[:2])
    game.finish()
    assert (game.trace.footer.reason, len(game.trace.steps)) == ("stopped", 2)
    assert traces.read_events(traces.events_of(game.trace)) == game.trace
    for again in (game.finish, lambda: game.turn("the", named_models)):
        with pytest.raises(SpecvizError, match="begin a new game"):
            again()


def test_where_a_text_ends_in_a_letter_the_target_tells_whether_its_word_goes_on():
    pool, told = ModelPool(allow_any=False), set()
    target = pool.load("fable-target")
    letters = torch.tensor([bytes(target.text.bytes_of(token)[:1]).isalnum() for token in range(target.text.num_ids)])
    prompt = "One day, a little fox named"
    for seed in range(6):
        game = Game(Request(prompt=prompt, target="fable-target", seed=seed))
        game.turn("Tim", pool)
        ids = ids_before(game, 1)
        text = b"".join(map(target.text.bytes_of, ids)).decode()
        if game.ending is None:
            assert not text[-1].isalnum()
            continue
        with torch.inference_mode():
            probabilities = target.model(torch.tensor([ids])).logits[0, -1].softmax(-1)[: len(letters)]
        assert text.endswith(game.ending.letters)
        assert not text[: -len(game.ending.letters)][-1:].isalnum()
        assert game.ending.goes_on == (probabilities[letters].sum() > 0.5)
        told.add(game.ending.goes_on)
    assert True in told


def asked(share, limit):
    """The ending of " fox" by a target that would go on with a letter in so many of a hundred cases."""
    text = ModelPool(allow_any=False).load("fable-target").text
    probabilities = torch.full((text.num_ids,), 1e-9)
    probabilities[text.encode("s")[0]], probabilities[text.encode(" and")[0]] = share, 1 - share
    target = SimpleNamespace(text=text, info=SimpleNamespace(context_limit=limit))
    forward = SimpleNamespace(forward=lambda ids: probabilities.log()[None])
    return _find_ending(SimpleNamespace(target=target, plan=SimpleNamespace(target=forward)), text.encode("a fox"))


def test_a_word_goes_on_where_that_is_likelier_than_not():
    assert [asked(share, 99) for share in (0.3, 0.45, 0.55)] == [
        Ending("fox", goes_on) for goes_on in (False, False, True)
    ]


def test_a_text_as_long_as_the_target_reads_asks_it_no_more():
    num_ids = len(ModelPool(allow_any=False).load("fable-target").text.encode("a fox"))
    assert asked(0.9, num_ids) is None
    assert asked(0.9, num_ids + 1) == Ending("fox", True)


def test_a_games_clock_stands_still_between_two_turns(named_models):
    steps = played(named_models).trace.steps
    spent = [sum(step.timing.total_ms for step in steps[:index]) for index in range(len(steps))]
    assert [step.at_ms for step in steps] == pytest.approx(spent)
    assert spent[1] > 0


def test_between_two_turns_no_model_is_held(folder):
    pool = ModelPool(10**9, allow_any=True)
    game = Game(Request(prompt="The fox", target=str(folder), method="draft_model", draft=None))
    game.turn("said", pool)
    model = weakref.ref(pool.load(str(folder)).model)
    del pool
    gc.collect()
    assert model() is None
    assert len(game.trace.steps) == 1


# ---- the sections of the page ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    return tiny_server.tiny_library(tmp_path_factory.mktemp("models"))


@pytest.fixture
def page(pool):
    registry = Registry()
    made = Games(Workbench(pool), tiny_server.tiny_offer(), registry)
    return {section.name: section for section in made.sections()}, registry


def press(section, does, **values):
    *_, last = section.acts[does](NOTHING, values)
    return last


def block_of(props):
    return next(block for block in props.blocks if isinstance(block, DraftGameBlock))


def test_turn_by_turn_the_page_keeps_one_game_that_can_be_saved(page):
    sections, registry = page
    block = block_of(sections[DRAFT].begin(NOTHING))
    assert (block.game, block.tiles, block.can_finish) == ("", [], False)
    first = block_of(press(sections[DRAFT], "turn", words="the fox", joined="no", game="", **block.setup))
    second = block_of(press(sections[DRAFT], "turn", words="said", joined="no", game=first.game, **block.setup))
    assert second.game == first.game
    saved = registry.get(first.game).trace
    assert [step.settings.method for step in saved.steps] == [METHOD] * 2
    assert len(second.tiles) == 3
    assert second.tiles[0][0] == f"{len(saved.tokens) / 2:.2f}"
    assert "in 2 turns" in second.tiles[0][1]


def test_the_best_first_guess_is_not_rejected_in_the_game_as_it_begins():
    """The bundled pair: its target gives Rusty 69 %, and whoever types that shall not begin with a rejection."""
    pool = ModelPool(allow_any=False)
    for name, as_draft in (("fable-target", False), ("fable-draft", True)):
        pool.load(name, as_draft=as_draft)
    registry = Registry()
    section = Games(Workbench(pool), make_offer("fable-target", "fable-draft"), registry).sections()[1]
    setup = block_of(section.begin(NOTHING)).setup
    game = block_of(press(section, "turn", words="Rusty", game="", **setup)).game
    step = registry.get(game).trace.steps[0]
    likeliest = max(step.positions[0].top, key=lambda row: row[2])
    assert (likeliest[0], round(likeliest[2], 2)) == (step.draft[0].id, 0.69)
    assert [token.status for token in step.draft] == ["accepted"] * 3


def test_a_turn_belongs_to_the_game_that_was_begun_whatever_is_sent_with_it(page):
    section = page[0][DRAFT]
    first = block_of(press(section, "turn", words="the fox", game="", **block_of(section.begin(NOTHING)).setup))
    others = {"prompt": list(texts(tiny_server.tiny_offer()))[1], "temperature": "0", "seed": "99"}
    assert first.setup != others
    second = block_of(press(section, "turn", words="said", game=first.game, **others))
    assert second.setup == first.setup


def test_the_rivals_score_is_its_tokens_by_turn():
    recorded = traces.chain()
    rivals = [Rival(("a",), 1, 2), Rival(("a", "b", "c"), 3, 4), Rival(("a",), 0, 1)]
    tiles = turns_blocks("", {}, recorded, rivals, prompt="", rival="small", most=9)[0].tiles
    assert tiles[1] == ("2.33", "small, measured in the same places with as many tokens")


def test_refused_words_come_back_to_be_mended_and_the_text_stays_as_it_was(page):
    section = page[0][DRAFT]
    setup = block_of(section.begin(NOTHING)).setup
    before = press(section, "turn", words="", game="", **setup)
    assert (block_of(before).game, len(before.blocks)) == ("", 1)  # no game is kept for it
    shown = press(section, "turn", words="the fox", game="", **setup)
    game, words = block_of(shown).game, "fox " * 30
    refused = press(section, "turn", words=words, game=game, **setup)
    block = block_of(refused)
    assert (block.game, block.typed) == (game, words)
    assert block.problem.startswith(f"Your words must be at most {MOST_TYPED} tokens (got ")
    assert block.problem.count(" | ") == MOST_TYPED  # so many pieces, and the rest as one
    assert refused.blocks[1] == shown.blocks[1]  # the stage stays where it is
    assert block_of(press(section, "turn", words="\ud800x", game=game, **setup)).typed == "?x"
    assert block_of(press(section, "turn", words="said", game=game, **setup)).problem == ""


def test_a_game_is_finished_from_the_page(page):
    section = page[0][DRAFT]
    setup = block_of(section.begin(NOTHING)).setup
    game = block_of(press(section, "turn", words="the fox", game="", **setup)).game
    block = block_of(press(section, "finish", game=game, **setup))
    assert block.end.startswith("You finished here.")
    assert len(block.tiles) == 3
    with pytest.raises(SpecvizError, match="this game is gone"):
        press(section, "finish", game="nobody", **setup)


def test_the_page_names_the_length_that_a_game_has_here(page, monkeypatch):
    section = page[0][DRAFT]
    assert "until the text has 24 tokens, or" in section.begin(NOTHING).lead
    monkeypatch.setenv("SPECVIZ_MAX_NEW_TOKENS", "5")
    assert "until the text has 5 tokens, or" in section.begin(NOTHING).lead


def test_the_file_of_a_game_that_goes_on_says_so(page):
    sections, registry = page
    setup = block_of(sections[DRAFT].begin(NOTHING)).setup
    game = block_of(press(sections[DRAFT], "turn", words="the fox", game="", **setup)).game
    assert registry.get(game).unended == SO_FAR
    assert "end" not in json.loads(registry.get(game).whole())


@pytest.mark.parametrize(("letters", "goes_on"), [("R", True), ("they", False), ("<img>\u202e", True)])
def test_the_choice_at_a_letter_is_the_likelier_one_and_names_the_letters(letters, goes_on):
    [block] = turns_blocks("", {}, Trace(), [], prompt="", rival=None, most=9, ending=Ending(letters, goes_on))
    made = block.join
    assert (made.is_on, made.letters.startswith(letters[:4])) == (goes_on, True)
    assert "\u202e" not in "".join(made.words)
    assert ("beginning of a word" in made.words[2]) == goes_on


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"game": "nobody"}, "this game is gone"),
        ({"prompt": "elsewhere"}, "prompt must be one of"),
        ({"temperature": "0.7"}, "temperature must be one of"),
        ({"seed": "-1"}, "seed must be a whole number"),
    ],
)
def test_what_comes_from_elsewhere_is_refused_by_name(page, changes, why):
    section = page[0][DRAFT]
    setup = block_of(section.begin(NOTHING)).setup
    with pytest.raises(SpecvizError, match=why):
        press(section, "turn", **{"words": "the", "game": "", **setup, **changes})


def test_only_the_newest_games_are_kept(page, monkeypatch):
    monkeypatch.setattr(playing, "MOST_GAMES", 2)
    section = page[0][DRAFT]
    setup = block_of(section.begin(NOTHING)).setup
    games = [block_of(press(section, "turn", words="the", game="", **setup)).game for _ in range(3)]
    with pytest.raises(SpecvizError, match="this game is gone"):
        press(section, "turn", words="the", game=games[0], **setup)
    press(section, "turn", words="the", game=games[1], **setup)


def test_without_its_model_the_game_says_so(pool):
    offer = tiny_server.tiny_offer()
    offer = replace(offer, first=replace(offer.first, target="someone/large"))
    section = Games(Workbench(pool), offer, Registry()).sections()[1]
    [said] = section.begin(NOTHING).blocks
    assert "large is not loaded here" in said.words


def test_the_run_on_the_stage_can_be_played_and_no_run_is_said(page):
    section = page[0][PREDICT]
    *_, shown = section.acts["take"](Look(StagePlace(), traces.chain()), {"run": ON_STAGE})
    assert [type(block) for block in shown.blocks] == [PredictBlock]
    with pytest.raises(SpecvizError, match="no run to look at"):
        press(section, "take", run=ON_STAGE)
    with pytest.raises(SpecvizError, match="run must be one of"):
        press(section, "take", run="../secret")
    assert isinstance(section.begin(NOTHING).blocks[0], PredictBlock)


def test_what_nobody_drafted_is_said_in_words(page):
    *_, shown = page[0][PREDICT].acts["take"](Look(StagePlace(), Trace(traces.plain().events())), {"run": ON_STAGE})
    assert "has nothing to guess" in shown.blocks[0].words
