"""The file of all lessons, opened from disk in Chromium: every view works, nothing is asked of anybody."""

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from specviz.views.learn.lesson_file import lesson_page
from tests.browser.access import serious
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers.lesson_texts import HOSTILE, hostile_lesson, other_lesson, stage_lesson, taught

pytestmark = pytest.mark.slow

NEXT = "#lesson .sv-lesson-foot .sv-primary"
TASK = "#lesson .sv-lesson-task"
PARTS_IN_SIGHT = """() => [...document.querySelectorAll('.sv-side-by-side-part')]
  .every((part) => part.getBoundingClientRect().y < innerHeight - 30)"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("file")
    with taught(tmp_path_factory.mktemp("assets"), stage_lesson(), other_lesson(), hostile_lesson()):
        (folder / "lessons.html").write_text(lesson_page(), "utf-8")
    return folder / "lessons.html"


@pytest.fixture
def lessons(opened, file):
    """lessons(hash, viewport=..., color_scheme=...): the file, from disk."""
    return lambda place="", **options: opened(file, place, reduced_motion="reduce", **options)


def press(page, words):
    page.click(f"#lesson .sv-lesson-body button:text-is('{words}')")


def done(page):
    expect(page.locator(TASK)).to_have_attribute("data-done", "")


def test_from_the_plan_through_a_lesson_on_the_stage(lessons):
    page = lessons()
    expect(page.locator("#learn .sv-plan-entry").first).to_contain_text("The stage lesson")
    page.click("#learn .sv-plan-entry:first-child a:text('Start')")
    press(page, "Lost")
    done(page)
    page.click(NEXT)
    steps = len(shipped_trace("sum").steps)
    expect(page.locator("#stage .sv-place")).to_contain_text(f"of {steps}")
    page.click("#stage [data-do=last]")
    done(page)
    page.click(NEXT)
    page.wait_for_selector("#stage .sv-lanes .sv-on")
    cuts = page.locator("#stage .sv-text .sv-piece.sv-is-rejected")
    cuts.nth(1).click()
    cuts.nth(2).click()
    done(page)
    page.click(NEXT)
    page.click("#stage [data-part=many]")
    done(page)
    page.click(NEXT)
    assert "a file can only replay" in page.inner_text("#lesson .sv-lesson-live")
    assert "K 2" not in page.inner_text("#lesson .sv-lesson-live")
    assert page.locator("#lesson .sv-lesson-live button").count() == 0
    page.reload()
    expect(page.locator("#lesson .sv-lesson-number")).to_have_text("5 of 5")
    page.click(NEXT)
    expect(page.locator("#lesson .sv-lesson-title")).to_have_text("The other lesson")


def test_the_short_way_through_the_plan_leaves_out_what_is_not_on_it(opened):
    page = opened(lesson_page())
    entries = page.locator("#learn .sv-plan-entry:visible")
    expect(page.locator("#learn .sv-plan-ways button").first).to_have_attribute("aria-pressed", "true")
    everything = entries.count()
    page.click("#learn .sv-plan-ways button:nth-child(2)")
    for _ in range(2):
        expect(entries).to_have_count(6)
        expect(entries.nth(5).locator(".sv-plan-time span").first).to_have_text("0:36")
        page.reload()
    page.click("#learn .sv-plan-ways button:nth-child(1)")
    expect(entries).to_have_count(everything)


def test_distributions_runs_a_tree_two_runs_and_the_game(lessons):
    page = lessons("#lesson=other")
    page.wait_for_selector("#lesson .sv-lesson-bars .sv-part")
    page.click(NEXT)
    press(page, "K 1")
    press(page, "A sum")
    done(page)
    page.click(NEXT)
    page.wait_for_selector("#stage .sv-inspector [data-part=of-draft]:visible")
    page.click("#stage [data-part=of-draft]")
    done(page)
    page.click(NEXT)
    page.wait_for_selector("#compare .sv-text .sv-piece")
    assert page.locator("#compare .sv-stage").count() == 2
    expect(page.locator(".sv-side-by-side-part")).to_have_count(2)
    page.wait_for_function(PARTS_IN_SIGHT)
    assert page.locator("#compare .sv-lane").count() == 2  # as far as the parting
    page.click(NEXT)
    press(page, "Open the game")
    page.wait_for_selector("#learn [data-section=predict] .sv-inspector")
    assert page.is_visible("#lesson")
    page.click("#lesson .sv-lesson-close")
    assert page.is_hidden("#lesson")
    assert page.is_visible("#learn .sv-plan")


def test_a_hostile_lesson_stays_text(lessons):
    page = lessons("#lesson=hostile")
    expect(page.locator("#lesson .sv-lesson-title")).to_have_text(HOSTILE)
    page.locator("#lesson .sv-lesson-option").first.click()
    done(page)
    assert page.locator("img").count() == 0
    page.evaluate("location.hash = '#lesson=<b>x'")
    assert page.is_hidden("#lesson")
    page.evaluate("location.hash = '#lesson=constructor'")
    expect(page.locator("#lesson .sv-lesson-body")).to_contain_text("no such lesson")


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_it_fits_and_is_accessible(lessons, size, theme):
    page = lessons(viewport=size, color_scheme=theme)
    assert serious(page) == []
    for place, wait in (("stage", TASK), ("other", "#lesson .sv-lesson-bars .sv-part")):
        page.evaluate("(place) => { location.hash = `#lesson=${place}`; }", place)
        page.wait_for_selector(wait)
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    page.click(NEXT)
    page.click(NEXT)
    page.wait_for_selector("#stage .sv-lanes .sv-cell")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]


def test_present_and_theme_work_and_the_theme_is_the_person_s(lessons):
    page = lessons("#lesson=stage")
    page.click("#sv-present")
    assert page.evaluate("document.querySelector('#lesson').getBoundingClientRect().width") == DESKTOP["width"]
    for _ in range(2):
        page.click(NEXT)
    page.wait_for_selector("#stage .sv-cell.sv-on.sv-is-rejected")
    page.click(NEXT)  # its task is to draw again
    page.wait_for_selector("#stage [data-part=again]")
    again = page.locator("#stage [data-part=again]").bounding_box()
    assert again["width"] > 0
    assert again["y"] + again["height"] <= DESKTOP["height"]
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelector('#lesson').getBoundingClientRect().width") == 340
    page.click("#sv-theme")
    assert page.evaluate("document.body.classList.contains('dark')")
