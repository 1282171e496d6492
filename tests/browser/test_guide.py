"""The help beside the page: its pictures are the stage's own, and it leads to the documents."""

import pytest

from tests.browser.access import serious
from tests.browser.page_reports import turn_to
from tests.browser.windows import DESKTOP, PHONE

MARKS = ["sv-is-accepted", "sv-is-rejected", "sv-is-resampled", "sv-is-bonus"]
LOOKS = "(node) => ['color', 'backgroundColor', 'textDecorationLine'].map((name) => getComputedStyle(node)[name])"


@pytest.mark.parametrize(("size", "theme"), [(DESKTOP, "light"), (PHONE, "dark")])
def test_help_opens_beside_the_page_with_pictures_of_what_stands_on_it(open_page, size, theme):
    page = open_page("?run=first-visit", viewport=size, color_scheme=theme, reduced_motion="reduce", simple=True)
    page.wait_for_function("specvizPage.hub().run === 'shipped:first-visit'")
    page.wait_for_selector("#stage .sv-cell.sv-is-rejected")
    page.click("#guide-open")
    page.wait_for_selector("#guide .sv-guide-cells")
    assert page.get_attribute("#guide-open", "aria-expanded") == "true"
    for mark in MARKS:
        here, there = (f"{part} .{mark} > .sv-body" for part in ("#guide", "#stage .sv-text"))
        assert page.locator(here).first.evaluate(LOOKS) == page.locator(there).first.evaluate(LOOKS)
    cells = page.locator("#guide .sv-cell").evaluate_all(
        "(all) => all.map((cell) => cell.className.split('sv-is-')[1])"
    )
    assert cells == ["accepted", "rejected", "ignored", "resampled"]
    fill = "(cell) => cell.querySelector('.sv-fill').getBoundingClientRect().height"
    here, there = (page.locator(f"{part} .sv-cell.sv-is-rejected").first for part in ("#guide", "#stage"))
    assert here.evaluate(fill) == there.evaluate(fill) > 0
    assert page.locator("#guide .sv-welcome-bar").count() == 1
    assert page.evaluate("document.querySelector('#guide').scrollWidth <= document.querySelector('#guide').clientWidth")
    documents = page.locator("#guide a").evaluate_all("(all) => all.map((link) => link.href)")
    assert {page.request.get(address).status for address in documents} == {200}
    assert documents[-1].endswith("/specviz/docs/README.md")
    assert serious(page) == []
    page.keyboard.press("Escape")
    page.wait_for_selector("#guide", state="hidden")
    turn_to(page, "check")
    page.click("#guide-open")
    assert page.locator("#guide").bounding_box()["y"] == page.locator("#bar").bounding_box()["height"]
