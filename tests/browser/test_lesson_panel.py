"""Lessons beside the real page: opened from the plan and by the address, with every kind of task, in a real browser."""

import pytest
import served as pages
from conftest import PHONE
from lesson_texts import HOSTILE, PIN, hostile_lesson, other_lesson, stage_lesson, taught
from playwright.sync_api import expect
from test_page_reports import turn_to
from test_stage_access import serious

from specviz.shipped import shipped_trace

HEADING = "#lesson .sv-lesson-body h3"
TASK = "#lesson .sv-lesson-task"
NEXT = "#lesson .sv-lesson-foot .sv-primary"
ON_STAGE = "(run) => specvizPage.hub()?.run === run"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    lessons = [stage_lesson(), other_lesson(), hostile_lesson()]
    assets, models = (tmp_path_factory.mktemp(name) for name in ("assets", "models"))
    with taught(assets, *lessons), pages.served(models, max_new_tokens=48) as served:
        yield served


def start(page, name):
    page.evaluate("(name) => { location.hash = `lesson=${name}`; }", name)
    page.wait_for_selector("#lesson .sv-lesson:not([hidden])")


def on_stage(page, run):
    page.wait_for_function(ON_STAGE, arg=f"shipped:{run}")


def done(page):
    expect(page.locator(TASK)).to_have_attribute("data-done", "")


def press(page, words):
    page.click(f"#lesson .sv-lesson-body button:text-is('{words}')")


def test_a_lesson_on_the_stage_from_its_guess_to_its_last_question(page):
    turn_to(page, "learn")
    page.click("#learn .sv-plan-entry:first-child a:text('Start')")
    expect(page.locator(HEADING)).to_have_text("Guess")
    assert page.is_visible("#stage")
    press(page, "Kept")
    done(page)
    expect(page.locator(f"{TASK} .sv-lesson-why")).to_have_text("It is replaced.")

    page.click(NEXT)
    on_stage(page, "sum")
    assert not page.locator(TASK).get_attribute("data-done")
    page.evaluate("specvizPage.hub().last()")
    done(page)

    page.click(NEXT)
    on_stage(page, "first-visit")
    page.wait_for_function("(pin) => JSON.stringify(specvizPage.hub().pinned) === JSON.stringify(pin)", arg=PIN)
    expect(page.locator(f"{TASK} .sv-lesson-count")).to_have_text("0 of 2")
    cuts = page.locator("#stage .sv-text .sv-piece.sv-is-rejected")
    page.wait_for_function("document.querySelectorAll('#stage .sv-text .sv-piece.sv-is-rejected').length > 3")
    cuts.nth(1).click()
    cuts.nth(1).click()
    expect(page.locator(f"{TASK} .sv-lesson-count")).to_have_text("1 of 2")
    page.locator("#stage .sv-text .sv-piece.sv-is-accepted").first.click()
    expect(page.locator(f"{TASK} .sv-lesson-count")).to_have_text("1 of 2")
    cuts.nth(2).click()
    done(page)

    page.click(NEXT)
    for _ in range(9):
        page.click("#stage [data-part=again]")
    expect(page.locator(f"{TASK} .sv-lesson-count")).to_have_text("9 of 10")
    page.click("#stage [data-part=many]")
    done(page)

    page.click(NEXT)
    press(page, "It is wrong")
    expect(page.locator(f"{TASK} .sv-lesson-why")).to_have_text("Not this one. It may be a fine word.")
    assert page.locator(TASK).get_attribute("data-done") is None
    press(page, "It is replaced")
    done(page)
    expect(page.locator("#lesson .sv-lesson > .sv-hidden")).to_contain_text("Well done indeed.")


def test_what_was_done_is_remembered_and_can_be_done_again(page, app):
    start(page, "stage")
    press(page, "Lost")
    done(page)
    page.reload()
    page.wait_for_selector(f"{TASK}[data-done]")
    press(page, "Do it again")
    assert page.locator(TASK).get_attribute("data-done") is None
    press(page, "Kept")
    done(page)
    for _ in range(4):
        page.click(NEXT)
    page.click("#lesson .sv-lesson-close")
    assert page.is_hidden("#lesson")
    turn_to(page, "learn")
    expect(page.locator("#learn .sv-plan-entry").first).to_contain_text("✓ done")
    expect(page.locator("#learn .sv-plan-entry").nth(1)).not_to_contain_text("done")


def test_a_setup_is_filled_in_and_never_run(page):
    start(page, "stage")
    for _ in range(4):
        page.click(NEXT)
    before = page.evaluate("specvizPage.hub().run")
    press(page, "Fill in this setup")
    page.wait_for_function("document.querySelector('#k input').value === '2'")
    assert page.input_value("#temperature input[type=number]") == "0.5"
    page.wait_for_timeout(500)
    assert page.evaluate("specvizPage.hub().run") == before


