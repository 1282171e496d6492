"""The two games of the Learn page, guessed and typed by hand and by keys on the real page."""

import pytest

from specviz.trace import read_trace
from specviz.trace.shipped import shipped_trace
from specviz.views.learn.predict import predict_props
from tests.browser.access import serious
from tests.browser.windows import PHONE

pytestmark = pytest.mark.slow

BOARD = ".sv-predict-board"
LINE = ".sv-turns-form input[name=words]"
IDLE = "!document.querySelector('#learn .sv-report').hasAttribute('data-busy')"
WIDTHS = "[document.documentElement.scrollWidth, window.innerWidth]"
PRESSED = ".sv-predict-buttons button, .sv-turns-form :is(button, input[type=text])"
SMALL = """([pressed, least]) => [...document.querySelectorAll(pressed)]
  .filter((node) => node.offsetHeight && node.offsetHeight < least).map((node) => node.textContent)"""


def at_learn(page):
    page.click("#pages [data-page=learn]")
    page.wait_for_selector(f"{BOARD}[data-state=asked] .sv-title:not(:empty)")
    page.wait_for_selector(LINE)
    page.wait_for_function(IDLE)
    return page


def title(page):
    return page.inner_text(f"{BOARD} .sv-title")


def test_verdicts_are_guessed_on_the_page_and_another_run_is_taken(open_page):
    page = at_learn(open_page())
    asked = title(page)
    page.click(".sv-predict-accepted")
    page.wait_for_selector(f"{BOARD}[data-state=falling] .sv-random-draw")
    assert title(page) == asked
    page.wait_for_selector(f"{BOARD}[data-state=told]")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{BOARD}[data-state=asked]")
    page.keyboard.press("r")
    page.wait_for_selector(f"{BOARD}[data-state=told]")
    assert serious(page) == []
    page.select_option("[data-section=predict] select[name=run]", label="The run on the stage")
    page.click("[data-act=take]")
    page.wait_for_selector("text=there is no run to look at")  # nothing is on the stage of this page
    page.select_option("[data-section=predict] select[name=run]", index=1)
    page.click("[data-act=take]")
    page.wait_for_function(IDLE)
    first = page.eval_on_selector("[data-section=predict] select[name=run]", "(node) => node.value")
    asked = "".join(predict_props(shipped_trace(first)).places[0].ask.title)
    page.wait_for_function(
        "(words) => document.querySelector('.sv-predict-board .sv-title').textContent === words", arg=asked
    )
    page.click(".sv-predict-accepted")
    page.wait_for_selector(f"{BOARD}[data-state=told]")
    page.click("#pages [data-page=check]")
    page.click("#pages [data-page=learn]")
    page.wait_for_function(IDLE)
    assert page.get_attribute(BOARD, "data-state") == "told"


def test_on_a_phone_in_the_dark_both_games_fit_and_are_pressed(open_page):
    page = at_learn(open_page(viewport=PHONE, color_scheme="dark", reduced_motion="reduce"))
    page.evaluate("document.body.classList.add('dark')")
    page.click(".sv-predict-accepted")
    assert page.get_attribute(BOARD, "data-state") == "told"
    page.fill(LINE, "the small")
    page.click(".sv-turns-form [type=submit]")
    page.wait_for_selector(".sv-draft-game-stage .sv-cell")
    width, room = page.evaluate(WIDTHS)
    assert width <= room
    assert page.evaluate(SMALL, [PRESSED, 44]) == []
    assert serious(page) == []


