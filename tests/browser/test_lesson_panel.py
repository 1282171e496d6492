"""Lessons beside the real page: opened from the plan and by the address, with every kind of task, in a real browser."""

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from tests.browser.access import serious
from tests.browser.page_reports import turn_to
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers import tiny_server as pages
from tests.helpers.lesson_texts import (
    HOSTILE,
    PIN,
    hostile_lesson,
    lesson,
    other_lesson,
    screen,
    stage_lesson,
    task,
    taught,
)

HEADING = "#lesson .sv-lesson-body h3"
TASK = "#lesson .sv-lesson-task"
NEXT = "#lesson .sv-lesson-foot .sv-primary"
BACK = "#lesson .sv-lesson-foot button:text-is('Back')"
STATE = "#lesson .sv-lesson-state"
ON_STAGE = "(run) => window.specvizPage?.hub()?.run === run"


WHOLE = "(() => { const hub = specvizPage.hub(); return !hub.playing && hub.cursor === hub.steps.length; })()"
INSIDE = """([inner, outer]) => {
    const [a, b] = [inner, outer].map((each) => document.querySelector(each).getBoundingClientRect());
    return a.width > 0 && a.left >= b.left && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
}"""


def asking_lesson():
    """Screens that ask about a text, one that replays it, and one with many tokens ahead."""
    return lesson(
        "asking",
        screens=[
            screen("A", show={"run": "sum"}, task=task({"kind": "guess", "options": ["1", "2"], "reveal": "Two."})),
            screen("B", show={"run": "sum"}, task=task({"kind": "play"})),
            screen("C", task=task({"kind": "see", "runs": [{"run": "first-visit", "words": "K 4"}, "k-8"]})),
        ],
    )


def long_lesson():
    """A task that stands far below its text."""
    words = [
        f"Paragraph {number} of some length, so that the task stands below what is in sight." for number in range(8)
    ]
    options = ["None", {"words": "Some", "right": True}, "All"]
    guess = task({"kind": "guess", "options": options, "reveal": "Some of them, and here is why. " * 6})
    return lesson("long", screens=[screen("Far", words=words, show={"run": "sum"}, task=guess)])


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    lessons = [stage_lesson(), other_lesson(), asking_lesson(), long_lesson(), hostile_lesson()]
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


def test_a_lesson_puts_its_recorded_run_on_the_stage_and_counts_what_is_done_there(page):
    turn_to(page, "learn")
    page.click("#learn .sv-plan-entry:first-child a:text('Start')")
    expect(page.locator(HEADING)).to_have_text("Guess")
    assert page.is_visible("#stage")
    page.click(NEXT)
    on_stage(page, "sum")
    assert not page.locator(TASK).get_attribute("data-done")
    page.evaluate("specvizPage.hub().last()")
    done(page)
    written = page.evaluate("specvizPage.hub().steps.map((step) => step.written).join('')")
    assert written == "".join(token.text for token in shipped_trace("sum").tokens)
    page.click(NEXT)
    on_stage(page, "first-visit")
    page.wait_for_function("(pin) => JSON.stringify(specvizPage.hub().pinned) === JSON.stringify(pin)", arg=PIN)
    cuts = page.locator("#stage .sv-text .sv-piece.sv-is-rejected")
    page.wait_for_function("document.querySelectorAll('#stage .sv-text .sv-piece.sv-is-rejected').length > 3")
    for place in (1, 2):
        cuts.nth(place).click()
    done(page)


@pytest.mark.slow
def test_what_was_done_is_remembered_and_can_be_done_again(page, app):
    start(page, "stage")
    press(page, "Lost")
    done(page)
    page.reload()
    page.wait_for_selector(f"{TASK}[data-done]")
    expect(page.locator(f"{TASK} .sv-lesson-why")).to_have_text("It is replaced.")
    press(page, "Do it again")
    assert page.locator(TASK).get_attribute("data-done") is None
    press(page, "Kept")
    done(page)
    for _ in range(4):
        page.click(NEXT)
    page.click("#lesson .sv-lesson-close")
    assert page.is_hidden("#lesson")
    turn_to(page, "learn")
    expect(page.locator("#learn .sv-plan-entry").first).to_contain_text("1 of 5 tasks")
    expect(page.locator("#learn .sv-plan-entry").nth(1)).not_to_contain_text("tasks")


