"""The opening on the real page: it waits for a person, can be gone through by every hand, and comes back."""

from itertools import pairwise

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from specviz.views.explore.opening import opening, telling_step
from tests.browser.access import serious
from tests.browser.counter import WATCH_SHIFTS, seen, shifts
from tests.browser.windows import PHONE
from tests.helpers import tiny_server as pages
from tests.helpers.messages import as_json

TRACE = shipped_trace("first-visit")
BEATS = as_json(opening(TRACE, telling_step(TRACE)))["beats"]
SENTENCE = ".sv-beat-sentence"


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    with pages.served(tmp_path_factory.mktemp("models"), TRACE, max_new_tokens=48) as served:
        yield served


@pytest.fixture
def told(open_page):
    """The page at a first visit, with its opening."""

    def told(**context):
        page = open_page(**context)
        expect(page.locator(SENTENCE)).to_have_text(BEATS[0]["sentence"])
        return page

    return told


def test_nothing_runs_before_the_last_beat_which_starts_a_run(told, app):
    page = told()
    page.click(".sv-beat-mark >> nth=-1")
    expect(page.locator(SENTENCE)).to_have_text(BEATS[-1]["sentence"])
    assert app.page.registry.num_running() == 0
    before = page.evaluate("specvizPage.hub().run")
    page.click(".sv-beat-ending .sv-beat-main")
    page.wait_for_function("(before) => specvizPage.hub().run !== before", arg=before)
    assert not page.is_visible(".sv-opening")


@pytest.mark.slow
@pytest.mark.parametrize("locale", ["en-US", "de-DE"])
@pytest.mark.parametrize("size", [(1024, 768), (1366, 768)])
def test_the_first_screen_is_short_and_nothing_on_it_jumps(open_page, size, locale):
    window = {"width": size[0], "height": size[1]}
    page = open_page(simple=True, scripts=(WATCH_SHIFTS,), viewport=window, locale=locale, fresh=True)
    page.wait_for_selector(".sv-beat-mark")
    page.wait_for_timeout(1000)
    first = seen(page)
    assert len(first.controls) <= 25, first.controls
    assert len(first.words) <= 200, first.words
    assert sum(by for by, _ in shifts(page)) <= 0.02, shifts(page)


@pytest.mark.slow
def test_keys_go_through_it_and_are_not_the_stages_meanwhile(told):
    page = told()
    chosen = page.evaluate("specvizPage.hub().selected()")
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        page.keyboard.press(key)
        expect(page.locator(SENTENCE)).to_have_text(BEATS[place]["sentence"])
    assert page.evaluate("specvizPage.hub().selected()") == chosen
    page.keyboard.press("Escape")
    assert not page.is_visible(".sv-opening")
    assert page.is_visible(".sv-text")
    page.keyboard.press("Home")
    assert page.evaluate("specvizPage.hub().selected().step") == 0, "the stage's keys are heard again"


@pytest.mark.slow
def test_a_run_that_begins_takes_the_stage(told):
    page = told()
    page.click("#run")
    page.wait_for_selector(".sv-opening", state="hidden")
    page.wait_for_selector(".sv-text .sv-piece")


@pytest.mark.slow
def test_the_question_mark_plays_it_for_the_step_that_is_selected(told):
    page = told()
    page.keyboard.press("Escape")
    page.evaluate("specvizPage.hub().pin(3, specvizPage.hub().steps[3].focus)")
    page.click("[data-do=opening]")
    expect(page.locator(".sv-beat-where")).to_have_text("How one step works · step 4 of the run")
    page.keyboard.press("ArrowRight")
    expect(page.locator(SENTENCE)).to_have_text(as_json(opening(TRACE, 3))["beats"][1]["sentence"])


@pytest.mark.slow
def test_on_a_phone_every_beat_fits_the_window_and_nothing_is_hard_to_reach(told):
    page = told(viewport=PHONE, color_scheme="dark")
    for beat in range(len(BEATS)):
        page.click(f"[aria-label='beat {beat + 1} of {len(BEATS)}']")
        page.wait_for_timeout(600)
        sizes = "(node) => [node.scrollWidth - node.clientWidth, node.scrollHeight - node.clientHeight]"
        assert max(page.eval_on_selector(".sv-opening", sizes)) <= 1, BEATS[beat]["name"]
    assert serious(page) == []


@pytest.mark.slow
def test_without_motion_every_beat_is_a_still_and_short_tokens_do_not_touch(told):
    page = told(reduced_motion="reduce")
    page.click(".sv-beat-next")
    assert page.evaluate("document.querySelector('.sv-opening').getAnimations({subtree: true}).length") == 0
    page.eval_on_selector_all(
        ".sv-guess-chip .sv-body", "(nodes) => nodes.forEach((node) => { node.textContent = 'i'; })"
    )
    edges = "(nodes) => nodes.map((node) => node.getBoundingClientRect().toJSON())"
    chips = page.eval_on_selector_all(".sv-guess-chip", edges)
    on_a_line = [(one, behind) for one, behind in pairwise(chips) if one["top"] == behind["top"]]
    assert on_a_line
    assert all(one["right"] < behind["left"] for one, behind in on_a_line)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1024, 768), (1366, 768), (1920, 1080)])
def test_every_beat_fits_the_window_and_no_text_lies_on_another(told, size):
    page = told(viewport={"width": size[0], "height": size[1]})
    for beat in range(len(BEATS)):
        page.click(f"[aria-label='beat {beat + 1} of {len(BEATS)}']")
        page.wait_for_timeout(2600)
        sizes = "(node) => [node.scrollWidth - node.clientWidth, node.scrollHeight - node.clientHeight]"
        assert max(page.eval_on_selector(".sv-opening", sizes)) <= 1, BEATS[beat]["name"]
        texts = (
            ".sv-guess-chip, .sv-guess-share, .sv-guess-verdict:not(:empty), .sv-own-lead, .sv-clocks dd, .sv-beat-said"
        )
        boxes = page.eval_on_selector_all(
            texts,
            """(nodes) => nodes.map((node) => {
            const range = document.createRange();
            range.selectNodeContents(node);
            const {left, right, top, bottom} = range.getBoundingClientRect();
            return [node.textContent, left, right, top, bottom];
        })""",
        )
        for place, (one, left, right, top, bottom) in enumerate(boxes):
            for other, left_, right_, top_, bottom_ in boxes[place + 1 :]:
                apart = right <= left_ + 1 or right_ <= left + 1 or bottom <= top_ + 1 or bottom_ <= top + 1
                assert apart, f"{one!r} and {other!r} at beat {BEATS[beat]['name']}"
