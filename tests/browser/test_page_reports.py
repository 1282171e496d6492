"""Compare and Check on the real page: opened, left, worked with and stopped, in a real browser."""

import pytest
from playwright.sync_api import expect

from tests.browser.access import serious
from tests.browser.explore_page import begin, choose_pace, open_file, run_to_end, stop
from tests.browser.page_reports import IDLE, SECTIONS, turn_to
from tests.browser.windows import DESKTOP, PHONE
from tests.helpers import traces

VIEWS = ((DESKTOP, "light"), (PHONE, "dark"))


def press(page, name, section, does):
    page.click(f"#{name} [data-section={section}] [data-act={does}]")
    page.wait_for_function(IDLE, arg=name)


def verdicts(page, section):
    return page.eval_on_selector_all(
        f"[data-section={section}] .sv-verdict",
        "(nodes) => nodes.map((node) => node.className.split('sv-verdict-')[1])",
    )


def fits_and_is_accessible(page, size, theme):
    """What the page shows now, in a window of this size."""
    page.set_viewport_size(size)
    page.emulate_media(color_scheme=theme)
    page.wait_for_function("(is_dark) => document.body.classList.contains('dark') === is_dark", arg=theme == "dark")
    page.wait_for_function("() => document.documentElement.scrollWidth <= innerWidth")
    assert serious(page) == []


@pytest.mark.slow
def test_both_pages_fit_and_are_accessible_with_everything_on_them(open_page):
    """At both widths and in both themes; what is asked for is asked once."""
    page = open_page(fresh=True)
    run_to_end(page)
    turn_to(page, "compare")
    names = page.eval_on_selector_all("#compare .sv-section", "(all) => all.map((one) => one.dataset.section)")
    assert names == SECTIONS["compare"]
    press(page, "compare", "costs", "measure")
    press(page, "compare", "other-drafts", "ask")
    press(page, "compare", "why-slow", "speed")
    page.wait_for_selector("#compare .sv-plot .main-svg")
    for size, theme in VIEWS:
        fits_and_is_accessible(page, size, theme)
    turn_to(page, "check")
    press(page, "check", "one_step", "redraw")
    press(page, "check", "side_by_side", "judge")
    press(page, "check", "self_checks", "self")
    for size, theme in VIEWS:
        fits_and_is_accessible(page, size, theme)


@pytest.mark.slow
def test_only_one_page_is_shown_and_the_address_names_it(page, app):
    run_to_end(page)
    turn_to(page, "check")
    assert page.is_hidden("#stage")
    assert page.is_hidden("#setup")
    assert page.is_hidden("#compare")
    assert page.evaluate("location.hash") == "#check"
    page.go_back()
    page.wait_for_selector("#stage", state="visible")
    assert page.is_hidden("#check")


@pytest.mark.slow
def test_a_page_named_in_the_address_opens_with_the_run_that_was_there(page):
    run_to_end(page)
    turn_to(page, "compare")
    page.reload()
    page.wait_for_selector("#compare .sv-segments")
    assert page.is_hidden("#stage")


def test_the_contents_of_compare_lead_to_every_section(page):
    """Also by an address with a section in it."""
    turn_to(page, "compare")
    links = page.locator("#compare .sv-contents a")
    expect(links).to_have_count(len(SECTIONS["compare"]))
    for name in (SECTIONS["compare"][-1], SECTIONS["compare"][3]):
        page.click(f'#compare .sv-contents a[href="#compare/{name}"]')
        expect(page.locator(f"#compare [data-section={name}] h2")).to_be_in_viewport()
        assert page.evaluate("location.hash") == f"#compare/{name}"


@pytest.mark.slow
def test_the_identity_follows_the_pinned_token(page):
    run_to_end(page)
    before = ""
    for place in (0, 1):
        page.locator(".sv-cell.sv-is-accepted, .sv-cell.sv-is-rejected").nth(place).click()
        turn_to(page, "check")
        words = page.locator("[data-section=identity] .sv-words").first
        expect(words).not_to_have_text(before)  # what was shown last stays until the new token's has come
        expect(page.locator("[data-section=identity] .sv-verdict-exact")).to_have_count(1)
        assert verdicts(page, "identity") == ["exact"]
        before = words.text_content()
        turn_to(page, "explore")