def test_words_are_typed_judged_shown_and_saved(open_page):
    page = at_learn(open_page())
    for turn, words in enumerate(["the fox", "said hello to", "the dog"], 1):
        page.fill(LINE, words)
        page.press(LINE, "Enter")
        page.wait_for_selector(f".sv-turns-tiles:has-text('in {turn} turn')")
        page.wait_for_function("document.activeElement.name === 'words'")  # the line is ready for the next words
        assert page.input_value(LINE) == ""
    page.wait_for_selector(".sv-draft-game-stage .sv-lane >> nth=2")
    with page.expect_download() as download:
        page.click("text=Save this text as a trace")
    with open(download.value.path(), "rb") as file:
        trace = read_trace(file.read())
    statuses = [token.status for step in trace.steps for token in step.draft]
    cells = page.eval_on_selector_all(
        ".sv-draft-game-stage .sv-cell:not(.sv-last)", "(all) => all.map((n) => n.className)"
    )
    assert [next(s for s in statuses if f"sv-is-{s}" in name) for name in cells] == statuses
    assert page.inner_text(".sv-turns-tiles dd >> nth=0") == f"{len(trace.tokens) / 3:.2f}"
    assert refused(page, "fox " * 40) != refused(page, "fox " * 30)
    page.click("[data-act=finish]")
    page.wait_for_selector(".sv-turns-end:has-text('You finished here')")
    assert page.locator(LINE).count() == 0
    page.click("[data-act=new]")
    page.wait_for_selector(".sv-turns-prompt")
    assert page.locator(".sv-draft-game-stage").count() == 0


def test_a_page_that_is_loaded_again_still_has_its_game_and_goes_on_with_it(open_page):
    page = at_learn(open_page(reduced_motion="reduce"))
    page.fill(LINE, "the fox")
    page.press(LINE, "Enter")
    page.wait_for_selector(".sv-draft-game-stage .sv-lane")
    written = page.inner_text(".sv-draft-game-stage .sv-text")
    page.reload()
    page.wait_for_selector(".sv-draft-game-stage .sv-lane")
    assert page.inner_text(".sv-draft-game-stage .sv-text") == written
    page.wait_for_function(IDLE)
    page.fill(LINE, "said")
    page.press(LINE, "Enter")
    page.wait_for_selector(".sv-turns-tiles:has-text('in 2 turns')")


def refused(page, words):
    """What cannot be judged is said under its line, in place of what was said before, and stays there to be mended."""
    page.evaluate("window.stage = document.querySelector('.sv-draft-game-stage')")
    page.fill(LINE, words)
    page.press(LINE, "Enter")
    page.wait_for_selector(".sv-turns-problem:has-text('at most 8 tokens')")
    page.wait_for_function(IDLE)
    [said] = page.locator(".sv-turns-problem").all_inner_texts()
    assert page.locator(".toast-body").count() == 0
    assert page.input_value(LINE) == words
    assert page.get_attribute(LINE, "aria-describedby") == "sv-turns-problem"
    assert not page.is_disabled(".sv-turns-form [type=submit]")
    assert page.evaluate(
        "window.stage === document.querySelector('.sv-draft-game-stage')"
    )  # the text is not drawn anew
    return said


def test_where_a_text_ends_in_a_letter_one_choice_says_what_would_stand_there(open_page):
    page = at_learn(open_page())
    assert page.locator(".sv-turns-join").count() == 0
    for turn in range(1, 9):
        page.fill(LINE, "the fox")
        page.press(LINE, "Enter")
        page.wait_for_selector(f".sv-turns-tiles:has-text('in {turn} turn')")
        if page.locator(".sv-turns-join").count():
            break
    last, tick = page.inner_text(".sv-turns-join p b").strip("“”"), page.locator(".sv-turns-join input")
    assert page.inner_text(".sv-draft-game-stage .sv-text").strip().endswith(last)
    assert ("beginning of a word" in page.inner_text(".sv-turns-join p")) == tick.is_checked()
    page.fill(LINE, "usty")
    for is_joined, between in ((False, " "), (True, "")):
        tick.set_checked(is_joined)
        assert page.inner_text(".sv-turns-tick .sv-word") == f"{last}{between}usty"
    page.press(LINE, "Enter")
    page.wait_for_selector(f".sv-turns-tiles:has-text('in {turn + 1} turn')")
    first = page.text_content(f".sv-draft-game-stage .sv-lane >> nth={turn} >> .sv-cell >> nth=0")
    assert first.strip()[0] == "u"  # no space was put before it