def test_what_is_done_elsewhere_laws_several_runs_the_making_of_a_draft(page):
    start(page, "other")
    page.wait_for_selector("#lesson .sv-lesson-law .sv-part")
    page.click(NEXT)
    press(page, "K 1")
    on_stage(page, "k-1")
    expect(page.locator(f"{TASK} .sv-lesson-count")).to_have_text("1 of 2")
    press(page, "A sum")
    on_stage(page, "sum")
    done(page)
    press(page, "K 1")
    on_stage(page, "k-1")
    page.click(NEXT)
    on_stage(page, "eagle")
    page.click("#stage [data-part=of-draft]")
    done(page)


def test_two_runs_side_by_side_and_the_game_keep_the_lesson_beside_them(page):
    start(page, "other")
    for _ in range(3):
        page.click(NEXT)
    page.wait_for_selector("#compare [data-section=two-runs] .sv-text .sv-piece")
    assert page.is_visible("#lesson")
    page.click(NEXT)
    press(page, "Open the game")
    page.wait_for_selector("#learn [data-section=predict]")
    assert page.is_visible("#lesson")
    for _ in range(2):
        page.evaluate("document.dispatchEvent(new Event('sv-predicted'))")
    done(page)


def test_a_hostile_lesson_stays_text(page):
    start(page, "hostile")
    expect(page.locator("#lesson .sv-lesson-title")).to_have_text(HOSTILE)
    page.locator("#lesson .sv-lesson-option").first.click()
    done(page)
    turn_to(page, "learn")
    expect(page.locator("#learn .sv-plan-entry").last.locator("xpath=preceding-sibling::li[1]")).to_contain_text(
        HOSTILE
    )
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("name", ["nothing", "<img src=x>", "%3Cb%3E", "x" * 5000, "__proto__"])
def test_a_lesson_that_is_not_there_is_said_so(page, name):
    start(page, name)
    expect(page.locator("#lesson .sv-lesson-body")).to_contain_text("there is no such lesson")
    page.click("#lesson .sv-lesson-close")
    assert page.is_hidden("#lesson")
    assert page.evaluate("location.hash") == "#explore"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plan_and_lesson_are_accessible_on_a_wide_page(open_page, theme):
    page = open_page(color_scheme=theme, reduced_motion="reduce")
    start(page, "other")
    page.wait_for_selector("#lesson .sv-lesson-law .sv-part")
    page.click(NEXT)
    press(page, "A sum")
    on_stage(page, "sum")
    page.wait_for_timeout(300)  # the bar's buttons fade in with a run
    assert serious(page) == []
    turn_to(page, "learn")
    assert serious(page) == []
    page.click("#pages [data-page=explore]")
    page.click("#present")
    wide = "document.querySelector('#lesson').getBoundingClientRect().width"
    assert page.evaluate(wide) == 440
    assert page.evaluate("document.querySelector('#stage .sv-screen').getBoundingClientRect().left") >= 440
    assert page.evaluate("document.documentElement.scrollWidth") <= 1366


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_on_a_phone_the_lesson_is_a_card_above_the_stage_that_folds(open_page, theme):
    page = open_page(viewport=PHONE, color_scheme=theme, reduced_motion="reduce", has_touch=True)
    start(page, "stage")
    page.click(NEXT)
    on_stage(page, "sum")
    box = page.locator("#lesson").bounding_box()
    assert box["width"] == PHONE["width"]
    assert box["y"] + box["height"] <= page.locator("#stage .sv-screen").bounding_box()["y"] + 1
    page.wait_for_timeout(300)
    assert serious(page) == []
    page.mouse.wheel(0, 600)
    page.wait_for_timeout(200)
    assert page.locator("#lesson").bounding_box()["y"] >= 0  # it stays in sight
    page.click("#lesson .sv-lesson-fold")
    assert page.is_hidden("#lesson .sv-lesson-body")
    assert page.locator("#lesson").bounding_box()["height"] < 90
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_the_file_of_all_lessons_is_handed_out_from_the_plan(page):
    turn_to(page, "learn")
    with page.expect_download() as download:
        page.click("#learn .sv-plan-file a")
    assert download.value.suggested_filename == "specviz-lessons.html"
    assert "sv-run-first-visit" in download.value.path().read_text("utf-8")


def test_the_recorded_run_on_the_stage_is_the_one_that_was_recorded(page):
    start(page, "other")
    page.click(NEXT)
    press(page, "A sum")
    on_stage(page, "sum")
    written = page.evaluate("specvizPage.hub().steps.map((step) => step.written).join('')")
    assert written == "".join(token.text for token in shipped_trace("sum").tokens)