@pytest.mark.slow
def test_what_is_asked_about_stands_there_whole_and_only_a_replay_is_replayed(page):
    start(page, "asking")
    on_stage(page, "sum")
    page.wait_for_timeout(300)
    assert page.evaluate(WHOLE)
    page.click(NEXT)
    page.wait_for_function("specvizPage.hub().playing && specvizPage.hub().cursor > 0")
    page.click(NEXT)
    for words, run in (("K 4", "first-visit"), ("K 8", "k-8"), ("K 4", "first-visit")):
        press(page, words)
        on_stage(page, run)
        page.wait_for_timeout(300)
        assert page.evaluate(WHOLE), words
    done(page)


@pytest.mark.slow
def test_with_many_tokens_ahead_the_last_cell_is_in_sight_beside_the_lesson(page):
    start(page, "asking")
    page.click(NEXT)
    page.click(NEXT)
    press(page, "K 8")
    on_stage(page, "k-8")
    for _ in range(2):
        page.wait_for_selector("#stage .sv-stage[data-many] .sv-lane:nth-child(1) .sv-last")
        cells = page.locator("#stage .sv-lane").first.locator(".sv-cell").all()
        boxes = [cell.bounding_box() for cell in cells]
        body = page.locator("#stage .sv-lanes-body").bounding_box()
        assert all(box["x"] + box["width"] <= body["x"] + body["width"] for box in boxes)
        assert all(a["x"] + a["width"] <= b["x"] for a, b in pairwise(boxes))
        page.click("#present")
        page.wait_for_timeout(200)


@pytest.mark.slow
def test_what_the_lesson_asks_to_press_and_read_is_in_sight_beside_it(page):
    start(page, "stage")
    page.click(NEXT)
    page.click(NEXT)
    on_stage(page, "first-visit")
    page.wait_for_function("specvizPage.hub().pinned?.ref === '1'")
    for _ in range(2):
        page.wait_for_function(INSIDE, arg=["#stage [data-part=again]", "#stage .sv-inspector"])
        page.wait_for_function(INSIDE, arg=["#stage .sv-key", "#stage .sv-inspector"])
        page.wait_for_function(INSIDE, arg=["#stage .sv-piece.sv-on", "#stage .sv-text-scroll"])
        page.wait_for_function(INSIDE, arg=["#stage .sv-cell.sv-on", "#stage .sv-lanes-body"])
        assert page.evaluate("document.querySelector('#stage .sv-track').getBoundingClientRect().width") > 150
        names = page.eval_on_selector_all(
            "#stage :is(.sv-role-drafted, .sv-role-emitted) .sv-probabilities-token",
            "(all) => all.map((one) => [one.scrollWidth, one.clientWidth])",
        )
        assert names
        assert all(wanted <= room + 1 for wanted, room in names)
        page.click(NEXT)  # its task is to draw again
        page.click("#present")


@pytest.mark.slow
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


@pytest.mark.slow
def test_by_a_link_a_first_visitor_sees_the_lesson_s_run_whole_and_no_other(chromium, app, tmp_path):
    with pages.served(tmp_path, shipped_trace("hot"), max_new_tokens=48) as greeting:
        context = chromium.new_context(viewport=DESKTOP)
        page = context.new_page()
        page.goto(f"{greeting.address}/#lesson=asking")
        on_stage(page, "sum")
        page.wait_for_timeout(900)
        assert page.evaluate(WHOLE)
        assert page.evaluate("specvizPage.hub().run") == "shipped:sum"
        context.close()


