"""The page in German, as a browser asks for it: what stays English, and numbers and tokens as on the English page."""

from __future__ import annotations

import pytest

from specviz.lessons.load import lessons
from specviz.views.learn.lesson_file import lesson_page
from tests.browser.access import serious
from tests.browser.explore_page import choose_unseen_pace, run_to_end
from tests.browser.test_slides import UNREADABLE
from tests.browser.test_translated import NUMBERS, TOKENS
from tests.browser.translator import texts

GERMAN = {"locale": "de-DE"}
LACKING = """() => [...document.querySelectorAll('[lang=en]:not(.status-tracker *)')].map((node) => node.textContent)"""
"""The texts that stayed English: a screen reader is told of each."""
OPENED = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
PRESSED = (
    """(name) => document.querySelectorAll(name).forEach((node) => { if (node.checkVisibility()) node.click(); })"""
)
NEXT = ".sv-lesson-foot .sv-primary"
RUN_VIEWS = ("accepted", "rejected", "resampled")


def lacking(page) -> list[str]:
    page.wait_for_timeout(300)
    return page.evaluate(LACKING)


@pytest.fixture
def german(open_page):
    page = open_page(**GERMAN)
    page.wait_for_function("document.documentElement.lang === 'de'")
    return page


def test_the_page_speaks_german_to_a_german_browser_and_lacks_no_word(german):
    run_to_end(german)
    for status in RUN_VIEWS:
        german.locator(f".sv-text .sv-is-{status}").first.click()
        for view in ("log", "log", "again", "many"):
            german.evaluate(PRESSED, f".sv-inspector [data-part={view}]")
    german.evaluate(OPENED)
    assert lacking(german) == []
    for drawer in ("more", "library-open", "share-open", "guide-open"):
        german.evaluate(f"document.querySelector('#{drawer}').click()")
        assert lacking(german) == [], drawer
        german.keyboard.press("Escape")
    assert german.inner_text("#run") == "Start"
    assert german.get_attribute("[data-do=forward]", "aria-label") == "ein Schritt weiter"
    assert serious(german) == []


@pytest.mark.slow
def test_tokens_and_numbers_are_those_of_the_english_page(opened):
    html = lesson_page()
    shown = []
    for language in (GERMAN, {"locale": "en-US"}):
        page = opened(html, "#lesson=acceptance-rule", **language)
        page.click(NEXT)
        page.wait_for_selector(".sv-text .sv-piece")
        page.wait_for_timeout(1500)
        shown.append([texts(page, kind) for kind in (TOKENS, NUMBERS)])
    assert shown[0] == shown[1]
    assert all(len(kind) > 20 for kind in shown[0])


@pytest.mark.slow
@pytest.mark.parametrize("name", lessons())
def test_a_lesson_is_german_from_its_question_to_its_last_answer(opened, name):
    page = opened(lesson_page(), f"#lesson={name}", **GERMAN)
    for _ in range(20):
        page.wait_for_selector("#lesson .sv-lesson-words")
        for answer in page.query_selector_all(".sv-lesson-option"):
            if answer.is_enabled():
                answer.click()
        assert lacking(page) == []
        if page.inner_text(NEXT) != "Weiter":
            break
        page.click(NEXT)
    assert page.inner_text(NEXT) in ("Nächste Lektion", "Zum Plan")


@pytest.mark.slow
def test_the_plan_and_the_games_are_german(german):
    german.evaluate("location.hash = 'learn'")
    german.wait_for_selector(".sv-plan-entry")
    german.evaluate(OPENED)
    for words in ("Lauf spielen", "Angenommen", "Nächstes Token", "Neues Spiel"):
        german.locator("button:visible", has_text=words).first.click()
        german.wait_for_timeout(1500)
        assert lacking(german) == [], words


@pytest.mark.slow
@pytest.mark.parametrize("size", [(390, 844), (1024, 768), (1366, 768)])
def test_german_words_fit_where_english_ones_do(open_page, size):
    page = open_page(viewport={"width": size[0], "height": size[1]}, simple=True, **GERMAN)
    page.wait_for_function("document.documentElement.lang === 'de'")
    choose_unseen_pace(page, "full")
    page.click("#run")
    page.wait_for_function("specvizPage.hub().end")
    page.wait_for_timeout(800)
    assert page.evaluate(UNREADABLE) == []


@pytest.mark.slow
def test_a_person_chooses_the_language_under_help(german):
    german.click("#guide-open")
    german.select_option(".sv-guide select", "en")
    german.wait_for_function("document.documentElement.lang !== 'de' && document.querySelector('#run')")
    assert german.inner_text("#run") == "Run"


@pytest.mark.slow
def test_a_browser_of_another_language_gets_english_and_asks_for_no_table(open_page):
    page = open_page(locale="fr-FR")
    asked = page.evaluate("performance.getEntriesByType('resource').map((each) => each.name)")
    assert [name for name in asked if "/words/" in name] == []
    assert page.inner_text("#run") == "Run"
    assert page.get_attribute("html", "lang") == "en"
