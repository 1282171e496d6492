"""K over a finished run on the real page: one drag shows another K, and one press runs it for real."""

import re

import pytest
from playwright.sync_api import expect

from specviz.trace.shipped import shipped_trace
from specviz.views.explore.every_k import every_k
from specviz.views.explore.run_file import stage_page
from tests.browser.access import serious
from tests.browser.explore_page import run_to_end, slide
from tests.browser.windows import DESKTOP, PHONE

pytestmark = pytest.mark.slow

SLIDER = ".sv-every-k input"


def drag(page, k):
    page.wait_for_selector(SLIDER)  # it comes after the run's end, from the server
    page.eval_on_selector(
        SLIDER, "(node, k) => { node.value = k; node.dispatchEvent(new Event('input', {bubbles: true})); }", k
    )


CELLS = """() => [...document.querySelectorAll('.sv-lanes .sv-cell')].map((cell) => [
  cell.style.getPropertyValue('--sv-place'), [...cell.classList].find((name) => name.startsWith('sv-is-')),
  cell.querySelector('.sv-cell-text').textContent])"""


def lanes(page):
    """Place, status and text of all cells that are laid out."""
    return page.evaluate(CELLS)


def test_the_lanes_of_a_k_are_those_of_the_run_that_is_then_made_for_real(page):
    slide(page, "temperature", 0)
    slide(page, "max-tokens", 16)
    run_to_end(page)
    own = lanes(page)
    drag(page, 2)
    expect(page.locator(".sv-sentence")).to_contain_text("The lanes below are those of a real run with this K.")
    page.eval_on_selector(".sv-lanes-body", "(node) => { node.scrollTop = 0; }")
    page.wait_for_timeout(200)
    imagined, before = lanes(page), page.evaluate("specvizPage.hub().run")
    assert imagined != own
    assert serious(page) == []
    page.click(".sv-every-k button")
    page.wait_for_function(
        "(before) => specvizPage.hub().run !== before && document.documentElement.dataset.svState === 'finished'",
        arg=before,
    )
    expect(page.locator(SLIDER)).to_have_value("2")
    assert page.evaluate("specvizPage.hub().steps.every((step) => step.k === 2)")
    page.eval_on_selector(".sv-lanes-body", "(node) => { node.scrollTop = 0; }")
    page.wait_for_timeout(200)
    real = lanes(page)
    assert [cell[:2] for cell in imagined[: len(real)]] == [cell[:2] for cell in real[: len(imagined)]]


def test_above_0_no_cell_is_rejected_and_the_runs_own_lanes_come_back(open_page):
    page = open_page(viewport=PHONE, has_touch=True)
    page.click("#fold")
    run_to_end(page)
    page.wait_for_timeout(400)  # the lanes go to the token that is explained
    before = lanes(page)
    drag(page, 9)
    page.wait_for_function("document.querySelectorAll('.sv-cell.sv-is-likely').length > 4")
    assert {status for _, status, _ in lanes(page)} == {"sv-is-likely"}
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    drag(page, 4)
    page.wait_for_function("!document.querySelector('.sv-cell.sv-is-likely')")
    page.wait_for_timeout(200)
    assert lanes(page) == before


CURVE = ".sv-every-k .sv-curve"
PLACES = f"""() => [...document.querySelectorAll('{CURVE} circle')].map((mark) => [
  mark.getAttribute('class'), Number(mark.getAttribute('cx')), Number(mark.getAttribute('cy'))])"""
HEADED = "document.querySelector('.sv-lanes-of').innerText"


@pytest.mark.parametrize("size", [DESKTOP, {"width": 1024, "height": 768}, PHONE], ids=["desktop", "small", "phone"])
def test_a_curve_stands_beside_the_slider_also_before_a_room_and_the_first_column_is_headed_truly(opened, size):
    recorded = shipped_trace("first-visit")
    page = opened(stage_page(recorded, charts=False), viewport=size, has_touch=size is PHONE)
    told = every_k(recorded)
    own = ["sv-curve-own", *told.curve[told.own - 1]]
    page.wait_for_selector(CURVE)
    assert page.evaluate(PLACES) == [own]
    drag(page, 9)
    assert page.evaluate(PLACES) == [own, ["sv-curve-at", *told.curve[8]]]
    assert page.evaluate(HEADED) == "token"
    first = page.locator(".sv-row .sv-step-number").first
    expect(first).to_have_text("1")
    cells = page.locator(".sv-row").first.locator(".sv-cell")
    expect(cells).to_have_count(5)
    labels = [cell.get_attribute("aria-label") for cell in cells.all()]
    assert [label.split(":")[0] for label in labels] == [f"token {number}" for number in range(1, 6)]
    assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
    assert serious(page) == []
    page.click("#sv-present")
    expect(page.locator(CURVE)).to_be_visible()
    expect(page.locator(SLIDER)).to_be_visible()
    box, head = page.locator(CURVE).bounding_box(), page.locator(".sv-lanes-head").bounding_box()
    assert head["x"] < box["x"]
    assert box["x"] + box["width"] <= head["x"] + head["width"]


def test_where_nothing_is_left_to_chance_the_rows_are_steps(opened):
    page = opened(stage_page(shipped_trace("greedy"), charts=False))
    page.wait_for_selector(CURVE)
    drag(page, 9)
    assert page.evaluate(HEADED) == "step"
    expect(page.locator(".sv-row .sv-cell").first).to_have_attribute("aria-label", re.compile("^step 1: "))