@pytest.mark.slow
def test_the_way_to_a_task_out_of_sight_is_shown_and_what_comes_of_a_guess_is_in_sight(page):
    start(page, "long")
    down, reveal = page.locator("#lesson .sv-lesson-down"), "#lesson .sv-lesson-why"
    expect(down).to_be_visible()
    down.click()
    expect(down).to_be_hidden()
    body = "#lesson .sv-lesson-body"
    assert page.evaluate(INSIDE, ["#lesson .sv-lesson-row:last-child", body])
    page.evaluate("document.querySelector('#lesson .sv-lesson-body').scrollBy(0, -60)")
    page.click("#lesson .sv-lesson-option >> nth=0")
    done(page)
    assert page.evaluate(INSIDE, [reveal, body])
    for _ in range(2):
        expect(page.locator("#lesson .sv-lesson-option")).to_have_text(["Noneyour guess", "Some", "All"])
        expect(page.locator("#lesson .sv-right")).to_have_text("Some")
        page.reload()
        page.wait_for_selector(f"{TASK}[data-done]")
    expect(down).to_be_hidden()
    hands = page.locator("#lesson .sv-lesson-hands")
    expect(hands.first).to_be_hidden()
    page.click("#present")
    hands.nth(1).click()
    expect(hands).to_have_text(["0", "1", "0"])


@pytest.mark.slow
def test_a_page_that_is_loaded_anew_has_its_lesson_where_it_was(page):
    start(page, "other")
    for _ in range(3):
        page.click(NEXT)
    for _ in range(2):
        page.wait_for_selector("#compare [data-section=two-runs] .sv-text .sv-piece")
        expect(page.locator("#lesson .sv-lesson-number")).to_have_text("4 of 5")
        assert page.evaluate("location.hash") == "#compare"
        page.reload()
    page.wait_for_selector("#lesson .sv-lesson:not([hidden])")
    turn_to(page, "learn")
    page.reload()
    expect(page.locator("#lesson .sv-lesson-number")).to_have_text("4 of 5")
    assert page.evaluate("location.hash") == "#learn"
    page.click("#lesson .sv-lesson-close")
    page.reload()
    page.wait_for_selector("#learn .sv-plan")
    assert page.is_hidden("#lesson")


@pytest.mark.slow
def test_behind_a_lesson_that_the_plan_follows_with_a_game_the_game_is_offered(page):
    start(page, "asking")
    assert page.is_hidden("#lesson .sv-lesson-play")
    page.click(NEXT)
    page.click(NEXT)
    page.click("#lesson .sv-lesson-play:text-is('Play: predict the verdict')")
    page.wait_for_selector("#learn [data-section=predict] .sv-inspector")
    page.wait_for_function("document.querySelector('#learn [data-section=predict]').getBoundingClientRect().y < 600")


@pytest.mark.slow
def test_two_runs_side_by_side_and_the_game_keep_the_lesson_beside_them(page):
    start(page, "other")
    for _ in range(3):
        page.click(NEXT)
    page.wait_for_selector("#compare [data-section=two-runs] .sv-text .sv-piece")
    assert page.is_visible("#lesson")
    parts_in_sight(page)
    assert page.locator("#lesson").bounding_box()["y"] == pytest.approx(page.locator("#bar").bounding_box()["height"])
    page.click("#present")
    assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
    assert page.eval_on_selector_all(".sv-side-by-side .sv-tile > *", CLIPPED) == []
    page.click("#present")
    page.click(NEXT)
    press(page, "Open the game")
    page.wait_for_selector("#learn [data-section=predict]")
    assert page.is_visible("#lesson")
    for _ in range(2):
        page.evaluate("document.dispatchEvent(new Event('sv-predicted'))")
    done(page)


PARTS_IN_SIGHT = """(sides) => [...document.querySelectorAll('.sv-side-by-side-part')].slice(0, sides).every((part) => {
    const { y, height } = part.getBoundingClientRect();
    return y > 0 && y < innerHeight - height;
})"""
CLIPPED = """(all) => all.filter((one) => {
    return one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right + 1;
}).map((one) => one.textContent)"""


def parts_in_sight(page):
    """The parting of both texts, and nothing behind it."""
    expect(page.locator(".sv-side-by-side-part")).to_have_count(2)
    sides = 2 if page.viewport_size["width"] > PHONE["width"] else 1
    page.wait_for_function(PARTS_IN_SIGHT, arg=sides)


