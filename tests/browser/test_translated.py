"""A page that a browser translates: tokens, numbers, code and names stay; the rest changes, and goes on working."""

from __future__ import annotations

import pytest

from specviz.views import blocks
from specviz.views.document import page as one_file
from specviz.views.documentation import document_page
from specviz.views.learn.lesson_file import lesson_page
from tests.browser.explore_page import run_to_end
from tests.browser.stage_page import push, settle, stages, whole
from tests.browser.translator import MARK, texts, translated, without_marks
from tests.helpers import traces

stage = pytest.fixture(stages)
TOKENS = ".sv-text-body, .sv-cell-text, .sv-probabilities-token"
NUMBERS = (
    ".sv-probabilities-number, .sv-axis-words, .sv-chance, .sv-step-number, .sv-tile dd, .sv-count, .sv-formula, td"
)
CLICKED = 2


def changed(page, selector):
    return [text for text in texts(page, selector) if MARK in text]


def opened_twice(stage):
    """The same run on two stages, of which one is translated."""
    plain, other = stage(), stage()
    translated(other)
    for page in (plain, other):
        push(page, whole(traces.chain()))
        settle(page)
    return plain, other


def look_around(page):
    """What a person presses, over and over: tokens, another scale, the draws, the player."""
    pieces = page.locator(".sv-text .sv-piece")
    for place in range(0, CLICKED * 5, 5):
        pieces.nth(place).click()
        page.click(".sv-inspector [data-part=log]")
        page.click(".sv-inspector [data-part=log]")
        page.click("[data-do=back]")
        page.click("[data-do=last]")
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    settle(page)


def test_a_translated_stage_says_the_same_and_keeps_tokens_and_numbers_after_many_clicks(stage):
    plain, other = opened_twice(stage)
    for page in (plain, other):
        look_around(page)
    for kind in (TOKENS, NUMBERS):
        told = texts(other, kind)
        assert told == texts(plain, kind)
        assert len(told) > 20
    told = texts(other, ".sv-screen")
    assert without_marks(told) == texts(plain, ".sv-screen")
    assert told[0].count(MARK) > 50, "words may be translated"
    assert all(
        MARK in text
        for text in texts(other, ".sv-probabilities-head .sv-probabilities-q, .sv-tile dt, .sv-legend-name")
    )


def test_the_app_keeps_tokens_and_names_when_it_is_translated(page):
    translated(page)
    run_to_end(page)
    for place in range(3):
        page.locator(".sv-text .sv-piece").nth(place).click()
    assert len(texts(page, ".sv-cell-text")) > 3
    assert changed(page, f"#stage :is({TOKENS}, {NUMBERS}, .sv-chip [translate=no])") == []
    page.click("#draft input")
    page.wait_for_selector("[role=option]")
    assert changed(page, "[role=option]") == []


ROWS = [["fox", "fable-draft", 0.25], ["little dog", "my-draft", 0.5]]
SECTION = blocks.PageSection(
    "numbers", "What was found", [], [],
    [
        blocks.TableBlock(("token", "draft", "share"), ROWS, sortable=True),
        blocks.WordsBlock(["The draft gave ", "fox", " too little."]),
    ],
)  # fmt: skip


def test_a_saved_report_is_sorted_again_and_again_while_it_is_translated(opened):
    html = one_file("Report", [SECTION])
    plain, other = opened(html), opened(html)
    translated(other)
    for page in (plain, other):
        for column in (0, 2, 2, 1):
            page.locator("thead button").nth(column).click()
    assert texts(other, "td, tbody th, .sv-word") == texts(plain, "td, tbody th, .sv-word")
    told = texts(other, "#sv-page")
    assert without_marks(told) == texts(plain, "#sv-page")
    assert MARK in told[0]


def test_lessons_go_on_while_they_are_translated(opened):
    html, place = lesson_page(), "#lesson=residual"
    plain, other = opened(html, place), opened(html, place)
    translated(other)
    for _ in range(2):
        for page in (plain, other):
            page.click(".sv-lesson-foot .sv-primary")
        told = texts(other, ".sv-lesson")
        assert without_marks(told) == texts(plain, ".sv-lesson")
        assert MARK in told[0]


def test_the_code_of_a_document_is_not_translated(opened):
    page = opened(document_page("docs/python-and-shell.md"), ready="() => document.querySelector('h1')")
    before = texts(page, "code")
    translated(page)
    assert texts(page, "code") == before
    assert all(MARK in text for text in texts(page, "h1, h2"))