@pytest.mark.slow
def test_redraws_of_a_broken_rule_end_with_differs_and_stay_when_one_comes_back(page):
    run_to_end(page)
    turn_to(page, "check")
    page.select_option("[data-section=one_step] [name=rule]", "broken:argmax_target")
    press(page, "check", "one_step", "redraw")
    assert verdicts(page, "one_step") == ["differs"] * 3
    turn_to(page, "explore")
    turn_to(page, "check")
    assert verdicts(page, "one_step") == ["differs"] * 3
    assert page.input_value("[data-section=one_step] [name=rule]") == "broken:argmax_target"


@pytest.mark.slow
def test_long_work_can_be_stopped_and_the_page_goes_on(page):
    run_to_end(page)
    turn_to(page, "check")
    page.fill("[data-section=end_to_end] [name=tokens]", "1000000")
    page.click("[data-section=end_to_end] [data-act=write]")
    page.wait_for_selector("[data-section=end_to_end] .sv-job button")
    assert page.is_disabled("[data-section=self_checks] [data-act=self]")
    page.click("[data-section=end_to_end] .sv-job button")
    page.wait_for_function(IDLE, arg="check")
    assert verdicts(page, "end_to_end") == []
    press(page, "check", "self_checks", "self")
    assert set(verdicts(page, "self_checks")) <= {"consistent", "unsure"}


@pytest.mark.slow
def test_a_run_goes_on_while_a_check_is_made(page):
    begin(page, steps=2)
    turn_to(page, "check")
    press(page, "check", "self_checks", "self")
    turn_to(page, "explore")
    before = len(page.query_selector_all(".sv-step-bar"))
    page.wait_for_function("(count) => document.querySelectorAll('.sv-step-bar').length > count", arg=before)
    stop(page)


def scored(pieces=traces.STORY):
    """A finished trace with the scores that the what-if needs."""
    builder = traces.Builder(pieces, seed=3)
    for drafted, kept in traces.CHAINS * 3:
        builder.chain(drafted, kept)
    return builder.score().finish()


@pytest.mark.slow
def test_the_slider_of_an_opened_trace_asks_nobody(page, tmp_path):
    open_file(page, tmp_path, scored())
    turn_to(page, "compare")
    page.wait_for_selector(".sv-segments")
    page.wait_for_function("JSON.parse(sessionStorage.getItem('specviz-made') || '{}').run === specvizPage.hub().run")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    before = page.locator(".sv-segment").count()
    page.focus(".sv-segments input")
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    assert page.locator(".sv-segment").count() > before
    assert [address for address in asked if not address.endswith("/plotly.min.js")] == []  # a chart may come into sight


@pytest.mark.slow
def test_what_a_hostile_trace_brings_stays_text(page, tmp_path):
    open_file(page, tmp_path, scored(traces.HOSTILE))
    for name in SECTIONS:
        turn_to(page, name)
        assert page.evaluate(f"document.querySelectorAll('#{name} :is(img, script, iframe)').length") == 0


@pytest.mark.slow
def test_presenting_works_on_these_pages_too(page):
    run_to_end(page)
    turn_to(page, "compare")
    before = page.eval_on_selector("#compare h2", "(node) => node.getBoundingClientRect().height")
    page.click("#present")
    assert page.eval_on_selector("#compare h2", "(node) => node.getBoundingClientRect().height") > before
    assert page.is_hidden("#setup")
    page.keyboard.press("Escape")


@pytest.mark.slow
def test_a_button_that_is_refused_can_be_pressed_again(page):
    page.evaluate("sessionStorage.setItem('specviz-run', ''); localStorage.setItem('specviz-run', '-')")
    page.reload()
    page.wait_for_function("window.specvizPage?.hub() && document.querySelector('#k input')")
    turn_to(page, "check")
    for _ in range(3):
        press(page, "check", "self_checks", "self")
        page.wait_for_selector(".toast-body.error")
    assert page.is_enabled("[data-section=self_checks] [data-act=self]")


@pytest.mark.slow
def test_a_run_that_ends_brings_its_text_to_the_page_that_is_open(page):
    choose_pace(page, "full")
    page.click("#run")
    page.click("#pages [data-page=compare]")
    page.wait_for_selector("#compare .sv-segments")