def test_a_hostile_lesson_stays_text(page):
    start(page, "hostile")
    expect(page.locator("#lesson .sv-lesson-title")).to_have_text(HOSTILE)
    page.locator("#lesson .sv-lesson-option").first.click()
    done(page)
    turn_to(page, "learn")
    expect(page.locator("#learn .sv-plan-entry").last.locator("xpath=preceding-sibling::li[1]")).to_contain_text(
        HOSTILE
    )
    expect(page.locator("#learn .sv-plan-done").last).to_have_text(" ✓ done")
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.slow
def test_a_lesson_that_is_not_there_is_refused_and_leads_back(page):
    start(page, "stage")
    press(page, "Kept")
    done(page)
    for name in ("<img src=x>", "%3Cb%3E", "x" * 5000, "__proto__", "nothing"):
        start(page, name)
        expect(page.locator("#lesson .sv-lesson-body")).to_contain_text("no such lesson")
        expect(page.locator("#lesson .sv-lesson-number")).to_have_text("")
        expect(page.locator("#lesson .sv-lesson > .sv-hidden")).to_have_text("")
        if name == "nothing":
            break
        page.click("#lesson .sv-lesson-close")
        assert page.is_hidden("#lesson"), name
        assert page.evaluate("location.hash") == "#explore", name
    page.click(NEXT)
    expect(page.locator("#learn .sv-plan")).to_be_visible()
    assert page.is_hidden("#lesson")


@pytest.mark.slow
def test_plan_and_lesson_are_accessible_on_a_wide_page(open_page):
    page = open_page(color_scheme="light", reduced_motion="reduce")
    start(page, "other")
    page.wait_for_selector("#lesson .sv-lesson-bars .sv-part")
    page.click(NEXT)
    press(page, "A sum")
    on_stage(page, "sum")
    page.wait_for_timeout(300)  # the bar's buttons fade in with a run
    assert serious(page) == []
    turn_to(page, "learn")
    assert serious(page) == []


@pytest.mark.slow
def test_on_a_phone_the_lesson_is_a_card_above_the_stage_that_folds(open_page):
    page = open_page(viewport=PHONE, color_scheme="dark", reduced_motion="reduce", has_touch=True)
    start(page, "stage")
    page.click(NEXT)
    on_stage(page, "sum")
    assert page.locator("#stage .sv-sentence:visible").count() == 0
    assert page.locator("#stage .sv-tile:visible").count() == 3  # the numbers that lessons point at
    assert page.locator("#stage .sv-text").bounding_box()["y"] < PHONE["height"] - 200
    box = page.locator("#lesson").bounding_box()
    assert box["width"] == PHONE["width"]
    assert box["y"] + box["height"] <= page.locator("#stage .sv-screen").bounding_box()["y"] + 1
    page.wait_for_timeout(300)
    assert serious(page) == []
    page.mouse.wheel(0, 600)
    page.wait_for_function("scrollY > 0")
    assert page.locator("#lesson").bounding_box()["y"] >= 0  # it stays in sight
    page.click("#lesson .sv-lesson-fold")
    assert page.is_hidden("#lesson .sv-lesson-body")
    assert page.locator("#lesson").bounding_box()["height"] < 90
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    expect(page.locator(STATE)).to_have_text("○ Your task")
    page.click("#lesson .sv-lesson-fold")
    page.click(NEXT)
    on_stage(page, "first-visit")
    page.click("#lesson .sv-lesson-look")
    page.wait_for_selector("#stage .sv-stage[data-sheet=open] .sv-inspector")
    assert page.locator("#lesson .sv-lesson-look").bounding_box()["height"] >= 44
    page.click("#stage [data-part=close]")
    page.click(NEXT)
    expect(page.locator(STATE)).to_have_text("○ 0 of 10")
    page.click("#lesson .sv-lesson-look")
    page.click("#stage [data-part=again]")
    expect(page.locator(STATE)).to_have_text("○ 1 of 10")
    page.click("#stage [data-part=many]")
    expect(page.locator(STATE)).to_have_text("✓ Done")
    page.click("#stage [data-part=close]")
    start(page, "other")
    for _ in range(3):
        page.click(NEXT)
    parts_in_sight(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


@pytest.mark.slow
def test_the_file_of_all_lessons_is_handed_out_from_the_plan(page):
    turn_to(page, "learn")
    with page.expect_download() as download:
        page.click("#learn .sv-plan-file a")
    assert download.value.suggested_filename == "specviz-lessons.html"
    assert "sv-run-first-visit" in download.value.path().read_text("utf-8")
